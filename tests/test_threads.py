"""Many threads on methods and programs, and what the GIL is held for."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DATA, load_fixture

import pteron
from pteron import _core
from pteron.errors import ClosedError, MethodStateError
from pteron.runtime import Runtime

THREADS = 8
STRESS = Path(__file__).parent / "stress"


def at_once(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """The results of `work(0)`, `work(1)` ... on threads that start together."""
    barrier = threading.Barrier(threads)

    def start(i: int) -> Any:
        barrier.wait(20)
        return work(i)

    with ThreadPoolExecutor(threads) as pool:
        return [future.result(60) for future in [pool.submit(start, i) for i in range(threads)]]


def own_results(methods: list[pteron.Method], runs: int = 300) -> None:
    """Threads call `methods` in turn; each gets the sums of its own inputs."""

    def work(thread: int) -> int:
        wrong = 0
        for i in range(runs):
            x = np.full((2, 2), thread * 1000 + i, np.float32)
            wrong += not (np.asarray(methods[thread % len(methods)](x, x)) == 2 * x).all()
        return wrong

    assert at_once(work) == [0] * THREADS


def test_one_method(add: pteron.Method) -> None:
    """M109: each caller gets the result of its own inputs."""
    own_results([add])


def test_methods_of_one_program() -> None:
    """Each thread has a method of the same program."""
    program = pteron.load(DATA / "add.pte")
    own_results([program.load_method() for _ in range(THREADS)])


def test_programs() -> None:
    """Each thread has a program of its own."""
    own_results([pteron.load(DATA / "add.pte").load_method() for _ in range(THREADS)])


def test_delegates_share_the_pool() -> None:
    """XNNPACK on one method and on several: the runtime's thread pool and caches are shared."""
    fixture = load_fixture("conv_xnnpack")
    program = fixture.load()
    methods = [program.load_method() for _ in range(3)]

    def work(thread: int) -> None:
        for i in range(30):
            fixture.check(methods[(thread + i) % len(methods)].execute(fixture.inputs))

    at_once(work)


def test_kept_inputs_of_one_method(add: pteron.Method) -> None:
    """Threads that set inputs and run without any: never a mixture of two threads' inputs."""

    def work(thread: int) -> bool:
        x = np.full((2, 2), thread, np.float32)
        sums = set()
        for _ in range(200):
            add.set_inputs([x, -x])
            sums |= set(np.asarray(add.execute()[0]).ravel().tolist())
        return sums == {0.0}

    assert all(at_once(work))


