"""Methods whose device work is a CUDA graph, on the fake driver."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import capsules
import numpy as np
import pytest
from cuda_fakes import (
    OUT_OF_MEMORY,
    PROGRAMS,
    FakeDriver,
    Golden,
    Goldens,
    in_new_process,
    near,
    pointer,
)

import pteron
from pteron import ExecuTorchResult, errors

from_host = ExecuTorchResult.from_host
DATA = Path(__file__).parent / "data"
STATIC = [name for name in PROGRAMS if "_dyn" not in name and name != "two_methods"]
GRAPH_CALLS = [
    "cuStreamCreate",
    "cuStreamBeginCapture_v2",
    "cuStreamGetCaptureInfo_v2",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
]


def load(program: Golden) -> pteron.Method:
    """Its method as a CUDA graph."""
    return program.load().load_method(cuda_graph=True)


def live(driver: FakeDriver, before: dict[str, int]) -> set[str]:
    """Of what there is more or less than before."""
    return {name for name in driver.since(before) if name.startswith("live_")}


@pytest.mark.parametrize("name", STATIC)
def test_programs(driver: FakeDriver, golden: Goldens, name: str) -> None:
    """Loading runs nothing; each run is one launch, and asks the device for no memory."""
    program = golden(name)
    method = load(program)
    assert method.cuda_graph
    assert "CUDA graph" in repr(method)
    for step in range(len(program.steps) if len(program.steps) > 1 else 3):
        inputs = program.place(method)
        before = driver.counters()
        program.check(method.execute(inputs), step if len(program.steps) > 1 else 0)
        counted = driver.since(before)
        assert counted["graph_launches"] == 1
        assert "launches" not in counted
        assert step == 0 or "allocations" not in counted


@pytest.mark.parametrize(
    ("name", "copies"),
    [
        ("add_devio", 0),
        ("add_devin", 0),
        ("mlp_devio", 0),
        ("muladd_devio", 0),
        ("add_devio_planned", 3),
        ("add", 0),
    ],
)
def test_copies_on_the_device(driver: FakeDriver, golden: Goldens, name: str, copies: int) -> None:
    """Kernels use the caller's memory itself, unless the program has planned a place for it."""
    program = golden(name)
    method = load(program)
    for _ in range(3):
        inputs = program.place(method)
        before = driver.counters()
        program.check(method.execute(inputs))
        assert driver.since(before).get("device_copies", 0) == copies


def test_unaligned_inputs_are_copied(driver: FakeDriver, golden: Goldens) -> None:
    """Models count on addresses that 16 divides: see the lower bits of this one."""
    program = golden("add_devio")
    method = load(program)
    x, y = program.inputs
    longer = np.concatenate([[0], x.ravel()]).astype(np.float32)
    for offset in (4, 0, 4):
        array = longer if offset else np.concatenate([x.ravel(), [0]]).astype(np.float32)
        memory = from_host(array, "cuda:0")
        capsule = memory.__dlpack__(max_version=(1, 0))
        tensor = capsules.struct_of(capsule).tensor
        tensor.byte_offset, tensor.ndim = offset, 2
        shape = np.array([2, 3], np.int64)
        strides = np.array([3, 1], np.int64)
        tensor.shape = shape.ctypes.data_as(type(tensor.shape))
        tensor.strides = strides.ctypes.data_as(type(tensor.strides))
        inputs = [capsule, program.place(method)[1]]
        before = driver.counters()
        near(method.execute(inputs)[0], x + y, 1e-6)
        assert driver.since(before).get("device_copies", 0) == (1 if offset else 0)


@pytest.mark.parametrize("name", ["add_devio", "add_devio_planned", "add_devin", "add"])
def test_inputs_as_they_are_now(golden: Goldens, name: str) -> None:
    """Other memory, the same with other values, inputs that are kept: each run reads them."""
    program = golden(name)
    method = load(program)
    x, y = program.inputs
    for k in range(1, 4):
        near(method.execute(program.place(method, [k * x, y]))[0], k * x + y, 1e-6)
    method.set_inputs(program.place(method, [x, y]))
    for _ in range(2):
        near(method.execute()[0], x + y, 1e-6)
    near(method.get_outputs()[0], x + y, 1e-6)
    if method.metadata.inputs[0].device() == "cpu":
        x = x.copy()
        method.set_inputs([x, y])
        for _ in range(2):
            x += 1
            near(method.execute()[0], x + y, 1e-6)


