"""Every kind of value that a method takes, and how it says no to the others."""

from __future__ import annotations

import array
import ctypes
import enum
import mmap
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from capsules import Export, Producer, flat_memory
from conftest import DATA, load_fixture

import pteron
from pteron import _core, errors

X = np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2)  # the input of times2_4d
ONES = np.ones((2, 2), np.float32)


def load(name: str) -> pteron.Method:
    return load_fixture(name).load().load_method()


def unaligned(x: Any) -> Any:
    memory = np.zeros(x.nbytes + 1, np.uint8)
    view = memory[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    assert not view.flags.aligned
    return view


def read_only(x: Any) -> Any:
    copy = x.copy()
    copy.flags.writeable = False
    return copy


def odd_strides(x: Any) -> Any:
    """Strides that are no multiple of the item size: a field of a packed record."""
    records = np.zeros(x.shape, np.dtype([("tag", "u1"), ("value", x.dtype)]))
    records["value"] = x
    assert records["value"].strides[-1] == 5
    return records["value"]


def mapped(x: Any) -> Any:
    memory = mmap.mmap(-1, x.nbytes)
    memory[:] = x.tobytes()
    return np.frombuffer(memory, x.dtype).reshape(x.shape)


class Subclass(np.ndarray):
    """A subclass with nothing of its own."""


class Image:
    """What PIL images and pandas series are to us."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self.x)


class Interface:
    """The older protocol."""

    def __init__(self, x: Any) -> None:
        self.x = x.copy()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self.x.__array_interface__


ARRAYS: dict[str, Callable[[Any], Any]] = {
    "ndarray": lambda x: x,
    "subclass": lambda x: x.view(Subclass),
    "masked": lambda x: np.ma.masked_array(x),
    "memmap": mapped,
    "read-only": read_only,
    "misaligned": unaligned,
    "odd strides": odd_strides,
    "fortran": np.asfortranarray,
    "channels last": lambda x: np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
    "negative strides": lambda x: x[:, ::-1, ::-1].copy()[:, ::-1, ::-1],
    "every other": lambda x: np.repeat(x, 2, axis=3)[..., ::2],
    "size-1 axis with any stride": lambda x: np.lib.stride_tricks.as_strided(
        x, x.shape, (1 << 40, *x.strides[1:])
    ),
    "result": pteron.ExecuTorchResult.from_host,
    "memoryview": memoryview,
    "cast memoryview": lambda x: memoryview(x.tobytes()).cast("f", x.shape),
    "ctypes array": lambda x: (ctypes.c_float * 2 * 2 * 3 * 1).from_buffer_copy(x),
    "__dlpack__ 1": Producer,
    "__dlpack__ 0": lambda x: Producer(x, versioned=False),
    "capsule 1": lambda x: Export(x).capsule(),
    "capsule 0": lambda x: Export(x, versioned=False).capsule(),
    "__array__": Image,
    "__array_interface__": Interface,
}


@pytest.mark.parametrize("always_copy", [False, True], ids=["in place", "copied"])
@pytest.mark.parametrize("kind", ARRAYS)
def test_every_kind_of_array(kind: str, always_copy: bool) -> None:
    """M33, M35, M38, M106: the numbers of the contiguous array, and the same once more."""
    method = load("times2_4d")
    method.always_copy = always_copy
    for x in (X, X + 1):
        value = ARRAYS[kind](x)
        assert np.array_equal(method.execute([value])[0], x * 2)
        if not kind.startswith("capsule"):
            assert np.array_equal(method(value), x * 2)


@pytest.mark.parametrize("kind", ["ndarray", "result", "__dlpack__ 1", "capsule 0", "__array__"])
@pytest.mark.parametrize("name", ["times2_4d"])
def test_one_bare_value_is_one_input(kind: str, name: str) -> None:
    """M104: not a sequence of rows."""
    method = load(name)
    assert np.array_equal(method.execute(ARRAYS[kind](X))[0], X * 2)
    if not kind.startswith("capsule"):
        method.set_inputs(ARRAYS[kind](X))
        assert np.array_equal(method.execute()[0], X * 2)


def test_in_place_or_copied() -> None:
    """`copied` for the layouts that fit and those that do not (design decision 9)."""
    method = load("times2_4d")
    fits = {"ndarray", "subclass", "masked", "memmap", "read-only", "result", "memoryview",
            "cast memoryview", "ctypes array", "__dlpack__ 1", "__array__", "__array_interface__",
            "size-1 axis with any stride"}  # fmt: skip
    for kind, make in ARRAYS.items():
        if kind in fits or not kind.startswith(("__dlpack__", "capsule")):
            value = make(X)
            method(value)
            assert method.copied == (kind not in fits,), kind


CHANNELS = X.transpose(0, 3, 1, 2).reshape(1, 2, 3, 2)


def test_channels_last_is_never_permuted() -> None:
    """I1, X6: channels-last data for a contiguous plan, and contiguous for a channels-last one."""
    x = np.arange(12, dtype=np.float32).reshape(1, 2, 2, 3).transpose(0, 3, 1, 2)
    want = np.ascontiguousarray(x) * 2
    for name in ("times2_4d", "chan_last"):
        method = load(name)
        for value in (
            x,
            np.ascontiguousarray(x),
            Producer(x),
            pteron.ExecuTorchResult.from_host(x),
        ):
            out = method(value)
            assert np.array_equal(out, want)
            assert np.array_equal(np.from_dlpack(out), want)
            assert np.array_equal(method(out), want * 2)


@pytest.mark.parametrize(
    ("name", "value", "want"),
    [
        ("add_int64", array.array("q", [1, 2, 3, 4]), None),
        ("add_float64", np.ones((2, 2)), None),
        ("bool_not", memoryview(np.array([True, False, True])), [False, True, False]),
        ("bool_not", [np.array([True, False, True])], [False, True, False]),
    ],
    ids=["array.array", "float64", "bool memoryview", "bool array"],
)
def test_other_types(name: str, value: Any, want: Any) -> None:
    """Buffers of other formats."""
    method = load(name)
    if want is None:
        shaped = memoryview(value).cast("B").cast(memoryview(value).format, (2, 2))
        twice = np.asarray(method.execute([shaped, shaped])[0])
        assert np.array_equal(twice.ravel(), 2 * np.asarray(value).ravel())
    else:
        assert method.execute(value)[0].numpy().tolist() == want


@pytest.mark.parametrize(
    "name",
    ["add_uint8", "add_int8", "add_int16", "add_int32", "add_int64", "f16", "add_float64", "bf16",
     "same_uint16", "same_uint32", "same_float8_e4m3fn", "same_float8_e5m2", "same_complex32",
     "add_complex64", "add_complex128", "bool_not", "embedding"],
)  # fmt: skip
def test_every_dtype_of_a_program(name: str) -> None:
    """M40, M95: as a result, as NumPy or ml_dtypes array, through DLPack, as its bytes."""
    fixture = load_fixture(name)
    method = fixture.load().load_method()
    results = [pteron.ExecuTorchResult.from_host(x) for x in fixture.inputs]
    fixture.check(method.execute(results))
    fixture.check(method.execute([r.__dlpack__() for r in results]))
    dtype = results[0].dtype
    if dtype == "bfloat16" or dtype.startswith("float8"):
        fixture.check(method.execute([r.numpy(dtype) for r in results]))
        assert results[0].numpy(dtype).dtype == getattr(ml_dtypes, dtype)
    elif dtype != "complex32":
        fixture.check(method.execute([r.numpy() for r in results]))
        return
    fixture.check(method.execute([r.tobytes() for r in results]))
    fixture.check(method.execute([memoryview(bytearray(r.tobytes())) for r in results]))
    bits = np.asarray(results[0])
    with pytest.raises(
        errors.InputTypeError, match=f"Input 0 .* is {bits.dtype}, expected {dtype}"
    ):
        method.execute([bits] * len(results))


def test_raw_bytes_only_for_types_without_a_format(add: pteron.Method) -> None:
    """M96: a uint8 image of the right size is no float32 tensor; nor are too few bytes."""
    with pytest.raises(errors.InputTypeError, match="is uint8, expected float32"):
        add.execute([bytes(16), ONES])
    bf16 = load("bf16")
    for wrong in (bytes(11), bytes(13), memoryview(bytes(12)).cast("B", (2, 6)),
                  memoryview(bytes(24))[::2], np.zeros(12, np.uint8)):  # fmt: skip
        with pytest.raises(errors.InputTypeError, match="is uint8, expected bfloat16"):
            bf16(wrong)
    assert bf16(array.array("b", bytes(12))).numpy("float32").tolist() == [[1] * 3] * 2


def test_borrowed_bits_of_the_method_itself() -> None:
    """Bytes that lie in the memory of the method are read whole, as its dtype."""
    method = load("bf16")
    (borrowed,) = method.execute([bytes(12)], clone_outputs=False)
    raw = memoryview(borrowed).cast("B")
    assert method(raw).numpy("float32").tolist() == [[2] * 3] * 2
    (borrowed,) = method.execute([bytes(12)], clone_outputs=False)
    method.set_inputs([memoryview(borrowed).cast("B")])
    for _ in range(2):  # M76
        assert method.execute()[0].numpy("float32").tolist() == [[2] * 3] * 2


# Scalars.


class Answer(enum.IntEnum):
    """An int by another name."""

    THREE = 3


@pytest.mark.parametrize(
    "scalars",
    [
        (0.5, 3, True),
        (np.float32(0.5), np.int64(3), np.bool_(True)),
        (np.float64(0.5), np.uint8(3), np.True_),
        (np.array(0.5), np.array(3), np.array(True)),
        (pteron.ExecuTorchResult.from_host(np.float32(0.5)), Answer.THREE, True),
        (np.float16(0.5), pteron.ExecuTorchResult.from_host(np.int32(3)), True),
    ],
    ids=["python", "numpy", "numpy, other sizes", "0-d arrays", "0-d result", "half"],
)
def test_scalar_inputs(scalars: tuple[Any, ...]) -> None:
    """M105, I61."""
    fixture = load_fixture("alpha")
    method = fixture.load().load_method()
    assert np.array_equal(method(ONES, *scalars), ONES * 1.5)
    method.set_inputs([ONES, *scalars])
    assert np.array_equal(method.execute()[0], ONES * 1.5)


@pytest.mark.parametrize(
    ("index", "value", "error", "words"),
    [
        (1, True, errors.InputTypeError, "is the bool True, expected the float 0.5"),
        (1, 0.25, errors.InputError, "is the float 0.25.*, expected the float 0.5.*fixed when"),
        (1, 1, errors.InputError, "is the float 1, expected the float 0.5: .*fixed when"),
        (2, 3.0, errors.InputTypeError, "is the float 3, expected the int 3"),
        (2, 4, errors.InputError, "is the int 4, expected the int 3"),
        (2, 2**70, errors.InputError, "is an int that does not fit into 64 bits"),
        (3, 1, errors.InputTypeError, "is the int 1, expected the bool True"),
        (3, None, errors.InputTypeError, "is None, expected the bool True"),
        (1, "a", errors.InputTypeError, "is the str 'a', expected the float"),
        (1, np.array("text"), errors.InputTypeError, "is the str 'text', expected the float"),
        (1, np.ones(1), errors.InputTypeError, r"is a float64 tensor of shape \(1,\), expected"),
        (1, ONES, errors.InputTypeError, r"is a float32 tensor of shape \(2, 2\), expected the fl"),
        (1, object(), errors.InputTypeError, "is an object, expected"),
        (0, 1.5, errors.InputTypeError, "is a float, expected an array"),
        (0, None, errors.InputTypeError, r"is None, expected a float32 tensor of shape \(2, 2\)"),
    ],
    ids=str,
)
def test_wrong_scalars(index: int, value: Any, error: type[Exception], words: str) -> None:
    """M10 for values; bool is not quietly taken for float (I61)."""
    inputs = [ONES, 0.5, 3, True]
    inputs[index] = value
    with pytest.raises(error, match=f"Input {index} of method 'forward' {words}") as caught:
        load("alpha").execute(inputs)
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("x", "n"),
    [(1.5, 3), (np.array(1.5, np.float32), np.array(3)), (np.float32(1.5), np.int64(3)),
     (np.float64(1.5), Answer.THREE), (memoryview(np.array(1.5, np.float32)), np.array(3)),
     (Producer(np.array(1.5, np.float32)), 3), (Producer(np.array(1.5, np.float32), shape=None,
     strides=None), 3)],
    ids=["python", "0-d", "numpy scalars", "weak", "buffer", "DLPack", "DLPack without shape"],
)  # fmt: skip
def test_tensors_of_no_dimensions(x: Any, n: Any) -> None:
    """I62: in and out, twice."""
    method = load("zero_d")
    a, b = method(x, n)
    assert (a.shape, a.item(), b.dtype, int(b)) == ((), 3.0, "int64", 4)
    c, d = method(a, b)
    assert (float(c), d.item(), np.asarray(c).shape) == (6.0, 5, ())


@pytest.mark.parametrize(
    ("x", "n", "words"),
    [
        (True, 3, "is a Python bool, expected float32"),
        (1.5, 3.0, "is a Python float, expected int64"),
        (1.5, 2**63, "does not fit into 64 bits"),
        ([1.5], 3, r"is a list: pass np.asarray"),
        (np.array(1.5), 3, "is float64, expected float32"),
    ],
    ids=str,
)
def test_wrong_tensors_of_no_dimensions(x: Any, n: Any, words: str) -> None:
    """Weak scalars follow NumPy: no float for an int, no bool for a number."""
    with pytest.raises(errors.InputError, match=f"Input . of method 'forward' .*{words}"):
        load("zero_d")(x, n)


@pytest.mark.parametrize("kind", ["ndarray", "memoryview", "__dlpack__ 1", "__dlpack__ 0",
                                  "capsule 1", "__array__", "result"])  # fmt: skip
@pytest.mark.parametrize(("name", "shape"), [("empty", (0, 4)), ("dyn", (0, 4)), ("dyn", (3, 0))])
def test_no_elements(kind: str, name: str, shape: tuple[int, int]) -> None:
    """I64: accepted, the empty shape comes out, and goes on as DLPack and buffer."""
    x = np.zeros(shape, np.float32)
    make = ARRAYS[kind]
    value = make(x) if "dlpack" not in kind else Producer(x, data=None, versioned="1" in kind)
    out = load(name).execute([value])[0]
    assert (out.shape, out.size, out.nbytes) == (shape, 0, 0)
    for back in (np.asarray(out), np.from_dlpack(out), np.asarray(memoryview(out).tolist())):
        assert back.size == 0
    assert np.from_dlpack(out).shape == memoryview(out).shape == shape


# Refusals.


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "dtype": (np.ones((2, 2)), errors.InputTypeError,
              "is float64, expected float32.*0x12.*Input 1 has unexpected scalar type: expected "
              "Float but was Double"),
    "shape": (np.ones((2, 3), np.float32), errors.InputError,
              r"has shape \(2, 3\), expected \(2, 2\)"),
    "rank": (np.ones((1, 2, 2), np.float32), errors.InputError,
             r"has shape \(1, 2, 2\), expected \(2, 2\)"),
    "many axes": (np.ones((1,) * 17, np.float32), errors.InputError,
                  "has 17 dimensions, and at most 16"),
    "big-endian": (np.ones((2, 2), ">f4"), errors.InputTypeError, "big-endian.*newbyteorder"),
    "big-endian buffer": (memoryview(np.ones((2, 2), ">f4")), errors.InputTypeError,
                          "the buffer format '>f', which is big-endian"),
    "structured": (np.zeros((2, 2), "i2,i2"), errors.InputTypeError, r"a NumPy array of \["),
    "longdouble": (np.zeros((2, 2), "g"), errors.InputTypeError, "a NumPy array of .*float"),
    "object": (np.zeros((2, 2), object), errors.InputTypeError, "a NumPy array of object"),
    "text": (np.zeros((2, 2), "U1"), errors.InputTypeError, "a NumPy array of <U1"),
    "time": (np.zeros((2, 2), "M8[s]"), errors.InputTypeError, "a NumPy array of datetime64"),
    "text buffer": (array.array("u", "abcd"), errors.InputTypeError, "the buffer format 'w'"),
    "record buffer": (memoryview(np.zeros(4, "i2,i2")), errors.InputTypeError, "format 'T{"),
    "str": ("model.pte", errors.InputTypeError, "is a str, expected an array"),
    "list": ([[1, 2], [3, 4]], errors.InputTypeError, r"is a list: pass np.asarray\(x"),
    "dict": ({"x": ONES}, errors.InputTypeError, "is a dict, expected an array"),
    "capsule": (_core_capsule := Export(ONES, name=b"other").capsule(), errors.InputTypeError,
                "a capsule of the name 'other'"),
    "type": (np.ndarray, errors.InputError, "could not be read: TypeError: unbound method"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*'u' type code.*:DeprecationWarning")
@pytest.mark.parametrize("case", REFUSED)
def test_refused(add: pteron.Method, case: str) -> None:
    """M10, I52: one wording, input and method named, nothing ran, the next call is right."""
    value, error, words = REFUSED[case]
    for call in (lambda: add(ONES, value), lambda: add.set_inputs([ONES, value])):
        with pytest.raises(error, match=rf"(?s)Input 1 of method 'forward' .*{words}") as caught:
            call()
        assert type(caught.value) is error
        assert isinstance(caught.value, ValueError)
    assert np.array_equal(add(ONES, ONES), ONES * 2)


class Counting(Producer):
    """Counts buffer requests too (from Python 3.12 on)."""

    def __buffer__(self, flags: int) -> memoryview:
        self.asked.append({"buffer": flags})
        return memoryview(self.array)


@pytest.mark.parametrize("count", [0, 1, 3, 100])
def test_wrong_count(add: pteron.Method, count: int) -> None:
    """M11, I14, I52: method, expected and given, what is missing; nothing is read."""
    producer = Counting(ONES)
    words = rf"Method 'forward' takes 2 inputs, {count} (was|were) given"
    if count < 2:
        words += rf": input {count} is missing, a float32 tensor of shape \(2, 2\)"
    for call in (add.execute, add.set_inputs, lambda inputs: add(*inputs)):
        with pytest.raises(errors.InputError, match=words):
            call([producer] * count)
    assert producer.asked == []
    assert np.array_equal(add(ONES, ONES), ONES * 2)


@pytest.mark.parametrize("attribute", ["__dlpack__", "__array__", "__array_interface__"])
def test_failing_attribute(add: pteron.Method, attribute: str) -> None:
    """M13: what goes wrong while we find out how to read an input is the cause of the error."""

    def fail(self: object) -> None:
        raise OSError("the device went away")

    value = type("Failing", (), {attribute: property(fail)})()
    with pytest.raises(
        errors.InputError, match="Input 0 .*OSError: the device went away"
    ) as caught:
        add(value, ONES)
    assert isinstance(caught.value.__cause__, OSError)


def test_interrupts_pass(add: pteron.Method) -> None:
    """KeyboardInterrupt is no input error."""

    class Interrupting:
        def __dlpack__(self, **keywords: Any) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        add(Interrupting(), ONES)


def test_bound_of_a_dynamic_shape() -> None:
    """M10: at most."""
    with pytest.raises(errors.InputError, match=r"has shape \(5, 8\), expected at most \(4, 8\)"):
        load("dyn")(np.zeros((5, 8), np.float32))


def test_attribute_without_a_buffer_but_dlpack(add: pteron.Method) -> None:
    """An object whose buffer cannot be had is asked for DLPack, then by NumPy."""

    class Both(Producer):
        def __buffer__(self, flags: int) -> memoryview:
            raise BufferError("bfloat16 has no format")

    assert np.array_equal(add(Both(ONES), ONES), ONES * 2)
    scalar = ml_dtypes.bfloat16(1.5)  # has a buffer in name only
    assert pteron.ExecuTorchResult.from_host(scalar).dtype == "bfloat16"


def test_from_host_takes_what_methods_take() -> None:
    """One ladder (design decision 7)."""
    for kind, make in ARRAYS.items():
        out = pteron.ExecuTorchResult.from_host(make(X))
        assert (out.dtype, out.shape, out.borrowed) == ("float32", X.shape, False), kind
        assert np.array_equal(out, X)
    with pytest.raises(errors.DeviceError, match="is on device cuda:0, not on the host"):
        pteron.ExecuTorchResult.from_host(Producer(X, device_type=2, data=64))
    with pytest.raises(errors.InputTypeError, match="The array is a list: pass np.asarray"):
        pteron.ExecuTorchResult.from_host([1])


WITHOUT_NUMPY = """
import array, sys
sys.modules["numpy"] = None
sys.modules["torch"] = None
import pteron
ones = memoryview(array.array("f", [1, 2, 3, 4])).cast("B").cast("f", (2, 2))
m = pteron.load({path!r}).load_method()
out = m(ones, ones)
assert memoryview(out).tolist() == [[2, 4], [6, 8]], out
assert memoryview(m(out, out.__dlpack__())).tolist() == [[4, 8], [12, 16]]
assert "shape=(2, 2)" in repr(out), repr(out)
try:
    out.numpy()
except ImportError:
    print("done")
"""


def test_without_numpy_and_torch() -> None:
    """M101, I20: buffers and DLPack need neither."""
    code = WITHOUT_NUMPY.format(path=str(DATA / "add.pte"))
    paths = [str(Path(pteron.__file__).parents[1]), *sys.path]
    code = f"import sys; sys.path[:0] = {paths!r}\n{code}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "done\n"), run.stderr


def test_memory_stays_flat() -> None:
    """M110: 10,000 calls over all kinds."""
    method = load("times2_4d")

    def calls(rounds: int) -> None:
        for _ in range(rounds):
            for make in ARRAYS.values():
                value = make(X)
                method.execute([value])
                method.set_inputs([make(X)])
                method.execute()

    calls(20)
    with flat_memory():
        calls(230)


def test_pickled_array_types(add: pteron.Method) -> None:
    """A result that was pickled is an input like any other."""
    again = _core.result_from_bytes("float32", (2, 2), ONES.tobytes())
    assert np.array_equal(add(again, again), ONES * 2)
