"""The file formats of ExecuTorch, as trees that tests change and write again.

A tree is what a flatbuffer says: a table is a dict without its absent fields, a vector a list or
bytes, a union the list ``[number, table]``. A `File` is a tree and the bytes behind it. Whatever is
put into a tree is written, so that a test can break one rule and keep all others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

# By table, its fields in the order of the schema files. A kind is a struct letter, "s" a string, a
# table's name, "[" and one of these a vector, or "<" and names a union, which takes two slots.
Schema = dict[str, str]

PROGRAM: Schema = {
    "Program": "version:I plans:[Plan constants:[Buffer payloads:[Inline segments:[Segment "
    "constant_segment:Offsets mutable_segments:[Offsets named_data:[Named",
    "Plan": "name:s container:Container values:[Value inputs:[i outputs:[i chains:[Chain "
    "operators:[Operator delegates:[Delegate buffer_sizes:[q buffer_devices:[Device",
    "Container": "inputs:s outputs:s",
    "Value": "val:<Null,Int,Bool,Double,Tensor,String,Longs,Doubles,Bools,Indices,Indices",
    "Null": "",
    "Int": "value:q",
    "Bool": "value:?",
    "Double": "value:d",
    "String": "value:s",
    "Longs": "items:[q",
    "Doubles": "items:[d",
    "Bools": "items:[B",
    "Indices": "items:[i",
    "Tensor": "dtype:b storage_offset:i sizes:[i order:[B grad:? data:I allocation:Allocation "
    "layout:b dynamism:b extra:Extra",
    "Allocation": "memory_id:I low:I high:I",
    "Extra": "segment:Q name:s location:b device_type:b device_index:b",
    "Chain": "inputs:[i outputs:[i instructions:[Instruction stacktrace:[Frames",
    "Frames": "",
    "Instruction": "args:<Call,Call,Move,Jump,Free",
    "Call": "index:i args:[i",
    "Move": "source:i target:i",
    "Jump": "condition:i target:i",
    "Free": "value:i",
    "Operator": "name:s overload:s",
    "Delegate": "id:s processed:Reference specs:[Spec",
    "Reference": "location:b index:I",
    "Spec": "key:s value:[B",
    "Device": "buffer:i type:b index:b",
    "Buffer": "data:[B",
    "Inline": "data:[B",
    "Segment": "offset:Q size:Q",
    "Offsets": "segment:I offsets:[Q",
    "Named": "key:s segment:I",
}
DATA_FILE: Schema = {
    "Data": "version:I segments:[Segment named_data:[Named",
    "Segment": "offset:Q size:Q",
    "Named": "key:s segment:I layout:Layout",
    "Layout": "dtype:b sizes:[i order:[B",
}
BUNDLED: Schema = {
    "Bundled": "version:I suites:[Suite program:[B",
    "Suite": "method:s cases:[Case",
    "Case": "inputs:[Value expected:[Value",
    "Value": "val:<Tensor,Int,Bool,Double",
    "Tensor": "dtype:b sizes:[i data:[B order:[B",
    "Int": "value:q",
    "Bool": "value:?",
    "Double": "value:d",
}
_NODES = (
    "Two,Linear,One,One,Transpose,One,Conv,Two,Resize,Pad,Pool,Two,Conv,Pool,Two,Two,One,"
    "One,One,Reshape,ArgMax,One,One,One,Alpha,Two,One,One,Alpha,One,Two,Cat,Cat,Cat,"
    "Slice,Attention,Two,Cat,Conv,One,One,One,One,One,One,One,One"
)
XNNPACK: Schema = {
    "Graph": "version:s nodes:[Node values:[Value num_externals:I inputs:[I outputs:[I "
    "buffers:[Buffer memory:[I constants:[Constant",
    "Node": "node:<" + _NODES + " handle:I bounds:Bounds",
    "Bounds": "low:f high:f",
    "Value": "value:<Tensor,Quantized",
    "Tensor": "type:h rank:I dims:[I constant:I external:I flags:I id:I dynamic_type:h",
    "Quantized": "tensor:Tensor quant:<PerChannel,PerTensor,PerToken,PerGroup",
    "PerChannel": "scale:[f channel:i buffer:I count:I",
    "PerTensor": "scale:f zero_point:i",
    "PerToken": "dims:i",
    "PerGroup": "scale:[f channel:i group:i bf16:[H buffer:I count:I",
    "Buffer": "data:[B",
    "Constant": "offset:Q size:Q key:s",
    "One": "input:I output:I flags:I",
    "Two": "first:I second:I output:I flags:I",
    "Alpha": "alpha:f input:I output:I flags:I",
    "Linear": "input:I filter:I bias:I output:I flags:I",
    "Transpose": "rank:I perm:[I input:I output:I flags:I",
    "Resize": "height:I width:I input:I output:I flags:I",
    "Pad": "before:[I after:[I value:f input:I output:I flags:I",
    "Reshape": "rank:I shape:[I input:I output:I flags:I",
    "Slice": "rank:I offsets:[I sizes:[I input:I output:I flags:I",
    "Attention": "query:I key:I value:I scale:I mask:I output:I flags:I",
    "Cat": "axis:I a:I b:I c:I d:I output:I flags:I e:I",
    "Conv": "top:I right:I bottom:I left:I height:I width:I stride_h:I stride_w:I dilation_h:I "
    "dilation_w:I group_inputs:I group_outputs:I groups:I adjust_h:I adjust_w:I input:I filter:I "
    "bias:I output:I flags:I",
    "Pool": "top:I right:I bottom:I left:I height:I width:I stride_h:I stride_w:I dilation_h:I "
    "dilation_w:I input:I output:I flags:I",
    "ArgMax": "top:I right:I bottom:I left:I height:I width:I input:I output:I index:I flags:I",
}


def fields(schema: Schema, table: str) -> Iterator[tuple[int, str, str]]:
    """Slot, name and kind of each field; a union has the slot of its number."""
    slot = 0
    for entry in schema[table].split():
        name, kind = entry.split(":")
        yield slot, name, kind
        slot += 2 if kind[0] == "<" else 1


def read(schema: Schema, table: str, data: bytes, at: int) -> dict[str, Any]:
    """The table whose offset is at `at`."""

    def number(letter: str, at: int) -> Any:
        return struct.unpack_from("<" + letter, data, at)[0]

    position = at + number("I", at)
    vtable = position - number("i", position)

    def place(slot: int) -> int:
        offset = number("H", vtable + 4 + 2 * slot) if 4 + 2 * slot < number("H", vtable) else 0
        return position + offset if offset else 0

    def vector(kind: str, at: int) -> Any:
        start = at + number("I", at)
        count = number("I", start)
        start += 4
        if kind == "B":
            return data[start : start + count]
        if kind in schema:
            return [read(schema, kind, data, start + 4 * i) for i in range(count)]
        return list(struct.unpack_from(f"<{count}{kind}", data, start))

    tree: dict[str, Any] = {}
    for slot, name, kind in fields(schema, table):
        at = place(slot)
        if at == 0:
            continue
        if kind[0] == "<":
            chosen = number("B", at)
            content = ["", *kind[1:].split(",")][chosen]
            at = place(slot + 1)
            tree[name] = [chosen, read(schema, content, data, at) if content and at else None]
        elif kind in schema:
            tree[name] = read(schema, kind, data, at)
        elif kind == "s" or kind[0] == "[":
            tree[name] = vector(kind[1:] or "B", at)
        else:
            tree[name] = number(kind, at)
    return tree


class _Writer:
    def __init__(self, schema: Schema, start: int) -> None:
        self.schema = schema
        self.out = bytearray(start)

    def pad(self, alignment: int, more: int = 0) -> None:
        self.out += bytes(-(len(self.out) + more) % alignment)

    def point(self, at: int) -> None:
        """From `at` to what comes next."""
        struct.pack_into("<I", self.out, at, len(self.out) - at)

    def table(self, table: str, tree: dict[str, Any], at: int) -> int:
        """Write a table to which `at` points; returns its position."""
        inline: list[tuple[int, str, Any, str]] = []  # slot, letter, value, kind of a reference
        for slot, name, kind in fields(self.schema, table):
            if tree.get(name) is None:
                continue
            value = tree[name]
            if kind[0] == "<":
                number, content = value
                inline.append((slot, "B", number, ""))
                if content is not None:
                    names = kind[1:].split(",")
                    chosen = names[number - 1 if 0 < number <= len(names) else 0]
                    inline.append((slot + 1, "I", content, chosen))
            elif kind in self.schema or kind == "s" or kind[0] == "[":
                inline.append((slot, "I", value, kind))
            else:
                inline.append((slot, kind, value, ""))
        slots = max((slot for slot, *_ in inline), default=-1) + 1
        self.pad(8, 4 + 2 * slots)
        vtable, offsets, cursor = len(self.out), [0] * slots, 4
        placed: dict[int, int] = {}
        for slot, letter, *_ in sorted(inline, key=lambda row: -struct.calcsize("<" + row[1])):
            width = struct.calcsize("<" + letter)
            cursor += -cursor % width
            offsets[slot] = placed[slot] = cursor
            cursor += width
        self.out += struct.pack(f"<{2 + slots}H", 4 + 2 * slots, cursor, *offsets)
        self.point(at)
        position = len(self.out)
        self.out += struct.pack("<i", position - vtable) + bytes(cursor - 4)
        for slot, letter, value, kind in inline:
            if not kind:
                struct.pack_into("<" + letter, self.out, position + placed[slot], value)
        for slot, _, value, kind in inline:
            if kind in self.schema:
                self.table(kind, value, position + placed[slot])
            elif kind:
                self.vector(kind[1:] or "B", value, position + placed[slot], kind == "s")
        return position

    def vector(self, kind: str, items: Any, at: int, text: bool) -> None:
        """Write a vector or, with a zero behind it, a string to which `at` points."""
        width = 16 if kind == "B" and not text else struct.calcsize("<" + self.letter(kind))
        self.pad(max(width, 4), 4)
        self.point(at)
        self.out += struct.pack("<I", len(items))
        start = len(self.out)
        if kind == "B":
            self.out += items + bytes(text)
        elif kind in self.schema:
            self.out += bytes(4 * len(items))
            known: dict[int, int] = {}  # one object that is there many times is written once
            for i, item in enumerate(items):
                place = start + 4 * i
                if id(item) in known:
                    struct.pack_into("<I", self.out, place, known[id(item)] - place)
                else:
                    known[id(item)] = self.table(kind, item, place)
        else:
            self.out += struct.pack(f"<{len(items)}{kind}", *items)

    def letter(self, kind: str) -> str:
        return "I" if kind in self.schema else kind


def edit(tree: Any, path: str, value: Any) -> None:
    """Put `value` at a place like "plans.0.name"; `...` takes away, "plans+" appends."""
    *steps, last = path.rstrip("+").split(".")
    for step in steps:
        tree = tree[int(step) if isinstance(tree, list) else step]
    key = int(last) if isinstance(tree, list) else last
    if path.endswith("+"):
        tree.setdefault(key, []).append(value)
    elif value is ...:
        del tree[key]
    else:
        tree[key] = value


@dataclass
class File:
    """A file of one of the formats: what its flatbuffer says and the bytes of its segments.

    `header` holds numbers of the extended header that are to differ from what they should be.
    """

    schema: Schema
    tree: dict[str, Any]
    rest: bytes = b""
    header: dict[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, data: bytes) -> File:
        """Take a good file apart."""
        kind = data[4:8]
        if kind == b"BP08":
            return cls(BUNDLED, read(BUNDLED, "Bundled", data, 0))
        if kind == b"FT01":
            base, size = struct.unpack_from("<QQ", data, 32)
            return cls(DATA_FILE, read(DATA_FILE, "Data", data, 0), data[base : base + size])
        base = struct.unpack_from("<Q", data, 24)[0]
        rest = data[base:] if base else b""
        return cls(PROGRAM, read(PROGRAM, "Program", data, 0), rest)

    def write(self) -> bytes:
        """The bytes of the file."""
        start = {"Program": 40, "Data": 48, "Bundled": 8}[next(iter(self.schema))]
        writer = _Writer(self.schema, start)
        writer.table(next(iter(self.schema)), self.tree, 0)
        writer.pad(16)
        out, base = writer.out, len(writer.out)
        if self.schema is BUNDLED:
            out[4:8] = b"BP08"
            return bytes(out)
        numbers = {"length": 32, "size": base, "base": base if self.rest else 0}
        numbers["nbytes"] = len(self.rest)
        if self.schema is DATA_FILE:
            numbers |= {"length": 40, "at": 0, "base": base} | self.header
            names, out[4:12] = ("at", "size", "base", "nbytes"), b"FT01FH01"
        else:
            numbers |= self.header
            names, out[4:12] = ("size", "base", "nbytes"), b"ET12eh00"
        struct.pack_into(f"<I{len(names)}Q", out, 12, numbers["length"], *map(numbers.get, names))
        return bytes(out) + self.rest

    def edit(self, path: str, value: Any) -> None:
        """`edit` of its tree."""
        edit(self.tree, path, value)

    @property
    def payload(self) -> Payload:
        """The XNNPACK payload of its first delegate."""
        segment = self.tree["segments"][self._payload_index]
        start = segment.get("offset", 0)
        return Payload.parse(self.rest[start : start + segment["size"]])

    @payload.setter
    def payload(self, payload: Payload) -> None:
        self.rest += bytes(-len(self.rest) % 16)
        data = payload.write()
        self.tree["segments"][self._payload_index] = {"offset": len(self.rest), "size": len(data)}
        self.rest += data

    @property
    def _payload_index(self) -> int:
        processed = self.tree["plans"][0]["delegates"][0]["processed"]
        assert processed["location"] == 1
        return int(processed.get("index", 0))


@dataclass
class Payload:
    """What XNNPACK gets: a graph and its weights."""

    tree: dict[str, Any]
    weights: bytes

    @classmethod
    def parse(cls, data: bytes) -> Payload:
        """Take a good payload apart."""
        graph_at, _, weights_at = struct.unpack_from("<III", data, 10)
        return cls(read(XNNPACK, "Graph", data, graph_at), data[weights_at:])

    def write(self) -> bytes:
        """The bytes of the payload: header, graph, weights."""
        writer = _Writer(XNNPACK, 8)
        writer.table("Graph", self.tree, 0)
        writer.pad(16)
        graph = bytes(writer.out[:4]) + b"XN01" + bytes(writer.out[8:])
        head = struct.pack("<4sHIIIQ", b"XH00", 30, 32, len(graph), 32 + len(graph), 0)
        return bytes(4) + head + bytes(32 - 4 - len(head)) + graph + self.weights