def test_results_own_their_memory(driver: FakeDriver, golden: Goldens) -> None:
    """M60, M61: unless they are borrowed, which are the method's own memory every time."""
    program = golden("add_devio")
    method = load(program)
    x, y = program.inputs
    first = method(*program.place(method))
    (borrowed,) = method.execute(program.place(method), clone_outputs=False)
    again = method(*program.place(method, [2 * x, y]))
    near(first, x + y, 1e-6)
    near(again, 2 * x + y, 1e-6)
    with pytest.raises(errors.MethodStateError, match="clone_outputs"):
        borrowed.to_host()
    (later,) = method.execute(program.place(method), clone_outputs=False)
    assert pointer(later) not in (pointer(first), pointer(again))
    (chained,) = method.execute([later, later])  # the method's own output as both inputs
    near(chained, 2 * (x + y), 1e-6)


@pytest.mark.parametrize("name", ["add_devio", "add_devio_planned", "add_devin", "add", "mlp_fp32"])
def test_order(driver: FakeDriver, golden: Goldens, name: str) -> None:
    """M21: with all work put off, on every kind of stream in turn, results are right."""
    program = golden(name)
    method = load(program)
    streams = [None, driver.new_stream(True), driver.new_stream(False), driver.new_stream(False)]
    driver.defer(True)
    for k in range(12):
        inputs = [np.float32(1 + k) * x for x in program.inputs]
        placed = program.place(method, inputs)
        results = method.execute(placed, stream=streams[k % 4], clone_outputs=k % 3 > 0)
        del placed
        if name == "mlp_fp32":
            if k == 0:
                program.check(results)
        else:
            near(results[0], sum(inputs), 1e-6)


def test_waits(driver: FakeDriver, golden: Goldens) -> None:
    """M17, M19: as without a graph; on a stream none, and the next run follows on the device."""
    program = golden("add_devio")
    method = load(program)
    inputs = program.place(method)
    before = driver.counters()
    method.execute(inputs)
    assert driver.since(before)["device_waits"] == 2
    stream = driver.new_stream(False)
    method.execute(inputs, stream=stream)
    before = driver.counters()
    method.execute(inputs, stream=stream)
    assert not {"device_waits", "stream_waits", "event_waits"} & driver.since(before).keys()


def test_state(driver: FakeDriver, golden: Goldens) -> None:
    """A mutable buffer changes once a run, and not while the method is loaded."""
    program = golden("state")
    loaded = program.load()
    method, plain = loaded.load_method(cuda_graph=True), loaded.load_method()
    for step in range(len(program.steps)):
        program.check(method.execute(program.place(method)), step)
    program.check(plain.execute(program.place(plain)), 0)  # a load has a state of its own


def test_methods_of_one_program(driver: FakeDriver, golden: Goldens) -> None:
    """Graphs and other methods of a program share its weights."""
    program = golden("two_methods")
    loaded = program.load()
    (x,) = program.inputs
    forward = loaded.load_method("forward", cuda_graph=True)
    again = loaded.load_method("again")
    want = loaded.load_method("forward").execute([x])[0].numpy()
    near(forward.execute([x])[0], want, 1e-6)
    assert again.execute([x])[0].shape == loaded.load_method("again", cuda_graph=True)(x).shape


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mlp_dyn", "input 0 has a dynamic shape"),
        ("muladd_dyn", "input 0 has a dynamic shape"),
        ("cpu", "it has no part for CUDA"),
        ("etdump", "loaded with enable_etdump=True"),
        ("reads", "the model needs the host in the middle of its run"),
        ("uploads", "the model needs the host in the middle of its run"),
        ("keeps", "the model keeps memory from one run to the next"),
        ("throws", ""),
    ],
)
def test_refusals(driver: FakeDriver, golden: Goldens, name: str, words: str) -> None:
    """What cannot be recorded is refused when it is loaded, with the reason and what to do."""
    program = golden(name if name.endswith("_dyn") else "add_devio")
    if name == "cpu":
        loaded = pteron.load(DATA / "add.pte")
    elif name in ("reads", "uploads", "keeps", "throws"):
        loaded = program.load(program.with_model(driver.path, name))
    else:
        loaded = program.load(enable_etdump=name == "etdump")
    with pytest.raises(errors.ArgumentError) as refusal:
        loaded.load_method(cuda_graph=True)
    text = str(refusal.value)
    assert text.startswith("Method 'forward' cannot run as a CUDA graph: ")
    assert words in text
    assert text.endswith("Load it without cuda_graph=True")
    method = loaded.load_method()  # and that works
    if name in ("etdump", "reads", "uploads", "keeps"):
        program.check(method.execute(program.place(method)))