def test_loading_in_a_cold_process() -> None:
    """The first loads of a process happen on many threads at once."""
    code = """
import sys, threading
barrier = threading.Barrier(8)
failed = []
def work():
    barrier.wait()
    try:
        import numpy as np, pteron
        for name in ("add", "mlp_xnnpack", "conv"):
            method = pteron.load(f"{sys.argv[1]}/{name}.pte").load_method()
            method.execute([np.ones(i.sizes(), i.dtype_name()) for i in method.metadata.inputs])
    except BaseException as error:
        failed.append(error)
threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
sys.exit(str(failed) if failed else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(DATA)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_loading_from_one_program() -> None:
    """Threads that ask for a method first get the same one, and others get their own."""
    fixture = load_fixture("mlp_xnnpack")
    for _ in range(20):
        program = fixture.load()
        kept = at_once(lambda _, program=program: program["forward"])
        assert {id(method) for method in kept} == {id(program["forward"])}
        for method in at_once(lambda _, program=program: program.load_method()):
            fixture.check(method.execute(fixture.inputs))


def test_writing_the_record_while_running() -> None:
    """Every run is in one of the records, once."""
    fixture = load_fixture("add")
    program = fixture.load(enable_etdump=True)
    methods = [program.load_method() for _ in range(THREADS)]
    program._open.take_etdump()  # the loads

    def recorded() -> int:
        with contextlib.suppress(MethodStateError):  # nothing ran
            return program._open.take_etdump()[0].count(b"Method::execute")
        return 0

    def work(thread: int) -> int:
        if thread == 0:
            return sum(recorded() for _ in range(50))
        for _ in range(50):
            fixture.check(methods[thread].execute(fixture.inputs))
        return 0

    assert sum(at_once(work)) + recorded() == (THREADS - 1) * 50


@pytest.mark.parametrize("name", ["add", "conv_xnnpack"])
def test_closing_while_running(name: str) -> None:
    """A method or program that is closed in the middle of a run finishes it; later calls say so."""
    fixture = load_fixture(name)
    for i in range(20):
        program = fixture.load()
        method = program.load_method() if i % 2 else program["forward"]
        started = threading.Event()

        def work(method: pteron.Method = method, started: threading.Event = started) -> int:
            runs = 0
            while True:
                try:
                    fixture.check(method.execute(fixture.inputs))
                except ClosedError:
                    return runs
                runs += 1
                started.set()

        with ThreadPoolExecutor(3) as pool:
            futures = [pool.submit(work) for _ in range(3)]
            assert started.wait(20)
            method.close() if i % 2 else program.close()
            assert sum(future.result(20) for future in futures) > 0


def test_dropping_while_running() -> None:
    """The last reference to a method and its program goes while another thread runs it."""
    fixture = load_fixture("mlp_xnnpack")
    for _ in range(30):
        program = fixture.load()
        box = [program.load_method()]
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(lambda box: box[0].execute(fixture.inputs), box)
            del program
            if future.running():
                box = []
            fixture.check(future.result(20))


def test_one_run_at_a_time(add: pteron.Method, ones: np.ndarray) -> None:
    """M43: code of the caller that runs inside a call may call the method, and gets its result."""
    inner: list[Any] = []

    class Calls:
        """An input whose conversion calls the method."""

        def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
            """Ones, after a call of the method."""
            if not inner:
                inner.append(np.asarray(add(ones, 5 * ones)))
            return ones

    result = np.asarray(add(Calls(), ones))
    assert inner[0].tolist() == [[6, 6], [6, 6]]
    assert result.tolist() == [[2, 2], [2, 2]]


class Watched:
    """A thread, and how much of the time it got what it wanted: to run."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._thread = threading.Thread(target=work)
        self._thread.start()
        self._times = Path(f"/proc/self/task/{self._thread.native_id}/schedstat")
        if not self._times.exists():
            pytest.skip("this system does not tell what its threads wait for")
        self._before = self._now()

    def _now(self) -> tuple[float, float, float]:
        """Seconds that it ran, that it waited for a processor, and that went by."""
        ran, queued, _ = map(int, self._times.read_text().split())
        return ran / 1e9, queued / 1e9, time.perf_counter()

    def shares(self) -> tuple[float, float]:
        """Of the time since the last call: how much it ran, and how much no lock kept it from that.

        Time that other processes take from it does not count against the second, so that it also
        holds on a busy machine.
        """
        now = self._now()
        ran, queued, passed = (new - old for new, old in zip(now, self._before, strict=True))
        self._before = now
        return ran / passed, (ran + queued) / passed

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()


def shares(work: Callable[[], Any]) -> Iterator[float]:
    """Again and again, how much a counting thread runs beside `work`."""
    stop = False

    def count() -> None:
        number = 0
        while not stop:
            number += 1

    counter = Watched(count)
    interval = sys.getswitchinterval()
    # Whoever wants the GIL gets it at once: else the thread would run for 5 ms after each call.
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(20):
            counter.shares()
            time.sleep(0.2)
            alone, _free = counter.shares()
            end = time.perf_counter() + 0.3  # the system counts in ticks
            while time.perf_counter() < end:
                work()
            beside, free = counter.shares()
            # A thread without the GIL looks for it every few milliseconds, and waits for a
            # processor to do so; but it hardly runs.
            yield free if beside > 0.3 * alone else 0.0
    finally:
        sys.setswitchinterval(interval)
        stop = True
        counter.join()


def big_method(**options: Any) -> tuple[pteron.Method, list[np.ndarray], pteron.Program]:
    """A method whose run takes about a millisecond, and inputs that need no copy."""
    inputs = [np.ones((1024, 1024), np.float32)] * 2
    program = pteron.load(DATA / "big_add.pte", **options)
    return program.load_method(), inputs, program


def run_long(_: Path) -> Callable[[], Any]:
    """Runs that last longer than what Python does between them."""
    method, inputs, _program = big_method()
    return lambda: [method.execute(inputs) for _ in range(20)]


