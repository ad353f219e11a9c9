"""Forks, other processes, subinterpreters and the end of the interpreter."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DATA, load_fixture

import pteron
from pteron.errors import ArgumentError, ClosedError
from pteron.runtime import Runtime

PRELUDE = f"""
import os, signal, sys, threading, time
import numpy as np
import pteron
from pathlib import Path
DATA = Path({str(DATA)!r})

def method(name):
    return pteron.load(DATA / f"{{name}}.pte").load_method()

def inputs(method):
    return [np.ones(info.sizes(), info.dtype_name()) for info in method.metadata.inputs]

def in_child(work):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]
"""

# The builds of `.ci/sanitize`, in which nanobind aborts if something outlives the interpreter.
SANITIZED = "PTERON_SANITIZER" in os.environ


def run(tmp_path: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run `code` after `PRELUDE` in a new process."""
    file = tmp_path / "script.py"
    file.write_text(PRELUDE + code)
    command = [sys.executable, *options, "-W", "ignore::DeprecationWarning", file]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def script(tmp_path: Path, code: str) -> str:
    """What it printed; it must end well, and in development mode report nothing, as of leaks."""
    done = run(tmp_path, code, "-X", "dev")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
untracked = pytest.mark.not_under("tsan", reason="it adds a thread and mixes up those of children")


@needs_fork
@untracked
def test_fork_before_use(tmp_path: Path) -> None:
    """Parent and children each start to use pteron after the fork."""
    code = """
def work():
    m = method("conv_xnnpack")
    m.execute(inputs(m))
print(in_child(work), work(), in_child(work))
"""
    assert script(tmp_path, code).split() == ["0", "None", "0"]


@needs_fork
@untracked
def test_fork_after_use(tmp_path: Path) -> None:
    """A child runs the parent's methods and new ones, with as many threads; its own child too."""
    code = """
from pteron.runtime import Runtime
Runtime.get().num_threads = 3
names = ("big_add", "conv_xnnpack", "mlp")
methods = [method(name) for name in names]
results = [m.execute(inputs(m)) for m in methods]

def threads():
    return len(os.listdir("/proc/self/task")) if Path("/proc/self/task").exists() else 3

def work():
    for name, m, result in zip(names, methods, results):
        for again in (m, method(name)):
            got = again.execute(inputs(again))
            assert np.array_equal(np.asarray(got[0]), np.asarray(result[0]))
    assert Runtime.get().num_threads == 3
    assert threads() == 3, threads()

def nested():
    work()
    assert in_child(work) == 0

print(in_child(nested))
work()
"""
    assert script(tmp_path, code).split() == ["0"]


@needs_fork
def test_fork_while_threads_run(tmp_path: Path) -> None:
    """A fork finds no lock of the runtime held, though other threads run, load and drop methods."""
    code = """
shared = method("conv_xnnpack")
stop = False
def loop(new):
    while not stop:
        m = method("conv_xnnpack") if new else shared
        m.execute(inputs(m))
threads = [threading.Thread(target=loop, args=(new,)) for new in (False, False, True)]
[t.start() for t in threads]
def work():
    for m in (shared, method("conv_xnnpack")):
        m.execute(inputs(m))
print(sum(in_child(work) for _ in range(30)))
stop = True
[t.join() for t in threads]
"""
    assert script(tmp_path, code).split() == ["0"]


@needs_fork
def test_fork_that_cannot_wait(tmp_path: Path) -> None:
    """A fork in the middle of a run that does not end: the child says so, and ends well."""
    code = """
pteron._core.set_fork_patience(0)
shared = [method("../stress/filters_xnnpack") for _ in range(2)]
stop = False
def loop(m):
    x = inputs(m)
    while not stop:
        m.execute(x)
threads = [threading.Thread(target=loop, args=(m,), daemon=True) for m in shared for _ in range(2)]
[t.start() for t in threads]
x = inputs(shared[0])
for _ in range(1000):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            shared[0].execute(x)
        except pteron.errors.MethodStateError as error:
            print(str(error)[:48], flush=True)
            sys.exit(3)  # the whole end of an interpreter
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        break
print(code)
shared[0].execute(x)
stop = True
[t.join() for t in threads]
"""
    done = run(tmp_path, code)
    ended = str(-signal.SIGABRT if SANITIZED else 3)  # what threads hold is never freed
    assert done.stdout.splitlines() == ["This process was forked while another thread was", ended]
    assert done.returncode == 0 and (SANITIZED or not done.stderr), done.stderr


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_multiprocessing(tmp_path: Path, start: str) -> None:
    """Programs go to other processes as arguments, results come back."""
    code = f"""
import multiprocessing
def work(program, x):
    return program(x, x)
if __name__ == "__main__":
    program = pteron.load(DATA / "add.pte")
    x = np.ones((2, 2), np.float32)
    program(x, x)
    with multiprocessing.get_context({start!r}).Pool(2) as pool:
        results = pool.starmap(work, [(program, i * x) for i in range(4)])
        pool.close()
        pool.join()
    print([float(np.asarray(result)[0, 0]) for result in results])
"""
    if start != "spawn" and not hasattr(os, "fork"):
        pytest.skip("this system cannot fork")
    assert script(tmp_path, code).strip() == "[0.0, 2.0, 4.0, 6.0]"


