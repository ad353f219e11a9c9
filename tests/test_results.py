"""Results: what they show of themselves, to NumPy, to buffers and by value."""

from __future__ import annotations

import copy
import ctypes
import gc
import operator
import pickle
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from capsules import flat_memory, numpy_2
from conftest import DATA, load_fixture

import pteron
from pteron import _core, errors

ONES = np.ones((2, 2), np.float32)
NUMPY_TYPES = (
    "bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
    "float32", "float64", "complex64", "complex128",
)  # fmt: skip
BITS = {  # what NumPy lacks: the integers that it shows
    "bfloat16": "H", "float8_e5m2": "B", "float8_e4m3fn": "B", "float8_e5m2fnuz": "B",
    "float8_e4m3fnuz": "B", "complex32": "I", "quint8": "B", "qint8": "b", "qint32": "i",
    "quint4x2": "B", "quint2x4": "B", "bits1x8": "B", "bits2x4": "B", "bits4x2": "B",
    "bits8": "B", "bits16": "H",
}  # fmt: skip


def result(values: Any = ONES) -> pteron.ExecuTorchResult:
    return pteron.ExecuTorchResult.from_host(values)


def bits(dtype: str, codes: Any) -> pteron.ExecuTorchResult:
    """A result of `dtype` from the codes of its elements."""
    return _core.result_from_bytes(dtype, codes.shape, codes.tobytes())


@pytest.mark.parametrize("dtype", [*NUMPY_TYPES, *BITS])
def test_types(dtype: str) -> None:
    """M91, M92, M93, M97, M99: name, buffer, array and repr of every type of the format."""
    format = BITS.get(dtype) or np.dtype(dtype).char.replace("l", "q").replace("L", "Q")
    format = {"F": "Zf", "D": "Zd"}.get(format, format)
    size = np.dtype(dtype).itemsize if dtype in NUMPY_TYPES else np.dtype(format).itemsize
    r = _core.result_from_bytes(dtype, (2, 3), bytes(range(6 * size)))
    assert r.dtype == dtype and type(r.dtype) is str
    assert (r.shape, r.strides, r.ndim, r.size) == ((2, 3), (3, 1), 2, 6)
    assert (r.itemsize, r.nbytes, r.device, r.readonly, r.borrowed) == (
        size, 6 * size, "cpu", False, False,
    )  # fmt: skip
    view = memoryview(r)
    assert (view.format, view.itemsize, view.shape, view.readonly) == (format, size, (2, 3), False)
    assert view.tobytes() == r.tobytes() == bytes(range(6 * size))
    arrays = [np.asarray(r), r.numpy(), r.__array__(), np.array(r)]
    for array in arrays:
        assert (array.shape, array.dtype) == ((2, 3), arrays[0].dtype)
        assert array.tobytes() == r.tobytes()
    assert arrays[0].dtype == (dtype if dtype in NUMPY_TYPES else np.dtype(format))
    assert f"dtype={dtype}" in repr(r) and "shape=(2, 3)" in repr(r)
    assert ("shows bits" in repr(r)) is (dtype in BITS)
    assert not hasattr(r, "dtype_name")  # M98


@pytest.mark.parametrize(
    ("name", "number", "dtype"),
    [("add", 6, "float32"), ("bf16", 15, "bfloat16"), ("same_float8_e5m2", 23, "float8_e5m2"),
     ("same_complex32", 8, "complex32"), ("bool_not", 11, "bool"), ("same_uint32", 28, "uint32")],
)  # fmt: skip
def test_names_of_types_in_metadata(name: str, number: int, dtype: str) -> None:
    """M98: the number of torch and the name that results have."""
    method = load_fixture(name).load().load_method()
    for info in (*method.metadata.inputs, *method.metadata.outputs):
        assert (info.dtype(), info.dtype_name()) == (number, dtype)
        assert f"dtype={dtype}" in repr(info)