def wait_for_a_run(_: Path) -> Callable[[], Any]:
    """Runs of one method on two threads, which mostly wait for each other."""
    method, inputs, _program = big_method()

    def work() -> None:
        other = threading.Thread(target=lambda: [method.execute(inputs) for _ in range(20)])
        other.start()
        for _ in range(20):
            method.execute(inputs)
        other.join()

    return work


def load_long(_: Path) -> Callable[[], Any]:
    """Loads from a path, with the compilation of a delegate."""
    path = STRESS / "filters_quantized_xnnpack.pte"
    return lambda: [pteron.load(path).load_method() for _ in range(10)]


def copy_long(_: Path) -> Callable[[], Any]:
    """Loads of bytes that have to be copied."""
    data = bytearray((DATA / "big_add.pte").read_bytes() + bytes(64 << 20))
    return lambda: [pteron.load(data) for _ in range(4)]


def profile(folder: Path) -> Callable[[], Any]:
    """Runs that record every value, and writing the record."""
    method, inputs, program = big_method(enable_etdump=True, debug_buffer_size=64 << 20)

    def work() -> None:
        for _ in range(5):
            method.execute(inputs)
        program.write_etdump_result_to_file(folder / "etdump", folder / "values")

    return work


slow_to_allocate = pytest.mark.skipif(
    sys.flags.dev_mode, reason="the debug allocator fills it with the GIL held"
)


@pytest.mark.not_under("asan", reason="it marks every byte with the GIL held")
@pytest.mark.parametrize(
    "make",
    [
        run_long,
        wait_for_a_run,
        load_long,
        pytest.param(copy_long, marks=slow_to_allocate),
        pytest.param(profile, marks=slow_to_allocate),
    ],
)
def test_gil_is_free(make: Callable[[Path], Callable[[], Any]], tmp_path: Path) -> None:
    """X15, I76: another thread keeps more than 80 % of its time.

    In one of some tries: the work may be stopped between two calls, where it does hold the GIL.
    `test_calls_release_the_gil` sees a GIL that is held on a busy machine, and this how long.
    """
    work = make(tmp_path)
    work()
    assert any(share > 0.8 for share in shares(work))


def steps_beside(call: Callable[[], Any], before_it: Callable[[], Any] = lambda: None) -> int:
    """Steps of another thread in a call, which it can make only where the call releases the GIL."""
    steps, stop = 0, False

    def step() -> None:
        nonlocal steps
        while not stop:
            steps += 1
            time.sleep(0)  # gives the GIL back, which is not asked for below

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    thread = threading.Thread(target=step)
    try:
        thread.start()
        for _ in range(1000):
            before_it()
            before = steps
            call()
            if steps > before:
                break
        return steps - before
    finally:
        sys.setswitchinterval(interval)
        stop = True
        thread.join()


def test_calls_release_the_gil(tmp_path: Path) -> None:
    """X15, I76: a call that held the GIL would let nothing happen, on a busy machine too."""
    method, inputs, _program = big_method()
    traced, _inputs, program = big_method(enable_etdump=True, debug_buffer_size=1 << 24)
    path = STRESS / "filters_quantized_xnnpack.pte"
    loaded = pteron.load(path)
    assert steps_beside(lambda: method.execute(inputs)) > 0
    assert steps_beside(program._open.take_etdump, lambda: traced.execute(inputs)) > 0
    assert steps_beside(lambda: pteron.load(path)) > 0
    assert steps_beside(loaded.load_method) > 0
    held = ctypes.PyDLL(None).usleep
    assert steps_beside(lambda: held(100)) == 0


def test_delegates_do_not_wait_for_each_other() -> None:
    """Methods on XNNPACK run at once: by default it has one workspace, and lock, for all."""
    before = Runtime.get().num_threads
    Runtime.get().num_threads = 1
    try:
        program = pteron.load(STRESS / "filters_xnnpack.pte")
        methods = [program.load_method() for _ in range(2)]
    finally:
        Runtime.get().num_threads = before
    x = np.ones((1, 3, 64, 64), np.float32)
    stop = False

    def work(method: pteron.Method) -> None:
        while not stop:
            method.execute([x])

    threads = [Watched(lambda method=method: work(method)) for method in methods]
    seen = []
    for _ in range(6):
        time.sleep(1)  # on a busy machine, in less there are moments without a wait
        seen.append(min([thread.shares()[1] for thread in threads]))
        if seen[-1] > 0.85:
            break
    stop = True
    for thread in threads:
        thread.join()
    assert seen[-1] > 0.85, seen


