"""Module: methods by name, with inputs that stay from call to call."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np
import pytest
from conftest import load_fixture

import pteron
from pteron import errors

X = np.full((2, 2), 2, np.float32)
Y = np.full((2, 2), 3, np.float32)


def module(name: str = "mul_add") -> pteron.Module:
    """A module of a fixture; the default computes (x + y) * y."""
    return pteron.Module(load_fixture(name).load())


def value(outputs: list[Any]) -> float:
    """The value of the only output, whose elements are all the same."""
    (output,) = outputs
    (number,) = np.unique(np.asarray(output))
    return float(number)


class Producer:
    """An array by DLPack that can be told to fail, and counts how often it is read."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.fails = False
        self.reads = 0

    def __dlpack__(self, **options: Any) -> Any:
        if self.fails:
            raise ValueError("the camera is gone")
        self.reads += 1
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_reruns_on_kept_inputs() -> None:
    """M63: plan_execute gives the right numbers, however often."""
    m = module()
    assert value(m.forward([X, Y])) == 15
    assert value(m.plan_execute("forward")) == 15
    assert value(m.plan_execute("forward")) == 15


def test_fewer_inputs_keep_the_others() -> None:
    """M64: those left out are those of earlier calls, not what a run left in their place."""
    m = module()
    m.forward([X, Y])
    assert value(m.forward([np.zeros_like(X)])) == 9
    assert value(m([X])) == 15
    assert value(m.forward(inputs=[X, Y * 0 + 1], clone_outputs=True)) == 3
    assert value(m.run_method("forward", X)) == 3  # M104: a bare array is one input


def test_wrong_number_of_inputs() -> None:
    """M12: too many name the method, too few the first input that was never passed."""
    m = module()
    with pytest.raises(errors.InputError, match=r"Method 'forward' takes 2 inputs, 3 were given"):
        m.forward([X, Y, Y])
    with pytest.raises(errors.InputError, match=r"Input 1 of method 'forward' was never passed"):
        m.forward([X])
    with pytest.raises(errors.InputError, match=r"Input 0 of method 'forward' was never passed"):
        m.plan_execute("forward")
    assert value(m.forward([X, Y])) == 15


def test_nothing_is_read_if_the_number_is_wrong() -> None:
    """M11: the count is checked first."""
    producer = Producer(X)
    with pytest.raises(errors.InputError):
        module().forward([producer, Y, Y])
    assert producer.reads == 0


def test_kept_inputs_are_read_again() -> None:
    """M66: an edit in place is seen by the next call."""
    m = module()
    y = Y.copy()
    m.forward([X, y])
    y[:] = 1
    assert value(m.plan_execute("forward")) == 3


def test_failed_call_changes_nothing() -> None:
    """A call that is refused keeps no input: the next one has those of before."""
    m = module()
    m.forward([X, Y])
    with pytest.raises(errors.InputTypeError, match=r"Input 1 of method 'forward' is int64"):
        m.forward([X * 0, Y.astype(np.int64)])
    assert value(m.plan_execute("forward")) == 15


@pytest.mark.parametrize("count", [0, 1])
def test_kept_input_that_changed_says_it_was_kept(count: int) -> None:
    """M69, M74: other storage or shape is refused; the text says that the input was kept."""
    m = module()
    y = Y.copy()
    m.forward([X, y])
    y.resize((4, 4), refcheck=False)
    with pytest.raises(
        errors.MethodStateError,
        match=r"Input 1 of method 'forward', kept from an earlier call, .*pass the input again",
    ):
        m.forward([X][:count])
    assert value(m.forward([X, Y])) == 15


@pytest.mark.filterwarnings("ignore:Setting the .* on a NumPy array:DeprecationWarning")
@pytest.mark.parametrize(("attribute", "value"), [("shape", (4,)), ("strides", (4, 8))])
def test_kept_input_of_another_shape(attribute: str, value: Any) -> None:
    """M14, M78: reshaped or transposed in place is refused, never read as something else."""
    m = module()
    y = np.array([[1, 2], [3, 4]], np.float32)
    m.forward([X, y])
    setattr(y, attribute, value)
    for call in (lambda: m.forward([X]), lambda: m.plan_execute("forward")):
        with pytest.raises(errors.MethodStateError, match="pass the input again") as caught:
            call()
        assert "set_inputs" not in str(caught.value)
    assert np.array_equal(m.forward([X, Y])[0], (X + Y) * Y)


def test_kept_producer_that_fails_says_it_was_kept() -> None:
    """M74: the producer's own error is the cause."""
    m = module()
    producer = Producer(Y)
    m.forward([X, producer])
    producer.fails = True
    with pytest.raises(
        errors.InputError,
        match=r"Input 1 of method 'forward', kept from an earlier call, could not be read: "
        "ValueError: the camera is gone",
    ) as caught:
        m.forward([X])
    assert isinstance(caught.value.__cause__, ValueError)


