"""Bundled programs: their cases, the comparison, and damaged files."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
from conftest import DATA, load_fixture

import pteron
from pteron import _bundled_file, _core, bundled, errors

FILE = DATA / "bundled.bpte"
BYTES = FILE.read_bytes()


def with_expected(values: np.ndarray) -> bytearray:
    """The file with other expected values in the place of its own."""
    (want,) = load_fixture("bundled").outputs
    data = bytearray(BYTES)
    start = data.index(want.tobytes())
    data[start : start + want.nbytes] = values.astype(np.float32).tobytes()
    return data


@pytest.mark.parametrize("source", [FILE, str(FILE), BYTES, bytearray(BYTES), memoryview(BYTES)])
def test_cases(source: Any) -> None:
    """Inputs and expected outputs are those that it was made with, and run."""
    fixture = load_fixture("bundled")
    bundle = pteron.load_bundled(source)
    assert bundle.method_names == ["forward"] == bundle.program.method_names
    (case,) = bundle.cases("forward")
    assert case.expected is not None
    for got, want in zip(
        [*case.inputs, *case.expected], fixture.inputs + fixture.outputs, strict=True
    ):
        np.testing.assert_array_equal(np.asarray(got), want)
    fixture.check(bundle.verify("forward", 0))


def test_difference() -> None:
    """The text says which output, how many elements, where, and both values."""
    (want,) = load_fixture("bundled").outputs
    other = want.copy()
    other[1, 2] += 1
    other[0, 0] = np.nan
    bundle = pteron.load_bundled(with_expected(other))
    with pytest.raises(
        errors.VerificationError,
        match=r"Output 0 .*case 0 of method 'forward'.*2 of 9 elements differ, most at \(0, 0\): "
        r"got .*, expected nan",
    ) as caught:
        bundle.verify()
    assert isinstance(caught.value, AssertionError) and isinstance(caught.value, RuntimeError)


def test_tolerances() -> None:
    """They decide, and must make sense."""
    (want,) = load_fixture("bundled").outputs
    bundle = pteron.load_bundled(with_expected(want + 1e-3))
    with pytest.raises(errors.VerificationError, match="atol=1e-08"):
        bundle.verify()
    bundle.verify(atol=1e-2)
    bundle.verify(rtol=1.0)
    for options in ({"rtol": -1.0}, {"atol": float("nan")}):
        with pytest.raises(errors.ArgumentError, match="must be 0 or more"):
            bundle.verify(**options)


def test_what_is_not_there() -> None:
    """No such case, no such method, nothing to compare with."""
    bundle = pteron.load_bundled(FILE)
    with pytest.raises(errors.MetadataIndexError, match="no test case 1 of method 'forward'"):
        bundle.verify("forward", 1)
    with pytest.raises(errors.MethodNotFoundError, match="'nope'; it has some for: 'forward'"):
        bundle.cases("nope")
    without = pteron.load_bundled(DATA / "bundled_inputs.bpte")
    assert without.cases()[0].expected is None
    with pytest.raises(errors.VerificationError, match="nothing to compare with"):
        without.verify()


def result(values: Any, dtype: str = "float32") -> pteron.ExecuTorchResult:
    array = np.asarray(values)
    return _core.result_from_bytes(dtype, array.shape, array.tobytes())


NAN, INF = float("nan"), float("inf")
F32, C64 = np.float32, np.complex64


@pytest.mark.parametrize(
    ("got", "want", "difference"),
    [
        (result(F32([NAN, INF, -INF, 1])), result(F32([NAN, INF, -INF, 1])), ""),
        (result(F32([INF])), result(F32([-INF])), "got inf, expected -inf"),
        (result(F32([1])), result(F32([INF])), "got 1.0, expected inf"),
        (result(F32([1])), result(F32([NAN])), "got 1.0, expected nan"),
        (result(F32([1.000001])), result(F32([1])), ""),
        (result(F32([1.001])), result(F32([1])), "1 of 1 elements"),
        (result(F32([[1]])), result(F32([1])), r"float32 \(1, 1\), expected float32 \(1,\)"),
        (result(F32([1])), result(np.float64([1]), "float64"), "expected float64"),
        (result(np.int8([1, 2]), "int8"), result(np.int8([1, 3]), "int8"), "got 2, expected 3"),
        (result(np.uint8([5]), "quint8"), result(np.uint8([5]), "quint8"), ""),
        (result(np.uint16([0x3F80]), "bfloat16"), result(np.uint16([0x3F80]), "bfloat16"), ""),
        (result(np.uint16([0x7FC0]), "bfloat16"), result(np.uint16([0xFFC1]), "bfloat16"), ""),
        (result(np.uint16([0x3F80]), "bfloat16"), result(np.uint16([0]), "bfloat16"), "got 1.0"),
        (result(C64([1 + NAN * 1j]), "complex64"), result(C64([NAN]), "complex64"), ""),
        (result(F32(0)), result(F32(1)), r"most at \(\): got 0.0, expected 1.0"),
        (0.5, 0.5000001, ""),
        (NAN, NAN, ""),
        (0.5, 0.6, "got 0.5, expected 0.6"),
        (7, 7, ""),
        (True, 1, "got True, expected 1"),
        (7, result(F32(7)), "expected a float32 tensor"),
        (None, None, ""),
    ],
)  # fmt: skip
def test_compare(got: Any, want: Any, difference: str) -> None:
    """NaN is NaN, infinities have signs, whole numbers and bits are the same or not."""
    import re

    text = bundled.compare(got, want, 1e-5, 1e-8)
    assert re.search(difference, text) if difference else text == ""


def test_axes_in_another_order() -> None:
    """Elements stored channels-last come out in C order, with the right shape."""
    values = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    stored = np.ascontiguousarray(values.transpose(0, 2, 3, 1))
    raw = _bundled_file.StoredTensor(
        "float32", values.shape, (0, 2, 3, 1), memoryview(stored.tobytes())
    )
    np.testing.assert_array_equal(np.asarray(raw.value()), values)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no identifier"),
        (b"BP08", "no identifier"),
        (b"\xff\xff\xff\xffBP08", "points to byte 4294967295 of 8"),
        ((DATA / "add.pte").read_bytes(), r"a plain program: load it with pteron.load\(\)"),
        (BYTES.replace(b"ET12", b"XXXX"), "program"),
        (BYTES[: len(BYTES) // 2], "points to byte"),
    ],
)
def test_damaged(data: bytes, words: str) -> None:
    """X10: the bytes are checked before anything is done with them."""
    with pytest.raises(errors.InvalidProgramError, match=words):
        pteron.load_bundled(data)


def test_damaged_anywhere() -> None:
    """X10: whatever is changed, it is a good file or InvalidProgramError."""
    generator = random.Random(0)
    numbers = [struct.pack("<I", n) for n in (0, 1, 4, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)]
    refused = 0
    for _ in range(4000):
        data = bytearray(BYTES)
        at = generator.randrange(len(data)) & ~3
        data[at : at + 4] = generator.choice([*numbers, generator.randbytes(4)])
        try:
            for suite in _bundled_file.parse("it", bytes(data)).suites.values():
                for case in suite:
                    bundled._case(case)
        except errors.InvalidProgramError:
            refused += 1
    assert 300 < refused < 4000, refused


def repeated(builder: flatbuffers.Builder, table: int, count: int) -> int:
    """A vector whose elements are all the same table."""
    builder.StartVector(4, count, 4)
    for _ in range(count):
        builder.PrependUOffsetTRelative(table)
    return int(builder.EndVector())


def test_same_bytes_again_and_again() -> None:
    """A small file whose suites all point to one list of cases is refused, not read for hours."""
    count = 3000
    builder = flatbuffers.Builder()
    builder.StartObject(2)
    case = builder.EndObject()
    cases = repeated(builder, case, count)
    builder.StartObject(2)
    builder.PrependUOffsetTRelativeSlot(1, cases, 0)
    suites = repeated(builder, builder.EndObject(), count)
    program = builder.CreateByteVector(b"ET12")
    builder.StartObject(3)
    builder.PrependUOffsetTRelativeSlot(1, suites, 0)
    builder.PrependUOffsetTRelativeSlot(2, program, 0)
    builder.Finish(builder.EndObject(), file_identifier=b"BP08")
    with pytest.raises(errors.InvalidProgramError, match="again and again"):
        _bundled_file.parse("it", bytes(builder.Output()))


def test_files_that_are_not_there(tmp_path: Path) -> None:
    """As for a program: missing, and a folder."""
    with pytest.raises(errors.ProgramNotFoundError, match="no file"):
        pteron.load_bundled(tmp_path / "none.bpte")
    with pytest.raises(errors.FileAccessError, match="directory"):
        pteron.load_bundled(tmp_path)
