"""Loading programs: what can be passed, what stays alive, and what is refused with which words."""

from __future__ import annotations

import gc
import io
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DATA, load_fixture

import pteron
from pteron import errors

PATH = DATA / "mlp.pte"


def map_file(path: Path) -> mmap.mmap:
    """The file as a read-only map."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


SOURCES: dict[str, Callable[[], Any]] = {
    "str": lambda: str(PATH),
    "Path": lambda: PATH,
    "bytes path": lambda: _BytesPath(),
    "bytes": PATH.read_bytes,
    "bytearray": lambda: bytearray(PATH.read_bytes()),
    "memoryview": lambda: memoryview(PATH.read_bytes()),
    "odd slice": lambda: memoryview(b"x" + PATH.read_bytes())[1:],
    "ndarray": lambda: np.fromfile(PATH, np.uint8),
    "mmap": lambda: map_file(PATH),
    "file": lambda: io.BytesIO(PATH.read_bytes()),
}


class _BytesPath(os.PathLike[bytes]):
    def __fspath__(self) -> bytes:
        return os.fsencode(PATH)


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_sources_stay_alive(make: Callable[[], Any]) -> None:
    """X4, I42: the bytes are kept alive or were copied, whatever becomes of the object."""
    fixture = load_fixture("mlp")
    source = make()
    method = pteron.load(source).load_method()
    if isinstance(source, bytearray):
        source[:] = bytes(len(source))  # a writable buffer was copied
    del source
    gc.collect()
    churn = [bytes(100_000) for _ in range(100)]
    fixture.check(method.execute(fixture.inputs))
    del churn


def test_a_map_gives_the_same_numbers() -> None:
    """`mmap=True` reads pages when they are touched."""
    fixture = load_fixture("mlp")
    fixture.check(fixture.load(mmap=True).load_method().execute(fixture.inputs))


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
NO_PROGRAMS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "png": (b"\x89PNG\r\n\x1a\n" + bytes(100), "PNG"),
    "html": (b"<!DOCTYPE html>\n<html><body>Not here.</body></html>" * 2, "HTML"),
    "git-lfs pointer": (LFS, "git lfs pull"),
    "truncated": (PATH.read_bytes()[:1000], "has 1000 bytes: it is cut short"),
    "text": (b"hello, this is no program at all, but it is long enough to be one" * 2, "program"),
    "zip": (b"PK\x03\x04" + bytes(100), "zip"),
    "data file": ((DATA / "ptd.ptd").read_bytes(), "data file"),
    "bundled program": ((DATA / "bundled.bpte").read_bytes(), "bundled"),
}


@pytest.mark.parametrize("data, words", NO_PROGRAMS.values(), ids=NO_PROGRAMS)
@pytest.mark.parametrize("verification", pteron.Verification)
def test_files_that_are_no_programs(
    tmp_path: Path, data: bytes, words: str, verification: pteron.Verification
) -> None:
    """X7: refused at load, in every verification mode, saying what the file is instead."""
    path = tmp_path / "model.pte"
    path.write_bytes(data)
    for source in (path, data):
        with pytest.raises(errors.InvalidProgramError, match=words) as caught:
            pteron.load(source, verification=verification)
        assert isinstance(caught.value, ValueError)
        assert caught.value.code_name == "InvalidProgram"
    assert "model.pte" in str(pytest.raises(ValueError, pteron.load, path).value)


def test_missing_file() -> None:
    """The path and the reason, in a class that is also FileNotFoundError."""
    with pytest.raises(errors.ProgramNotFoundError, match=r"nothing\.pte.*No such file") as caught:
        pteron.load("nothing.pte")
    assert isinstance(caught.value, FileNotFoundError)


def test_folder(tmp_path: Path) -> None:
    """A folder is named as one."""
    with pytest.raises(errors.FileAccessError, match="it is a folder"):
        pteron.load(tmp_path)


@pytest.mark.parametrize("source", [3, None, object(), io.StringIO("text")], ids=repr)
def test_wrong_kind_of_source(source: Any) -> None:
    """TypeError that lists what can be passed."""
    with pytest.raises(TypeError, match="path|mode 'rb'"):
        pteron.load(source)


def test_null_in_path() -> None:
    """A null character would cut the path short in C."""
    with pytest.raises(errors.ArgumentError, match="null character"):
        pteron.load("a\0b.pte")


def test_shrunk_file(tmp_path: Path) -> None:
    """X16: a file truncated after load gives an error, and the process lives."""
    path = tmp_path / "model.pte"
    path.write_bytes((DATA / "conv_xnnpack.pte").read_bytes())
    program = pteron.load(path)
    os.truncate(path, 100)
    with pytest.raises(errors.FileAccessError, match="become shorter"):
        program.load_method()


def test_data_file() -> None:
    """Weights in a .ptd: given as a path, as bytes or in a list."""
    fixture = load_fixture("ptd")
    data = DATA / "ptd.ptd"
    for data_path in (data, data.read_bytes(), [data]):
        program = pteron.load(fixture.path, data_path=data_path)
        fixture.check(program.load_method().execute(fixture.inputs))


def test_data_file_missing() -> None:
    """The weights that are missing, and the argument to pass, when the method is loaded."""
    program = pteron.load(DATA / "ptd.pte")
    with pytest.raises(errors.DataNotFoundError, match=r"'bias' and 'weight'.*data_path"):
        program.load_method()
    with pytest.raises(errors.DataNotFoundError, match="not in the data files"):
        pteron.load(DATA / "ptd.pte", data_path=DATA / "attribute.ptd").load_method()
    with pytest.raises(FileNotFoundError, match=r"no\.ptd"):
        pteron.load(DATA / "ptd.pte", data_path="no.ptd")


@pytest.mark.parametrize(
    "data", [b"", b"junk" * 50, PATH.read_bytes()], ids=["empty", "junk", "pte"]
)
def test_data_file_invalid(data: bytes) -> None:
    """X7: a bad data file is refused at load."""
    with pytest.raises(errors.InvalidDataError, match="data file"):
        pteron.load(DATA / "ptd.pte", data_path=data)


def test_missing_operators() -> None:
    """M82: all that are missing are named."""
    program = pteron.load(DATA / "missing_op.pte")
    words = "'pteron_test::bend.out' and 'pteron_test::twist.out'"
    with pytest.raises(errors.OperatorMissingError, match=words) as caught:
        program.load_method()
    assert caught.value.code == 0x14
    assert program.metadata().num_inputs() == 1  # the program can still be looked into


def test_missing_backend() -> None:
    """I115: the backend, and those that are present."""
    with pytest.raises(errors.BackendMissingError, match="'BackendWithCompilerDemo'.*'Xnnpack"):
        pteron.load(DATA / "missing_backend.pte").load_method()


@pytest.mark.parametrize("name", ["idontexist", "", "forward "])
def test_unknown_method(name: str) -> None:
    """X14, I15: one class, a KeyError, for loading and for metadata; it lists the real names."""
    program = pteron.load(DATA / "two_methods.pte")
    for ask in (program.load_method, program.metadata, program.__getitem__):
        with pytest.raises(errors.MethodNotFoundError, match="'double' and 'forward'") as caught:
            ask(name)
        assert isinstance(caught.value, KeyError)


def test_debug_buffer_size() -> None:
    """A negative size is refused before anything is read."""
    with pytest.raises(errors.ArgumentError, match="debug_buffer_size"):
        pteron.load(PATH, enable_etdump=True, debug_buffer_size=-1)
