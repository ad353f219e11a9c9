"""State: mutable buffers listed, read, written, reset, saved, and shared by methods."""

from __future__ import annotations

import gc
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from capsules import Producer
from conftest import DATA, load_fixture

import pteron
from pteron import errors

ONES = np.ones((2, 2), np.float32)
RANGE = np.arange(4, dtype=np.float32).reshape(2, 2)


def load(name: str, method: str = "forward") -> pteron.Method:
    return load_fixture(name).load().load_method(method)


def everything(method: pteron.Method) -> dict[str, Any]:
    """All state as lists of values."""
    return {name: value.numpy("float32").tolist() for name, value in method.state.items()}


LISTED = {
    "state": {"acc": [[1, 1], [1, 1]]},
    "state_unnamed": {"buffer0": [[0, 0], [0, 0]]},
    "state_bf16": {"buffer0": [[0, 0], [0, 0]]},
    "state_two_methods": {"acc": [[0, 0], [0, 0]]},
    "state_shared": {"acc": [[5, 5], [5, 5]], "count": 5},
    "state_shared_unnamed": {"buffer0": [[0, 0], [0, 0]], "buffer1": 0},
    "state_private": {"buffer0": 0, "buffer1": [[0, 0], [0, 0]]},
}


@pytest.mark.parametrize("name", LISTED)
def test_state_is_listed(name: str) -> None:
    """With and without names and initial values."""
    state = load(name).state
    assert everything(load(name)) == LISTED[name]
    assert list(state) == list(LISTED[name]) and len(state) == len(LISTED[name])
    assert "nothing" not in state and state.get("nothing") is None
    assert all(f"'{key}'" in repr(state) for key in state)


def test_nothing_else_is_state() -> None:
    """Inputs that are written, constants, intermediate values, loops and branches are not."""
    for path in sorted(DATA.glob("*.pte")):
        if path.stem in LISTED or path.stem.startswith(("device", "missing")):
            continue
        program = load_fixture(path.stem).load() if path.stem != "big_add" else pteron.load(path)
        for method in program:
            assert list(program[method].state) == [], path
    assert repr(load("add").state) == "<State, empty>"


@pytest.mark.parametrize("name", ["state", "state_unnamed", "state_two_methods"])
def test_entries_are_live(name: str) -> None:
    """M46: a run's writes are seen, and a write is seen by the next run."""
    method = load(name)
    (view,) = method.state.values()
    start = float(view.numpy()[0, 0])
    method(ONES)
    assert np.array_equal(view, ONES * (start + 1)) and not view.readonly
    np.asarray(view)[...] = RANGE
    assert np.array_equal(method(ONES), RANGE + 1)
    if name != "state_unnamed":
        assert np.shares_memory(np.asarray(method.get_attribute("acc")), np.asarray(view))


def test_entries_keep_their_memory() -> None:
    """X3."""
    view = load("state_unnamed").state["buffer0"]
    copies = load("state").state.copy()
    gc.collect()
    churn = [np.full(1 << 16, 7.0) for _ in range(50)]
    assert np.array_equal(view, ONES * 0) and np.array_equal(copies["acc"], ONES)
    del churn


ASSIGNED: dict[str, Callable[[], Any]] = {
    "array": lambda: RANGE.copy(),
    "strided": lambda: np.repeat(RANGE, 2, axis=1)[:, ::2],
    "transposed": lambda: np.ascontiguousarray(RANGE.T).T,
    "reversed": lambda: RANGE[::-1, ::-1].copy()[::-1, ::-1],
    "buffer": lambda: memoryview(RANGE.tobytes()).cast("f", (2, 2)),
    "result": lambda: pteron.ExecuTorchResult.from_host(RANGE),
    "DLPack": lambda: Producer(RANGE),
    "capsule": lambda: RANGE.copy().__dlpack__(),
}


@pytest.mark.parametrize("kind", ASSIGNED)
def test_assigned(kind: str) -> None:
    """Anything that can be an input is copied."""
    method = load("state")
    value = ASSIGNED[kind]()
    method.state["acc"] = value
    assert np.array_equal(method.state["acc"], RANGE)
    if isinstance(value, np.ndarray):
        value[...] = 99
    assert np.array_equal(method(ONES), RANGE + 1)


