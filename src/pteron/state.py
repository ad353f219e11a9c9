"""State: the mutable buffers of a method, which keep their values from run to run."""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pteron._results import _is_bits
from pteron.errors import AttributeNotFoundError, FileAccessError, InvalidDataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pteron._core import ExecuTorchResult, Method

__all__ = ["State"]


class State(Mapping[str, "ExecuTorchResult"]):
    """The mutable buffers of a method by name: ``method.state``.

    Names are the fully qualified names of the model's buffers where the program was exported with
    ``emit_mutable_buffer_names=True``; other buffers are called "buffer0", "buffer1" in the order
    of planned memory, the same at every load of the same file. Buffers without names are found by
    what the program does: it reads them before it writes them, or writes them back at the end of
    a run.

    ``method.state["acc"]`` is a live view: it copies nothing, it shows what each run leaves there,
    what is written into it the next run reads, and it keeps the method's memory alive. It does not
    wait for a run on another thread. `copy`, assigning, `update`, `reset`, `save` and `load` do:
    they copy between runs.

    State belongs to the method, unless the program was exported with ``share_mutable_buffers=True``
    and has several methods: then all methods of one loaded program share it, and run one at a time.
    """

    __slots__ = ("_method",)

    # Entries are arrays, which compare element by element.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __init__(self, method: Method) -> None:
        self._method = method

    def _index(self, name: str) -> int:
        names = self._method._state_names
        if name in names:
            return names.index(name)
        known = ", ".join(map(repr, names)) or "none"
        raise AttributeNotFoundError(
            f"Method {self._method.name!r} has no state {name!r}; it has {known}", 0x20, "NotFound"
        )

    def __getitem__(self, name: str) -> ExecuTorchResult:
        """A live view, which keeps the method's memory alive.

        Raises:
            AttributeNotFoundError: There is no such buffer (also KeyError).
        """
        return self._method._state_view(self._index(name))

    def __setitem__(self, name: str, value: Any) -> None:
        """Copy a value into a buffer: anything that could be an input of its shape and dtype.

        Raises:
            AttributeNotFoundError: There is no such buffer (also KeyError).
            InputError: The value has another shape, or another dtype (InputTypeError).
        """
        self._method._write_state({self._index(name): value})

    def __iter__(self) -> Iterator[str]:
        """The names, in the order of planned memory."""
        return iter(self._method._state_names)

    def __len__(self) -> int:
        """The number of buffers."""
        return len(self._method._state_names)

    def update(self, values: Mapping[str, Any]) -> None:
        """Copy several values at one moment between runs: all, or none if one does not fit.

        Errors: see ``state[name] = value``.
        """
        self._method._write_state({self._index(name): values[name] for name in values})

    def copy(self) -> dict[str, ExecuTorchResult]:
        """Copies of all buffers at one moment between runs, in memory of their own.

        ``state.update(saved)`` writes them back.
        """
        return dict(zip(self, self._method._copy_state(), strict=True))

    def reset(self, *names: str) -> None:
        """Set buffers, all without names, back to what they were when the program was loaded.

        That is the initial value in the file, read from there again, and zeros where it has none.
        """
        self._method._reset_state([self._index(name) for name in names or self])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all buffers, as they are at one moment between runs, to a NumPy .npz file.

        Its keys are the names; a buffer whose dtype NumPy lacks is stored as its bits under
        "name:dtype". The file is replaced only when the new one is complete.

        Raises:
            FileAccessError: It cannot be written (also OSError).
        """
        import numpy as np

        path = Path(path)
        arrays = {_key(name, result): result.numpy() for name, result in self.copy().items()}
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            with zipfile.ZipFile(part, "w") as file:
                for key, array in arrays.items():
                    # Not np.savez: there some keys are names of its arguments.
                    with file.open(f"{key}.npy", "w", force_zip64=True) as entry:
                        np.lib.format.write_array(entry, array, allow_pickle=False)
            part.replace(path)
        except OSError as error:
            raise FileAccessError(f"{path} cannot be written: {error.strerror}") from error
        finally:
            with contextlib.suppress(OSError):
                part.unlink()

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read all buffers from a file that `save` wrote.

        Raises:
            FileAccessError: It cannot be read (also OSError).
            InvalidDataError: It is no such file, or one of other buffers (also ValueError). Nothing
                was changed.
        """
        arrays = _read(Path(path))
        wanted = {_key(name, self[name]): name for name in self}
        if set(arrays) != set(wanted):
            missing = ", ".join(map(repr, sorted(set(wanted) - set(arrays)))) or "nothing"
            more = ", ".join(map(repr, sorted(set(arrays) - set(wanted)))) or "nothing"
            raise InvalidDataError(
                f"{path} is not the state of method {self._method.name!r}: {missing} is missing "
                f"and {more} is too many"
            )
        values = {}
        for key, name in wanted.items():
            array, now = arrays[key], self[name]
            same_type = _is_bits(now.dtype) or array.dtype == now.dtype
            if not same_type or (array.shape, array.itemsize) != (now.shape, now.itemsize):
                raise InvalidDataError(
                    f"{path} is not the state of method {self._method.name!r}: {name!r} is "
                    f"{array.dtype} of shape {array.shape} there, expected {now.dtype} of shape "
                    f"{now.shape}"
                )
            values[name] = array if key == name else array.tobytes()
        self.update(values)

    def __repr__(self) -> str:
        """Names, dtypes and shapes."""
        entries = ", ".join(f"{name!r}: {view.dtype} {view.shape}" for name, view in self.items())
        return f"<State {entries}>" if entries else "<State, empty>"


def _key(name: str, result: ExecuTorchResult) -> str:
    """Where the file has a buffer: its bits must not be taken for integers."""
    return f"{name}:{result.dtype}" if _is_bits(result.dtype) else name


def _read(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a .npz file."""
    import numpy as np

    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise InvalidDataError(f"{path} is no .npz file")
            file.seek(0)
            with np.load(file, allow_pickle=False) as data:
                return {key: data[key] for key in data.files}
    except OSError as error:
        raise FileAccessError(f"{path} cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError) as error:
        if isinstance(error, InvalidDataError):
            raise
        raise InvalidDataError(f"{path} is a damaged .npz file: {error}") from error