@pytest.mark.parametrize("dtype", ["bfloat16", *(name for name in BITS if "float8" in name)])
def test_every_code_by_value(dtype: str) -> None:
    """M94: each code of the type against ml_dtypes, NaN and infinities included."""
    size = 2 if dtype == "bfloat16" else 1
    codes = np.arange(256**size, dtype=f"u{size}").reshape(-1, 16)
    r = bits(dtype, codes)
    want = codes.view(getattr(ml_dtypes, dtype))
    for other in ("float32", np.float64):
        got = r.numpy(other)
        with np.errstate(invalid="ignore"):  # signaling NaNs
            values = want.astype(other)
        assert got.dtype == other
        np.testing.assert_array_equal(got, values)
        assert np.array_equal(np.signbit(got[got == 0]), np.signbit(values[got == 0]))
    typed = r.numpy(dtype)
    assert typed.dtype == want.dtype and np.shares_memory(typed, r.numpy())
    assert r.numpy(want.dtype).tobytes() == want.tobytes()


def test_complex32_by_value() -> None:
    """Pairs of halves."""
    pairs = np.array([[[1, -2], [0.5, 3]], [[np.inf, 0], [6e-8, -0.0]]], np.float16)
    r = bits("complex32", pairs.view(np.uint32)[..., 0])
    assert r.numpy("complex64").dtype == np.complex64
    assert np.array_equal(r.numpy("complex64"), (pairs[..., 0] + 1j * pairs[..., 1]))
    assert r.numpy("complex128").shape == (2, 2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "complex32", "float32", "int64"])
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (1, 1, 1)], ids=str)
def test_by_value_keeps_the_shape(dtype: str, shape: tuple[int, ...]) -> None:
    """An array always, of no dimensions too."""
    size = (
        result(np.zeros(1, dtype)).itemsize
        if dtype in NUMPY_TYPES
        else {"c": 4, "b": 2}.get(dtype[0], 1)
    )
    r = _core.result_from_bytes(dtype, shape, bytes(size * int(np.prod(shape))))
    for wanted in ("float32", "complex64"):
        if not (dtype == "complex32" and wanted == "float32"):
            array = r.numpy(wanted)
            assert type(array) is np.ndarray and (array.shape, array.dtype) == (shape, wanted)
    if r.size == 1:
        assert r.item() == 0 and not r and int(abs(r.item())) == 0


def test_by_value_of_other_layouts() -> None:
    """Results that lie in memory in another order than C."""
    method = load_fixture("chan_last").load().load_method()
    x = np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2)
    r = method(x)
    assert r.strides == (12, 1, 6, 3)
    assert np.array_equal(r.numpy("float64"), x * 2)
    assert r.tobytes() == (x * 2).tobytes()
    assert np.array_equal(np.from_dlpack(r), x * 2)
    assert np.array_equal(pickle.loads(pickle.dumps(r)), x * 2)


@pytest.mark.parametrize(
    ("dtype", "wanted", "words"),
    [
        ("qint8", "float32", "codes whose scale and zero point only the program knows"),
        ("bits8", "float32", "codes whose scale"),
        ("float32", "float8_e9m9", "has no float8_e9m9"),
        ("float32", "qint8", "has no type 'qint8'"),
    ],
)
def test_no_value(dtype: str, wanted: str, words: str) -> None:
    """A BufferError that says what to do instead."""
    r = _core.result_from_bytes(dtype, (1,), bytes({"float32": 4, "bfloat16": 2}.get(dtype, 1)))
    with pytest.raises(errors.ExportError, match=words) as caught:
        r.numpy(wanted)
    assert isinstance(caught.value, BufferError)


@numpy_2
def test_numpy_shares_memory() -> None:
    """Without a dtype, or with its own: the very memory, which the array keeps alive."""
    r = result()
    ref = weakref.ref(r)
    arrays = [r.numpy(), r.numpy(None), r.numpy("float32"), r.numpy(dtype=np.float32),
              np.asarray(r), np.asarray(r, copy=False), memoryview(r)]  # fmt: skip
    arrays[0][0, 0] = 5
    assert all(array[0, 0] == 5 for array in arrays)
    assert np.array(r, copy=True).ctypes.data != arrays[0].ctypes.data
    del r
    gc.collect()
    assert ref() is not None and arrays[4].tolist() == [[5, 1], [1, 1]]
    arrays.clear()
    gc.collect()
    assert ref() is None
    for call in (lambda: result().numpy(1, 2), lambda: result().numpy(copy=True)):
        with pytest.raises(TypeError, match="takes one argument, dtype"):
            call()