@pytest.mark.parametrize("symbol", GRAPH_CALLS)
def test_failing_recordings(driver: FakeDriver, golden: Goldens, symbol: str) -> None:
    """A driver that fails while the method is loaded: an error, nothing is lost."""
    program = golden("add_devio")
    load(program)
    gc.collect()
    before = driver.counters()
    failed = 0
    for after in range(6):
        driver.fail(symbol, 700, after)
        try:
            load(program)
        except errors.ArgumentError as error:
            assert "CUDA_ERROR_FAKE" in str(error)
            failed += 1
        driver.fail(None)
        method = load(program)
        program.check(method.execute(program.place(method)))
        del method
    assert failed
    gc.collect()
    assert live(driver, before) <= {"live_events"}  # pooled ones


@pytest.mark.parametrize("result", [OUT_OF_MEMORY, 700])
def test_loads_that_fail_anywhere(driver: FakeDriver, golden: Goldens, result: int) -> None:
    """Whatever driver call fails, nothing is lost, and the next load is as the first."""
    program = golden("muladd_devio")
    load(program)
    gc.collect()
    before = driver.counters()
    symbols = (
        "cuMemAlloc_v2 cuMemAllocFromPoolAsync cuMemFreeAsync cuMemFree_v2 cuCtxSynchronize "
        "cuLaunchKernel cuGraphGetNodes cuFuncGetParamInfo cuEventRecord cuStreamWaitEvent "
        "cuGraphInstantiateWithFlags cuStreamEndCapture"
    )
    refused = set()  # what else fails can be done without
    for symbol in symbols.split():
        for after in range(0, 10, 3):
            driver.fail(symbol, result, after)
            try:
                method = load(program)
                program.check(method.execute(program.place(method)))
            except errors.ExecuTorchError:
                refused.add(symbol)
            driver.fail(None)
            method = load(program)
            program.check(method.execute(program.place(method)))
            del method
    assert refused >= {"cuGraphInstantiateWithFlags", "cuStreamEndCapture"}
    gc.collect()
    # Memory and streams whose own return fails stay with the driver.
    assert live(driver, before) <= {"live_blocks", "live_bytes", "live_events"}


def test_threads(driver: FakeDriver, golden: Goldens) -> None:
    """M109: one method, on streams of many threads and without; each gets its own results."""
    program = golden("add_devio")
    method = load(program)
    x, y = program.inputs
    streams = [None, 2, driver.new_stream(True), driver.new_stream(False)]
    driver.defer(True)

    def run(number: int) -> None:
        for k in range(50):
            a = np.float32(50 * number + k) * x
            (out,) = method.execute(program.place(method, [a, y]), stream=streams[number])
            near(out, a + y, 1e-6)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))


@pytest.mark.parametrize("name", ["add_devio", "add_devio_planned"])
@pytest.mark.parametrize(
    "symbol", ["cuGraphLaunch", "cuGraphExecKernelNodeSetParams", "cuGraphNodeSetEnabled"]
)
def test_failing_launches(driver: FakeDriver, golden: Goldens, symbol: str, name: str) -> None:
    """A run that the driver fails is an error; the next one is right."""
    program = golden(name)
    method = load(program)
    program.check(method.execute(program.place(method)))
    for after in range(3):
        driver.fail(symbol, 700, after)
        try:
            results = method.execute(program.place(method))
        except errors.DeviceError as error:
            assert "a fake error" in str(error)
        else:
            program.check(results)
        driver.fail(None)
        program.check(method.execute(program.place(method)))


