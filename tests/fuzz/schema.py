"""Where the fields of an ExecuTorch file are: what the fuzzer knows of the formats.

A good file is walked from its root by the schemas below, and every place that a reader will look at
is noted with its kind, so that mutants are damaged where it matters and stay plausible elsewhere.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from formats import BUNDLED, DATA_FILE, PROGRAM, XNNPACK, Schema, fields


@dataclass(frozen=True)
class Site:
    """A place to damage: "scalar", "slot" (of a vtable), "offset", "length" or "text"."""

    kind: str
    position: int
    width: int


@dataclass
class Layout:
    """What a file holds where: sites, positions of tables, and the bytes that delegates get.

    `graphs` are the layouts of the XNNPACK graphs in those bytes.
    """

    sites: list[Site] = field(default_factory=list)
    tables: list[int] = field(default_factory=list)
    payload: list[tuple[int, int]] = field(default_factory=list)
    graphs: list[Layout] = field(default_factory=list)

    def of_kind(self, kind: str) -> list[Site]:
        """The sites of that kind."""
        if not self._by_kind:
            for site in self.sites:
                self._by_kind.setdefault(site.kind, []).append(site)
        return self._by_kind.get(kind, [])

    _by_kind: dict[str, list[Site]] = field(default_factory=dict)


def layout_of(data: bytes) -> Layout:
    """The layout of a program, data file or bundled program that an exporter wrote."""
    if data[4:8] == b"BP08":
        walk = _Walk(data, BUNDLED, 0)
        walk.table("Bundled", 0)
        inner = walk.vectors["Bundled", 2][0]
        nested = _program(data, inner)
        walk.layout.sites += nested.sites
        walk.layout.tables += nested.tables
        walk.layout.payload += nested.payload
        walk.layout.graphs += nested.graphs
        return walk.layout
    if data[4:8] == b"FT01":
        walk = _Walk(data, DATA_FILE, 0)
        walk.table("Data", 0)
        walk.header(40)
        return walk.layout
    return _program(data, 0)


def _program(data: bytes, base: int) -> Layout:
    walk = _Walk(data, PROGRAM, base)
    walk.table("Program", base)
    walk.header(32)
    layout = walk.layout
    segments_at = base + struct.unpack_from("<Q", data, base + 8 + 16)[0]
    used = {index for location, index in walk.references if location == 1} | set(walk.named)
    for index in used:
        offset, size = walk.segments[index]
        layout.payload.append((segments_at + offset, size))
    layout.payload += [where for key, where in walk.every_vector if key == ("Inline", 0)]
    layout.payload = [(start, size) for start, size in layout.payload if size > 0]
    for start, _ in layout.payload:
        if data[start + 4 : start + 8] == b"XH00":
            graph = _Walk(data, XNNPACK, start + struct.unpack_from("<I", data, start + 10)[0])
            graph.table("Graph", graph.base)
            graph.layout.sites += [Site("scalar", start + at, 4) for at in (10, 14, 18, 22)]
            layout.graphs.append(graph.layout)
    return layout


class _Walk:
    def __init__(self, data: bytes, schema: Schema, base: int) -> None:
        self.data, self.schema, self.base = data, schema, base
        self.layout = Layout()
        self.vectors: dict[tuple[str, int], tuple[int, int]] = {}
        self.every_vector: list[tuple[tuple[str, int], tuple[int, int]]] = []
        self.references: list[tuple[int, int]] = []
        self.named: list[int] = []
        self.segments: list[tuple[int, int]] = []
        self._seen: set[int] = set()

    def get(self, letter: str, at: int) -> int:
        value: int = struct.unpack_from("<" + letter, self.data, at)[0]
        return value

    def note(self, kind: str, at: int, width: int) -> None:
        self.layout.sites.append(Site(kind, at, width))

    def header(self, size: int) -> None:
        self.layout.sites += [Site("scalar", self.base + 8 + i, 4) for i in range(0, size, 4)] * 2

    def table(self, name: str, at: int) -> None:
        """A table, by the place that holds its offset."""
        self.note("offset", at, 4)
        position = at + self.get("I", at)
        vtable = position - self.get("i", position)
        slots = (self.get("H", vtable) - 4) // 2
        if position in self._seen:
            return
        self._seen.add(position)
        self.layout.tables.append(position)
        self.note("scalar", position, 4)
        self.note("scalar", vtable, 2)
        self.note("scalar", vtable + 2, 2)
        values: dict[int, int] = {}
        for slot, kind, choice in self._fields(name, position, vtable, slots):
            self.note("slot", vtable + 4 + 2 * slot, 2)
            offset = self.get("H", vtable + 4 + 2 * slot)
            if offset == 0:
                continue
            at = position + offset
            if kind == "<":
                if choice:
                    self.table(choice, at)
            elif kind[0] == "[" or kind == "s":
                self._vector(name, slot, kind[1:] or "B", at)
            elif kind in self.schema:
                self.table(kind, at)
            else:
                values[slot] = self.get(kind, at)
                self.note("scalar", at, struct.calcsize(kind))
        if name == "Reference":
            self.references.append((values.get(0, 0), values.get(1, 0)))
        elif name == "Segment":
            self.segments.append((values.get(0, 0), values.get(1, 0)))
        elif name == "Named" and self.schema is PROGRAM:
            self.named.append(values.get(1, 0))

    def _fields(
        self, name: str, position: int, vtable: int, slots: int
    ) -> Iterator[tuple[int, str, str]]:
        """Slot, kind and, of a union, the table that it holds."""
        for slot, _, kind in fields(self.schema, name):
            if slot >= slots:
                continue
            if kind[0] != "<":
                yield slot, kind, ""
                continue
            offset = self.get("H", vtable + 4 + 2 * slot)
            yield slot, "B", ""
            chosen = self.get("B", position + offset) if offset else 0
            if slot + 1 < slots:
                yield slot + 1, "<", ["", *kind[1:].split(",")][chosen]

    def _vector(self, name: str, slot: int, element: str, at: int) -> None:
        self.note("offset", at, 4)
        start = at + self.get("I", at)
        count = self.get("I", start)
        self.note("length", start, 4)
        start += 4
        self.vectors[name, slot] = (start, count)
        self.every_vector.append(((name, slot), (start, count)))
        if element in self.schema:
            for i in range(count):
                self.table(element, start + 4 * i)
        elif element == "B":
            for i in range(min(count, 16)):
                self.note("text", start + i, 1)
        else:
            width = struct.calcsize(element)
            for i in range(min(count, 64)):
                self.note("scalar", start + width * i, width)