def test_assigned_from_itself() -> None:
    """A view of the very memory that it goes to."""
    method = load("state")
    method.state["acc"] = RANGE
    method.state["acc"] = method.state["acc"]
    assert np.array_equal(method.state["acc"], RANGE)
    method.state["acc"] = method.state["acc"].numpy().T
    assert np.array_equal(method.state["acc"], RANGE.T)


def test_numbers() -> None:
    """A Python number is good for a buffer of no dimensions, in its dtype."""
    state = load("state_shared").state
    state["count"] = 3
    assert int(state["count"]) == 3
    state["count"] = np.int64(4)
    assert int(state["count"]) == 4
    with pytest.raises(errors.InputTypeError, match="State 'count' .* is a Python float"):
        state["count"] = 2.5
    with pytest.raises(errors.InputTypeError):
        state["acc"] = 0
    assert int(state["count"]) == 4


def test_bfloat16() -> None:
    """By ml_dtypes, results and bytes; integers of its width are refused."""
    method = load("state_bf16")
    value = RANGE.astype(ml_dtypes.bfloat16)
    for given in (value, pteron.ExecuTorchResult.from_host(value), value.tobytes()):
        method.state.reset()
        method.state["buffer0"] = given
        method.state.update({"buffer0": given})
        assert method.state["buffer0"].numpy("float32").tolist() == RANGE.tolist()
    with pytest.raises(errors.InputTypeError, match="is uint16, expected bfloat16, .*ml_dtypes"):
        method.state["buffer0"] = value.view(np.uint16)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (RANGE[0], r"has shape \(2,\), expected \(2, 2\)"),
        (np.zeros((3, 2), np.float32), r"has shape \(3, 2\)"),
        (RANGE.astype(np.float64), "is float64, expected float32"),
        (RANGE.astype(np.int32), "is int32, expected float32"),
        (RANGE.tolist(), "np.asarray"),
        (None, "NoneType"),
    ],
)
def test_values_that_do_not_fit(value: Any, words: str) -> None:
    """Named, and nothing is written; also not by update(), where another one fits."""
    state = load("state_shared").state
    with pytest.raises(errors.InputError, match=f"State 'acc' of method 'forward' .*{words}"):
        state["acc"] = value
    with pytest.raises(errors.InputError, match=words):
        state.update({"count": 9, "acc": value})
    assert int(state["count"]) == 5 and np.array_equal(state["acc"], ONES * 5)


def test_unknown_names() -> None:
    """A KeyError that lists what there is."""
    state = load("state").state
    calls: list[Callable[[], object]] = [
        lambda: state["nothing"],
        lambda: state.update({"acc": RANGE, "nothing": RANGE}),
        lambda: state.__setitem__("nothing", RANGE),
        lambda: state.reset("nothing"),
    ]
    for call in calls:
        with pytest.raises(KeyError, match="no state 'nothing'; it has 'acc'") as caught:
            call()
        assert isinstance(caught.value, errors.AttributeNotFoundError)
    assert np.array_equal(state["acc"], ONES)


def test_copy_and_update() -> None:
    """A copy is the caller's own, and can be written back."""
    method = load("state_private")
    method(RANGE)
    saved = method.state.copy()
    assert not any(value.borrowed for value in saved.values())
    method(RANGE)
    assert np.array_equal(saved["buffer1"], RANGE) and int(saved["buffer0"]) == 1
    method.state.update(saved)
    assert everything(method) == {"buffer0": 1, "buffer1": RANGE.tolist()}
    np.asarray(saved["buffer1"])[...] = 9
    assert np.array_equal(method(RANGE)[0], RANGE * 2)


