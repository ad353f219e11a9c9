"""Two CUDA devices, on the fake driver: it flags what is used in another device's context."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable
from typing import Any

import capsules
import cuda_fakes
import numpy as np
import pytest
from capsules import CUDA
from cuda_fakes import FakeDriver, Goldens, pointer

import pteron
from pteron import ExecuTorchResult, errors

from_host = ExecuTorchResult.from_host
ADD1 = "add1_devio"  # on cuda:1
SUMS = "sums_devio"  # x + y on cuda:0, z + w on cuda:1
HOST_SUMS = "sums"


@pytest.mark.parametrize("name", [ADD1, SUMS, HOST_SUMS])
def test_programs(driver: FakeDriver, golden: Goldens, name: str) -> None:
    """Each part runs on its device, and its results are there."""
    program = golden(name)
    method = program.load().load_method()
    for _ in range(3):
        outputs = method.execute(program.place(method))
        program.check(outputs)
        for out, info in zip(outputs, method.metadata.outputs, strict=True):
            assert out.device == info.device()
            if out.device != "cpu":
                assert f"cuda:{driver.device_of(pointer(out))}" == out.device
    used = {info.device() for info in method.metadata.outputs}
    assert used == {ADD1: {"cuda:1"}, SUMS: {"cuda:0", "cuda:1"}, HOST_SUMS: {"cpu"}}[name]


@pytest.mark.parametrize("current", [None, 0, 1])
def test_contexts_are_restored(driver: FakeDriver, golden: Goldens, current: int | None) -> None:
    """The context that the caller had is current again after whatever pteron does."""

    def now() -> int | None:
        context = ctypes.c_void_p()
        driver.handle.cuCtxGetCurrent(ctypes.byref(context))
        return context.value

    def everything() -> None:
        before = now()
        program = golden(SUMS)
        method = program.load().load_method()
        stream = driver.new_stream(False, 1)
        inputs = program.place(method)
        program.check(method.execute(inputs))
        (out,) = golden(ADD1).load().load_method().execute(inputs[2:], stream=stream)
        out.to_host()
        out.__dlpack__(dl_device=(CUDA, 0))
        with pytest.raises(errors.DeviceError):
            method.execute(inputs[::-1])
        del out, inputs, method
        assert now() == before

    if current is None:
        everything()
    else:
        with driver.context(current):
            everything()


# Inputs (M7)


def test_input_on_another_device(golden: Goldens) -> None:
    """M7: both devices are named."""
    x = np.ones((2, 3), np.float32)
    there, here = from_host(x, "cuda:1"), from_host(x, "cuda:0")
    for name, good, wrong in (("add_devio", here, there), (ADD1, there, here)):
        with pytest.raises(errors.DeviceError) as caught:
            golden(name).load().load_method().execute([good, wrong])
        assert str(caught.value).startswith(
            f"Input 1 of method 'forward' is on device {wrong.device}, "
            f"expected on device {good.device}"
        )


# Waits (M17 to M20)


@pytest.mark.parametrize(
    ("name", "waits"),
    [("add_devio", (2, 0)), (ADD1, (0, 2)), (SUMS, (2, 2)), (HOST_SUMS, (0, 0))],
)
@pytest.mark.parametrize("kind", ["method", "module"])
def test_waits(
    driver: FakeDriver, golden: Goldens, name: str, waits: tuple[int, int], kind: str
) -> None:
    """M17 to M20: one wait before and one after for each device that has an input or output."""
    program = golden(name)
    loaded = program.load()
    method = loaded.load_method()
    run: Callable[[Any], Any] = method.execute
    if kind == "module":
        run = pteron.Module(loaded).forward
    inputs = program.place(method)
    run(inputs)
    before = [driver.device_waits(device) for device in (0, 1)]
    run(inputs)
    after = [driver.device_waits(device) for device in (0, 1)]
    assert (after[0] - before[0], after[1] - before[1]) == waits


@pytest.mark.parametrize("empty", [0, 1])
def test_no_waits_without_elements(driver: FakeDriver, golden: Goldens, empty: int) -> None:
    """M20: a device on which all tensors have no elements is not waited for, the other one is."""
    program = golden(SUMS)
    sizes = struct.pack("<3i", 2, 2, 3)  # in the file: both outputs, then the inputs, all backwards
    places = [match.start() for match in re.finditer(re.escape(sizes), program.data)]
    assert len(places) == 6
    data = bytearray(program.data)
    for i in {0: (1, 4, 5), 1: (0, 2, 3)}[empty]:
        struct.pack_into("<3i", data, places[i], 2, 0, 3)
    method = program.load(bytes(data)).load_method()
    for i, info in enumerate(method.metadata.inputs):
        assert (0 in info.sizes()) == (i // 2 == empty)
    arrays = [x[:0] if i // 2 == empty else x for i, x in enumerate(program.inputs)]
    inputs = program.place(method, arrays)
    before = [driver.device_waits(device) for device in (0, 1)]
    method.execute(inputs)
    assert driver.device_waits(empty) == before[empty]
    assert driver.device_waits(1 - empty) == before[1 - empty] + 2


@pytest.mark.parametrize("device", [0, 1])
def test_late_inputs(driver: FakeDriver, golden: Goldens, device: int) -> None:
    """M21: what a foreign stream of either device is still to write is waited for."""
    program = golden(SUMS)
    method = program.load().load_method()
    zeros = [np.zeros_like(x) for x in program.inputs]
    inputs, late = program.place(method, zeros), program.place(method)
    for i in {0: (2, 3), 1: (0, 1)}[device]:
        inputs[i] = late[i]
    stream = driver.new_stream(False, device)
    copy = driver.handle.cuMemcpyDtoDAsync_v2
    copy.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
    driver.defer(True)
    with driver.context(device):
        for i in (2 * device, 2 * device + 1):
            assert copy(pointer(inputs[i]), pointer(late[i]), 24, stream) == 0
    program.check(method.execute(inputs))


def test_streams(driver: FakeDriver, golden: Goldens) -> None:
    """A run on a stream of its device waits for nothing and its results have events there."""
    program = golden(ADD1)
    method = program.load().load_method()
    stream, other = driver.new_stream(False, 1), driver.new_stream(True, 1)
    driver.defer(True)
    inputs = program.place(method)
    before = driver.counters()
    (out,) = method.execute(inputs, stream=stream)
    zeros = from_host(np.zeros((2, 3), np.float32), "cuda:1")
    (again,) = method.execute([out, zeros], stream=other)
    assert not {"device_waits", "stream_waits", "event_waits"} & driver.since(before).keys()
    program.check([again])
    for consumer in (1, 2, other, None):
        out.__dlpack__(stream=consumer)


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_streams_of_another_device(driver: FakeDriver, golden: Goldens, cuda_graph: bool) -> None:
    """A stream is one device's: this is said before an input is read."""
    program = golden(ADD1)
    method = program.load().load_method(cuda_graph=cuda_graph)
    inputs = program.place(method)
    here, there = driver.new_stream(False, 0), driver.new_stream(False, 1)
    words = "stream is a stream of cuda:0, and method 'forward' works on cuda:1"
    for call in (method.execute, lambda inputs, stream: method(*inputs, stream=stream)):
        with pytest.raises(errors.ArgumentError, match=words):
            call([object()] * len(inputs), stream=here)
    module = pteron.Module(program.load())
    with pytest.raises(errors.ArgumentError, match=words):
        module.forward(inputs, stream=here)
    for stream in (0, 1, 2, there):
        program.check(method.execute(inputs, stream=stream))


