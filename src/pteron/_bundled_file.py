"""The file format of bundled programs (``.bpte``), read with every offset checked.

The format is ``bundled_program_schema.fbs`` of ExecuTorch 1.5.1, a flatbuffer
(https://flatbuffers.dev/internals). Files are not trusted: every offset is checked before it is
followed, and a file that says more than it can hold is refused. Positions that go astray are errors
here, where the flatbuffers package would read whatever is there.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pteron import _results
from pteron.errors import InvalidProgramError

if TYPE_CHECKING:
    from pteron import ExecuTorchResult

_IDENTIFIER = b"BP08"
_I8, _U8, _U16 = struct.Struct("<b"), struct.Struct("<B"), struct.Struct("<H")
_I32, _U32, _I64, _F64 = (struct.Struct(f"<{letter}") for letter in "iIqd")
_MAX_RANK = 16  # the runtime's kTensorDimensionLimit


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as it is in the file, checked but not yet copied out."""

    dtype: str
    sizes: tuple[int, ...]
    order: tuple[int, ...]
    data: memoryview

    def value(self) -> ExecuTorchResult:
        """A copy of it, in C order."""
        if self.order == tuple(range(len(self.sizes))):
            return _results.restore(self.dtype, self.sizes, bytes(self.data))
        import numpy as np

        # The elements lie in memory in another order of the axes: bring them into C order.
        stored = [self.sizes[axis] for axis in self.order]
        width = len(self.data) // max(math.prod(self.sizes), 1)
        elements = np.frombuffer(self.data, np.dtype((np.void, max(width, 1)))).reshape(stored)
        plain = elements.transpose(np.argsort(self.order))
        return _results.restore(self.dtype, self.sizes, plain.tobytes())


@dataclass(frozen=True)
class StoredCase:
    """A test case as it is in the file: numbers, and tensors not yet copied out."""

    inputs: list[Any]
    expected: list[Any]


@dataclass(frozen=True)
class Contents:
    """What a bundled program file holds.

    Attributes:
        name: What messages call the file.
        program: The bytes of the program.
        suites: The test cases of each method.
    """

    name: str
    program: memoryview
    suites: dict[str, list[StoredCase]]


def parse(name: str, data: Any) -> Contents:
    """Take a file apart. InvalidProgramError, and nothing else, if it is not a good one."""
    view = memoryview(data)
    if not view.readonly:
        view = memoryview(bytes(view))  # what was checked must stay as it is
    file = _File(name, view.cast("B"))
    head = bytes(file.data[4:8])
    if len(head) < 4 or head != _IDENTIFIER:
        why = f"it has no identifier {_IDENTIFIER.decode()!r}"
        if head[:2] == b"ET":
            why = "it is a plain program: load it with pteron.load()"
        raise InvalidProgramError(f"{name} is no bundled program: {why}")
    root = file.table(file.read(_U32, 0))
    program = root.span(2)
    if not program:
        raise file.damaged("it holds no program")
    suites: dict[str, list[StoredCase]] = {}
    for suite in root.tables(1):
        try:
            method = str(suite.span(0), "utf-8")
        except UnicodeDecodeError:
            raise file.damaged("a method's name is not UTF-8") from None
        suites.setdefault(method, []).extend(
            StoredCase([*map(_value, case.tables(0))], [*map(_value, case.tables(1))])
            for case in suite.tables(1)
        )
    return Contents(name, program, suites)


def _value(table: _Table) -> Any:
    """A `Value`: a number, or a tensor not yet copied out."""
    kind = table.number(0, _U8)
    if kind == 0:
        return None
    content = table.child(1)
    if content is None or kind > 4:
        raise table.file.damaged(f"it has a value of the unknown kind {kind}")
    if kind == 1:
        return _tensor(content)
    if kind == 2:
        return content.number(0, _I64)
    return bool(content.number(0, _U8)) if kind == 3 else float(content.number(0, _F64))