def test_array_protocol() -> None:
    """`__array__` as NumPy 2 calls it."""
    r = result()
    assert np.shares_memory(r.__array__(), r.numpy())
    assert np.shares_memory(r.__array__(np.float32, copy=False), r.numpy())
    assert r.__array__("float64").dtype == np.float64
    assert not np.shares_memory(r.__array__(copy=True), r.numpy())
    with pytest.raises(ValueError, match="cannot be seen as .*float64.* without a copy"):
        r.__array__(np.float64, copy=False)


# The buffer protocol, to the letter.


class Buffer(ctypes.Structure):
    """``Py_buffer``."""

    _fields_ = [
        ("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p),
    ]  # fmt: skip


SIMPLE, WRITABLE, FORMAT, ND, STRIDES = 0, 1, 4, 8, 0x18
C, F, ANY = 0x38, 0x58, 0x98
GetBuffer = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Buffer), ctypes.c_int)(
    ("PyObject_GetBuffer", ctypes.pythonapi)
)
ReleaseBuffer = ctypes.PYFUNCTYPE(None, ctypes.POINTER(Buffer))(
    ("PyBuffer_Release", ctypes.pythonapi)
)


def request(r: Any, flags: int) -> dict[str, Any]:
    view = Buffer()
    assert GetBuffer(r, view, flags) == 0
    seen = {"ndim": view.ndim, "format": view.format, "shape": bool(view.shape),
            "strides": bool(view.strides), "len": view.len}  # fmt: skip
    ReleaseBuffer(view)
    return seen


@pytest.mark.parametrize(
    ("flags", "ndim", "format", "shape", "strides"),
    [
        (SIMPLE, 1, None, False, False),
        (WRITABLE, 1, None, False, False),
        (FORMAT, 1, b"f", False, False),
        (ND, 2, None, True, False),
        (ND | FORMAT, 2, b"f", True, False),
        (STRIDES, 2, None, True, True),
        (C, 2, None, True, True),
        (ANY | FORMAT, 2, b"f", True, True),
    ],
)
def test_buffer_requests(
    flags: int, ndim: int, format: bytes | None, shape: bool, strides: bool
) -> None:
    """What was asked for and nothing else."""
    assert request(result(), flags) == {
        "ndim": ndim, "format": format, "shape": shape, "strides": strides, "len": 16,
    }  # fmt: skip


def test_buffer_requests_that_cannot_be_met() -> None:
    """BufferError, with nothing left behind: M41 for a constant, and other layouts."""
    plain = result()
    last = load_fixture("chan_last").load().load_method()(np.zeros((1, 3, 2, 2), np.float32))
    constant = load_fixture("attribute").load().load_method().get_attribute("table.values")
    for r, flags, words in (
        (plain, F, "not Fortran-contiguous"),
        (last, SIMPLE, "not C-contiguous: ask for strides"),
        (last, ND, "not C-contiguous"),
        (last, C, "not C-contiguous"),
        (last, F, "not Fortran-contiguous"),
        (last, ANY, "not contiguous"),
        (constant, WRITABLE, "read-only"),
    ):
        view = Buffer(obj=1)
        with pytest.raises(BufferError, match=words):
            GetBuffer(r, view, flags)
        assert view.obj is None
    assert request(last, STRIDES)["strides"] is True
    for shape in ((4,), (1, 4), (4, 1), (), (0, 3)):  # both orders at once
        assert request(result(np.zeros(shape, np.float32)), F)["ndim"] == len(shape)


# Python's own protocols.


def test_numbers() -> None:
    """item(), float(), int(), bool() of one element; a ValueError for more."""
    one = result(np.array([[2.5]], np.float32))
    assert (one.item(), float(one), int(one), bool(one)) == (2.5, 2.5, 2, True)
    assert bits("bfloat16", np.array(0x3FC0, np.uint16)).item() == 1.5
    assert result(np.array(True)).item() is True
    assert result(np.array(1 + 2j)).item() == 1 + 2j
    for call in (float, int, bool, pteron.ExecuTorchResult.item):
        with pytest.raises(ValueError, match="only a result with one element.*this has 4"):
            call(result())


