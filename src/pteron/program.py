"""Programs: load a ``.pte`` file and take its methods."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Union, cast

from pteron import _core
from pteron._core import Method, MethodMeta, Verification
from pteron._structure import Structure, describe_signature
from pteron.errors import ArgumentError, ClosedError, FileAccessError

if TYPE_CHECKING:
    from io import FileIO

    from typing_extensions import Buffer

__all__ = ["Program", "load"]

Source = Union[str, "os.PathLike[str]", "Buffer", BinaryIO]
_Recipe = tuple[tuple[str, Any], list[tuple[str, Any]], dict[str, Any]]  # the arguments of _load()


def load(
    source: Source,
    *,
    data_path: Source | Iterable[Source] | None = None,
    verification: Verification = Verification.InternalConsistency,
    mmap: bool = False,
    enable_etdump: bool = False,
    debug_buffer_size: int = 0,
) -> Program:
    """Load a program.

    Args:
        source: A path, bytes, any buffer (bytearray, memoryview, mmap), or a binary file object,
            which is read. Read-only buffers and mmap objects are used without a copy and kept
            alive; writable ones are copied.
        data_path: The data file (.ptd) with the program's weights, or several, in the same forms.
        verification: How the runtime itself checks the program. In every mode the whole file
            structure is checked first by pteron.
        mmap: Map the files instead of reading them: pages are loaded when touched and shared
            between processes. A file that shrinks while mapped ends the process (SIGBUS).
        enable_etdump: Record what runs, for `Program.write_etdump_result_to_file`.
        debug_buffer_size: Bytes for intermediate values in that record.

    Raises:
        ProgramNotFoundError: There is no such file (also FileNotFoundError).
        FileAccessError: The path is a folder or cannot be read (also OSError).
        InvalidProgramError: It is no program, or a damaged one (also ValueError).
        InvalidDataError: A data file is none, or damaged (also ValueError).
        TypeError: `source` is of no such kind.
    """
    if debug_buffer_size < 0:
        raise ArgumentError(f"debug_buffer_size is a number of bytes, not {debug_buffer_size}")
    program = open_source(source, "the program")
    files = [open_source(file, "the data file") for file in _files(data_path)]
    options = {
        "verification": verification,
        "mmap": mmap,
        "enable_etdump": enable_etdump,
        "debug_buffer_size": min(debug_buffer_size, sys.maxsize),
    }
    return _load(program, files, options)


def _load(
    program: tuple[str, Any], files: list[tuple[str, Any]], options: dict[str, Any]
) -> Program:
    name, data = program
    native = _core.Program.load(data, name, data_files=files, **options)
    return Program(native, (_lasting(program), [_lasting(file) for file in files], options))


def _lasting(source: tuple[str, Any]) -> tuple[str, Any]:
    """The same source whatever becomes the current folder."""
    name, data = source
    return name, os.path.abspath(data) if isinstance(data, str) else data  # noqa: PTH100


def _portable(source: tuple[str, Any]) -> tuple[str, Any]:
    """The same source for another process."""
    name, data = source
    return name, data if isinstance(data, str) else bytes(data)


def _files(data_path: Source | Iterable[Source] | None) -> list[Source]:
    if data_path is None:
        return []
    if isinstance(data_path, (list, tuple)):
        return list(data_path)
    return [cast("Source", data_path)]


def open_source(source: Any, what: str) -> tuple[str, Any]:
    """A name for messages, and a path or a buffer that keeps its bytes."""
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        if isinstance(path, str):
            return path, path
        return os.fsdecode(path), os.fsdecode(path)
    try:
        with memoryview(source) as view:
            changes = not view.readonly and view.c_contiguous and not isinstance(source, mmap.mmap)
            return what, _core.frozen(source) if changes else source
    except TypeError:
        pass
    read = getattr(source, "read", None)
    if read is None:
        raise TypeError(
            f"{what} must be a path, bytes, a buffer or a binary file, not {type(source).__name__}"
        )
    data = read()
    if isinstance(data, str):
        raise TypeError(f"{what} was opened as text: open it with mode 'rb'")
    return getattr(source, "name", None) or what, data


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[FileIO]:
    """A file to write, with its old contents still there; an error removes it if it is new."""
    from pathlib import Path  # rarely needed: not worth the time at import

    path = Path(path)
    new = not path.exists()
    try:
        file = path.open("ab", buffering=0)
    except OSError as error:
        raise FileAccessError(f"{path} cannot be written: {error.strerror}") from error
    with file:
        try:
            yield file
        except BaseException:
            if new:
                path.unlink()
            raise


def _rewrite(file: FileIO, data: bytes) -> None:
    """Put `data` in the place of what is in a file; pipes and devices just get it."""
    try:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.truncate(0)
        left = memoryview(data)
        while left:
            left = left[file.write(left) :]
    except OSError as error:
        raise FileAccessError(f"{file.name} cannot be written: {error.strerror}") from error


class Program:
    """A loaded program: a mapping from names to methods.

    ``program.forward`` and ``program["forward"]`` load a method when first used and keep it;
    ``program(x)`` calls ``forward``. `load_method` makes an independent one each time. Methods
    keep the program's memory alive, so that it may be dropped before them.

    Programs can be pickled, to be sent to other processes: one that was loaded from a path is
    loaded from there again, any other takes its bytes along. What runs left in methods stays here.
    """

    def __init__(self, native: _core.Program, recipe: _Recipe) -> None:
        self._native: _core.Program | None = native
        self._recipe: _Recipe | None = recipe  # it may hold the bytes
        self._methods: dict[str, Method] = {}

    @property
    def _open(self) -> _core.Program:
        if self._native is None:
            raise ClosedError("The program was closed: load it again")
        return self._native

    @property
    def method_names(self) -> list[str]:
        """The names of its methods, in the order of the file."""
        return self._open.method_names

    def metadata(self, name: str = "forward") -> MethodMeta:
        """What the program says of a method, without loading it.

        Raises:
            MethodNotFoundError: There is no such method (also KeyError).
        """
        if not isinstance(name, str):
            raise TypeError(f"the name of a method is a str, not {type(name).__name__}")
        return self._open.metadata(name)

    def load_method(self, name: str = "forward", *, cuda_graph: bool = False) -> Method:
        """A new method with memory of its own, independent of all others.

        Only state that the program was exported to share is one for all: see `State`.

        Args:
            name: Its name.
            cuda_graph: Record all that it does on its CUDA device now, as a CUDA graph, which each
                run then launches as a whole. Faster where a model has many small kernels. For
                methods that do all their work on one device, with static shapes. The kernels use
                the memory of the call's inputs and outputs as without a graph, where it can be told
                that they may; else it is copied.

        Raises:
            ArgumentError: With `cuda_graph`: the work cannot be recorded; says why.
            MethodNotFoundError: There is no such method (also KeyError).
            OperatorMissingError: It uses operators that no kernel here implements; names them all.
            BackendMissingError: Parts of it are for a backend that is not available here.
            DataNotFoundError: Its weights are in a data file that was not given.
            OutOfMemoryError: Its memory could not be had (also MemoryError).
        """
        native = self._open
        structure = Structure(self.metadata(name))
        return native.load_method(name, structure, cuda_graph=bool(cuda_graph))

    def __getitem__(self, name: str) -> Method:
        """The method of that name, loaded when first asked for."""
        method = self._methods.get(name)
        if method is None:
            method = self._methods.setdefault(name, self.load_method(name))
        return method

    def __getattr__(self, name: str) -> Method:
        """``program.forward`` for ``program["forward"]``."""
        if not name.startswith("_") and self._native and name in self._native.method_names:
            return self[name]
        raise AttributeError(f"{type(self).__name__!r} has no attribute or method {name!r}")

    def __dir__(self) -> list[str]:
        """Methods beside the attributes."""
        return [*super().__dir__(), *(self._native.method_names if self._native else ())]

    def __iter__(self) -> Iterator[str]:
        """The names of the methods."""
        return iter(self.method_names)

    def __len__(self) -> int:
        """The number of methods."""
        return len(self.method_names)

    def __contains__(self, name: object) -> bool:
        """Whether it has a method of that name."""
        return name in self.method_names

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``forward``: see `Method`."""
        return self["forward"](*args, **kwargs)

    @property
    def has_etdump(self) -> bool:
        """Whether it was loaded with ``enable_etdump=True``."""
        return self._open.has_etdump

    def write_etdump_result_to_file(
        self,
        etdump_path: str | os.PathLike[str],
        debug_buffer_path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Write the record of the runs since the last write, and the debug buffer.

        Raises:
            MethodStateError: The program was loaded without an ETDump, or nothing ran since.
            FileAccessError: A file cannot be written (also OSError). The record is not lost if it
                could not even be opened.
        """
        program = self._open
        # Both files are opened before the record is taken, which can be done once, and emptied
        # only then: an earlier record stays where there is no new one.
        with contextlib.ExitStack() as files:
            paths = [path for path in (etdump_path, debug_buffer_path) if path is not None]
            opened = [files.enter_context(_opened(path)) for path in paths]
            for file, data in zip(opened, program.take_etdump(), strict=False):
                _rewrite(file, data)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles how to load it again."""
        if self._recipe is None:
            raise ClosedError("The program was closed and cannot be pickled")
        program, files, options = self._recipe
        return _load, (_portable(program), [_portable(file) for file in files], options)

    def close(self) -> None:
        """Free the program and the methods that it keeps. Other methods and results stay valid."""
        for method in self._methods.values():
            method.close()
        self._methods.clear()
        self._native = self._recipe = None

    def __enter__(self) -> Program:
        """The program itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()

    def __repr__(self) -> str:
        """Its name, and each method with inputs and outputs."""
        if self._native is None:
            return "<Program, closed>"
        methods = "".join(
            f"\n  {describe_signature(self._native.metadata(name))}" for name in self.method_names
        )
        return f"<Program {self._native.name}{methods}>"
