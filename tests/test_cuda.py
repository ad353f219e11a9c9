"""CUDA programs on the fake driver: right results, metadata, what results do, failures.

No GPU: the driver and the models are stand-ins (``cuda_fakes``), the programs the official
exporter's.
"""

from __future__ import annotations

import gc
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_docs
import cuda_fakes
import numpy as np
import pytest
from capsules import CUDA
from cuda_fakes import PROGRAMS, FakeDriver, Goldens, near, pointer

import pteron
from pteron import ExecuTorchResult, errors

from_host = ExecuTorchResult.from_host


# Results


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(golden: Goldens, name: str) -> None:
    """M58, M59: every program is right, again and again, and follows its inputs."""
    program = golden(name)
    method = program.load().load_method()
    for step in range(len(program.steps)):
        program.check(method.execute(program.place(method)), step)
    if len(program.steps) > 1:
        return
    program.check(method.execute(program.place(method)))
    zeros = [np.zeros_like(x) for x in program.inputs]
    changed = method.execute(program.place(method, zeros))
    assert (
        changed[0].to_host().tobytes()
        != method.execute(program.place(method))[0].to_host().tobytes()
    )
    program.check(method.execute(program.place(method)))


def test_dynamic_shapes(golden: Goldens) -> None:
    """M58: a delegate output without planned memory follows the batch."""
    method = golden("muladd_dyn").load().load_method()
    random = np.random.default_rng(0)
    for batch in (8, 1, 5, 8):
        x, y = random.random((2, batch, 8), np.float32)
        product, total = method.execute([x, y])
        assert (product.shape, total.shape) == ((batch, 8), (batch,))
        np.testing.assert_allclose(product, x * y + x, rtol=1e-6)
        np.testing.assert_allclose(total, x.sum(1), rtol=1e-5)


def test_methods_share_weights(driver: FakeDriver, golden: Goldens) -> None:
    """The second method of a program puts no second copy of the weights on the device."""
    program = golden("two_methods")
    loaded = program.load()
    forward = loaded.load_method("forward")
    before = driver.counters()
    again = loaded.load_method("again")
    added = driver.since(before).get("live_bytes", 0)
    x = program.inputs[0]
    (h,) = forward.execute([x])
    program.check([h])
    assert again.execute([x])[0].shape == h.shape
    assert added < 64 * 64 * 4  # the first weight alone


def test_copied(golden: Goldens) -> None:
    """Device inputs are shared unless they are planned; so are the outputs."""
    shared, planned = golden("add_devio"), golden("add_devio_planned")
    for program, copied in ((shared, False), (planned, True)):
        method = program.load().load_method()
        first = method.execute(program.place(method))[0]
        kept = first.to_host().tobytes()
        second = method.execute(program.place(method, [2 * x for x in program.inputs]))[0]
        assert method.copied == (copied, copied)
        assert pointer(first) != pointer(second)
        assert first.to_host().tobytes() == kept  # M60


def test_borrowed_outputs(golden: Goldens) -> None:
    """M61 on a device: the method's memory itself, stale after the next run."""
    program = golden("add_devio_planned")
    method = program.load().load_method()
    inputs = program.place(method)
    (first,) = method.execute(inputs, clone_outputs=False)
    program.check([first])
    address = pointer(first)
    (second,) = method.execute(inputs, clone_outputs=False)
    assert pointer(second) == address
    assert second.borrowed
    with pytest.raises(errors.MethodStateError, match="has run again since"):
        first.to_host()
    with pytest.raises(errors.MethodStateError, match="has run again since"):
        first.__dlpack__()
    (third,) = method.execute(
        [second, inputs[1]], clone_outputs=False
    )  # its own memory as an input
    near(third, np.float64(program.inputs[0]) + 2 * program.inputs[1], 1e-6)


def test_outputs_kept(golden: Goldens) -> None:
    """get_outputs() after set_inputs() and execute(), on a device."""
    program = golden("add_devio")
    method = program.load().load_method()
    method.set_inputs(program.place(method))
    program.check(method.execute())
    program.check(method.get_outputs())
    program.check(method.get_outputs(clone_outputs=False))