@pytest.mark.parametrize("other", [ONES, result(), None, 1, "x"], ids=repr)
@pytest.mark.parametrize("compare", [operator.eq, operator.ne])
def test_comparing_cannot_mislead(compare: Any, other: Any) -> None:
    """Neither an identity that looks like values nor the other way round."""
    r = result()
    if not isinstance(other, np.ndarray):
        with pytest.raises(TypeError, match="not compared with =="):
            compare(other, r)
    with pytest.raises(TypeError, match="not compared with =="):
        compare(r, other)
    assert (r == r) is True and (r != r) is False
    assert r in [r] and len({r, r, result()}) == 2


def test_not_a_sequence() -> None:
    """No slow iteration, no order, no constructor (M111), no attributes of the user's."""
    for call in (iter, len, lambda r: r[0], lambda r: r < r, lambda r: type(r)()):
        with pytest.raises(TypeError):
            call(result())
    with pytest.raises(AttributeError):
        result().shape = (4,)
    with pytest.raises(AttributeError):
        result().note = 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2", "qint8", "complex32"])
def test_pickling(dtype: str) -> None:
    """Every protocol, and copy; a copy of the values, whatever the type."""
    size = {"float32": 4, "complex32": 4, "bfloat16": 2}.get(dtype, 1)
    r = _core.result_from_bytes(dtype, (2, 1), bytes(range(2 * size)))
    copies = [pickle.loads(pickle.dumps(r, protocol)) for protocol in range(6)]
    for again in (*copies, copy.copy(r), copy.deepcopy(r)):
        assert (again.dtype, again.shape, again.tobytes()) == (dtype, (2, 1), r.tobytes())
        assert np.asarray(again).ctypes.data != np.asarray(r).ctypes.data


@pytest.mark.parametrize(
    ("dtype", "shape", "data"),
    [("float32", (2,), bytes(7)), ("float32", (2,), bytes(9)), ("float31", (2,), bytes(8)),
     ("float32", (-1,), b""), ("float32", (2**62, 4), b""), ("uint8", (1,) * 17, b"1")],
)  # fmt: skip
def test_damaged_pickle(dtype: str, shape: tuple[int, ...], data: bytes) -> None:
    """Refused before a byte is read."""
    with pytest.raises(ValueError, match="not the bytes of a result"):
        _core.result_from_bytes(dtype, shape, data)


def test_repr() -> None:
    """M99: values, shortened; never an error."""
    assert repr(result()) == (
        "ExecuTorchResult([[1., 1.],\n                  [1., 1.]], shape=(2, 2), dtype=float32, "
        "device=cpu)"
    )
    assert len(repr(result(np.zeros((1000, 1000), np.float32)))) < 1000
    half = repr(bits("bfloat16", np.array([0x3FC0], np.uint16)))
    assert half.startswith("ExecuTorchResult([1.5], ") and "np.asarray() shows bits" in half
    assert "..." in repr(_core.result_from_bytes("qint8", (2,), b"12"))
    assert "[]" in repr(result(np.zeros((0, 4), np.float32)))


# Owned and borrowed.


def test_owned_results_never_change(add: pteron.Method) -> None:
    """M60, I44: not by later runs, nor when everything else is gone."""
    for results in (
        [add(ONES, ONES)],
        add.execute([ONES, ONES]),
        add.execute([ONES, ONES], clone_outputs=True),
    ):
        add(ONES * 7, ONES)
        assert np.array_equal(results[0], ONES * 2) and not results[0].borrowed
    kept = np.asarray(add(ONES, ONES))
    del add
    gc.collect()
    assert np.array_equal(kept, ONES * 2)


def test_borrowed_results_share_memory(add: pteron.Method) -> None:
    """M61, X3: until the next run, which an old one says; its memory stays."""
    (first,) = add.execute([ONES, ONES], clone_outputs=False)
    assert first.borrowed and np.array_equal(first, ONES * 2)
    array, host = np.asarray(first), first.to_host()
    assert not host.borrowed and host.to_host() is host
    (second,) = add.execute([ONES * 2, ONES], False)
    assert np.array_equal(second, ONES * 3) and np.shares_memory(array, np.asarray(second))
    for read in (np.asarray, np.from_dlpack, memoryview, pteron.ExecuTorchResult.tobytes, bytes,
                 pteron.ExecuTorchResult.numpy, pteron.ExecuTorchResult.to_host, pickle.dumps,
                 copy.copy):  # fmt: skip
        with pytest.raises(errors.MethodStateError, match="has run again since"):
            read(first)
    with pytest.raises(errors.MethodStateError, match="Input 1 of method 'forward' shared the mem"):
        add(ONES, first)
    assert "overwritten by a later run" in repr(first)
    assert np.array_equal(host, ONES * 2)
    del add, first
    gc.collect()
    assert np.array_equal(second, ONES * 3)


