"""Data files (.ptd) that are damaged are refused before the runtime reads them."""

from __future__ import annotations

import struct

import pytest
from conftest import DATA, load_fixture

import pteron
from pteron.errors import DataNotFoundError, InvalidDataError

GOOD = (DATA / "ptd.ptd").read_bytes()


def patched(position: int, value: int, width: int = 4) -> bytes:
    """The good file with another number at `position`."""
    return GOOD[:position] + value.to_bytes(width, "little") + GOOD[position + width :]


def table_of(key: bytes) -> tuple[int, int]:
    """Positions of an entry's table and of its vtable."""
    entry = next(
        position
        for position in range(64, len(GOOD) - 4)
        if (name := position + 4 + struct.unpack_from("<I", GOOD, position + 4)[0]) < len(GOOD)
        and GOOD[name : name + 4 + len(key)] == struct.pack("<I", len(key)) + key
        and 0 < position - struct.unpack_from("<i", GOOD, position)[0] < len(GOOD) - 10
    )
    return entry, entry - struct.unpack_from("<i", GOOD, entry)[0]


CASES = {
    "empty": (b"", "it has no identifier FT01"),
    "a program": ((DATA / "ptd.pte").read_bytes(), "it is a program"),
    "cut in the header": (GOOD[:40], "it is cut short"),
    "no header": (patched(8, 0), "its header is missing"),
    "short header": (patched(12, 8), "its header is 8 bytes long"),
    "list outside": (patched(24, 1 << 40, 8), "the file is cut short"),
    "segments outside": (patched(32, 1 << 63, 8), "the file is cut short"),
    "cut in the data": (GOOD[:-100], "the file is cut short"),
    "root outside": (patched(0, 0x7FFFFFF0), "reaches past the end"),
}


@pytest.mark.parametrize(("data", "says"), CASES.values(), ids=CASES.keys())
def test_damaged_files(data: bytes, says: str) -> None:
    """Each rule says what is wrong."""
    with pytest.raises(InvalidDataError, match=f"invalid data file: .*{says}"):
        pteron.load(DATA / "ptd.pte", data_path=data)


def test_data_without_layout() -> None:
    """The runtime follows the null layout of a tensor that is stored like a backend's data."""
    _, fields = table_of(b"weight")
    damaged = patched(fields + 4 + 2 * 2, 0, 2)
    with pytest.raises(DataNotFoundError, match="'weight'"):
        pteron.load(DATA / "ptd.pte", data_path=damaged).load_method()


def test_good_file() -> None:
    """The same file undamaged, from memory and from its path, mapped or not."""
    fixture = load_fixture("ptd")
    for source in (GOOD, DATA / "ptd.ptd"):
        for mmap in (False, True):
            method = pteron.load(fixture.path, data_path=source, mmap=mmap).load_method()
            fixture.check(method.execute(fixture.inputs))
