"""Reruns: every execute() reads the inputs that the caller passed, as they are at that moment."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from capsules import Export, Producer, flat_memory
from conftest import load_fixture

import pteron
from pteron import errors

ONES = np.ones((2, 2), np.float32)


def load(name: str, always_copy: bool = False) -> pteron.Method:
    method = load_fixture(name).load().load_method()
    method.always_copy = always_copy
    return method


def full(value: float) -> Any:
    return np.full((2, 2), value, np.float32)


def value(outputs: list[Any]) -> float:
    """The one value that all elements of the first output have."""
    array = np.asarray(outputs[0])
    assert np.array_equal(array, np.full_like(array, array.flat[0]))
    return float(array.flat[0])


both = pytest.mark.parametrize("always_copy", [False, True], ids=["in place", "copied"])


@both
def test_three_runs_of_the_same_inputs(always_copy: bool) -> None:
    """M62: (x + y) * y."""
    method = load("mul_add", always_copy)
    method.set_inputs([full(2), full(3)])
    assert [value(method.execute()) for _ in range(3)] == [15, 15, 15]


@both
@pytest.mark.parametrize("name", ["mul_add", "unplanned"])
@pytest.mark.parametrize("kind", ["ndarray", "strided", "bytearray", "DLPack", "result"])
def test_edits_in_place_are_seen(name: str, kind: str, always_copy: bool) -> None:
    """M65, M66, M77: before the first run and between runs, in every kind of memory."""
    method = load(name, always_copy)
    memory = full(0)
    x: Any = memory
    if kind == "strided":
        memory = np.zeros((2, 4), np.float32)
        x = memory[::-1, ::2]
    elif kind == "bytearray":
        store = bytearray(16)
        x = memoryview(store).cast("f", (2, 2))
        memory = np.frombuffer(store, np.float32)
    elif kind == "DLPack":
        x = Producer(memory)
    elif kind == "result":
        x = pteron.ExecuTorchResult.from_host(memory)
        memory = np.asarray(x)
    function = (lambda a: (a + 3) * 3) if name == "mul_add" else (lambda a: a + 3)
    method.set_inputs([x, full(3)])
    for number in (2, 5, 7):
        memory[...] = number
        assert value(method.execute()) == function(number)
    assert value(method.execute()) == function(7)


class Converted:
    """What only NumPy can make an array of, each time anew."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.array.copy()


@both
@pytest.mark.parametrize("kind", ["channels last", "converted", "number"])
def test_edits_of_what_is_converted_are_seen(kind: str, always_copy: bool) -> None:
    """M77: another dim order, an array made for each run, a number."""
    memory: Any = np.zeros((1, 2, 2, 3), np.float32)
    method, x = load("times2_4d", always_copy), memory.transpose(0, 3, 1, 2)
    if kind == "converted":
        x = Converted(x)
    elif kind == "number":
        memory, method = np.zeros((), np.float32), load("zero_d", always_copy)
        x = memory
    method.set_inputs([x] if kind != "number" else [x, 1])
    for number in (2, 5):
        memory[...] = np.arange(memory.size).reshape(memory.shape) + number
        array = x.array if kind == "converted" else x
        for _ in range(2):
            assert np.array_equal(method.execute()[0], array * 2)


@both
def test_planned_input_written_in_place(always_copy: bool) -> None:
    """M67: every run starts from the caller's value, which stays as it is."""
    method = load("planned_state", always_copy)
    state = full(10)
    method.set_inputs([ONES, state])
    assert [value(method.execute()) for _ in range(3)] == [11, 11, 11]
    assert value(method.execute([ONES, state])) == 11
    assert np.array_equal(state, full(10))


def test_unplanned_input_written_in_place() -> None:
    """M68: the write lands in the caller's memory and carries over."""
    method = load("unplanned_state")
    state = full(10)
    method.set_inputs([ONES, state])
    assert [value(method.execute()) for _ in range(3)] == [11, 12, 13]
    assert np.array_equal(state, full(13))
    state.flags.writeable = False
    assert [value(method.execute()) for _ in range(2)] == [14, 14]
    assert np.array_equal(state, full(13))


def move_away(x: np.ndarray) -> None:
    """Give the array other memory and its old shape back."""
    old, size = x.ctypes.data, 512
    while x.ctypes.data == old:  # it may have room to grow where it is
        assert size <= 8192
        x.resize((size, size), refcheck=False)
        size *= 2
    taken = [x[:2, :2].copy() for _ in range(64)]  # the old place too, if it was given back
    x.resize((2, 2), refcheck=False)
    assert x.ctypes.data != old and taken