@pytest.mark.parametrize("name", ["return_constant", "return_constant_view"])
def test_constants_as_outputs(name: str) -> None:
    """X5: borrowed, they are read-only where they are the program's own; clones are writable."""
    fixture = load_fixture(name)
    method = fixture.load().load_method()
    (borrowed,) = method.execute([], clone_outputs=False)
    (clone,) = method.execute([])
    np.asarray(clone)[...] = 9
    fixture.check(method.execute([]))
    if name == "return_constant":
        (borrowed,) = method.execute([], clone_outputs=False)
        assert borrowed.readonly and not np.asarray(borrowed).flags.writeable


def test_output_that_is_an_unplanned_input() -> None:
    """X1: its own memory: neither the caller's, which may go, nor that of a later run."""
    method = load_fixture("return_input_unplanned").load().load_method()
    for clone in (True, False):
        x = np.full((2, 3), 5, np.float32)
        first, second = method.execute([x, x], clone_outputs=clone)
        assert not np.shares_memory(np.asarray(first), x)
        x[...] = 0
        del x
        gc.collect()
        assert np.asarray(first).tolist() == [[5] * 3] * 2
        assert np.asarray(second).tolist() == [[6] * 3] * 2
    method.set_inputs([np.full((2, 3), 7, np.float32), ONES.repeat(3)[:6].reshape(2, 3)])
    method.execute()
    method.set_inputs([np.zeros((2, 3), np.float32)] * 2)  # the first inputs are gone now
    gc.collect()
    for clone in (True, False, True):
        assert np.asarray(method.get_outputs(clone)[0]).tolist() == [[7] * 3] * 2


def test_same_output_twice() -> None:
    """Two results of one value are independent."""
    a, b = load_fixture("same_twice").load().load_method()(ONES)
    np.asarray(a)[...] = 0
    assert np.array_equal(b, ONES * 2)


def test_values_that_are_no_tensors() -> None:
    """M108: plain Python values, of the right type."""
    outputs = load_fixture("mixed_out").load().load_method().execute([ONES])
    assert [type(value) for value in outputs[1:]] == [int, bool, type(None), float]
    assert outputs[1:] == [7, True, None, 0.5]


def test_unplanned_inputs_are_borrowed_or_copied() -> None:
    """M107: borrowed where the source pins its memory, which a resize then tells."""
    method = pteron.load(DATA / "unplanned.pte").load_method()
    source = bytearray(ONES.tobytes())
    shaped = memoryview(source).cast("f", (2, 2))
    method.set_inputs([shaped, ONES])
    method.execute()
    assert method.copied == (False, False)
    del shaped
    with pytest.raises(BufferError):
        source.extend(b"more")
    method.set_inputs([ONES, ONES])
    source.extend(b"more")  # released
    method(ONES[::-1], ONES)
    assert method.copied == (True, False)


def test_memory_stays_flat(add: pteron.Method) -> None:
    """M110: 10,000 results, read in every way."""
    codes = np.arange(256, dtype=np.uint8).reshape(16, 16)

    def calls(count: int) -> None:
        for _ in range(count):
            r = add(ONES, ONES)
            borrowed = add.execute([ONES, ONES], clone_outputs=False)[0]
            for value in (r, borrowed):
                np.asarray(value), memoryview(value), value.numpy("float64"), repr(value)
                value.tobytes(), value.to_host(), value.shape, value.strides, value.dtype
            float8 = bits("float8_e4m3fn", codes)
            float8.numpy("float32"), float8.numpy("float8_e4m3fn"), copy.copy(float8)
            with pytest.raises(BufferError):
                GetBuffer(r, Buffer(), F)

    calls(50)
    with flat_memory():
        calls(1000)