def reloaded(program: pteron.Program) -> tuple[pteron.Program, int]:
    """A pickled copy, and the bytes of the pickle."""
    data = pickle.dumps(program)
    return pickle.loads(data), len(data)


def test_pickle_by_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program from a path is a path, absolute, with its data files and options."""
    fixture = load_fixture("ptd")
    monkeypatch.chdir(DATA)
    program = pteron.load("ptd.pte", data_path=Path("ptd.ptd"), enable_etdump=True)
    monkeypatch.chdir("/")
    copy, size = reloaded(program)
    fixture.check(copy.load_method().execute(fixture.inputs))
    assert copy.has_etdump
    assert size < 600


def test_pickle_by_bytes_with_data() -> None:
    """The bytes of data files go along too."""
    fixture = load_fixture("ptd")
    weights = fixture.path.with_suffix(".ptd").read_bytes()
    program = pteron.load(fixture.path.read_bytes(), data_path=[bytearray(weights)])
    copy, size = reloaded(program)
    fixture.check(copy.load_method().execute(fixture.inputs))
    assert size > len(weights) + fixture.path.stat().st_size


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, np.frombuffer, open])
def test_pickle_by_bytes(kind: Any) -> None:
    """A program from memory takes its bytes along, as they were when it was loaded."""
    fixture = load_fixture("add")
    if kind is open:
        with open(fixture.path, "rb") as file:
            program = pteron.load(file)
    else:
        data = fixture.path.read_bytes()
        source = kind(data, np.uint8) if kind is np.frombuffer else kind(data)
        program = pteron.load(source)
        if kind is bytearray:
            source[:] = bytes(len(source))
    copy, size = reloaded(reloaded(program)[0])
    fixture.check(copy.load_method().execute(fixture.inputs))
    assert size > fixture.path.stat().st_size


def test_what_does_not_pickle(add: pteron.Method) -> None:
    """Methods hold memory that runs write; closed programs hold nothing."""
    with pytest.raises(TypeError, match="cannot pickle 'pteron._core.Method' object"):
        pickle.dumps(add)
    program = pteron.load(DATA / "add.pte")
    program.close()
    with pytest.raises(ClosedError, match="closed"):
        pickle.dumps(program)


ALIVE = """
data = bytes((DATA / "state.pte").read_bytes())
program = pteron.load(data, enable_etdump=True)
m = program.forward
x = inputs(m)
m.set_inputs(x)
kept = [m.execute(), m.execute(x, clone_outputs=False), m.get_outputs(), dict(m.state)]
views = [np.from_dlpack(m.execute(x)[0]), memoryview(m.execute(x)[0])]
cycle = [m, program, kept]
cycle.append(cycle)
capsules = [m.execute(x)[0].__dlpack__() for _ in range(2)]
class Late:
    def __del__(self, m=m, x=x):
        m.execute(x)
late = Late()
import atexit
atexit.register(lambda: (m.execute(x), np.asarray(kept[0][0])))
"""


def test_exit_with_everything_alive(tmp_path: Path) -> None:
    """The interpreter ends while programs, methods, results, views and kept inputs live."""
    assert script(tmp_path, ALIVE + "print('done')") == "done\n"


def test_exit_with_running_threads(tmp_path: Path) -> None:
    """The interpreter ends while daemon threads load and run methods; nobody reads about it."""
    code = """
def loop(name):
    while True:
        m = method(name)
        for _ in range(10):
            m.execute(inputs(m))
for name in ("add", "big_add", "conv_xnnpack"):
    threading.Thread(target=loop, args=(name,), daemon=True).start()