def test_streams_of_methods_on_two_devices(driver: FakeDriver, golden: Goldens) -> None:
    """No stream belongs to both; the default streams are there on each."""
    program = golden(SUMS)
    method = program.load().load_method()
    inputs = program.place(method)
    for device in (0, 1):
        stream = driver.new_stream(False, device)
        with pytest.raises(errors.ArgumentError, match=r"works on cuda:0 and on cuda:1") as error:
            method.execute([object()] * len(inputs), stream=stream)
        assert "belongs to one device" in str(error.value)
    driver.defer(True)
    for handle in (0, 1, 2):
        program.check(method.execute(inputs, stream=handle))


# Copies between devices (M27)


@pytest.mark.parametrize("run_on_stream", [False, True])
def test_copy_to_another_device(driver: FakeDriver, golden: Goldens, run_on_stream: bool) -> None:
    """M27: the other device has a copy, ordered behind the run; or with copy=False a refusal."""
    program = golden(ADD1)
    method = program.load().load_method()
    stream = driver.new_stream(False, 1)
    consumer = driver.new_stream(False, 0)
    driver.defer(True)
    options = {"stream": stream} if run_on_stream else {}
    (out,) = method.execute(program.place(method), **options)
    capsule = out.__dlpack__(dl_device=(CUDA, 0), stream=consumer, max_version=(1, 0))
    managed = capsules.struct_of(capsule)
    assert managed.flags == capsules.IS_COPIED
    assert (managed.tensor.device_type, managed.tensor.device_id) == (CUDA, 0)
    assert driver.device_of(managed.tensor.data) == 0
    add = golden("add_devio").load().load_method()
    program.check(add.execute([capsule, from_host(np.zeros((2, 3), np.float32), "cuda:0")]))
    with pytest.raises(BufferError, match="on cuda:1: another device can have a copy"):
        out.__dlpack__(dl_device=(CUDA, 0), copy=False)


def test_devices_that_are_not_there(driver: FakeDriver, driver_path: Any, golden: Goldens) -> None:
    """The device is named, and how many there are."""
    x = np.ones(3, np.float32)
    with pytest.raises(errors.DeviceError, match=r"no device cuda:2: this machine has 2"):
        from_host(x, "cuda:2")
    with pytest.raises(BufferError, match=r"no device cuda:2: this machine has 2"):
        from_host(x, "cuda:1").__dlpack__(dl_device=(CUDA, 2))
    code = f"""
try:
    pteron.load({str(golden(ADD1).folder / "model.pte")!r}).load_method()
except errors.ExecuTorchError as error:
    print(error)
"""
    text = cuda_fakes.in_new_process(code, driver_path, FAKE_CUDA_DEVICES="1")
    assert "there is no cuda:1 here (devices: 1)" in text
