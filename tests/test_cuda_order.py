"""What runs on CUDA devices wait for, and in what order, on the fake driver; leaks; threads.

Order is tested with work put off for as long as CUDA's rules allow: what is not ordered reads old
bytes.
"""

from __future__ import annotations

import ctypes
import gc
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import capsules
import cuda_fakes
import numpy as np
import pytest
from cuda_fakes import OUT_OF_MEMORY, PROGRAMS, FakeDriver, Goldens, near, pointer

import pteron
from pteron import ExecuTorchResult, errors

from_host = ExecuTorchResult.from_host


# Waits (M17 to M20) and order


@pytest.mark.parametrize(
    ("name", "waits"),
    [("add_devio", 2), ("add_devio_planned", 2), ("add_devin", 2), ("add", 0), ("add_noout", 0)],
)
def test_device_waits(driver: FakeDriver, golden: Goldens, name: str, waits: int) -> None:
    """M17, M19: one wait for a device before and one after, if an input or output is there."""
    program = golden(name)
    method = program.load().load_method()
    inputs = program.place(method)
    method.execute(inputs)
    before = driver.counters()
    method.execute(inputs)
    assert driver.since(before).get("device_waits", 0) == waits


def test_module_waits(driver: FakeDriver, golden: Goldens) -> None:
    """M18: the same through a Module."""
    program = golden("add_devio")
    module = pteron.Module(program.load())
    inputs = program.place(program.load().load_method())
    module.forward(inputs)
    before = driver.counters()
    module.forward(inputs)
    assert driver.since(before).get("device_waits", 0) == 2


def test_no_waits_without_elements(driver: FakeDriver, golden: Goldens) -> None:
    """M20: tensors of no elements cause no wait."""
    program = golden("add_devio")
    sizes = struct.pack("<3i", 2, 2, 3)
    assert sizes in program.data
    empty = program.data.replace(sizes, struct.pack("<3i", 2, 0, 3))
    method = program.load(empty).load_method()
    nothing = np.ones((0, 3), np.float32)
    before = driver.counters()
    for x in (nothing, from_host(nothing, "cuda:0")):
        (out,) = method.execute([x, x])
        assert (out.shape, out.device) == ((0, 3), "cuda:0")
    assert "device_waits" not in driver.since(before)


def test_no_waits_of_host_programs(driver: FakeDriver) -> None:
    """M20: a program for the CPU waits for no device."""
    data = Path(__file__).parent / "data"
    method = pteron.load(data / "add.pte").load_method()
    before = driver.counters()
    method.execute([np.ones((2, 2), np.float32)] * 2)
    assert driver.since(before) == {}


@pytest.mark.parametrize("blocking", [True, False])
def test_stream_of_the_caller(driver: FakeDriver, golden: Goldens, blocking: bool) -> None:
    """A run on a stream waits nowhere, and its results say when they are ready."""
    stream, other = driver.new_stream(blocking), driver.new_stream(False)
    for name in ("add_devio", "add_devio_planned"):
        program = golden(name)
        method = program.load().load_method()
        inputs = program.place(method)
        method.execute(inputs, stream=stream)
        before = driver.counters()
        (out,) = method.execute(inputs, stream=stream)
        counted = driver.since(before)
        assert not {"device_waits", "stream_waits", "event_waits"} & counted.keys()
        assert out.__cuda_array_interface__["stream"] == stream
        before = driver.counters()
        for consumer, waits in ((-1, 0), (stream, 0), (other, 1), (2, 1), (1, 1), (None, 1)):
            held = driver.counters()
            out.__dlpack__(stream=consumer)  # M29
            assert driver.since(held).get("stream_wait_events", 0) == waits
        assert not {"device_waits", "event_waits"} & driver.since(before).keys()
        program.check([out])


def test_default_run_is_ready(driver: FakeDriver, golden: Goldens) -> None:
    """M29: after a run without a stream there is nothing left to wait for."""
    program = golden("add_devio")
    method = program.load().load_method()
    (out,) = method.execute(program.place(method))
    assert out.__cuda_array_interface__["stream"] is None
    before = driver.counters()
    for consumer in (-1, None, 1, 2, driver.new_stream(False)):
        out.__dlpack__(stream=consumer)
    assert set(driver.since(before)) <= {"live_streams"}


class Torch:
    """What `stream` takes of torch."""

    cuda_stream = 0


def test_kinds_of_streams(driver: FakeDriver, golden: Goldens) -> None:
    """A handle, the default stream as 0 or 1, objects of torch and CuPy; nothing else."""
    program = golden("add_devio")
    method = program.load().load_method()
    inputs = program.place(method)
    cupy = type("Stream", (), {"ptr": driver.new_stream(False)})()
    for stream in (0, 1, 2, Torch(), cupy):
        program.check(method.execute(inputs, stream=stream))
    with pytest.raises(TypeError, match="stream must be None, the handle of a CUDA stream"):
        method.execute(inputs, stream="1")
    with pytest.raises(errors.ArgumentError, match="not -1"):
        method.execute(inputs, stream=-1)


