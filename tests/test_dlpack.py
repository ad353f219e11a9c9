"""DLPack to the letter: what results export, what producers are asked, and hostile producers."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import capsules
import numpy as np
import pytest
from capsules import CUDA, IS_COPIED, PINNED, READ_ONLY, Export, Producer, flat_memory, numpy_2
from conftest import DATA, load_fixture

import pteron
from pteron import _core, errors

ONES = np.ones((2, 2), np.float32)
REAL_TYPES = {  # name: DLPack code and bits
    "bool": (6, 8),
    "uint16": (1, 16),
    "uint32": (1, 32),
    "int64": (0, 64),
    "float16": (2, 16),
    "bfloat16": (4, 16),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "complex32": (5, 32),
    "complex64": (5, 64),
    "complex128": (5, 128),
}


def result(values: Any = ONES) -> pteron.ExecuTorchResult:
    return pteron.ExecuTorchResult.from_host(values)


def constant(name: str = "table.values") -> pteron.ExecuTorchResult:
    """A read-only view of the program's data."""
    return load_fixture("attribute").load().load_method().get_attribute(name)


# Export.


@numpy_2
@pytest.mark.parametrize(
    ("keywords", "shares"),
    [({}, True), ({"copy": False}, True), ({"copy": True}, False), ({"copy": None}, True)],
    ids=str,
)
def test_numpy_takes_results(keywords: dict[str, Any], shares: bool) -> None:
    """M23, M24: with and without copy."""
    r = result()
    array = np.from_dlpack(r, **keywords)
    array[0, 0] = 7
    assert (r.numpy()[0, 0].item() == 7) is shares
    assert array.tolist() == [[7, 1], [1, 1]]


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 3), (2, 0)], ids=str)
def test_version_of_a_capsule(version: tuple[int, int] | None) -> None:
    """M26: the new struct only for those who say that they know it; never newer than 1."""
    capsule = result().__dlpack__(max_version=version)
    versioned = version is not None and version >= (1, 0)
    assert capsules.name_of(capsule) == ("dltensor_versioned" if versioned else "dltensor")
    if versioned:
        assert capsules.struct_of(capsule).major == 1


@pytest.mark.parametrize(
    ("keywords", "error", "words"),
    [
        ({"dl_device": (CUDA, 63)}, BufferError, "cannot be exported to DLPack device (2, 63)"),
        ({"dl_device": (1, 1)}, BufferError, "(1, 1)"),  # M28
        ({"stream": 0}, BufferError, "no stream"),  # M29
        ({"stream": 1}, BufferError, "no stream"),
        ({"stream": 2**80}, BufferError, "no stream"),
        ({"stream": "1"}, TypeError, "stream must be"),
        ({"stream": True}, TypeError, "stream must be"),
        ({"max_version": 1}, TypeError, "max_version must be"),
        ({"max_version": (1, "0")}, TypeError, "max_version must be"),
        ({"dl_device": 1}, TypeError, "dl_device must be"),
        ({"copy": 1}, TypeError, "copy must be"),
        ({"copies": True}, TypeError, "unexpected keyword argument 'copies'"),
    ],
    ids=str,
)
def test_refused_requests(keywords: dict[str, Any], error: type[Exception], words: str) -> None:
    """M27 to M29: BufferError for what cannot be, TypeError for what makes no sense."""
    with pytest.raises(error) as caught:
        result().__dlpack__(**keywords)
    assert words in str(caught.value)


def test_keywords_only() -> None:
    """M25."""
    with pytest.raises(TypeError, match="keyword arguments only"):
        result().__dlpack__((1, 0))


@pytest.mark.parametrize("keywords", [{"stream": -1}, {"stream": None}, {"dl_device": (1, 0)}])
def test_granted_requests(keywords: dict[str, Any]) -> None:
    """M29: a CPU result takes no stream, and -1 for none."""
    assert capsules.name_of(result().__dlpack__(**keywords)) == "dltensor"
    assert result().__dlpack_device__() == (1, 0)