WITHOUT_KERNEL = """
import ctypes
pteron._core.cuda_driver()
ctypes.CDLL({driver!r}).fake_cuda_fail(b"cuModuleGetFunction", 500, 0)
method = pteron.load({path!r}).load_method(cuda_graph=True)
x = pteron.ExecuTorchResult.from_host(np.ones((2, 3), "f4"), "cuda:0")
print([float(method(x, x).to_host().numpy().sum()) for _ in range(3)])
"""


def test_without_the_copy_kernel(driver: FakeDriver, golden: Goldens) -> None:
    """A device that cannot load it copies by other means."""
    path = golden("add_devio_planned").folder / "model.pte"
    code = WITHOUT_KERNEL.format(driver=str(driver.path), path=str(path))
    assert in_new_process(code, driver.path).strip() == "[12.0, 12.0, 12.0]"


def test_nothing_is_lost(driver: FakeDriver, golden: Goldens) -> None:
    """Loads, runs and drops, in two orders; a result outlives its method."""
    program = golden("add_devio")
    load(program)
    gc.collect()
    before = driver.counters()
    stream = driver.new_stream(False)
    for _ in range(20):
        method = load(program)
        result = method(*program.place(method), stream=stream)
        del method
        program.check([result])
        del result
    gc.collect()
    assert live(driver, before) <= {
        "live_streams",
        "live_events",
    }  # the new stream, and pooled events


def test_other_threads(driver: FakeDriver, golden: Goldens) -> None:
    """A wait for the device, on whatever thread, would end what is recorded there in an error."""
    program = golden("add_devio")
    loaded = program.load()
    method = loaded.load_method()
    inputs = program.place(method)
    done = threading.Event()

    def run() -> int:
        runs = 0
        while not done.is_set():
            program.check(method.execute(inputs))
            runs += 1
        return runs

    def record() -> None:
        for _ in range(10):
            graph = loaded.load_method(cuda_graph=True)
            program.check(graph.execute(inputs))

    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(run) for _ in range(2)]
        for recording in [pool.submit(record) for _ in range(2)]:
            recording.result()
        done.set()
        assert all(future.result() > 0 for future in runs)


def test_copied(driver: FakeDriver, golden: Goldens) -> None:
    """It tells whether a launch copies an input."""
    for name, copied in (("add_devio", False), ("add_devio_planned", True)):
        program = golden(name)
        method = load(program)
        method.execute(program.place(method))
        assert method.copied == (copied, copied)


def test_recording_is_left(driver: FakeDriver, golden: Goldens) -> None:
    """A recording that cannot even be ended leaves the thread as it was."""
    program = golden("add_devio")
    loaded = program.load()
    plain = loaded.load_method()
    inputs = program.place(plain)
    failed = 0
    for after in range(40):
        driver.fail("cuCtxPushCurrent_v2", 700, after)
        try:
            loaded.load_method(cuda_graph=True)
        except errors.ExecuTorchError:
            failed += 1
        driver.fail(None)
        before = driver.counters()
        program.check(plain.execute(inputs))
        assert driver.since(before)["launches"] == 1
    assert failed


# The stream of a call (beside execute)


def test_stream_of_calls(driver: FakeDriver, golden: Goldens) -> None:
    """Method and Module calls take a stream too."""
    program = golden("add_devio")
    loaded = program.load()
    method, module = loaded.load_method(), pteron.Module(loaded)
    x, y = program.place(method)
    stream = driver.new_stream(False)
    calls: list[Any] = [
        lambda: [method(x, y, stream=stream)],
        lambda: module([x, y], stream=stream),
        lambda: module.forward([x, y], stream=stream),
        lambda: module.run_method("forward", [x, y], stream=stream),
        lambda: module.plan_execute("forward", stream=stream),
    ]
    for call in calls:
        before = driver.counters()
        results = call()
        assert "device_waits" not in driver.since(before)
        assert results[0].__cuda_array_interface__["stream"] == stream
        program.check(results)
    with pytest.raises(TypeError, match="stream must be None"):
        method(x, y, stream="1")