def test_kept_capsule() -> None:
    """M37: a bare capsule stays good for later calls, and unused if its call was refused."""
    m = module()
    capsule = X.__dlpack__()
    with pytest.raises(errors.InputTypeError):
        m.forward([capsule, Y.astype(np.int64)])
    capsule_of_y = Y.__dlpack__()
    assert value(m.forward([capsule, capsule_of_y])) == 15
    assert value(m.forward([X * 0])) == 9


def test_inputs_are_released() -> None:
    """M71: kept until another takes the place, or the module goes."""

    class Array(np.ndarray):
        """An array that can be referred to weakly."""

    m = module()
    first, second = X.view(Array), Y.view(Array)
    references = [weakref.ref(first), weakref.ref(second)]
    m.forward([first, second])
    del first, second
    assert all(reference() is not None for reference in references)
    m.forward([X])
    assert references[0]() is None and references[1]() is not None
    del m
    assert references[1]() is None


def test_each_method_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """M16: a call asks for its method once, and finds it loaded the second time."""
    m = module("two_methods")
    asked: list[str] = []
    loaded: list[str] = []
    find, load = m._method, m._program.load_method
    monkeypatch.setattr(m, "_method", lambda name: (asked.append(name), find(name))[1])
    monkeypatch.setattr(
        m._program, "load_method", lambda name: (loaded.append(name), load(name))[1]
    )
    for _ in range(3):
        m.forward([X])
    m.run_method("double", [np.ones(3, np.float32)])
    assert asked == ["forward"] * 3 + ["double"]
    assert loaded == ["forward", "double"]


def test_methods_do_not_disturb_each_other() -> None:
    """X2: inputs and outputs of one method outlive the runs of another."""
    m = module("two_methods")
    (kept,) = m.forward([X], clone_outputs=False)
    m.run_method("double", [np.ones(3, np.float32)])
    assert np.asarray(kept).tolist() == [[3, 3], [3, 3]]
    assert value(m.plan_execute("forward")) == 3


def test_output_that_is_an_input() -> None:
    """X1: ``state.add_(x)`` with the caller's memory: 2 + 4, and the write lands there (M68)."""
    m = module("unplanned_state")
    state = np.full((2, 2), 4, np.float32)
    outputs = m.forward([X, state])
    assert {value([output]) for output in outputs} == {6}
    assert state.tolist() == [[6, 6], [6, 6]]


def test_planned_state_starts_over() -> None:
    """M67: a planned input that is written starts from the caller's value each time."""
    m = module("planned_state")
    state = np.full((2, 2), 4, np.float32)
    for outputs in (m.forward([X, state]), m.plan_execute("forward")):
        assert {value([output]) for output in outputs} == {6}
    assert state.tolist() == [[4, 4], [4, 4]]


def test_borrowed_outputs() -> None:
    """M61: without the copy a result ends with the next run; as an input it is copied (M76)."""
    m = module("two_methods")
    (first,) = m.forward([X], clone_outputs=False)
    (second,) = m.forward([first], clone_outputs=False)
    assert value([second]) == 4
    assert value(m.plan_execute("forward")) == 4
    (owned,) = m.forward([X])
    m.forward([Y])
    assert value([owned]) == 3


def test_unknown_method() -> None:
    """X14: the same error for running and for metadata."""
    m = module()
    for ask in (m.run_method, m.plan_execute, m.method_meta):
        with pytest.raises(errors.MethodNotFoundError, match="no method 'nope'; it has 'forward'"):
            ask("nope")


def test_names_and_metadata() -> None:
    """What the program says, by the official names."""
    m = module("two_methods")
    assert m.method_names() == ["double", "forward"]
    assert m.method_meta("double").num_inputs() == 1
    assert m.has_etdump() is False
    with pytest.raises(errors.MethodStateError, match="enable_etdump=True"):
        m.write_etdump_result_to_file("never_written.etdp")


def test_threads() -> None:
    """M109: threads that pass all inputs get the result of their own."""
    m = module()
    wrong: list[float] = []

    def work(start: float) -> None:
        for step in range(300):
            x = np.full((2, 2), start + step, np.float32)
            result = value(m.forward([x, Producer(Y)]))
            if result != (start + step + 3) * 3:
                wrong.append(result)

    threads = [threading.Thread(target=work, args=(1000.0 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_made_of_a_program() -> None:
    """Of what else it is not; its repr says what can be called."""
    with pytest.raises(TypeError, match=r"not of str: pteron.Module\(pteron.load\(path\)\)"):
        pteron.Module("add.pte")  # type: ignore[arg-type]
    shown = repr(module("two_methods"))
    assert shown.startswith("<Module ") and "double(float32[3])" in shown