@pytest.mark.parametrize("name", LISTED)
def test_reset(name: str) -> None:
    """Back to initial values or zeros, all or by name; outputs are those of a new method."""
    fixture = load_fixture(name)
    method = load(name)
    for _ in range(2):
        first = [np.array(value) for value in method.execute(fixture.inputs)]
        method.execute(fixture.inputs)
        assert everything(method) != LISTED[name]
        method.state.reset()
        assert everything(method) == LISTED[name]
        again = method.execute(fixture.inputs)
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
        method.state.reset(next(iter(method.state)))
        key = next(iter(LISTED[name]))
        assert everything(method)[key] == LISTED[name][key]
        method.state.reset()


@pytest.mark.parametrize("name", LISTED)
def test_saved(name: str, tmp_path: Path) -> None:
    """A new method goes on where the saved one stopped."""
    fixture = load_fixture(name)
    path = tmp_path / "state"
    first, second = load(name), load(name)
    first.execute(fixture.inputs)
    first.state.save(path)
    assert list(tmp_path.iterdir()) == [path]
    second.execute(fixture.inputs)
    second.execute(fixture.inputs)
    second.state.load(str(path))
    assert everything(second) == everything(first)
    want = [np.array(value) for value in first.execute(fixture.inputs)]
    got = second.execute(fixture.inputs)
    assert all(np.array_equal(a, b) for a, b in zip(want, got, strict=True))
    if name == "state":
        with np.load(path) as data:
            assert np.array_equal(data["acc"], fixture.inputs[0] + 1)


