"""CUDA tensors in and out: devices of inputs, DLPack exports, on the fake driver."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import capsules
import numpy as np
import pytest
from capsules import CUDA, Export, Producer
from cuda_fakes import FakeDriver, Goldens, pointer

import pteron
from pteron import ExecuTorchResult, errors

from_host = ExecuTorchResult.from_host


# Devices of inputs (M1 to M7)

BOTH = "expected on device cuda:0"
HINT = "pass device memory through DLPack, for example a CuPy array"


def refused(method: pteron.Method, x: Any) -> str:
    """The text with which x is refused as input 1."""
    with pytest.raises(errors.DeviceError) as caught:
        method.execute([from_host(np.ones((2, 3), np.float32), "cuda:0"), x])
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


@pytest.mark.parametrize(
    "convert",
    [np.asarray, lambda x: memoryview(x), lambda x: from_host(x), Producer, lambda x: x.T.copy().T],
    ids=["M1 NumPy", "M1 buffer", "a host result", "M5 DLPack", "M3 strided"],
)
def test_host_input_for_a_device(
    driver: FakeDriver, golden: Goldens, convert: Callable[[Any], Any]
) -> None:
    """M1, M3, M5: input, method, both devices and the way out are named, and nothing runs."""
    method = golden("add_devio").load().load_method()
    before = driver.counters()
    text = refused(method, convert(np.ones((2, 3), np.float32)))
    assert text.startswith("Input 1 of method 'forward' is on device cpu, " + BOTH)
    assert HINT in text
    assert "launches" not in driver.since(before)


def test_host_capsule_for_a_device(golden: Goldens) -> None:
    """M5, M36: a bare capsule; refused, it is still the caller's."""
    method = golden("add_devio").load().load_method()
    export = Export(np.ones((2, 3), np.float32))
    capsule = export.capsule()
    assert BOTH in refused(method, capsule)
    assert capsules.name_of(capsule) == "dltensor_versioned"
    assert export.deleted == 0


def test_device_input_for_the_host(driver: FakeDriver, golden: Goldens) -> None:
    """M6: both devices are named and the pointer is not read: it leads nowhere."""
    method = golden("add").load().load_method()
    x = np.ones((2, 3), np.float32)
    capsule = Export(x, device_type=CUDA, data=64).capsule()
    with pytest.raises(errors.DeviceError) as caught:
        method.execute([x, capsule])
    assert "Input 1 of method 'forward' is on device cuda:0, expected on device cpu" in str(
        caught.value
    )
    result = from_host(x, "cuda:0")
    with pytest.raises(errors.DeviceError, match=r"is on device cuda:0, expected on device cpu"):
        method.execute([x, result])


def test_input_on_another_device(golden: Goldens) -> None:
    """M7: both devices are named."""
    method = golden("add_devio").load().load_method()
    there = Export(np.ones((2, 3), np.float32), device_type=CUDA, device_id=1, data=64).capsule()
    assert "is on device cuda:1, " + BOTH in refused(method, there)


def test_empty_host_input_for_a_device(golden: Goldens) -> None:
    """M2: without elements there is no device to be on; the shape decides."""
    method = golden("add_devio").load().load_method()
    x = from_host(np.ones((2, 3), np.float32), "cuda:0")
    with pytest.raises(errors.InputError, match=r"has shape \(0, 3\), expected \(2, 3\)"):
        method.execute([x, np.ones((0, 3), np.float32)])


def test_capsules_and_producers_on_the_device(golden: Goldens) -> None:
    """M36: foreign device memory is read where it is, and let go once."""
    program = golden("add_devio")
    method = program.load().load_method()
    x, y = program.place(method)

    def foreign(result: Any, array: Any, kind: Callable[..., Any], versioned: bool) -> Any:
        return kind(array, versioned, device_type=CUDA, data=pointer(result))

    class CudaProducer(Producer):
        def __dlpack_device__(self) -> tuple[int, int]:
            return (CUDA, 0)

    for versioned in (False, True):
        export = foreign(x, program.inputs[0], Export, versioned)
        producer = CudaProducer(
            program.inputs[1], versioned=versioned, device_type=CUDA, data=pointer(y)
        )
        program.check(method.execute([export.capsule(), producer]))
        assert (export.deleted, producer.deleted) == (1, [1])
        assert method.copied == (False, False)