def test_documentation(golden: Goldens, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples that need neither torch nor CuPy nor the exporter."""
    monkeypatch.chdir(golden("add_devio").folder)
    count = cuda_docs.run(r"torch|cupy|lowered", {"np": np, "pteron": pteron})
    assert count >= 2


def test_module(golden: Goldens) -> None:
    """The Module's way to the same."""
    program = golden("add_devio")
    module = pteron.Module(program.load())
    inputs = program.place(program.load().load_method())
    outputs = module.forward(inputs)
    program.check(outputs)


# Device results in Python (M50 to M53)


def test_devices_in_metadata(golden: Goldens) -> None:
    """M50, M51: before and after load, for inputs and outputs."""
    for name, inputs, outputs in (
        ("add_devio", "cuda:0", "cuda:0"),
        ("add_devin", "cuda:0", "cpu"),
        ("add", "cpu", "cpu"),
        ("add_hostplan", "cpu", "cpu"),
    ):
        program = golden(name).load()
        for meta in (program.metadata(), program.load_method().metadata):
            assert {meta.input_tensor_meta(i).device() for i in range(2)} == {inputs}
            assert meta.output_tensor_meta(0).device() == outputs
            assert inputs in repr(meta.inputs[0])


def test_unknown_device_in_the_file(golden: Goldens) -> None:
    """M53: device type 7 is refused and never called cuda."""
    program = golden("add_devio")
    data = bytearray(program.data)
    # Of each ExtraTensorInfo: the byte of the device type, 1, where tensors say where they are.
    found = 0
    for at in device_types(data):
        changed = bytearray(data)
        changed[at] = 7
        with pytest.raises(errors.InvalidProgramError, match="device") as caught:
            program.load(bytes(changed)).load_method()
        assert "cuda" not in str(caught.value)
        found += 1
    assert found > 0


def device_types(data: bytearray) -> list[int]:
    """Offsets of the device types in a program's tensors, by a walk over its tables."""

    def table(at: int) -> dict[int, int]:
        vtable = at - struct.unpack_from("<i", data, at)[0]
        count = (struct.unpack_from("<H", data, vtable)[0] - 4) // 2
        slots = struct.unpack_from(f"<{count}H", data, vtable + 4)
        return {i: at + slot for i, slot in enumerate(slots) if slot}

    def follow(at: int) -> int:
        return at + int(struct.unpack_from("<I", data, at)[0])

    def vector(at: int) -> list[int]:
        start = follow(at)
        return [start + 4 + 4 * i for i in range(struct.unpack_from("<I", data, start)[0])]

    found = []
    plan = table(follow(vector(table(follow(0))[1])[0]))
    for entry in vector(plan[2]):
        value = table(follow(entry))
        if 0 in value and data[value[0]] == 5:
            tensor = table(follow(value[1]))
            if 9 in tensor and 3 in (extra := table(follow(tensor[9]))):
                found.append(extra[3])
    return sorted(set(found))


def test_device_of_a_result(golden: Goldens) -> None:
    """M52: `device`, repr and `__dlpack_device__` agree, on the host and on the device."""
    x = np.ones((2, 3), np.float32)
    for result, device, pair in (
        (from_host(x), "cpu", (1, 0)),
        (from_host(x, "cuda:0"), "cuda:0", (CUDA, 0)),
        (from_host(x, "cuda"), "cuda:0", (CUDA, 0)),
    ):
        assert (result.device, result.__dlpack_device__()) == (device, pair)
        assert device == "cpu" or f"device={device}" in repr(result)
        assert result.to_host().numpy().tolist() == x.tolist()


def test_from_host_takes_any_layout(driver: FakeDriver) -> None:
    """Host arrays of any layout and dtype become packed device memory."""
    x = np.arange(24, dtype=np.int16).reshape(4, 6)[::2, ::-3]
    result = from_host(x, "cuda:0")
    assert (result.shape, result.dtype, result.strides) == ((2, 2), "int16", (2, 1))
    np.testing.assert_array_equal(result.to_host(), x)
    with pytest.raises(errors.DeviceError, match="no device 'gpu'"):
        from_host(x, "gpu")
    with pytest.raises(errors.DeviceError, match="cuda:7"):
        from_host(x, "cuda:7")
    with pytest.raises(errors.DeviceError, match="is on device cuda:0, not on the host"):
        from_host(result, "cuda:0")


@pytest.mark.parametrize(
    "read",
    [np.asarray, lambda r: r.numpy(), memoryview, lambda r: r.tobytes(), lambda r: r.numpy("f8")],
    ids=["asarray", "numpy", "memoryview", "tobytes", "numpy(dtype)"],
)
def test_device_memory_is_not_read_as_host(driver: FakeDriver, read: Callable[[Any], Any]) -> None:
    """The refusal says how to get at the values."""
    result = from_host(np.ones(3, np.float32), "cuda:0")
    with pytest.raises(errors.ExportError) as caught:
        read(result)
    assert isinstance(caught.value, BufferError)
    assert "is on cuda:0: read a copy with to_host()" in str(caught.value)
    assert "CuPy or torch with from_dlpack()" in str(caught.value)


def test_scalars_text_and_pickles(driver: FakeDriver) -> None:
    """item(), float(), repr and pickle of a device result go through a copy."""
    one = from_host(np.full((1, 1), 2.5, np.float32), "cuda:0")
    assert (one.item(), float(one), int(one), bool(one)) == (2.5, 2.5, 2, True)
    assert repr(one) == "ExecuTorchResult(shape=(1, 1), dtype=float32, device=cuda:0)"
    copy = pickle.loads(pickle.dumps(one))
    assert (copy.device, copy.numpy().tolist()) == ("cpu", [[2.5]])


def test_cuda_array_interface(driver: FakeDriver) -> None:
    """What CuPy and Numba read; results on the host and of foreign dtypes have none."""
    result = from_host(np.ones((2, 3), np.int64), "cuda:0")
    interface = result.__cuda_array_interface__
    assert interface["typestr"] == "<i8"
    assert (interface["shape"], interface["strides"]) == ((2, 3), (24, 8))
    assert (interface["version"], interface["data"][1]) == (3, False)
    assert from_host(np.ones((0, 3)), "cuda:0").__cuda_array_interface__["data"] == (0, False)
    assert not hasattr(from_host(np.ones(3)), "__cuda_array_interface__")
    bits = cuda_fakes.result_of_bits("bfloat16", np.zeros(2, np.uint16))
    assert not hasattr(from_host(bits, "cuda:0"), "__cuda_array_interface__")


# Failures


def test_out_of_device_memory(driver: FakeDriver, golden: Goldens) -> None:
    """Memory that is not to be had, at load and at run; afterwards all is well."""
    program = golden("add_big_devio")
    method = program.load().load_method()
    inputs = program.place(method)
    driver.set_memory(driver.counters()["live_bytes"] + 1000)
    with pytest.raises(errors.OutOfMemoryError, match="4194304 bytes on cuda:0"):
        method.execute(inputs)
    with pytest.raises(errors.OutOfMemoryError, match="on cuda:0"):
        from_host(np.ones(1000), "cuda:0")
    with pytest.raises(errors.ExecuTorchError, match="memory"):
        golden("mlp_fp32").load().load_method()
    driver.set_memory(16 << 30)
    program.check(method.execute(inputs))


@pytest.mark.parametrize("symbol", ["cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"])
def test_failing_driver_calls(driver: FakeDriver, golden: Goldens, symbol: str) -> None:
    """A run in which the driver fails is an error; the next one is right, and nothing is lost."""
    program = golden("mlp_fp32")
    method = program.load().load_method()
    program.check(method.execute(program.inputs))
    live = driver.counters()["live_bytes"]
    failed = 0
    for after in range(3):
        driver.fail(symbol, 700, after)
        try:
            method.execute(program.inputs)
        except errors.ExecuTorchError as error:
            assert "CUDA_ERROR_FAKE" in str(error) or "a fake error" in str(error)
            failed += 1
        driver.fail(None)
        program.check(method.execute(program.inputs))
    assert failed
    assert driver.counters()["live_bytes"] == live


def test_failing_pool(driver: FakeDriver, golden: Goldens) -> None:
    """The same where the pool gives nothing, which only first runs ask."""
    gc.collect()
    program = golden("mlp_fp32")
    method = program.load().load_method()
    driver.fail("cuMemAllocFromPoolAsync", 700)
    with pytest.raises(errors.ExecuTorchError, match="CUDA_ERROR_FAKE|a fake error"):
        method.execute(program.inputs)
    program.check(method.execute(program.inputs))


def test_failing_wait(driver: FakeDriver, golden: Goldens) -> None:
    """A device that cannot be waited for."""
    program = golden("add_devio")
    method = program.load().load_method()
    inputs = program.place(method)
    for after in (0, 1):
        driver.fail("cuCtxSynchronize", 700, after)
        with pytest.raises(errors.DeviceError, match="wait for cuda:0.*a fake error"):
            method.execute(inputs)
        driver.fail(None)
        program.check(method.execute(inputs))


def test_missing_weights(driver: FakeDriver, golden: Goldens) -> None:
    """A program without its .ptd names what is missing."""
    program = golden("mlp_fp32")
    gc.collect()
    before = driver.counters()
    with pytest.raises(errors.ExecuTorchError, match=r"no data entry '.+'.*\.ptd"):
        pteron.load(program.folder / "model.pte").load_method()
    gc.collect()
    assert driver.counters()["live_bytes"] == before["live_bytes"]


def test_damaged_library(driver: FakeDriver, golden: Goldens) -> None:
    """A library that is cut to its head, and one without any ELF header."""
    program = golden("add")
    module = cuda_fakes.fakes()
    for damage in (b"\x7fELF" + bytes(60), bytes(64)):
        data = bytearray(program.data)
        for at in module.libraries(program.data):
            data[at : at + 64] = damage
        with pytest.raises(errors.ExecuTorchError, match="library"):
            program.load(bytes(data)).load_method()
    program.check(program.load().load_method().execute(program.inputs))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("undefined", "undefined symbol: aoti_torch_no_such_shim"),
        ("absent", "libgomp-missing.so.1: cannot open shared object file"),
    ],
)
def test_what_a_library_lacks(driver: FakeDriver, golden: Goldens, model: str, words: str) -> None:
    """M81: a function or a library that is not to be found is named."""
    program = golden("add")
    with pytest.raises(errors.ExecuTorchError, match=words):
        program.load(program.with_model(driver.path, model)).load_method()


