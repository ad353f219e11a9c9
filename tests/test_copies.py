"""Both ways: in place where that is safe, or copying everything, a caller sees no difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import DATA, Fixture, load_fixture

import pteron

# Programs that cannot run here: no kernel, no backend, a float8 cast, a device.
CANNOT_RUN = {"missing_op", "missing_backend", "from_float8", "to_float8"}
WRITES_ITS_INPUT = {"unplanned_state"}  # M68: the split, documented


def programs() -> Iterator[Any]:
    """Every method of every fixture that runs on the host."""
    for path in sorted(DATA.glob("*.pte")):
        if path.stem in CANNOT_RUN or path.stem.startswith("device"):
            continue
        for method in pteron.load(path).method_names:
            yield pytest.param(path.stem, method, id=f"{path.stem}.{method}")


def fixture_of(name: str, method: str) -> Fixture:
    if name != "big_add":
        return load_fixture(name, "" if method == "forward" else method)
    x = np.linspace(-1, 1, 1 << 20, dtype=np.float32).reshape(1024, 1024)
    return Fixture(name, [x, x.T.copy()], [x + x.T])


def copied(value: Any) -> Any:
    """The same value in other memory, with the same strides."""
    if isinstance(value, np.ndarray):
        return value.copy(order="K")
    if isinstance(value, pteron.ExecuTorchResult):
        return pteron.ExecuTorchResult.from_host(value)
    return value


def changed(value: Any) -> Any:
    """Another value of that type: its elements the other way round."""
    if isinstance(value, pteron.ExecuTorchResult):
        data = np.flip(value.numpy()).tobytes()
        return pteron._core.result_from_bytes(value.dtype, value.shape, data)
    return np.flip(value).copy() if isinstance(value, np.ndarray) else value


def backwards(value: Any) -> Any:
    """The same value in memory that runs backwards, which no program can use in place."""
    if isinstance(value, np.ndarray) and value.ndim > 0:
        return np.flip(np.flip(value).copy())
    return copied(value)


def bits(values: list[Any]) -> list[Any]:
    """Everything that can be seen of a list of values."""
    return [
        (value.dtype, value.shape, value.tobytes())
        if isinstance(value, (np.ndarray, pteron.ExecuTorchResult))
        else (type(value), value)
        for value in values
    ]


def scribble(value: Any) -> None:
    array = np.asarray(value)
    assert array.flags.writeable
    array[...] = np.array(85).astype(array.dtype)


def check_apart(outputs: list[Any], inputs: list[Any]) -> None:
    """Writing to one output leaves the other outputs and the inputs as they are."""
    for k, output in enumerate(outputs):
        if not isinstance(output, pteron.ExecuTorchResult):
            continue
        assert not output.borrowed
        others = [*outputs[:k], *outputs[k + 1 :], *inputs]
        before = bits(others)
        scribble(output)
        assert bits(others) == before


class Script:
    """Runs one method in every way and records what it gives."""

    def __init__(self, name: str, method: str, always_copy: bool) -> None:
        self.fixture = fixture_of(name, method)
        options = {} if name != "big_add" else {"verification": pteron.Verification.Minimal}
        self.program = self.fixture.load(**options)
        self.name, self.method_name = name, method
        self.method = self.program.load_method(method)
        self.method.always_copy = always_copy
        self.seen: list[Any] = []

    def record(self, outputs: list[Any], inputs: list[Any], before: list[Any]) -> None:
        self.seen.append(bits(outputs))
        if self.name in WRITES_ITS_INPUT:
            self.seen.append(bits(inputs))
        else:
            assert bits(inputs) == before  # M67

    def runs(self, inputs: list[Any]) -> None:
        """Three runs, results written to in between: the same inputs twice, then copies."""
        for given in (inputs, inputs, [copied(value) for value in inputs]):
            before = bits(given)
            outputs = self.method.execute(given)
            self.record(outputs, given, before)
            check_apart(outputs, given)

    def kept_runs(self, inputs: list[Any]) -> None:
        """By set_inputs; outputs owned, borrowed, and asked for once more."""
        self.method.set_inputs(inputs)
        for clone in (True, False, True):
            before = bits(inputs)
            outputs = self.method.execute(clone_outputs=clone)
            self.record(outputs, inputs, before)
            if clone:
                check_apart(outputs, inputs)
            for again in (False, True):
                self.seen.append(bits(self.method.get_outputs(clone_outputs=again)))

    def module_runs(self, inputs: list[Any]) -> None:
        module = pteron.Module(self.program)
        module._method(self.method_name).always_copy = self.method.always_copy
        before = bits(inputs)
        outputs = module.run_method(self.method_name, inputs)
        self.record(outputs, inputs, before)
        check_apart(outputs, inputs)
        before = bits(inputs)
        self.record(module.plan_execute(self.method_name), inputs, before)

    def run(self) -> list[Any]:
        inputs = [copied(value) for value in self.fixture.inputs]
        if self.name != "cond_overlap":  # which is exported wrongly
            self.fixture.check(self.method.execute(inputs))
        self.runs([copied(value) for value in self.fixture.inputs])
        self.runs([backwards(value) for value in self.fixture.inputs])
        self.runs([changed(value) for value in self.fixture.inputs])
        self.kept_runs([copied(value) for value in self.fixture.inputs])
        self.kept_runs([changed(value) for value in self.fixture.inputs])
        self.module_runs([copied(value) for value in self.fixture.inputs])
        self.seen.append(bits(list(self.method.state.values())))
        return self.seen


@pytest.mark.parametrize(("name", "method"), list(programs()))
def test_both_ways(name: str, method: str) -> None:
    """The same to the bit, whether memory is used in place or copied."""
    in_place = Script(name, method, always_copy=False)
    copying = Script(name, method, always_copy=True)
    assert in_place.run() == copying.run()
    assert all(copying.method.copied)


def test_the_kinds_that_matter_are_there() -> None:
    """Programs that write or return inputs, views, constants and one value twice."""
    names = {param.values[0] for param in programs()}
    assert names >= {
        "planned_state", "unplanned_state", "return_input", "return_input_unplanned",
        "return_view", "return_constant", "return_constant_view", "same_twice", "view_in",
        "state", "state_shared", "cond", "dyn", "mlp_xnnpack", "unplanned",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["add", "mul_add", "unplanned", "mlp_xnnpack"])
def test_in_place_is_what_is_tested(name: str) -> None:
    """These programs do read an input where it is."""
    fixture = load_fixture(name)
    method = fixture.load().load_method()
    method.execute([copied(value) for value in fixture.inputs])
    assert not all(method.copied)


@pytest.mark.parametrize("layout", ["plain", "backwards", "transposed"])
@pytest.mark.parametrize("always_copy", [False, True])
def test_written_input_in_any_layout(layout: str, always_copy: bool) -> None:
    """M68: what lands in the caller's memory does not depend on whether it had to be copied."""
    method = load_fixture("unplanned_state").load().load_method()
    method.always_copy = always_copy
    memory = np.arange(4, dtype=np.float32).reshape(2, 2)
    state = {"plain": memory, "backwards": memory[::-1, ::-1], "transposed": memory.T}[layout]
    start = state.copy()
    ones = np.ones((2, 2), np.float32)
    method.set_inputs([ones, state])
    for step in (1, 2, 3):
        for out in method.execute():
            assert np.array_equal(out, start + step)
        assert np.array_equal(state, start + step)
    state.flags.writeable = False
    method.execute()
    assert np.array_equal(state, start + 3)
