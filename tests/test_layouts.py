"""Any layout, dtype and kind of value gives the numbers of NumPy on a contiguous copy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from capsules import CODES, Export, Producer
from conftest import load_fixture
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import pteron

quick = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
ADD = {  # programs that add two (2, 2) tensors
    "add": np.float32,
    "unplanned": np.float32,
    "add_float64": np.float64,
    "add_int8": np.int8,
    "add_uint8": np.uint8,
    "add_int16": np.int16,
    "add_int32": np.int32,
    "add_int64": np.int64,
    "add_complex64": np.complex64,
    "add_complex128": np.complex128,
}
TWICE = {"times2_4d": (1, 3, 2, 2), "chan_last": (1, 3, 2, 2), "dyn": (4, 8)}
SAME = {"return_input": np.float32, "return_view": np.float32, "same_uint16": np.uint16,
        "same_uint32": np.uint32}  # fmt: skip


@functools.cache
def load(name: str) -> pteron.Method:
    return load_fixture(name).load().load_method()


def exact(dtype: Any) -> st.SearchStrategy[Any]:
    """Values of `dtype` that it can add and double without rounding or overflow."""
    if np.dtype(dtype).kind == "b":
        return st.booleans()
    if np.dtype(dtype).kind == "c":
        return st.builds(complex, st.integers(-1000, 1000), st.integers(-1000, 1000))
    low = 0 if np.dtype(dtype).kind == "u" else -60
    return st.integers(low, 60)


@st.composite
def laid_out(draw: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    """An array of that shape in a layout of any kind: a view into larger, shuffled memory."""
    axes = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 1, -1, 2, -2, 3])) for _ in shape]
    broadcast = [draw(st.booleans()) and draw(st.booleans()) for _ in shape]
    sizes = [1 if broadcast[a] else max(1, shape[a]) * abs(steps[a]) for a in axes]
    values = draw(arrays.arrays(dtype, tuple(sizes), elements=exact(dtype)))
    offset = draw(st.sampled_from([0, 0, 1, np.dtype(dtype).itemsize, 64]))
    memory = np.zeros(values.nbytes + offset, np.uint8)
    view = memory[offset:].view(dtype).reshape(values.shape)
    view[...] = values
    view = view.transpose([axes.index(axis) for axis in range(len(shape))])
    for axis, (size, step) in enumerate(zip(shape, steps, strict=True)):
        index = [slice(None)] * len(shape)
        if broadcast[axis]:
            view = np.broadcast_to(view, (*view.shape[:axis], size, *view.shape[axis + 1 :]))
            continue
        index[axis] = slice(None, None, step)
        view = view[tuple(index)]
        index[axis] = slice(0, size)
        view = view[tuple(index)]
    assert view.shape == shape
    return view


def dense(x: Any) -> bool:
    return all(stride % x.itemsize == 0 for stride in x.strides)


def read_only(x: Any) -> Any:
    x = x.view()
    x.flags.writeable = False
    return x


KINDS: dict[str, Callable[[Any], Any]] = {
    "ndarray": lambda x: x,
    "read-only": read_only,
    "subclass": lambda x: x.view(np.matrix) if x.ndim == 2 and 0 not in x.shape else x,
    "buffer": memoryview,
    "NumPy's DLPack": lambda x: _Only(x) if dense(x) and x.flags.writeable else x,
    "DLPack 1": lambda x: Producer(x) if dense(x) else x,
    "DLPack 0": lambda x: Producer(x, versioned=False, offset=24) if dense(x) else x,
    "capsule": lambda x: Export(x).capsule() if dense(x) else x,
    "result": pteron.ExecuTorchResult.from_host,
}


class _Only:
    """An array that shows nothing but its ``__dlpack__``."""

    def __init__(self, x: Any) -> None:
        self.__dlpack__ = x.__dlpack__


kinds = st.sampled_from(sorted(KINDS))


def check(method: pteron.Method, inputs: list[Any], want: Any, draw: Any) -> None:
    """One call, in place or copied, borrowed or not; inputs stay as they are."""
    before = [np.ascontiguousarray(x) for x in inputs]
    method.always_copy = draw(st.booleans())
    values = [KINDS[draw(kinds)](x) for x in inputs]
    (out,) = method.execute(values, clone_outputs=draw(st.booleans()))
    got = np.asarray(out)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.from_dlpack(out), want)
    np.testing.assert_array_equal(np.asarray(memoryview(out)), want)
    assert out.tobytes() == want.tobytes()
    for x, copy in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(x, copy)


@pytest.mark.parametrize("name", ADD)
@settings(quick, max_examples=60)
@given(data=st.data())
def test_sum_of_two(name: str, data: st.DataObject) -> None:
    """M106, M38: two inputs of any layout, perhaps the same memory."""
    x = data.draw(laid_out(ADD[name], (2, 2)))
    y = x.T if data.draw(st.booleans()) else data.draw(laid_out(ADD[name], (2, 2)))
    check(load(name), [x, y], np.ascontiguousarray(x) + np.ascontiguousarray(y), data.draw)


@pytest.mark.parametrize("name", TWICE)
@quick
@given(data=st.data())
def test_twice_one(name: str, data: st.DataObject) -> None:
    """M106, X6: contiguous, channels-last and dynamic plans."""
    shape = TWICE[name]
    if name == "dyn":
        shape = (data.draw(st.integers(0, 4)), data.draw(st.integers(0, 8)))
    x = data.draw(laid_out(np.float32, shape))
    check(load(name), [x], np.ascontiguousarray(x) * np.float32(2), data.draw)


@pytest.mark.parametrize("name", SAME)
@settings(quick, max_examples=60)
@given(data=st.data())
def test_input_given_back(name: str, data: st.DataObject) -> None:
    """X1, M106: the output is the input, or a view of it."""
    x = data.draw(laid_out(SAME[name], load_fixture(name).inputs[0].shape))
    want = np.ascontiguousarray(x)
    if name == "return_view":
        want = want.reshape(3, 2)
    check(load(name), [x], want, data.draw)


@quick
@given(data=st.data())
def test_from_host(data: st.DataObject) -> None:
    """Any shape and dtype that DLPack has, into a packed result and out again."""
    dtype = data.draw(
        st.one_of(
            arrays.boolean_dtypes(),
            arrays.integer_dtypes(endianness="="),
            arrays.unsigned_integer_dtypes(endianness="="),
            arrays.floating_dtypes(endianness="=", sizes=(16, 32, 64)),
            arrays.complex_number_dtypes(endianness="=", sizes=(64, 128)),
        )
    )
    assert dtype.kind in CODES
    shape = data.draw(arrays.array_shapes(min_dims=0, max_dims=6, min_side=0, max_side=3))
    x = data.draw(laid_out(dtype, shape))
    r = pteron.ExecuTorchResult.from_host(KINDS[data.draw(kinds)](x))
    want = np.ascontiguousarray(x).reshape(x.shape)  # which makes an axis out of none
    assert (r.dtype, r.shape, r.tobytes()) == (x.dtype.name, x.shape, want.tobytes())
    for back in (np.asarray(r), np.from_dlpack(r), np.asarray(memoryview(r))):
        assert back.dtype == x.dtype
        np.testing.assert_array_equal(back, want)


@quick
@given(data=st.data())
def test_layouts_of_raw_bits(data: st.DataObject) -> None:
    """bfloat16 as ml_dtypes, whose strides and kind NumPy does not export."""
    import ml_dtypes

    x = data.draw(laid_out(np.uint16, (2, 3))).view(ml_dtypes.bfloat16)
    method = load("bf16")
    method.always_copy = data.draw(st.booleans())
    want = np.ascontiguousarray(x) + ml_dtypes.bfloat16(1)
    assert method.execute([x])[0].tobytes() == want.tobytes()