REPLACED: dict[str, tuple[Callable[[], Any], Callable[[Any], object], str]] = {
    "resized": (lambda: full(1), lambda x: x.resize((64, 64), refcheck=False), "storage|shape"),
    "same shape elsewhere": (
        lambda: full(1),
        move_away,
        "storage",
    ),
    "dtype": (lambda: full(1), lambda x: setattr(x, "dtype", np.int32), "shape or dtype"),
    "shape": (lambda: full(1), lambda x: setattr(x, "shape", (4,)), "shape"),
    "transposed": (lambda: full(1), lambda x: setattr(x, "strides", (4, 8)), "shape"),
    "DLPack elsewhere": (
        lambda: Producer(full(1)),
        lambda x: setattr(x, "array", full(2)),
        "storage",
    ),
    "DLPack shape": (
        lambda: Producer(full(1)),
        lambda x: setattr(x, "array", full(2)[:1]),
        "storage|shape",
    ),
}


@both
@pytest.mark.filterwarnings("ignore:Setting the .* on a NumPy array:DeprecationWarning")
@pytest.mark.parametrize("case", REPLACED)
def test_storage_replaced(case: str, always_copy: bool) -> None:
    """M14, M69, M75, M78: an error that says to pass the input again, until it is."""
    make, change, words = REPLACED[case]
    method = load("add", always_copy)
    x = make()
    method.set_inputs([ONES, x])
    assert value(method.execute()) == 2
    change(x)
    for _ in range(2):
        with pytest.raises(errors.MethodStateError, match="Input 1 of method 'forward'") as caught:
            method.execute()
        text = str(caught.value)
        assert "pass the input again" in text and "set_inputs" not in text
        assert any(word in text for word in words.split("|"))
    method.set_inputs([ONES, ONES])
    assert value(method.execute()) == 2


def test_producer_that_copies_at_each_request() -> None:
    """M75: memory that is flagged as a copy has no place to keep; its values are read anew."""
    method = load("add")
    x = Producer(full(1), flags=2)
    method.set_inputs([ONES, x])
    assert value(method.execute()) == 2
    x.array = full(5)
    assert value(method.execute()) == 6
    assert len(x.asked) == 3  # M70: at set_inputs, and once for each run


def test_producer_is_asked_once_for_a_call() -> None:
    """M70."""
    method, x = load("add"), Producer(full(1))
    method(ONES, x)
    method.execute([ONES, x])
    assert len(x.asked) == 2 and x.deleted == [1, 1]


@pytest.mark.parametrize("release", ["set_inputs", "failed set_inputs", "close", "del"])
def test_inputs_live_as_long_as_they_are_set(release: str) -> None:
    """M71: and are released then, deleters included."""
    method: Any = load("add")
    array, export = ONES.copy(), Export(ONES)
    ref = weakref.ref(array)
    method.set_inputs([array, export.capsule()])
    del array
    for _ in range(2):
        gc.collect()
        assert value(method.execute()) == 2
    assert ref() is not None and export.deleted == 0
    if release == "set_inputs":
        method.set_inputs([ONES, ONES])
    elif release == "failed set_inputs":
        with pytest.raises(errors.InputError):
            method.set_inputs([ONES])
    elif release == "close":
        method.close()
    else:
        del method
    gc.collect()
    assert ref() is None and export.deleted == 1


def test_inputs_of_a_call_are_released() -> None:
    """They are held for the call only."""
    method, array = load("add"), ONES.copy()
    before = sys.getrefcount(array)
    method(array, array)
    method.execute([array, array])
    with pytest.raises(errors.InputError):
        method.execute([array, None])
    assert sys.getrefcount(array) == before


def test_cycle_through_kept_inputs_is_collected() -> None:
    """A method that keeps an object that keeps the method."""
    method = load("add")
    x = Producer(ONES)
    x.asked.append({"method": method})
    method.set_inputs([ONES, x])
    ref = weakref.ref(x)
    del method, x
    gc.collect()
    assert ref() is None


