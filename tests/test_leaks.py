"""M110: memory stays flat over 10,000 calls of each path, each in a process of its own.

``python tests/test_leaks.py NAME`` runs one path and prints what has grown.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from capsules import Export, Producer, resident
from conftest import DATA, load_fixture

import pteron
import pteron.portable_lib
import pteron.runtime
from pteron import errors

ONES = np.ones((2, 2), np.float32)
Step = Callable[[], object]


def method(name: str = "add", which: str = "forward", **options: Any) -> pteron.Method:
    return load_fixture(name).load(**options).load_method(which)


def refused(call: Step, error: type[Exception] = errors.ExecuTorchError) -> None:
    with contextlib.suppress(error):
        call()
        raise AssertionError("was not refused")


def call() -> Step:
    m = method()
    return lambda: m(ONES, ONES)


def call_with_structure() -> Step:
    m, x = method("tree"), ONES
    scale = np.float32(0.5)
    return lambda: m(x, mask=x, scale=scale)


def execute() -> Step:
    m = method()
    return lambda: (m.execute([ONES, ONES]), m.execute((ONES, ONES), clone_outputs=False))


def always_copy() -> Step:
    m = method("unplanned")
    m.always_copy = True
    return lambda: m.execute([ONES, ONES.T])


def set_inputs() -> Step:
    m = method()

    def step() -> None:
        m.set_inputs([ONES.copy(), ONES.tolist() and ONES])
        m.execute()
        m.execute(clone_outputs=False)

    return step


def get_outputs() -> Step:
    m = method("return_input_unplanned")
    x = np.ones((2, 3), np.float32)
    m.set_inputs([x, x])
    m.execute()
    return lambda: (m.execute(), m.get_outputs(), m.get_outputs(clone_outputs=False))


def borrowed() -> Step:
    """Passed back in, and read when it is too late."""
    m = method()

    def step() -> None:
        (r,) = m.execute([ONES, ONES], clone_outputs=False)
        (s,) = m.execute([r, np.asarray(r)[::-1]], clone_outputs=False)
        refused(r.tobytes)
        np.asarray(s)

    return step


def module() -> Step:
    m = pteron.Module(load_fixture("mul_add").load())
    m.forward([ONES, ONES])

    def step() -> None:
        m.forward([ONES.copy(), ONES])
        m.forward([ONES.copy()])
        m.plan_execute("forward")

    return step


def bundled() -> Step:
    bundle = pteron.load_bundled(DATA / "bundled.bpte")
    return lambda: (bundle.verify("forward", 0), bundle.cases("forward"))


def failing_inputs() -> Step:
    m = method()
    bad: list[Any] = [[ONES], [ONES, None], [ONES, ONES[0]], [ONES, ONES.astype(int)], [ONES, "x"]]
    bad += [[ONES, [1.0]], [ONES, object()]]

    def step() -> None:
        for inputs in bad:
            refused(lambda inputs=inputs: m.execute(inputs))
        refused(lambda: m(ONES))
        refused(lambda: m.set_inputs([ONES]))
        refused(m.execute)

    return step


def failing_producers() -> Step:
    m = method()

    class Broken:
        def __dlpack__(self, **options: Any) -> Any:
            raise OSError("unplugged")

    def step() -> None:
        refused(lambda: m(ONES, Broken()))
        # Held here: the destructor is Python, which must not run while an error is on its way.
        good, bad = Export(ONES).capsule(), Export(ONES, ndim=99).capsule()
        refused(lambda: m(good, None))
        refused(lambda: m(ONES, bad))

    return step


def failing_runs() -> Step:
    m = method("to_float8")
    return lambda: refused(lambda: m(ONES), errors.ExecutionError)


def inputs() -> Step:
    """Every kind that is no array."""
    m = method()
    raw = ONES.tobytes()
    result = pteron.ExecuTorchResult.from_host(ONES)

    def step() -> None:
        m(memoryview(raw).cast("f", (2, 2)), ONES[::-1])
        m(result, pteron.ExecuTorchResult.from_host(ONES))
        m(result.numpy(), np.asfortranarray(ONES))

    return step


def numbers() -> Step:
    m, z = method("alpha"), method("zero_d")
    return lambda: (m(ONES, 0.5, 3, True), z(1.5, np.int64(3)), method)


def dlpack_in() -> Step:
    m = method()

    def step() -> None:
        m(Producer(ONES), Producer(ONES, versioned=False))
        m(Export(ONES).capsule(), ONES.__dlpack__())
        m.set_inputs([Producer(ONES), ONES])
        m.execute()

    return step


def results_out() -> Step:
    m = method()

    def step() -> None:
        r = m(ONES, ONES)
        np.asarray(r), np.array(r), memoryview(r), r.numpy(), r.tobytes(), repr(r), r == r
        np.from_dlpack(r), r.__dlpack__(), r.__dlpack__(max_version=(1, 0), copy=True)
        r.shape, r.strides, r.dtype, r.device, r.to_host()

    return step


def state() -> Step:
    m = method("state_shared")
    saved = m.state.copy()

    def step() -> None:
        m(ONES)
        view = m.state["acc"]
        m.state["acc"] = np.asarray(view)
        m.state["count"] = 3
        m.state.update(saved)
        m.state.copy(), m.state.reset(), m.get_attribute("acc")
        refused(lambda: m.state.update({"count": 1, "acc": ONES[0]}))
        refused(lambda: m.state["nothing"])

    return step


def saved_state() -> Step:
    m = method("state")

    def step() -> None:
        m.state.save("/dev/shm/pteron_test_leaks.npz")
        m.state.load("/dev/shm/pteron_test_leaks.npz")

    return step


def load() -> Step:
    data = (DATA / "mlp_xnnpack.pte").read_bytes()
    fixture = load_fixture("attribute")

    def step() -> None:
        pteron.load(data).load_method()
        pteron.load(DATA / "add.pte", mmap=True).forward(ONES, ONES)
        fixture.load().load_method().get_attribute("table.values")
        load_fixture("state_shared").load()["forward"](ONES)

    return step


def failing_loads() -> Step:
    data = (DATA / "add.pte").read_bytes()
    program = load_fixture("missing_op").load()
    shared = load_fixture("state_shared").load()

    def step() -> None:
        refused(lambda: pteron.load(data[:100]))
        refused(lambda: pteron.load(data[:-8] + b"x"))
        refused(lambda: pteron.load("/not there"))
        refused(program.load_method)
        refused(lambda: shared.load_method("nothing"))
        shared.load_method("peek")()

    return step


def etdump() -> Step:
    program = load_fixture("add").load(enable_etdump=True, debug_buffer_size=1 << 12)
    m = program.load_method()

    def step() -> None:
        m(ONES, ONES)
        program._open.take_etdump()

    return step


def metadata() -> Step:
    program = load_fixture("tree").load()

    def step() -> None:
        meta = program.load_method().metadata
        repr(meta), repr(program), [repr(info) for info in meta.inputs]
        program.metadata("forward").operators, refused(lambda: program.metadata("x"))

    return step


def faces() -> Step:
    """The official names."""
    path = str(DATA / "add.pte")
    m = pteron.runtime.Runtime.get().load_program(path).load_method("forward")
    module = pteron.portable_lib._load_for_executorch(path)
    assert m is not None
    return lambda: (m.execute([ONES, ONES]), module.forward([ONES, ONES]))


# By name: the path, and how many calls where they are expensive.
PATHS: dict[str, tuple[Callable[[], Step], int]] = {
    path.__name__: (path, 10_000)
    for path in (
        call, call_with_structure, execute, always_copy, set_inputs, get_outputs, borrowed, module,
        failing_inputs, failing_producers, failing_runs, inputs, numbers, dlpack_in, results_out,
        state, faces,
    )
} | {
    path.__name__: (path, count)
    for path, count in (
        (bundled, 2_000), (saved_state, 300), (load, 500), (failing_loads, 1_000), (etdump, 2_000),
        (metadata, 1_000),
    )
}  # fmt: skip


class Usage(ctypes.Structure):
    """``struct mallinfo2`` of glibc: ten numbers."""

    _fields_ = [(f"field{i}", ctypes.c_size_t) for i in range(10)]
    mapped = property(lambda self: self.field4)  # hblkhd
    small = property(lambda self: self.field7)  # uordblks


def in_use() -> dict[str, int]:
    """VmRSS in KiB, bytes in use of malloc, blocks in use of Python."""
    gc.collect()
    found = {"resident KiB": resident(), "Python blocks": sys.getallocatedblocks()}
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallinfo2"):
        libc.mallinfo2.restype = Usage
        usage = libc.mallinfo2()
        found["malloc bytes"] = usage.small + usage.mapped
    return found


def main(name: str) -> None:
    logging.disable(logging.CRITICAL)
    make, count = PATHS[name]
    step = make()
    in_use()
    for _ in range(count // 2 + 20):  # caches fill: interned names, free lists, arenas
        step()
    # One small object for each call is above the last two.
    limits = {"resident KiB": 1024, "Python blocks": 200 + count // 20, "malloc bytes": 8 * count}
    grown: dict[str, int] = {}
    for _ in range(3):  # a leak grows every time, what warms up does not
        before = in_use()
        for _ in range(count):
            step()
        after = in_use()
        grown = {key: after[key] - before[key] for key in after}
        print(grown)
        if all(value < limits[key] for key, value in grown.items()):
            return
    raise AssertionError(f"{name} grew: {grown}")


@pytest.mark.not_under("asan", "tsan", reason="their allocators hold memory back")
@pytest.mark.parametrize("name", PATHS)
def test_memory_stays_flat(name: str) -> None:
    """M110."""
    done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_classes_of_inputs_are_collected() -> None:
    """What is known of a type does not keep it alive."""
    m = method()
    made = type("Made", (Producer,), {})
    m(made(ONES), ONES)
    m.execute([made(ONES), ONES])
    reference = weakref.ref(made)
    del made
    gc.collect()
    assert reference() is None


if __name__ == "__main__":
    main(sys.argv[1])