@pytest.mark.parametrize("name", ["add_devio", "add_devio_planned", "add_devin", "add", "mlp_fp32"])
def test_order_of_late_work(driver: FakeDriver, golden: Goldens, name: str) -> None:
    """M21: with all work put off, results are right: in every mode, on every kind of stream."""
    program = golden(name)
    method = program.load().load_method()
    streams = [driver.new_stream(blocking) for blocking in (True, False, False)]
    driver.defer(True)
    for round in range(4):
        modes: list[dict[str, Any]] = [{}, *({"stream": s} for s in (0, *streams))]
        for options in modes:
            if name == "add" and round > 1:
                break
            inputs = program.place(method)
            outputs = method.execute(inputs, **options)
            del inputs  # their memory may be used again at once
            driver.handle.cuStreamSynchronize(None)  # the fake driver writes over freed memory
            from_host(np.full((2, 3), 99, np.float32), "cuda:0")
            program.check(outputs)


def test_chains_across_streams(driver: FakeDriver, golden: Goldens) -> None:
    """Results of one stream are inputs on another, and are let go before the work is done."""
    program = golden("add_devio")
    method = program.load().load_method()
    one, two = driver.new_stream(False), driver.new_stream(False)
    x, y = (np.float64(x) for x in program.inputs)
    driver.defer(True)
    for _ in range(5):
        a, b = program.place(method)
        (c,) = method.execute([a, b], stream=one)
        (d,) = method.execute([c, b], stream=two)
        del c
        driver.handle.cuStreamSynchronize(ctypes.c_void_p(one))
        (e,) = method.execute([a, a], stream=one)  # may get the memory of c
        (f,) = method.execute([d, b])
        near(f, x + 3 * y, 1e-6)
        near(d, x + 2 * y, 1e-6)
        near(e, 2 * x, 1e-6)


def test_outputs_of_a_stream_kept(driver: FakeDriver, golden: Goldens) -> None:
    """get_outputs() copies what the run on a stream wrote, not what was there before."""
    program = golden("add_devio_planned")
    method = program.load().load_method()
    stream = driver.new_stream(False)
    driver.defer(True)
    for scale in (1, 2, 3):
        arrays = [scale * x for x in program.inputs]
        (out,) = method.execute(program.place(method, arrays), stream=stream)
        method.set_inputs([out, out])  # of this stream: nothing else orders another one
        method.execute(stream=stream)
        want = 2 * scale * np.float64(program.inputs[0] + program.inputs[1])
        near(method.get_outputs()[0], want, 1e-6)
        near(method.get_outputs(clone_outputs=False)[0], want, 1e-6)


def test_late_consumers(driver: FakeDriver, golden: Goldens) -> None:
    """M29: a consumer's stream is ordered behind the run, by an event."""
    program = golden("add_devio")
    method = program.load().load_method()
    producer, consumer = driver.new_stream(False), driver.new_stream(False)
    target = from_host(np.zeros((2, 3), np.float32), "cuda:0")
    driver.defer(True)
    copy = driver.handle.cuMemcpyDtoDAsync_v2
    copy.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
    (out,) = method.execute(program.place(method), stream=producer)
    capsule = out.__dlpack__(stream=consumer, max_version=(1, 0))
    driver.handle.cuCtxPushCurrent_v2(ctypes.c_void_p(0xC000))
    assert copy(pointer(target), capsules.struct_of(capsule).tensor.data, 24, consumer) == 0
    driver.handle.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    driver.handle.cuStreamSynchronize(ctypes.c_void_p(consumer))
    program.check([target])


# Leaks and threads

LIVE = ("live_blocks", "live_bytes", "live_streams", "live_events")


@pytest.mark.parametrize("name", PROGRAMS)
def test_leaks(driver: FakeDriver, golden: Goldens, name: str) -> None:
    """Loads and runs give everything back."""
    program = golden(name)
    stream = driver.new_stream(False)

    def once() -> None:
        method = program.load().load_method()
        inputs = program.place(method)
        for _ in range(3):
            method.execute(inputs)
            method.execute(inputs, stream=stream)
        method.execute(inputs, clone_outputs=False)
        with pytest.raises(errors.ExecuTorchError):
            method.execute([])

    once()
    gc.collect()
    before = driver.counters()
    for _ in range(10):
        once()
    gc.collect()
    lost = driver.since(before)
    assert not [key for key in LIVE if key in lost]


def test_deletions(driver: FakeDriver, golden: Goldens) -> None:
    """Containers of three programs, two of each, go in every order and leave nothing."""
    gc.collect()
    before = driver.counters()
    cuda_fakes.delete_in_every_order([golden(name) for name in ("add_devio", "mlp_fp32", "sums")])
    gc.collect()
    lost = driver.since(before).keys()
    assert not lost & {"live_blocks", "live_bytes", "live_modules"}