def test_failed_set_inputs() -> None:
    """M72: later runs say so; before the first they say what is missing."""
    method = load("add")
    with pytest.raises(errors.MethodStateError, match="no inputs yet: call set_inputs"):
        method.execute()
    method.set_inputs([ONES, ONES])
    with pytest.raises(errors.InputError, match="Input 1"):
        method.set_inputs([ONES, full(1)[0]])
    for _ in range(2):
        with pytest.raises(errors.MethodStateError, match=r"the last set_inputs\(\) failed"):
            method.execute()
    assert value(method.execute([ONES, ONES])) == 2  # passing them needs no earlier ones
    with pytest.raises(errors.MethodStateError, match=r"the last set_inputs\(\) failed"):
        method.execute()


def test_failure_while_inputs_are_read_again() -> None:
    """M73: its own message; the inputs stay set."""
    method = load("add")
    broken: list[Exception] = []

    class Sometimes(Producer):
        def __dlpack__(self, **keywords: Any) -> Any:
            if broken:
                raise broken[0]
            return super().__dlpack__(**keywords)

    method.set_inputs([ONES, Sometimes(ONES)])
    broken.append(OSError("unplugged"))
    with pytest.raises(errors.InputError, match="Input 1 .*OSError: unplugged") as caught:
        method.execute()
    assert "set_inputs" not in str(caught.value)
    broken.clear()
    assert value(method.execute()) == 2


@both
def test_borrowed_result_as_a_kept_input(always_copy: bool) -> None:
    """M76: copied once, so that both runs give x + 2 and not x + 3."""
    method = load("two_methods", always_copy)
    (borrowed,) = method.execute([full(1)], clone_outputs=False)
    method.set_inputs([borrowed])
    assert [value(method.execute()) for _ in range(2)] == [3, 3]
    (borrowed,) = method.execute([full(1)], clone_outputs=False)
    method.set_inputs([np.asarray(borrowed)[::-1]])
    assert [value(method.execute()) for _ in range(2)] == [3, 3]


@both
@pytest.mark.parametrize("name", ["add", "unplanned", "mul_add", "sub2"])
def test_borrowed_results_in_one_call(name: str, always_copy: bool) -> None:
    """X2: views of the method's own memory are read before the run overwrites it."""
    fixture = load_fixture(name)
    method = load(name, always_copy)
    x, y = fixture.inputs
    for inputs in (lambda r: (x, r), lambda r: (r, y), lambda r: (r, r), lambda r: (r[::-1], r)):
        (borrowed,) = method.execute([x, y], clone_outputs=False)
        owned = np.array(borrowed)
        for clone in (True, False):
            view = np.asarray(method.execute([x, y], clone_outputs=False)[0])
            (out,) = method.execute(inputs(view), clone_outputs=clone)
            (want,) = load(name, True).execute(inputs(owned))
            assert np.array_equal(out, want)


@pytest.mark.parametrize("kept", [False, True], ids=["passed", "kept"])
def test_threads_get_their_own_results(kept: bool) -> None:
    """M109: several on one method; inputs that were set are everybody's."""
    method = load("mul_add")
    method.set_inputs([full(2), Producer(full(3))])
    wrong: list[Any] = []

    def work(number: int) -> None:
        for i in range(200):
            x = full(number + i)
            outputs = method.execute() if kept else method.execute([x, full(3)])
            if value(outputs) != (15 if kept else (number + i + 3) * 3):
                wrong.append(outputs)

    threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_outputs_once_more() -> None:
    """get_outputs() gives what the last run left, as often as asked."""
    method = load("add")
    with pytest.raises(errors.MethodStateError, match="no outputs to give"):
        method.get_outputs()
    method.set_inputs([ONES, ONES])
    method.execute()
    first, second = method.get_outputs(), method.get_outputs(clone_outputs=False)
    assert (value(first), value(second)) == (2, 2)
    np.asarray(first[0])[...] = 9
    assert value(method.get_outputs()) == 2


def test_memory_stays_flat() -> None:
    """M110: 10,000 runs with inputs set, again and again, and failures between."""
    method = load("unplanned")

    def calls(count: int) -> None:
        for _ in range(count):
            x = Producer(ONES)
            method.set_inputs([ONES.copy(), x])
            method.execute()
            method.execute(clone_outputs=False)
            x.array = ONES[::-1]
            with pytest.raises(errors.MethodStateError):
                method.execute()
            with pytest.raises(errors.InputError):
                method.set_inputs([ONES])

    calls(100)
    with flat_memory():
        calls(2000)
