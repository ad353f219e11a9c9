"""Attributes: constants that nobody can change, and state that everybody sees."""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pytest
from capsules import flat_memory, numpy_2
from conftest import DATA, load_fixture

import pteron
from pteron import errors

TABLE = np.arange(6, dtype=np.float32).reshape(2, 3)
ONES = np.ones((2, 2), np.float32)


def load(name: str, method: str = "forward") -> pteron.Method:
    return load_fixture(name).load().load_method(method)


@pytest.fixture
def constant() -> pteron.ExecuTorchResult:
    """An external constant; its method and program are gone."""
    return load("attribute").get_attribute("table.values")


def test_constants_are_read_only(constant: pteron.ExecuTorchResult) -> None:
    """M41."""
    assert (constant.readonly, constant.dtype, constant.shape) == (True, "float32", (2, 3))
    array, view = np.asarray(constant), memoryview(constant)
    assert array.flags.writeable is False and constant.numpy().flags.writeable is False
    assert view.readonly is True
    assert np.array_equal(array, TABLE)
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        array.flags.writeable = True
    with pytest.raises(TypeError, match="read-only"):
        view[0, 0] = 1


@numpy_2
def test_copies_of_constants_are_writable(constant: pteron.ExecuTorchResult) -> None:
    """A copy is the caller's own, whichever way it was made."""
    for copy in (
        constant.to_host(),
        pickle.loads(pickle.dumps(constant)),
        np.array(constant),
        np.from_dlpack(constant),
        pteron.ExecuTorchResult.from_host(constant),
    ):
        np.asarray(copy)[...] = 9
    assert np.array_equal(constant, TABLE)


@pytest.mark.parametrize("always_copy", [False, True])
def test_constant_as_an_input(always_copy: bool) -> None:
    """M44: it is read, and stays as it is."""
    method = load("attribute")
    method.always_copy = always_copy
    constant = method.get_attribute("table.values")
    for value in (constant, np.asarray(constant), memoryview(constant), constant.__dlpack__()):
        assert np.array_equal(method.execute([value])[0], TABLE * 2)
    written = load("unplanned_state")  # writes its second input
    zeros = np.zeros((2, 2), np.float32)
    zeros.flags.writeable = False
    assert np.array_equal(written(ONES, zeros), ONES)
    assert not zeros.any()
    assert np.array_equal(constant, TABLE)


@numpy_2
@pytest.mark.parametrize(("name", "attribute"), [("state", "acc"), ("state_two_methods", "acc")])
def test_state_is_live(name: str, attribute: str) -> None:
    """M46: what a run writes is seen, what is written the next run sees; no copy."""
    method = load(name)
    start = float(np.asarray(method.get_attribute(attribute))[0, 0])
    state = method.get_attribute(attribute)
    assert (state.readonly, state.borrowed) == (False, True)
    assert np.array_equal(method(ONES), ONES * (start + 1))
    assert np.array_equal(state, ONES * (start + 1))
    np.asarray(state)[...] = 10
    np.from_dlpack(state)[0, 0] += 5
    assert method(ONES).numpy().tolist() == [[16, 11], [11, 11]]
    assert state.numpy().tolist() == [[16, 11], [11, 11]]
    assert np.shares_memory(np.asarray(state), np.asarray(method.get_attribute(attribute)))


def test_state_keeps_its_memory() -> None:
    """M46, X3: the view outlives method and program."""
    state = load("state").get_attribute("acc")
    gc.collect()
    churn = [np.full(1 << 16, 7.0) for _ in range(50)]
    assert np.array_equal(state, ONES)
    del churn


def test_state_as_an_input() -> None:
    """The value before the run, although the run writes that very memory."""
    method = load("state")
    state = method.get_attribute("acc")
    for want in (2, 4, 8):
        assert np.array_equal(method(state), ONES * want)
    method.set_inputs([state])  # M76: copied once, so that two runs agree on it
    assert np.array_equal(method.execute()[0], ONES * 16)
    assert np.array_equal(method.execute()[0], ONES * 24)


def test_methods_that_share_nothing_have_their_own_state() -> None:
    """X2: two loads of one method."""
    program = pteron.load(DATA / "state.pte")
    first, second = program.load_method(), program.load_method()
    first(ONES)
    assert np.array_equal(second.get_attribute("acc"), ONES)
    assert np.array_equal(first.get_attribute("acc"), ONES * 2)


@pytest.mark.parametrize(
    ("name", "known"),
    [("state", "which has 'acc'"), ("add", "which has no named attributes"),
     ("state_unnamed", "which has no named attributes"), ("attribute", "'table.values'")],
)  # fmt: skip
@pytest.mark.parametrize("attribute", ["nothing", "", "acc\0", "t\xe4ble"])
def test_unknown_attribute(name: str, known: str, attribute: str) -> None:
    """M47: attribute, method, code, what there is; a KeyError."""
    with pytest.raises(errors.AttributeNotFoundError) as caught:
        load(name).get_attribute(attribute)
    assert isinstance(caught.value, KeyError)
    text = str(caught.value)
    shown = attribute.replace("\0", "\\x00")
    assert f"attribute '{shown}' of method 'forward'" in text and known in text
    assert "0x20 (NotFound)" in text and caught.value.code == 0x20


@pytest.mark.parametrize("name", [b"acc", None, 1])
def test_name_of_another_type(name: object) -> None:
    """A TypeError."""
    with pytest.raises(TypeError, match="the name of an attribute is a str"):
        load("state").get_attribute(name)  # type: ignore[arg-type]


def test_memory_stays_flat() -> None:
    """M110."""
    constant, state = load("attribute"), load("state")

    def calls(count: int) -> None:
        for _ in range(count):
            np.asarray(constant.get_attribute("table.values"))
            np.from_dlpack(constant.get_attribute("table.values"))
            memoryview(state.get_attribute("acc"))
            with pytest.raises(KeyError):
                state.get_attribute("x")

    calls(100)
    with flat_memory():
        calls(2500)
