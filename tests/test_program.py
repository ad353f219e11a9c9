"""Programs, methods and their lifetimes; the structure of calls and returns; metadata."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref

import numpy as np
import pytest
from conftest import DATA, load_fixture

import pteron
from pteron import errors

# Each needs something that is not here: a kernel, a backend, or a second run that starts anew.
CANNOT_RUN = {"missing_op", "missing_backend", "from_float8", "to_float8", "cond_overlap"}
NAMES = sorted(
    path.stem
    for path in DATA.glob("*.npz")
    if path.stem not in CANNOT_RUN and not path.stem.startswith(("bundled", "device"))
)


@pytest.mark.parametrize("always_copy", [False, True], ids=["in place", "copied"])
@pytest.mark.parametrize("name", NAMES)
def test_fixture_gives_the_numbers_of_eager_torch(name: str, always_copy: bool) -> None:
    """Every program, with inputs and outputs used in place where that is safe, and with copies."""
    fixture = load_fixture(name)
    method = fixture.load().load_method()
    method.always_copy = always_copy
    fixture.check(method.execute(fixture.inputs))


def test_in_place_inputs_are_not_copied(add: pteron.Method, ones: np.ndarray) -> None:
    """`copied` says which inputs were; `always_copy` forces it."""
    add(ones, ones[::-1])
    assert add.copied == (False, True)
    add.always_copy = True
    add(ones, ones)
    assert add.copied == (True, True)


def test_children_keep_their_parents_alive(ones: np.ndarray) -> None:
    """X3: the worst order of dropping: program, method, then the borrowed result is read."""
    program = pteron.load((DATA / "add.pte").read_bytes())
    method = program.load_method()
    (result,) = method.execute([ones, ones], clone_outputs=False)
    program_ref = weakref.ref(program)
    del program, method
    gc.collect()
    assert program_ref() is None
    assert np.asarray(result).tolist() == [[2, 2], [2, 2]]


def test_methods_are_independent(ones: np.ndarray) -> None:
    """X2: two methods of a program, and two loads of one, never disturb each other."""
    program = pteron.load(DATA / "two_methods.pte")
    first, second, other = program.load_method(), program.load_method(), program["double"]
    x = np.arange(4, dtype=np.float32).reshape(2, 2)
    expected = first.execute([x])[0].tobytes()
    first.set_inputs([x])
    second.execute([x + 1])
    other.execute([x[0].repeat(2)[:3] + 2])
    assert first.execute()[0].tobytes() == expected


def test_mapping_of_methods() -> None:
    """Methods by attribute and by name, loaded once; load_method makes a new one."""
    program = pteron.load(DATA / "two_methods.pte")
    assert list(program) == program.method_names == ["double", "forward"]
    assert "double" in program and "single" not in program and len(program) == 2
    assert program.double is program["double"]
    assert program.load_method("double") is not program["double"]
    assert "double" in dir(program)
    with pytest.raises(AttributeError, match="no attribute or method 'single'"):
        program.single  # noqa: B018
    for name in (b"double", 1):
        with pytest.raises(TypeError, match="the name of a method is a str, not (bytes|int)"):
            program.load_method(name)  # type: ignore[arg-type]


def test_close(ones: np.ndarray) -> None:
    """A closed method or program says so; results stay."""
    with pteron.load(DATA / "add.pte") as program:
        own = program.load_method()
        kept = program.forward
        result = program(ones, ones)
    for use in (lambda: program.forward, lambda: program.method_names, lambda: kept(ones, ones)):
        with pytest.raises((errors.ClosedError, AttributeError), match="closed|no attribute"):
            use()
    assert own(ones, ones).tobytes() == result.tobytes()
    with own:
        pass
    with pytest.raises(errors.ClosedError, match="load it again"):
        own(ones, ones)
    assert "closed" in repr(program) and "closed" in repr(own)


def test_called_and_returned_structure() -> None:
    """Keywords in, the exported dict out; flat lists by execute()."""
    fixture = load_fixture("tree")
    x, mask, scale = fixture.inputs
    method = fixture.load().load_method()
    fixture.check(method.execute(fixture.inputs))
    tree = method(x, mask=mask, scale=scale)
    assert list(tree) == ["scaled", "parts"]
    returns = "{'scaled': T, 'parts': (T, [T, T])}".replace("T", "float32[2, 2]")
    call = "forward(float32[2, 2], mask: float32[2, 2], scale: float32[])"
    assert repr(method) == f"<Method {call} -> {returns}>"
    first, rest = tree["parts"]
    assert isinstance(tree["parts"], tuple) and isinstance(rest, list)
    fixture.check([tree["scaled"], first, *rest])
    fixture.check([method(x, mask, scale)["scaled"], first, *rest])  # the flat list will do too
    for args in ((), (x, mask, scale, x)):
        given = rf"takes 1 positional input and 'mask' by name and .*, {len(args)} were given"
        with pytest.raises(errors.InputError, match=given):
            method(*args)


@pytest.mark.parametrize(
    "kwargs, words",
    [
        ({"mask": 1}, "needs the input 'scale'"),
        ({"mask": 1, "scale": 1, "sale": 1}, "no input named 'sale'.*'mask', 'scale'"),
    ],
)
def test_wrong_names(kwargs: dict[str, int], words: str) -> None:
    """The name that is missing or unknown, and those that there are."""
    fixture = load_fixture("tree")
    with pytest.raises(errors.InputError, match=words):
        fixture.load()(fixture.inputs[0], **kwargs)


def test_mutated_inputs_are_not_returned_by_calls() -> None:
    """A call returns what the exported function returned; execute() all outputs."""
    fixture = load_fixture("planned_state")
    method = fixture.load().load_method()
    returned = method(*fixture.inputs)
    assert returned.tobytes() == method.execute(fixture.inputs)[1].tobytes()


def test_metadata_before_load() -> None:
    """M50, M98: shape, dtype by number and name, device, from the file alone."""
    meta = pteron.load(DATA / "missing_op.pte").metadata()
    info = meta.input_tensor_meta(0)
    assert (info.sizes(), info.dtype(), info.dtype_name()) == ((2, 2), 6, "float32")
    assert (info.device(), info.is_memory_planned(), info.nbytes()) == ("cpu", True, 16)
    assert {"pteron_test::twist.out", "pteron_test::bend.out"} < {op.name for op in meta.operators}
    # M51: the repr has the device.
    assert repr(info) == (
        "TensorInfo(sizes=[2, 2], dtype=float32, is_memory_planned=True, nbytes=16, device=cpu)"
    )


def test_metadata_of_devices() -> None:
    """M50: devices of inputs, outputs and memory."""
    for name, device in (("device_add_io", "cuda:0"), ("device_add", "cpu")):
        meta = pteron.load(DATA / f"{name}.pte").metadata()
        assert meta.input_tensor_meta(0).device() == meta.output_tensor_meta(0).device() == device
    meta = pteron.load(DATA / "device_add_cuda1.pte").metadata()
    assert "cuda:1" in {buffer.device for buffer in meta.planned_memory}


def test_metadata_of_backends() -> None:
    """What runs where."""
    meta = pteron.load(DATA / "conv_xnnpack.pte").metadata()
    (delegate,) = meta.delegates
    assert (delegate.backend, delegate.calls) == ("XnnpackBackend", 1)


@pytest.mark.parametrize("index", [-1, 4, 2**40])
def test_metadata_index(index: int) -> None:
    """M83: IndexError with the reason."""
    meta = pteron.load(DATA / "alpha.pte").metadata()
    with pytest.raises(errors.MetadataIndexError, match=rf"no input {index} .*it has 4") as caught:
        meta.input_tensor_meta(index)
    assert isinstance(caught.value, IndexError)
    with pytest.raises(IndexError, match="no tensor at input 1.*it is float"):
        meta.input_tensor_meta(1)


def test_repr_with_scalars() -> None:
    """X11: the repr of a method with scalar inputs works."""
    program = pteron.load(DATA / "alpha.pte")
    assert "ValueInfo(type=float)" in repr(program.metadata())
    assert "forward(float32[2, 2], float, int, bool)" in repr(program)
    assert repr(program.metadata().inputs[1]) == "ValueInfo(type=float, value=0.5)"


def test_torch_is_never_imported() -> None:
    """M101, I20: with torch imports blocked, and NumPy imported only when it is needed."""
    code = f"""
import sys, array
sys.modules["torch"] = None
import pteron
assert "numpy" not in sys.modules
ones = memoryview(array.array("f", [1] * 4)).cast("B").cast("f", (2, 2))
(result,) = pteron.load({str(DATA / "add.pte")!r}).forward.execute([ones, ones])
assert memoryview(result).tolist() == [[2, 2], [2, 2]]
assert "numpy" not in sys.modules and not any(name.startswith("torch.") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("mode, name", [("executorch", "ok"), ("1", "ArgumentError"), ("", "ok")])
def test_output_mode(mode: str, name: str) -> None:
    """M102: chosen by the environment before import, and checked."""
    code = "import pteron; print('ok')"
    env = os.environ | {"EXECUTORCH_PYBINDINGS_TENSOR_OUTPUT": mode}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert name in (done.stdout + done.stderr)
