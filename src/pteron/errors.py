"""The errors of pteron: one tree, each class also the builtin that one would catch.

Every error says what was being done, to which input and method, what was expected and what was
given, and what the runtime logged about it during the call.
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "AttributeNotFoundError",
    "BackendMissingError",
    "ClosedError",
    "DataNotFoundError",
    "DeviceError",
    "ExecuTorchError",
    "ExecutionError",
    "ExportError",
    "FileAccessError",
    "InputError",
    "InputTypeError",
    "InvalidDataError",
    "InvalidProgramError",
    "MetadataIndexError",
    "MethodNotFoundError",
    "MethodStateError",
    "OperatorMissingError",
    "OutOfMemoryError",
    "ProgramNotFoundError",
    "VerificationError",
]


class ExecuTorchError(RuntimeError):
    """Base of all errors of pteron.

    Attributes:
        code: The runtime's error number, 0 where it has none. 0x12 is InvalidArgument.
        code_name: The runtime's name for the number, or "".
        reasons: The error lines that the runtime logged during the call, oldest first.
    """

    code: int
    code_name: str
    reasons: tuple[str, ...]

    def __init__(
        self, message: str = "", code: int = 0, code_name: str = "", reasons: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.code = code
        self.code_name = code_name
        self.reasons = reasons

    def __str__(self) -> str:
        # KeyError would show the repr of the message, and OSError a tuple.
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[type, tuple[str, int, str, tuple[str, ...]]]:
        return type(self), (str(self), self.code, self.code_name, self.reasons)


class InvalidProgramError(ExecuTorchError, ValueError):
    """The file is no ExecuTorch program, or not one that can be run safely."""


class InvalidDataError(ExecuTorchError, ValueError):
    """A data file (.ptd) is none, or is damaged."""


class FileAccessError(ExecuTorchError, OSError):
    """A file cannot be read or written."""


class ProgramNotFoundError(FileAccessError, FileNotFoundError):
    """There is no such file."""


class DataNotFoundError(ExecuTorchError, KeyError):
    """The program keeps weights in a data file (.ptd) that was not given or lacks them."""


class MethodNotFoundError(ExecuTorchError, KeyError):
    """The program has no method of that name."""


class AttributeNotFoundError(ExecuTorchError, KeyError):
    """The method names no such tensor."""


class OperatorMissingError(ExecuTorchError, NotImplementedError):
    """The program uses operators that no kernel here implements."""


class BackendMissingError(ExecuTorchError, NotImplementedError):
    """Parts of the program were exported for a backend that is not available here."""


class MetadataIndexError(ExecuTorchError, IndexError):
    """There is no tensor at that index."""


class InputError(ExecuTorchError, ValueError):
    """An input does not fit the method. Nothing ran."""


class InputTypeError(InputError, TypeError):
    """An input is of the wrong kind or dtype. Nothing ran."""


class DeviceError(ExecuTorchError, ValueError):
    """A tensor is on another device than needed, or the device cannot be used."""


class ExportError(ExecuTorchError, BufferError):
    """A result cannot be given away as asked."""


class OutOfMemoryError(ExecuTorchError, MemoryError):
    """Memory for a program, a method or a result could not be had."""


class MethodStateError(ExecuTorchError):
    """A step is missing or came too early, or the result is no longer there."""


class ClosedError(MethodStateError, ValueError):
    """The method or program was closed."""


class ExecutionError(ExecuTorchError):
    """The runtime failed to run the method."""


class ArgumentError(ExecuTorchError, ValueError):
    """An argument that is no input has a value that makes no sense."""


class VerificationError(ExecuTorchError, AssertionError):
    """The outputs of a bundled test case are not those that the file expects."""
