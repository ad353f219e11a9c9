"""Bundled programs (``.bpte``): a program with inputs to try it on and the outputs to expect."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pteron import _results
from pteron._bundled_file import Contents, StoredCase, StoredTensor, parse
from pteron._structure import counted
from pteron.errors import (
    ArgumentError,
    FileAccessError,
    MetadataIndexError,
    MethodNotFoundError,
    ProgramNotFoundError,
    VerificationError,
)
from pteron.program import Program, Source, load, open_source

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pteron import ExecuTorchResult, Verification

__all__ = ["BundledCase", "BundledProgram", "load_bundled"]


@dataclass(frozen=True)
class BundledCase:
    """One test case of a method.

    Attributes:
        inputs: Its inputs: results, which own their memory, and Python numbers.
        expected: The outputs that eager torch gave for them, or None if the file has none.
    """

    inputs: list[ExecuTorchResult | int | float | bool | None]
    expected: list[ExecuTorchResult | int | float | bool | None] | None


def load_bundled(
    source: Source,
    *,
    data_path: Source | Iterable[Source] | None = None,
    verification: Verification | None = None,
) -> BundledProgram:
    """Load a bundled program and check it.

    Args:
        source: A path, bytes, any buffer or a binary file object. It is read into memory; the
            program inside is used there without another copy where its alignment allows.
        data_path: The data file (.ptd) with the program's weights, or several.
        verification: How the runtime itself checks the program, as for `load`.

    Raises:
        InvalidProgramError: It is no bundled program, or a damaged one, or the program inside is
            none (also ValueError). A plain ``.pte`` file is for `load`.
        ProgramNotFoundError, FileAccessError, InvalidDataError, TypeError: As for `load`.
    """
    contents = parse(*_read(source))
    if verification is None:
        program = load(contents.program, data_path=data_path)
    else:
        program = load(contents.program, data_path=data_path, verification=verification)
    return BundledProgram(contents, program)


class BundledProgram:
    """A program with test cases. Made by `load_bundled`."""

    def __init__(self, contents: Contents, program: Program) -> None:
        self._contents = contents
        self._program = program

    @property
    def program(self) -> Program:
        """The program inside, loaded."""
        return self._program

    @property
    def program_bytes(self) -> memoryview:
        """The bytes of the program inside, in the memory that was loaded."""
        return self._contents.program

    @property
    def method_names(self) -> list[str]:
        """The methods that have test cases, in the order of the file."""
        return list(self._contents.suites)

    def cases(self, method: str = "forward") -> list[BundledCase]:
        """The test cases of a method, in the order of the file. Each call makes new values.

        Raises:
            MethodNotFoundError: The file has no cases for such a method (also KeyError).
        """
        return [_case(stored) for stored in self._suite(method)]

    def verify(
        self, method: str = "forward", index: int = 0, rtol: float = 1e-5, atol: float = 1e-8
    ) -> list[Any]:
        """Run a test case on a newly loaded method and compare the outputs with the expected ones.

        Floating-point values are equal when ``abs(got - want) <= atol + rtol * abs(want)``, both
        are NaN, or both are the same infinity; all others when they are the same. Shapes and
        dtypes must be the same.

        Returns:
            The outputs of the run.

        Raises:
            VerificationError: An output is not as expected; the text says which, where and by how
                much (also AssertionError). Or the case has no expected outputs.
            MethodNotFoundError: The file has no cases for such a method (also KeyError).
            MetadataIndexError: The method has no case of that index (also IndexError).
            ArgumentError: A tolerance is negative or NaN (also ValueError).
            ExecuTorchError: What loading or running the method can raise.
        """
        for label, value in (("rtol", rtol), ("atol", atol)):
            if not value >= 0:
                raise ArgumentError(f"{label} must be 0 or more, not {value}")
        suite = self._suite(method)
        if not 0 <= index < len(suite):
            raise MetadataIndexError(
                f"There is no test case {index} of method {method!r}: it has {len(suite)}"
            )
        case = _case(suite[index])
        outputs = self._program.load_method(method).execute(case.inputs)
        where = f"case {index} of method {method!r} in {self._contents.name}"
        if case.expected is None:
            raise VerificationError(f"There is nothing to compare with: {where} has no outputs")
        if len(outputs) != len(case.expected):
            raise VerificationError(
                f"The method gave {len(outputs)} outputs, {where} expects {len(case.expected)}"
            )
        for i, (got, want) in enumerate(zip(outputs, case.expected, strict=True)):
            difference = compare(got, want, rtol, atol)
            if difference:
                raise VerificationError(f"Output {i} is not as expected by {where}: {difference}")
        return outputs

    def _suite(self, method: str) -> list[StoredCase]:
        suites = self._contents.suites
        if method not in suites:
            names = ", ".join(map(repr, suites)) or "none"
            raise MethodNotFoundError(
                f"{self._contents.name} has no test cases for a method {method!r}; it has some "
                f"for: {names}"
            )
        return suites[method]

    def __repr__(self) -> str:
        """The program, and how many cases each method has."""
        cases = "".join(
            f"\n  {name}: {counted(len(suite), 'test case')}"
            for name, suite in self._contents.suites.items()
        )
        return f"<BundledProgram {self._contents.name}{cases}>"


def compare(got: Any, want: Any, rtol: float, atol: float) -> str:
    """How an output differs from the expected value, "" if it does not: see `verify`."""
    import numpy as np

    from pteron import ExecuTorchResult

    if not isinstance(want, ExecuTorchResult):
        if isinstance(got, float) and isinstance(want, float):
            same = bool(_close(np.asarray(got), np.asarray(want), rtol, atol))
        else:
            same = type(got) is type(want) and got == want
        return "" if same else f"got {got!r}, expected {want!r}"
    if hasattr(got, "__dlpack__") and not isinstance(got, ExecuTorchResult):
        got = ExecuTorchResult.from_host(got)
    if not isinstance(got, ExecuTorchResult):
        return f"got {got!r}, expected a {want.dtype} tensor of shape {want.shape}"
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"got {got.dtype} {got.shape}, expected {want.dtype} {want.shape}"
    if want.dtype.startswith(("float", "bfloat", "complex")):
        values, wanted = _results.by_value(got), _results.by_value(want)
        bad = ~_close(values, wanted, rtol, atol)
    else:
        values, wanted = got.numpy(), want.numpy()
        bad = values != wanted
    count = int(np.count_nonzero(bad))
    if count == 0:
        return ""
    place = _worst(values, wanted, bad)
    return (
        f"{count} of {got.size} elements differ, most at {place}: got {values[place].item()}, "
        f"expected {wanted[place].item()} (rtol={rtol}, atol={atol})"
    )


def _close(got: Any, want: Any, rtol: float, atol: float) -> Any:
    """Element by element: equal within the tolerances, NaN equal to NaN."""
    import numpy as np

    wide = np.complex128 if np.iscomplexobj(want) else np.float64
    got, want = got.astype(wide), want.astype(wide)
    finite = np.isfinite(got) & np.isfinite(want)
    with np.errstate(all="ignore"):
        near = np.abs(got - want) <= atol + rtol * np.abs(want)
    return np.where(finite, near, (got == want) | (np.isnan(got) & np.isnan(want)))


def _worst(got: Any, want: Any, bad: Any) -> tuple[int, ...]:
    """Where the difference is largest, among the elements that are `bad`."""
    import numpy as np

    wide = np.complex128 if np.iscomplexobj(want) else np.float64
    with np.errstate(all="ignore"):
        distance = np.abs(got.astype(wide) - want.astype(wide))
    distance = np.where(np.isnan(distance), np.inf, distance)
    flat = int(np.argmax(np.where(bad, distance, -1)))
    return tuple(int(i) for i in np.unravel_index(flat, bad.shape))


def _read(source: Source) -> tuple[str, Any]:
    """A name for messages, and the bytes."""
    name, data = open_source(source, "the bundled program")
    if not isinstance(data, str):
        return name, data
    try:
        return name, Path(data).read_bytes()
    except FileNotFoundError:
        raise ProgramNotFoundError(f"There is no file {data}") from None
    except OSError as error:
        raise FileAccessError(f"{data} cannot be read: {error.strerror}") from error


def _case(stored: StoredCase) -> BundledCase:
    """The case with values of its own."""
    expected = _values(stored.expected)
    return BundledCase(_values(stored.inputs), expected if stored.expected else None)


def _values(stored: list[Any]) -> list[Any]:
    return [value.value() if isinstance(value, StoredTensor) else value for value in stored]