@pytest.mark.parametrize("name", REAL_TYPES)
def test_types_are_exported_as_they_are(name: str) -> None:
    """M31, M40: the real type goes out, and comes back in."""
    r = _core.result_from_bytes(name, (2, 3), bytes(range(96))[: 6 * REAL_TYPES[name][1] // 8])
    tensor = capsules.struct_of(r.__dlpack__(max_version=(1, 0))).tensor
    assert (tensor.code, tensor.bits, tensor.lanes) == (*REAL_TYPES[name], 1)
    again = pteron.ExecuTorchResult.from_host(r.__dlpack__())
    assert (again.dtype, again.tobytes()) == (name, r.tobytes())


@pytest.mark.parametrize("name", ["qint8", "quint8", "qint32", "bits8", "bits16"])
def test_types_that_dlpack_lacks(name: str) -> None:
    """BufferError, never another type."""
    with pytest.raises(errors.ExportError, match=f"no type for {name}") as caught:
        _core.result_from_bytes(
            name, (1,), bytes(4)[: {"qint32": 4, "bits16": 2}.get(name, 1)]
        ).__dlpack__()
    assert isinstance(caught.value, BufferError)


def test_struct_of_an_export() -> None:
    """Strides filled, no offset, 64-byte aligned, a struct for each, null for no elements."""
    r = result(np.zeros((2, 1, 3), np.float32))
    first, second = (r.__dlpack__(max_version=(1, 0)) for _ in range(2))
    a, b = capsules.struct_of(first).tensor, capsules.struct_of(second).tensor
    assert a.shape[:3] == [2, 1, 3]
    assert (a.strides[0], a.strides[2], a.byte_offset) == (3, 1, 0)
    assert a.data == b.data and a.data % 64 == 0
    assert a.shape[0] == 2 and bool(a.shape) and first is not second
    empty = result(np.zeros((0, 4), np.float32)).__dlpack__()
    assert capsules.struct_of(empty).tensor.data is None
    assert result(np.float32(1)).__dlpack__() is not None


def test_flags() -> None:
    """IS_COPIED on a copy, READ_ONLY on a constant that is shared, neither otherwise."""

    def flags(source: pteron.ExecuTorchResult, **keywords: Any) -> int:
        return capsules.struct_of(source.__dlpack__(max_version=(1, 0), **keywords)).flags

    r, c = result(), constant()
    assert [flags(r), flags(r, copy=False), flags(r, copy=True)] == [0, 0, IS_COPIED]
    assert [flags(c), flags(c, copy=False), flags(c, copy=True)] == [
        IS_COPIED,
        READ_ONLY,
        IS_COPIED,
    ]


@numpy_2
def test_constants_are_shared_only_when_marked() -> None:
    """M43: shared, read-only, with copy=False and DLPack 1.0; else a copy or a refusal."""
    c = constant()
    shared = np.from_dlpack(c, copy=False)
    assert shared.flags.writeable is False
    assert shared.ctypes.data == c.numpy().ctypes.data
    copied = np.from_dlpack(c)
    copied[0, 0] = 99
    assert c.numpy()[0, 0] == 0
    with pytest.raises(BufferError, match="only through DLPack 1.0"):
        c.__dlpack__(copy=False)


@numpy_2
@pytest.mark.parametrize("consumed", [False, True])
def test_export_outlives_everything(consumed: bool) -> None:
    """M30: the memory lives as long as an export of it, and no longer."""
    program = pteron.load(DATA / "add.pte")
    r = program.load_method()(ONES, ONES)
    capsule = r.__dlpack__(max_version=(1, 0))
    array = np.from_dlpack(_Holder(capsule)) if consumed else None
    assert capsules.name_of(capsule).startswith("used_") is consumed
    del r, program
    gc.collect()
    if array is not None:
        del capsule
        assert array.tolist() == [[2, 2], [2, 2]]


class _Holder:
    """Hands a capsule to np.from_dlpack, which takes none."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


@numpy_2
def test_exports_are_freed() -> None:
    """M30: unconsumed capsules and consumed ones of a megabyte each, 4,000 in all."""
    big = result(np.zeros(1 << 18, np.float32))
    np.from_dlpack(big, copy=True)
    with flat_memory():
        for _ in range(2000):
            big.__dlpack__(max_version=(1, 0), copy=True)
            np.from_dlpack(big, copy=True)


# Import.


@pytest.mark.parametrize("listed", [False, True], ids=["alone", "in the list"])
@pytest.mark.parametrize("versioned", [False, True])
def test_bare_capsule(listed: bool, versioned: bool) -> None:
    """M33, M34, M35: one input, of either kind; renamed, and deleted once, after the run."""
    method = pteron.load(DATA / "times2_4d.pte").load_method()
    x = np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2)
    export = Export(x, versioned)
    capsule = export.capsule()
    (out,) = method.execute([capsule] if listed else capsule)
    assert np.array_equal(out, x * 2)
    assert capsules.name_of(capsule) == f"used_dltensor{'_versioned' * versioned}"
    assert export.deleted == 1


def test_capsule_is_used_once(add: pteron.Method) -> None:
    """M37, I32: the second use is a ValueError, in another call and in the same list."""
    first, twice = Export(ONES).capsule(), Export(ONES).capsule()
    assert np.array_equal(add.execute([first, ONES])[0], ONES * 2)
    with pytest.raises(ValueError, match=r"Input 0 of method 'forward' .*used already"):
        add.execute([first, ONES])
    with pytest.raises(ValueError, match="Input 1 .*the same DLPack capsule as input 0"):
        add.execute([twice, twice])
    assert np.array_equal(add.execute([twice, ONES])[0], ONES * 2)  # still good after the failure


@pytest.mark.parametrize(
    "other", [np.ones(3, np.float32), np.ones((2, 2)), object(), None], ids=repr
)
def test_failed_call_leaves_capsules_alone(add: pteron.Method, other: Any) -> None:
    """M37: whatever is wrong with the other input."""
    export = Export(ONES)
    capsule = export.capsule()
    with pytest.raises(errors.InputError, match="Input 1 of method 'forward'"):
        add.execute([capsule, other])
    assert capsules.name_of(capsule) == "dltensor_versioned"
    assert np.array_equal(add.execute([ONES, capsule])[0], ONES * 2)
    assert export.deleted == 1


def test_producers_are_asked_for_dlpack_1(add: pteron.Method) -> None:
    """M39: with max_version, once; without it where that is unknown; other errors are the cause."""
    new = Producer(ONES)
    assert np.array_equal(add(new, ONES), ONES * 2)
    assert new.asked == [{"max_version": (1, 3)}] and new.deleted == [1]

    class Old(Producer):
        def __dlpack__(self, stream: Any = None) -> Any:
            return super().__dlpack__()

    old = Old(ONES, versioned=False)
    assert np.array_equal(add(old, ONES), ONES * 2)
    assert old.asked == [{}] and old.deleted == [1]

    class Failing:
        def __dlpack__(self, **keywords: Any) -> Any:
            raise KeyError("no such thing\nand a long story")

    with pytest.raises(errors.InputError) as caught:  # M13
        add(ONES, Failing())
    assert "Input 1 of method 'forward' could not be read: KeyError" in str(caught.value)
    assert "long story" in repr(caught.value.__cause__)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    "wrong",
    [
        {"strides": None},
        {"offset": 8},
        {"device_type": PINNED},
        {"flags": READ_ONLY},
        {"minor": 9},
        {"deleter": None},
    ],
    ids=str,
)
def test_unusual_but_right(add: pteron.Method, wrong: dict[str, Any]) -> None:
    """NULL strides, a byte offset, pinned memory, a newer minor version, no deleter."""
    x = np.arange(4, dtype=np.float32).reshape(2, 2)
    assert np.array_equal(add(Producer(x, **wrong), ONES), x + 1)


def test_read_only_tensor_is_not_written() -> None:
    """M38: a program that writes the input writes a copy."""
    method = pteron.load(DATA / "unplanned_state.pte").load_method()
    state = np.zeros((2, 2), np.float32)
    for _ in range(2):
        assert np.array_equal(method(ONES, Producer(state, flags=READ_ONLY)), ONES)
    assert not state.any()
    method(ONES, Producer(state))  # M68: without the flag it is the caller's memory
    assert np.array_equal(state, ONES)


OVERFLOW = {"shape": (2**33, 2**33), "ndim": 2}
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "other name": ({"name": b"tensor"}, "is a capsule of the name 'tensor'"),
    "used": ({"name": b"used_dltensor"}, "used already"),
    "used, versioned": ({"name": b"used_dltensor_versioned"}, "used already"),
    "negative ndim": ({"ndim": -1}, "has -1 dimensions"),
    "huge ndim": ({"ndim": 2**31 - 1}, "has 2147483647 dimensions, and at most 16"),
    "no shape": ({"shape": None}, "has dimensions but no shape"),
    "negative size": ({"shape": (2, -2)}, "has a negative size, -2"),
    "negative size, no elements": ({"shape": (0, -2)}, "has a negative size, -2"),
    "product overflows": (OVERFLOW, "a shape that no memory can hold"),
    "bytes overflow": ({"shape": (2**31, 2**31)}, "a shape that no memory can hold"),
    "strides overflow": ({"strides": (2**62, 1)}, "strides or an offset that lead out of any"),
    "strides add up": ({"strides": (2**60, 2**60)}, "strides or an offset that lead out of any"),
    "strides backwards": ({"strides": (-(2**50), 1)}, "strides or an offset that lead out of any"),
    "offset wraps": ({"byte_offset": 2**64 - 8}, "strides or an offset that lead out of any"),
    "offset outside": ({"byte_offset": 2**63}, "strides or an offset that lead out of any"),
    "no data": ({"data": None}, "has no memory"),
    "unknown code": ({"code": 99}, "has DLPack dtype code 99, 32 bits, 1 lanes"),
    "code 255": ({"code": 255, "bits": 8}, "has DLPack dtype code 255, 8 bits"),
    "odd bits": ({"bits": 24}, "24 bits"),
    "lanes": ({"lanes": 2}, "2 lanes"),
    "no lanes": ({"lanes": 0}, "0 lanes"),
    "major 2": ({"major": 2}, "is a tensor of DLPack 2.1, and only version 1 is known"),
    "major 0": ({"major": 0}, "is a tensor of DLPack 0.1"),
    "on a GPU": ({"device_type": CUDA, "data": 64}, "is on device cuda:0, expected on device cpu"),
    "GPU 256": ({"device_type": CUDA, "device_id": 256}, "is on CUDA device 256, and only 0 to"),
    "GPU -1": ({"device_type": CUDA, "device_id": -1}, "is on CUDA device -1, and only 0 to 127"),
    "on something": ({"device_type": 8}, "is on DLPack device type 8"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_tensor(add: pteron.Method, case: str) -> None:
    """M6, M35, M36: refused with the reason, as a capsule and from a producer; deleted once."""
    wrong, words = HOSTILE[case]
    for _ in range(50):
        export = Export(ONES, **wrong)
        capsule = export.capsule()
        producer = Producer(ONES, **wrong)
        for value in (capsule, producer):
            with pytest.raises(errors.ExecuTorchError) as caught:
                add(ONES, value)
            assert f"Input 1 of method 'forward' {words}" in str(caught.value) or (
                words in str(caught.value) and "Input 1 of method" in str(caught.value)
            )
            assert isinstance(caught.value, ValueError)
        del capsule
        known = wrong.get("name", b"dltensor_versioned") == b"dltensor_versioned"
        assert (export.deleted, producer.deleted) == (int(known), [int(known)])
        if not known:
            for abandoned in (export, *producer.exports):
                abandoned.forget()
    assert np.array_equal(add(ONES, ONES), ONES * 2)


@pytest.mark.parametrize("value", [None, 3, b"dltensor", ONES], ids=type)
def test_dlpack_that_returns_something_else(add: pteron.Method, value: Any) -> None:
    """A type error that says what it was."""

    class Producer:
        def __dlpack__(self, **keywords: Any) -> Any:
            return value

    with pytest.raises(errors.InputTypeError, match=f"returns an? .*{type(value).__name__}"):
        add(ONES, Producer())


class Scheming:
    """A producer that runs `action` when it is asked for its tensor."""

    def __init__(self, array: Any, action: Callable[[], object]) -> None:
        self.array = array
        self.action = action

    def __dlpack__(self, **keywords: Any) -> Any:
        self.action()
        return Export(self.array).capsule()


def test_reentering_the_method(add: pteron.Method) -> None:
    """The inner call runs; the outer one has its own numbers."""
    inner: list[Any] = []
    scheming = Scheming(ONES, lambda: inner.append(add(ONES * 5, ONES)))
    assert np.array_equal(add(ONES * 3, scheming), ONES * 4)
    assert np.array_equal(inner[0], ONES * 6)


def test_borrowed_result_overwritten_while_inputs_are_read(add: pteron.Method) -> None:
    """The inner run overwrites what the outer call was to read: an error, never other numbers."""
    (borrowed,) = add.execute([ONES, ONES], clone_outputs=False)
    scheming = Scheming(ONES, lambda: add(ONES * 5, ONES))
    with pytest.raises(errors.MethodStateError, match="Input 0 of method 'forward' shared"):
        add(borrowed, scheming)


def test_array_resized_while_inputs_are_read(add: pteron.Method) -> None:
    """Its memory as it is when the run starts."""
    array = np.ones((2, 2), np.float32)

    def grow() -> None:
        array.resize((512, 512), refcheck=False)

    with pytest.raises(errors.InputError, match=r"Input 0 .*has shape \(512, 512\)"):
        add(array, Scheming(ONES, grow))


def test_capsule_consumed_while_inputs_are_read(add: pteron.Method) -> None:
    """Somebody else has it then: an error, not freed memory."""
    export = Export(ONES)
    capsule = export.capsule()
    scheming = Scheming(ONES, lambda: add(capsule, ONES))
    with pytest.raises(ValueError, match="Input 0 .*used while the other inputs were read"):
        add(capsule, scheming)
    assert export.deleted == 1


@pytest.mark.parametrize("entry", ["execute", "set_inputs"])
def test_producer_without_references(add: pteron.Method, entry: str) -> None:
    """It drops its own last reference while it is asked."""
    held: list[Any] = []
    held.append(Scheming(ONES, held.clear))
    getattr(add, entry)([ONES, *held])
    gc.collect()
    assert held == []
    assert np.array_equal(add.execute([ONES, ONES])[0], ONES * 2)


def test_close_and_set_inputs_while_inputs_are_read(add: pteron.Method) -> None:
    """The run goes on with what it started with."""
    calls: list[Callable[[], object]] = [lambda: None]
    add.set_inputs([ONES, Scheming(ONES, lambda: calls[-1]())])
    calls.append(lambda: add.set_inputs([ONES * 9, ONES]))
    assert np.array_equal(add.execute()[0], ONES * 2)
    assert np.array_equal(add.execute()[0], ONES * 10)
    assert np.array_equal(add(ONES, Scheming(ONES, add.close)), ONES * 2)
    with pytest.raises(errors.ClosedError):
        add(ONES, ONES)


def test_endless_producer_does_not_hold_the_method(add: pteron.Method) -> None:
    """A `__dlpack__` that waits in another thread: this one may call the method meanwhile."""
    started, release = threading.Event(), threading.Event()

    def wait() -> None:
        started.set()
        assert release.wait(20)

    outputs: list[Any] = []
    thread = threading.Thread(target=lambda: outputs.append(add(Scheming(ONES, wait), ONES)))
    thread.start()
    assert started.wait(20)
    assert np.array_equal(add(ONES * 2, ONES), ONES * 3)
    add.set_inputs([ONES, ONES])
    assert np.array_equal(add.execute()[0], ONES * 2)
    release.set()
    thread.join(20)
    assert np.array_equal(outputs[0], ONES * 2)


def test_deleters_run_once_and_without_an_error_set(add: pteron.Method) -> None:
    """When a later input fails, the deleter of an earlier one must not find the exception."""
    seen: list[int] = []

    class Careful(Export):
        def on_delete(self) -> None:
            seen.append(len(sorted("abc")))  # would raise SystemError

    class Failing:
        def __dlpack__(self, **keywords: Any) -> Any:
            raise ZeroDivisionError

    class Good:
        def __dlpack__(self, **keywords: Any) -> Any:
            return Careful(ONES).capsule()

    for _ in range(100):
        with pytest.raises(errors.InputError, match="ZeroDivisionError"):
            add(Good(), Failing())
    assert seen == [3] * 100


def test_memory_stays_flat(add: pteron.Method) -> None:
    """M110: 10,000 calls with every kind of producer, good and bad."""
    bad = [wrong for wrong, _ in HOSTILE.values() if "name" not in wrong]

    def calls(count: int) -> None:
        for i in range(count):
            good = Producer(ONES, versioned=i % 2 == 0)
            refused = Producer(ONES, **bad[i % len(bad)])
            add(good, ONES)
            with pytest.raises(errors.ExecuTorchError):
                add(good, refused)
            assert (good.deleted, refused.deleted) == ([1, 1], [1])

    calls(200)
    with flat_memory():
        calls(5000)