time.sleep(0.05)
print("done")
"""
    for _ in range(5):
        done = run(tmp_path, ALIVE + code)
        assert done.stdout == "done\n"
        if done.returncode != -signal.SIGABRT or not SANITIZED:  # what threads hold is never freed
            assert (done.returncode, done.stderr) == (0, ""), done.stderr


# Where the binding calls Python code of others.
IN_PYTHON = {
    "log": "method('to_float8')(x)",
    "input": "method('add')(Slow(), x)",
    "dlpack": "method('add')(SlowExport(), x)",
    "item": "method('alpha')(x, SlowNumber(), 3, True)",
    "set_inputs": "method('add').set_inputs([Slow(), x])",
    "module": "pteron.Module(pteron.load(DATA / 'add.pte')).forward([Slow(), x])",
    "state": "method('state').state.update({name: Slow() for name in method('state').state})",
    "index": "Runtime.get().num_threads = Slow()",
    "truth": "method('add').execute([x, x], clone_outputs=Slow())",
    "structure": "method('tree')(Slow(), mask=x, scale=np.float32(0.5))",
    "weakref": """
    m, kept = method("add"), x.view(Array)
    ref = weakref.ref(kept, slow)
    m.set_inputs([kept, x])
    del kept
    m.set_inputs([x, x])
    """,
    "deleter": "method('add')(capsules.Producer(x), x)",
}


@pytest.mark.parametrize("place", IN_PYTHON)
def test_exit_with_a_thread_in_python(tmp_path: Path, place: str) -> None:
    """The interpreter ends a thread in Python code that the binding called, wherever it did."""
    code = f"""
import logging, weakref
sys.path.append({str(DATA.parent)!r})
import capsules
from pteron.runtime import Runtime
x = np.ones((2, 2), np.float32)
started = threading.Event()
def slow(*args, **kwargs):
    started.set()
    time.sleep(0.2)
    return 1
class Slow:
    __array__ = __index__ = __bool__ = slow
class SlowExport:
    __dlpack__ = slow
class SlowNumber:
    item = slow
class Array(np.ndarray):
    pass
class Late:
    def __del__(self, sleep=time.sleep):
        sleep(0.5)
sys.modules["late"] = Late()  # deleted late, when threads are ended
class Handler(logging.Handler):
    handle = slow
logging.getLogger("pteron.native").addHandler(Handler())
capsules.Export.on_delete = slow
def work():
    {IN_PYTHON[place].strip()}
threading.Thread(target=work, daemon=True).start()
assert started.wait(20)
"""
    done = run(tmp_path, code)
    if done.returncode != -signal.SIGABRT or not SANITIZED:
        assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.skipif(bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="nothing is counted")
def test_leaks_are_reported(tmp_path: Path) -> None:
    """What outlives the interpreter is told in development mode, and only there."""
    code = """
import ctypes
program = pteron.load(DATA / "add.pte")
ctypes.pythonapi.Py_IncRef(ctypes.py_object(program._open))
"""
    assert "leaked instance" in run(tmp_path, code, "-X", "dev").stderr
    done = run(tmp_path, code)
    assert done.returncode == -signal.SIGABRT if SANITIZED else done.stderr == ""


@pytest.mark.parametrize("first", [False, True], ids=["cold", "after the main interpreter"])
def test_subinterpreters_are_refused(tmp_path: Path, first: bool) -> None:
    """The import fails there, and what the main interpreter has goes on."""
    code = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
other = interpreters.create()
failed = '''
import sys
sys.path[:] = PATH
try:
    import pteron
    pteron.load
    print("imported")
except ImportError as error:
    print("subinterpreters" in str(error))
'''.replace("PATH", repr(sys.path))
print(flush=True)
interpreters.run_string(other, failed)
interpreters.destroy(other)
"""
    after = "\nm = method('add')\nm.execute(inputs(m))\n"
    file = tmp_path / "sub.py"
    file.write_text(PRELUDE + code + after if first else "import sys\n" + code + PRELUDE + after)
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["True"], ""), done.stderr


@pytest.mark.parametrize("count", [0, -2, 5000, -(2**63)])
def test_absurd_thread_counts(count: int) -> None:
    """X12: thread counts that cannot be are refused, and change nothing."""
    before = Runtime.get().num_threads
    with pytest.raises(ArgumentError, match="The number of threads must be 1 to"):
        Runtime.get().num_threads = count
    assert Runtime.get().num_threads == before
