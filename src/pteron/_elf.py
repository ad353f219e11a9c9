"""Give a shared library of the ExecuTorch SDK a name of pteron's own.

pteron bundles its own copy of the C++ runtime. Were it to keep the official names, the dynamic
linker would give one copy to both pteron and the official bindings in the same process, with one
registry of kernels and backends. The names differ only in the 13 letters ``libexecutorch``, which
are replaced in place by 13 others, so that no offset in the file moves.

Source of the format: the ELF specification (gABI, chapters 4 and 5). Little-endian ELF64 only:
that is x86-64 and aarch64.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

OFFICIAL = b"libexecutorch"
OURS = b"libpteron_run"
assert len(OFFICIAL) == len(OURS)

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_SYMTAB = 0, 1, 5, 6
_DT_SONAME, _DT_RPATH, _DT_RUNPATH = 14, 15, 29
_SHT_DYNSYM, _SYM_SIZE = 11, 24
_STB_GLOBAL, _STB_GNU_UNIQUE = 1, 10


def rename(data: bytes, *, bundled: bool = False) -> bytes:
    """Return a copy of the library `data` that names, and asks for, pteron's copy of the runtime.

    Also makes its GNU-unique symbols ordinary ones: unique symbols are shared by the whole process
    whatever library they are in, so two copies of the runtime would share each other's counters
    and buffers. With `bundled`, its run path is shortened to ``$ORIGIN``.

    Raises:
        ValueError: `data` is not a little-endian 64-bit ELF shared library.
    """
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a little-endian 64-bit ELF library")
    out = bytearray(data)
    try:
        strings, entries = _dynamic(data)
        for tag, value in entries:
            start = strings + value
            if tag in (_DT_NEEDED, _DT_SONAME) and data.startswith(OFFICIAL, start):
                out[start : start + len(OURS)] = OURS
            elif (
                bundled and tag in (_DT_RPATH, _DT_RUNPATH) and data.startswith(b"$ORIGIN:", start)
            ):
                out[start + len(b"$ORIGIN")] = 0
        for offset in _dynamic_symbols(data):
            if data[offset + 4] >> 4 == _STB_GNU_UNIQUE:
                out[offset + 4] = _STB_GLOBAL << 4 | data[offset + 4] & 0xF
    except (struct.error, OverflowError):  # offsets that no file has
        raise ValueError("the ELF library is cut short") from None
    return bytes(out)


def renamed(name: str) -> str:
    """The file name that `rename` gives: ``libexecutorch.so`` becomes ``libpteron_run.so``."""
    return name.replace(OFFICIAL.decode(), OURS.decode())


def _dynamic(data: bytes) -> tuple[int, list[tuple[int, int]]]:
    """File offset of the dynamic string table, and the dynamic entries as (tag, value)."""
    (phoff,) = struct.unpack_from("<Q", data, 32)
    phentsize, phnum = struct.unpack_from("<HH", data, 54)
    segments = [struct.unpack_from("<I4xQQ8xQ", data, phoff + i * phentsize) for i in range(phnum)]
    entries: list[tuple[int, int]] = []
    for kind, offset, _, size in segments:
        if kind == _PT_DYNAMIC:
            pairs = struct.iter_unpack("<qQ", data[offset : offset + size])
            for tag, value in pairs:
                if tag == _DT_NULL:
                    break
                entries.append((tag, value))
    address = dict(entries).get(_DT_STRTAB)
    for kind, offset, virtual, size in segments:
        if kind == _PT_LOAD and address is not None and virtual <= address < virtual + size:
            return address - virtual + offset, entries
    raise ValueError("the ELF file has no dynamic section: not a shared library")


def _dynamic_symbols(data: bytes) -> Iterator[int]:
    """File offsets of the entries of the dynamic symbol table."""
    (shoff,) = struct.unpack_from("<Q", data, 40)
    shentsize, shnum = struct.unpack_from("<HH", data, 58)
    for i in range(shnum):
        kind, offset, size = struct.unpack_from("<4xI16xQQ", data, shoff + i * shentsize)
        if kind == _SHT_DYNSYM:
            yield from range(offset, offset + size, _SYM_SIZE)


def main(argv: list[str]) -> None:
    """``_elf.py SOURCE_DIR TARGET_DIR NAME...``: bundle the named libraries, renamed."""
    source, target, *names = argv
    Path(target).mkdir(parents=True, exist_ok=True)
    for name in names:
        path = Path(target, renamed(name))
        path.write_bytes(rename(Path(source, name).read_bytes(), bundled=True))
        path.chmod(0o755)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