def test_strided_device_input(golden: Goldens) -> None:
    """A device tensor with gaps is refused by its layout, not by its device."""
    method = golden("add_devio").load().load_method()
    x = from_host(np.ones((2, 3), np.float32), "cuda:0")
    wrong: dict[str, Any] = {"strides": (1, 2), "device_type": CUDA, "data": pointer(x)}
    capsule = Export(np.ones((2, 3), np.float32), **wrong).capsule()
    with pytest.raises(errors.InputError, match="not packed in memory"):
        method.execute([x, capsule])


# Export (M27 to M29)


def test_export_shares(golden: Goldens) -> None:
    """M27, M52: the capsule has the result's own memory and device."""
    program = golden("add_devio")
    (out,) = program.load().load_method().execute(program.place(program.load().load_method()))
    assert out.__dlpack_device__() == (CUDA, 0)
    for keywords in ({}, {"copy": False}, {"dl_device": (CUDA, 0), "copy": False}):
        capsule = out.__dlpack__(**keywords)
        tensor = capsules.struct_of(capsule).tensor
        assert (tensor.data, tensor.device_type, tensor.device_id) == (pointer(out), CUDA, 0)


def test_export_to_the_host(golden: Goldens) -> None:
    """M27: another device gets a copy, or with copy=False a BufferError."""
    program = golden("add_devio")
    method = program.load().load_method()
    (out,) = method.execute(program.place(method))
    capsule = out.__dlpack__(dl_device=(1, 0), max_version=(1, 0))
    managed = capsules.struct_of(capsule)
    assert (managed.tensor.device_type, managed.flags) == (1, capsules.IS_COPIED)
    program.check([from_host(capsule)])
    with pytest.raises(BufferError, match="another device can have a copy"):
        out.__dlpack__(dl_device=(1, 0), copy=False)


def test_export_of_a_copy(driver: FakeDriver, golden: Goldens) -> None:
    """M27: a copy on the same device, and one of host memory on the device."""
    program = golden("add_devio")
    method = program.load().load_method()
    stream = driver.new_stream(False)
    driver.defer(True)
    (out,) = method.execute(program.place(method), stream=stream)
    capsule = out.__dlpack__(copy=True, max_version=(1, 0))
    managed = capsules.struct_of(capsule)
    assert managed.flags == capsules.IS_COPIED
    assert managed.tensor.data != pointer(out)
    program.check(method.execute([capsule, from_host(np.zeros((2, 3), np.float32), "cuda")]))
    host = out.to_host()
    there = host.__dlpack__(dl_device=(CUDA, 0))
    assert capsules.struct_of(there).tensor.device_type == CUDA
    program.check(method.execute([there, from_host(np.zeros((2, 3), np.float32), "cuda")]))
    with pytest.raises(BufferError, match="another device can have a copy"):
        host.__dlpack__(dl_device=(CUDA, 0), copy=False)


@pytest.mark.parametrize(
    ("keywords", "error", "words"),
    [
        ({"dl_device": (10, 0)}, BufferError, "cannot be exported to DLPack device (10, 0)"),  # M28
        ({"dl_device": (1, 3)}, BufferError, "(1, 3)"),
        ({"dl_device": (CUDA, 5)}, BufferError, "(2, 5)"),
        ({"stream": 0}, BufferError, "stream must be None, -1, 1"),  # M29
        ({"stream": -2}, BufferError, "stream must be None, -1, 1"),
        ({"stream": 2**70}, BufferError, "stream must be None, -1, 1"),
        ({"stream": 1.0}, TypeError, "stream must be None or an int"),
        ({"stream": True}, TypeError, "stream must be None or an int"),
        ({"stream": "1"}, TypeError, "stream must be None or an int"),
    ],
    ids=str,
)
def test_refused_exports(
    golden: Goldens, keywords: dict[str, Any], error: type[Exception], words: str
) -> None:
    """M28, M29."""
    result = from_host(np.ones(3, np.float32), "cuda:0")
    with pytest.raises(error) as caught:
        result.__dlpack__(**keywords)
    assert words in str(caught.value)


def test_memory_outlives_its_makers(driver: FakeDriver, golden: Goldens) -> None:
    """A capsule keeps device memory when result, method and program are gone."""
    program = golden("add_devio")
    method = program.load().load_method()
    (out,) = method.execute(program.place(method))
    capsule = out.__dlpack__()
    del out, method
    gc.collect()
    zeros = from_host(np.zeros((2, 3), np.float32), "cuda:0")
    program.check(program.load().load_method().execute([capsule, zeros]))