LOAD = """
try:
    pteron.load({path!r}).load_method()
except errors.ExecuTorchError as error:
    print(type(error).__name__, error)
print(pteron.load({cpu!r}).load_method().execute([np.ones((2, 2), "f4")] * 2)[0].numpy().sum())
"""
CPU_PROGRAM = Path(__file__).parent / "data" / "add.pte"


@pytest.mark.parametrize(
    ("driver_file", "environment", "words"),
    [
        ("absent/libcuda.so.1", {}, "cannot open the CUDA driver"),
        ("libcuda.so.1", {"FAKE_CUDA_DEVICES": "0"}, "no device"),
    ],
    ids=["no driver", "no device"],
)
def test_without_cuda(
    driver_path: Path, driver_file: str, environment: dict[str, str], words: str
) -> None:
    """Without a driver or a device, the reason is given, and the CPU goes on working."""
    folder = driver_path.parent
    code = LOAD.format(path=str(folder / "programs" / "add" / "model.pte"), cpu=str(CPU_PROGRAM))
    text = cuda_fakes.in_new_process(code, folder / driver_file, **environment)
    assert "Error" in text.splitlines()[0]
    assert words in text
    assert text.splitlines()[-1] == "8.0"


def test_the_driver_is_opened_late(driver_path: Path) -> None:
    """Importing pteron and running a program for the CPU open neither driver nor CUDA library."""
    code = f"""
pteron.load({str(CPU_PROGRAM)!r}).load_method().execute([np.ones((2, 2), np.float32)] * 2)
pteron.load({str(driver_path.parent / "programs/add_devio/model.pte")!r}).metadata()
maps = open("/proc/self/maps").read()
print("libcuda.so" in maps, "libpteron_cuda" in maps)
"""
    assert cuda_fakes.in_new_process(code, driver_path).split() == ["False", "False"]