CHANGE = """
import sys
import numpy as np, pteron
from pteron.runtime import Runtime
x = np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype(np.float32)
program = pteron.load(sys.argv[1])
methods, results = [], []
for count in (2, 5, 1, 3, 2, 4):
    Runtime.get().num_threads = count
    assert Runtime.get().num_threads == count
    methods.append(program.load_method())
    results += [np.asarray(method.execute([x])[0]) for method in methods for _ in range(5)]
print(all(np.array_equal(result, results[0]) for result in results))
"""


def test_number_of_threads_changes() -> None:
    """Methods that were loaded with another number run on, with the same results."""
    command = [sys.executable, "-c", CHANGE, str(STRESS / "filters_xnnpack.pte")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_parallel_runs_are_right_to_the_bit() -> None:
    """A short `make stress`: loads, closes and other numbers of threads in the middle of runs."""
    command = [sys.executable, str(STRESS / "parallel.py"), "--cpu-minutes", "0.05", "--threads=4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["elements"] > 1_000_000 and found["mismatches"] == 0


QUOTA_FILES = {
    "no groups": ({}, None),
    "v2": ({"cpu.max": "150000 100000"}, 2),
    "v2 without a limit": ({"cpu.max": "max 100000"}, None),
    "v2 of a group": ({"cpu.max": "max 100000", "a/b/cpu.max": "50000 100000"}, 1),
    "v2 of the group above": ({"a/cpu.max": "100000 100000", "a/b/cpu.max": "max 100000"}, 1),
    "v1": ({"cpu/cpu.cfs_quota_us": "20000", "cpu/cpu.cfs_period_us": "100000"}, 1),
    "v1 without a limit": ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    "v1 of a group": (
        {
            "cpu,cpuacct/a/b/cpu.cfs_quota_us": "100000",
            "cpu,cpuacct/a/b/cpu.cfs_period_us": "100000",
        },
        1,
    ),
    "nonsense": ({"cpu.max": "much", "cpu/cpu.cfs_quota_us": "", "a/cpu.max": "5"}, None),
}


@pytest.mark.parametrize("name", QUOTA_FILES)
def test_quota_of_the_control_group(name: str, tmp_path: Path) -> None:
    """The default number of threads is not more than what the cgroup lets run."""
    files, limit = QUOTA_FILES[name]
    groups = "12:cpuset:/x\n4:cpu,cpuacct:/a/b\nbroken\n" + ("" if "v1" in name else "0::/a/b\n")
    for path, text in {"proc/self/cgroup": groups}.items() | {
        (f"sys/fs/cgroup/{path}", text) for path, text in files.items()
    }:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    everything = len(os.sched_getaffinity(0))
    assert _core.available_cpus(str(tmp_path)) == min(limit or everything, everything)


COUNT = """
import os, sys
os.sched_setaffinity(0, eval(sys.argv[1]))
import pteron
from pteron.runtime import Runtime
print(Runtime.get().num_threads)
"""


def number_of_threads(cpus: set[int], setting: str = "") -> subprocess.CompletedProcess[str]:
    """What a process on those processors says."""
    environment = dict(os.environ, PTERON_NUM_THREADS=setting)
    command = [sys.executable, "-c", COUNT, repr(cpus)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no CPU sets")
def test_default_number_of_threads() -> None:
    """It follows the CPU set that the process was given, unless the environment says a number."""
    every = os.sched_getaffinity(0)
    assert number_of_threads({min(every)}).stdout == "1\n"
    assert number_of_threads(every).stdout == f"{_core.available_cpus()}\n"
    assert number_of_threads(every, "3").stdout == "3\n"
    for wrong in ("0", "-1", "many", str(10**30)):
        assert f"PTERON_NUM_THREADS is '{wrong}'" in number_of_threads(every, wrong).stderr