def _tensor(table: _Table) -> StoredTensor:
    file = table.file
    rows = _results.dtypes()
    number = int(table.number(0, _I8))
    if not 0 <= number < len(rows):
        raise file.damaged(f"it has a tensor of the unknown type {number}")
    dtype, itemsize = rows[number]
    sizes = tuple(table.numbers(1, _I32))
    order = tuple(table.numbers(3, _U8)) or tuple(range(len(sizes)))
    if len(sizes) > _MAX_RANK or sorted(order) != list(range(len(sizes))):
        raise file.damaged(
            f"it has a tensor with sizes {sizes[:_MAX_RANK]} in the order {order[:_MAX_RANK]}"
        )
    data = table.span(2)
    if min(sizes, default=0) < 0 or math.prod(sizes) * itemsize != len(data):
        raise file.damaged(f"it has a {dtype} tensor of sizes {sizes} in {len(data)} bytes of data")
    return StoredTensor(dtype, sizes, order, data)


class _File:
    """The bytes of a flatbuffer, read with every position checked.

    What is read is counted: a good file points to everything once, so one that adds up to more
    than its own length points to the same bytes many times, to keep us busy.
    """

    def __init__(self, name: str, data: memoryview) -> None:
        self.name = name
        self.data = data
        self._unread = 2 * len(data)

    def damaged(self, why: str) -> InvalidProgramError:
        return InvalidProgramError(f"{self.name} is a damaged bundled program: {why}")

    def read(self, kind: struct.Struct, position: int) -> Any:
        self.check(position, kind.size)
        return kind.unpack_from(self.data, position)[0]

    def check(self, position: int, size: int) -> None:
        if position < 0 or position + size > len(self.data):
            raise self.damaged(f"it points to byte {position} of {len(self.data)}")

    def count(self, size: int) -> None:
        self._unread -= size
        if self._unread < 0:
            raise self.damaged("it points to the same bytes again and again")

    def table(self, position: int) -> _Table:
        return _Table(self, position)


class _Table:
    """A table of a flatbuffer. Fields have the numbers that they have in the schema, from 0."""

    def __init__(self, file: _File, position: int) -> None:
        self.file = file
        self._position = position
        self._fields = position - file.read(_I32, position)
        self._fields_size = file.read(_U16, self._fields)
        self._size = file.read(_U16, self._fields + 2)
        file.check(self._fields, self._fields_size)
        file.check(position, self._size)
        file.count(max(self._size, 4))

    def _at(self, field: int, size: int) -> int | None:
        """The position of a field of `size` bytes; None if the table has it not."""
        entry = 4 + 2 * field
        if entry + 2 > self._fields_size:
            return None
        offset: int = self.file.read(_U16, self._fields + entry)
        if offset == 0:
            return None
        if offset + size > self._size:
            raise self.file.damaged(f"field {field} of a table is outside of it")
        return self._position + offset

    def number(self, field: int, kind: struct.Struct) -> Any:
        """A number; 0 if absent, as the schema has no other defaults."""
        position = self._at(field, kind.size)
        return 0 if position is None else self.file.read(kind, position)

    def child(self, field: int) -> _Table | None:
        """The table that a field points to."""
        position = self._target(field)
        return None if position is None else self.file.table(position)

    def tables(self, field: int) -> Iterator[_Table]:
        """The tables of a vector of them."""
        start, count = self._vector(field, 4)
        for position in range(start, start + 4 * count, 4):
            yield self.file.table(position + self.file.read(_U32, position))

    def numbers(self, field: int, kind: struct.Struct) -> list[Any]:
        """The numbers of a vector."""
        start, count = self._vector(field, kind.size)
        data = self.file.data[start : start + kind.size * count]
        return [row[0] for row in kind.iter_unpack(data)]

    def span(self, field: int) -> memoryview:
        """The bytes of a vector or a string, in place."""
        start, count = self._vector(field, 1)
        return self.file.data[start : start + count]

    def _target(self, field: int) -> int | None:
        position = self._at(field, 4)
        return None if position is None else position + int(self.file.read(_U32, position))

    def _vector(self, field: int, size: int) -> tuple[int, int]:
        """Position of the first element and number of elements; nothing if absent."""
        position = self._target(field)
        if position is None:
            return 0, 0
        count: int = self.file.read(_U32, position)
        self.file.check(position + 4, count * size)
        self.file.count(4 + count * size)
        return position + 4, count