def test_threads(driver: FakeDriver, golden: Goldens) -> None:
    """Methods of one program in several threads, on streams of their own."""
    program = golden("mlp_fp32")
    device = golden("add_devio")
    loaded = program.load()
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            method, other = loaded.load_method(), device.load().load_method()
            inputs = device.place(other)
            stream = driver.new_stream(False)
            for _ in range(25):
                program.check(method.execute(program.inputs))
                device.check(other.execute(inputs, stream=stream))
                device.check(other.execute(inputs))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# Streams of Module calls and of kept inputs


def test_inputs_of_calls_on_streams(driver: FakeDriver, golden: Goldens) -> None:
    """A call on a stream waits there for results of other streams, and they for its end."""
    program = golden("add_devio")
    loaded = program.load()
    method, module = loaded.load_method(), pteron.Module(loaded)
    x, y = program.inputs
    first, second = driver.new_stream(False), driver.new_stream(False)
    driver.defer(True)
    for k in range(1, 4):
        (late,) = method.execute(program.place(method, [k * x, y]), stream=first)
        (out,) = module.forward([late, late], stream=second)
        del late
        method.execute(program.place(method, [x, x]), stream=first)  # takes its memory
        near(out, 2 * (k * x + y), 1e-6)


@pytest.mark.parametrize("cuda_graph", [False, True])
@pytest.mark.parametrize("name", ["add_devio", "add_devio_planned"])
def test_kept_borrowed_results(
    driver: FakeDriver, golden: Goldens, name: str, cuda_graph: bool
) -> None:
    """M76: a kept input in the method's own device memory is copied, on the device."""
    program = golden(name)
    method = program.load().load_method(cuda_graph=cuda_graph)
    x, y = program.inputs
    stream = driver.new_stream(False)
    driver.defer(True)
    for on in (None, stream):
        (borrowed,) = method.execute(program.place(method), clone_outputs=False, stream=on)
        method.set_inputs([borrowed, borrowed])
        for _ in range(2):
            near(method.execute(stream=on)[0], 2 * (x + y), 1e-6)


# Memory that serves again


def test_failing_order_of_memory(driver: FakeDriver, golden: Goldens) -> None:
    """Memory that cannot be handed from stream to stream is neither lost nor used."""
    program = golden("add_devio")
    program.load().load_method()
    gc.collect()
    before = driver.counters()
    method = program.load().load_method()
    inputs = program.place(method)
    streams = [driver.new_stream(False) for _ in range(2)]
    failed = 0
    for k in range(24):
        symbol = ("cuEventRecord", "cuStreamWaitEvent", "cuMemFreeAsync", "cuEventCreate")[k % 4]
        driver.fail(symbol, 400, k // 4)
        try:
            method.execute(inputs, stream=streams[k % 2])
        except errors.ExecuTorchError:
            failed += 1
        driver.fail(None)
        program.check(method.execute(inputs, stream=streams[k % 2]))
    assert failed
    del inputs
    del method
    gc.collect()
    assert "live_blocks" not in driver.since(before)


def test_memory_in_use_is_not_given_back(driver: FakeDriver, golden: Goldens) -> None:
    """When memory runs out, work under way keeps what it uses."""
    program = golden("add_devio")
    method = program.load().load_method()
    stream = driver.new_stream(False)
    inputs = program.place(method)
    driver.defer(True)
    (out,) = method.execute(inputs, stream=stream)
    del inputs
    driver.fail("cuMemAllocFromPoolAsync", OUT_OF_MEMORY)
    from_host(np.zeros(1000, np.float32), "cuda:0")
    program.check([out])


def test_threads_with_streams_of_their_own(driver: FakeDriver, golden: Goldens) -> None:
    """The handle 2 is another stream on each thread: results cross over to others safely."""
    program = golden("add_devio")
    here, there = program.load().load_method(), program.load().load_method()
    x, y = program.inputs
    (warm,) = here.execute(program.place(here))
    placed = program.place(here, [y, y])
    with ThreadPoolExecutor(1) as pool:
        (warm,) = pool.submit(there.execute, [warm, warm], stream=2).result()
        warm.to_host()
        driver.defer(True)
        (late,) = pool.submit(there.execute, [warm, warm], stream=2).result()
        (out,) = here.execute([late, late], stream=2)
        near(out, 8 * (x + y), 1e-6)
        (late,) = pool.submit(there.execute, [warm, warm], stream=2).result()
        del late
        (out,) = here.execute(placed, stream=2)
        out.to_host()
        pool.submit(there.execute, [warm, warm], stream=2).result()[0].to_host()
        near(out, 2 * y, 1e-6)