def test_files_that_are_no_state(tmp_path: Path) -> None:
    """Each an error that says why, and the state is as it was."""
    method = load("state_shared")
    good = tmp_path / "good.npz"
    method.state.save(good)
    contents = {
        "empty": b"",
        "text": b"acc = 1",
        "cut": good.read_bytes()[:-40],
        "damaged": good.read_bytes().replace(b"descr", b"dexcr"),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(errors.InvalidDataError, match=name):
            method.state.load(tmp_path / name)
    arrays = {"acc": RANGE, "count": np.array(7)}
    others: list[tuple[dict[str, Any], str]] = [
        ({"acc": RANGE}, "'count' is missing and nothing is too many"),
        ({**arrays, "more": RANGE}, "nothing is missing and 'more' is too many"),
        ({**arrays, "acc": RANGE[0]}, r"'acc' is float32 of shape \(2,\) there"),
        ({**arrays, "acc": RANGE.astype(np.float64)}, "'acc' is float64"),
        ({**arrays, "count": np.array([7])}, r"'count' is int64 of shape \(1,\)"),
        ({**arrays, "count": np.array(None)}, "damaged"),
    ]
    for values, words in others:
        np.savez(tmp_path / "other.npz", **values)
        with pytest.raises(errors.InvalidDataError, match=words):
            method.state.load(tmp_path / "other.npz")
    for path in (tmp_path / "not there", tmp_path):
        with pytest.raises(errors.FileAccessError, match="cannot be read"):
            method.state.load(path)
    assert everything(method) == LISTED["state_shared"]
    method.state.load(good)


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    """An error, and an earlier file is as it was."""
    method = load("state")
    for path in (tmp_path, tmp_path / "no folder" / "state.npz"):
        with pytest.raises(errors.FileAccessError, match="cannot be written"):
            method.state.save(path)
    method.state.save(tmp_path / "state.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["state.npz"]
    assert zipfile.is_zipfile(tmp_path / "state.npz")


def test_closed_method() -> None:
    """Says so; a view that was taken before stays good."""
    method = load("state")
    state, view = method.state, method.state["acc"]
    method.close()
    for call in (lambda: method.state, lambda: list(state), state.copy, state.reset):
        with pytest.raises(errors.ClosedError):
            call()
    assert np.array_equal(view, ONES)


# Shared by the methods of a program.


def test_methods_share_what_was_exported_shared() -> None:
    """Design decision 10: what one method writes the others read."""
    program = load_fixture("state_two_methods").load()
    program.set_state(RANGE)
    assert np.array_equal(program.forward(ONES), RANGE + 1)
    assert np.array_equal(program.set_state.state["acc"], RANGE + 1)
    assert np.array_equal(program.load_method("forward")(ONES), RANGE + 2)
    view = program.set_state.get_attribute("acc")
    assert np.shares_memory(np.asarray(view), np.asarray(program.forward.state["acc"]))


@pytest.mark.parametrize("name", ["state_shared", "state_shared_unnamed"])
def test_loading_a_method_resets_nothing(name: str) -> None:
    """Initial values are loaded once, whichever method comes first and however often."""
    program = load_fixture(name).load()
    start = 5 if name == "state_shared" else 0
    assert int(program.load_method("peek")()) == start
    program.forward(ONES)
    for method in program:
        program.load_method(method)
    assert np.array_equal(program.load_method("get")(), ONES * (start + 1))
    assert int(program.peek()) == start + 1
    program.peek.state.reset()
    assert int(program.peek()) == start and np.array_equal(program.get(), ONES * start)


def test_everything_else_is_not_shared() -> None:
    """X2: two loads of a program, inputs and outputs of its methods, state of other exports."""
    fixture = load_fixture("state_shared")
    first, second = fixture.load(), fixture.load()
    first.forward(ONES)
    assert int(first.peek()) == 6 and int(second.peek()) == 5
    kept = first.forward.execute([RANGE], clone_outputs=False)
    first.plain(ONES)
    first.load_method("forward")(ONES)
    assert np.array_equal(kept[0], ONES * 6 + RANGE) and int(kept[1]) == 7
    private = load_fixture("state_private").load()
    one, two = private.load_method(), private.load_method()
    one(ONES)
    assert int(one.state["buffer0"]) == 1 and int(two.state["buffer0"]) == 0
    assert int(private.peek()) == 0
    single = load_fixture("state").load()
    single.load_method()(ONES)
    assert np.array_equal(single.load_method().state["acc"], ONES)


@pytest.mark.parametrize("clone", [True, False])
def test_outputs_that_are_shared_state(clone: bool) -> None:
    """X2: what a run gave stays as it was, although another method changes the state."""
    program = load_fixture("state_shared").load()
    get: Any = program.get
    (called,) = get.execute([], clone_outputs=clone)
    get.set_inputs([])
    (kept,) = get.execute(clone_outputs=clone)
    program.forward(ONES)
    assert np.array_equal(called, ONES * 5) and np.array_equal(kept, ONES * 5)
    assert np.array_equal(get.get_outputs(clone_outputs=clone)[0], ONES * 5)
    assert np.array_equal(get(), ONES * 6)
    np.asarray(get())[...] = 0
    assert np.array_equal(get(), ONES * 6)


def test_shared_state_as_an_input() -> None:
    """The value before the run, whichever method it was taken from."""
    program = load_fixture("state_shared").load()
    state = program.peek.state["acc"]
    assert np.array_equal(program.forward(state)[0], ONES * 10)
    assert np.array_equal(program.forward(state)[0], ONES * 20)


def test_shared_state_outlives_its_methods() -> None:
    """X3: it belongs to the program, which a view keeps alive."""
    program: Any = load_fixture("state_shared").load()
    program.load_method("forward")(ONES)
    gc.collect()
    assert int(program.load_method("peek")()) == 6
    view = program.get.state["acc"]
    program.close()
    del program
    gc.collect()
    churn = [np.full(1 << 16, 7.0) for _ in range(50)]
    assert np.array_equal(view, ONES * 6)
    del churn


def test_methods_that_share_state_take_turns() -> None:
    """M109: no update is lost, while other threads load methods and read and write state."""
    program = load_fixture("state_shared").load()
    runs, failed = 400, []

    def work(method: pteron.Method) -> None:
        for _ in range(runs):
            method(ONES)

    def disturb() -> None:
        for _ in range(50):
            before = program.load_method("peek").state.copy()
            if int(before["count"]) != np.asarray(before["acc"])[0, 0]:
                failed.append(before)

    threads = [
        threading.Thread(target=work, args=(program.load_method("forward"),)) for _ in range(3)
    ]
    threads.append(threading.Thread(target=disturb))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert int(program.peek()) == 5 + 3 * runs and failed == []
