"""Each rule of the validator with a file made for it: a good one that breaks this rule only.

Whatever the runtime is asked to verify itself, the file is refused at load and the text says why.
"""

from __future__ import annotations

from typing import Any

import pytest
from conftest import DATA
from formats import File

import pteron
from pteron import errors

Edits = dict[str, Any]
TENSOR, INT, TENSORS, OPTIONALS = 5, 2, 10, 11  # kinds of values
DELEGATE, MOVE, JUMP, FREE = 2, 3, 4, 5  # kinds of instructions
BIG = 1 << 63


def changed(name: str, edits: Edits) -> bytes:
    """The fixture of that name with these places changed.

    ".x" is in the first method, "v2.x" in its tensor 2, "code" its instructions, "header.x" a
    number of the header; a "+" at the end appends, and `...` takes away.
    """
    file = File.parse((DATA / name).read_bytes())
    for path, value in edits.items():
        if path.startswith("header."):
            file.header[path[7:]] = value
            continue
        if path.startswith("code"):
            path = ".chains.0.instructions" + path[4:]
        elif path[0] == "v" and path[1].isdigit():
            index, _, rest = path[1:].partition(".")
            path = f".values.{index}.val.1.{rest}"
        if path[0] == ".":
            path = "plans.0" + path
        file.edit(path, value)
    return file.write()


def tensor(*sizes: int, low: int | None = None, memory_id: int = 1, **fields: Any) -> Any:
    """A float32 tensor; planned at byte `low`, if given."""
    plan = {} if low is None else {"allocation": {"memory_id": memory_id, "low": low}}
    return {
        "val": [TENSOR, {"dtype": 6, "sizes": [*sizes], "order": bytes(range(len(sizes)))}
                | plan | fields]
    }  # fmt: skip


def listed(*items: int, kind: int = TENSORS) -> Any:
    return {"val": [kind, {"items": [*items]}]}


def call(*args: int, index: int = 0, kind: int = 1) -> Any:
    return {"args": [kind, {"index": index, "args": [*args]}]}


def operator(name: str, overload: str = "out") -> Any:
    return {"name": name.encode(), "overload": overload.encode()}


def jump(condition: int, target: int) -> Any:
    return {"args": [JUMP, {"condition": condition, "target": target}]}


def move(source: int, target: int) -> Any:
    return {"args": [MOVE, {"source": source, "target": target}]}


def free(value: int) -> Any:
    return {"args": [FREE, {"value": value}]}


UNNAMED = {"location": 1}

# add.pte: values 0 and 1 are its inputs, 2 its output, 3 the int 1; aten::add(0, 1, 3, 2) -> 2.
ADD: dict[str, tuple[Edits, str]] = {
    # Header and segments.
    "header length": ({"header.length": 16}, "its header is 16 bytes long instead of 24"),
    "program outside": ({"header.size": 1 << 40}, "puts the program up to byte 1099511627776"),
    "program overflow": ({"header.size": 2**64 - 1}, "puts the program up to byte"),
    "program in header": ({"header.size": 8}, "has 8 bytes, less than the header itself"),
    "weights in program": ({"header.base": 64}, "lets weights begin inside the program"),
    "weights outside": (
        {"header.base": 1 << 20, "header.nbytes": 8},
        "puts weights and delegate data up to byte 1048584",
    ),
    "weights overflow": (
        {"header.base": 1 << 20, "header.nbytes": 2**64 - 1},
        "puts weights and delegate data beyond any file",
    ),
    "weights nowhere": ({"header.nbytes": 8}, "gives weights a size but no place"),
    "version": ({"version": 1}, "it is of version 1 of the format, newer"),
    "segment nowhere": ({"segments.0.size": 8}, "segment 0: it has 8 bytes, but .* no segments"),
    "segment offset": ({"segments.0.offset": BIG}, "segment 0: it lies beyond the end"),
    # What methods refer to.
    "no methods": ({"plans": []}, "it has no methods"),
    "data without a name": ({"named_data+": {"key": b""}}, "named data entry 0: it has no name"),
    "data segment": (
        {"named_data+": {"key": b"k", "segment": 4}},
        "named data entry 0: its bytes are in segment 4 of 1",
    ),
    "mutable segment": (
        {"mutable_segments+": {"segment": 4}},
        "mutable data segment 0: initial values are in segment 4 of 1",
    ),
    # A method.
    "no name": ({".name": ...}, "method 0: its 'name' is missing"),
    "empty name": ({".name": b""}, "method 0: its 'name' is missing"),
    "zero in name": ({".name": b"for\0ward"}, "its 'name' holds a zero byte"),
    "name no UTF-8": ({".name": b"\xff"}, "its 'name' is not UTF-8 text"),
    "tree no UTF-8": ({".container.inputs": b"\xff"}, "'encoded_inp_str' is not UTF-8 text"),
    "no values": ({".values": ...}, "method 'forward': its 'values' is missing"),
    "no inputs": ({".inputs": ...}, "its 'inputs' is missing"),
    "no outputs": ({".outputs": ...}, "its 'outputs' is missing"),
    "no chains": ({".chains": ...}, "its 'chains' is missing"),
    "empty chains": ({".chains": []}, "it has no chain of instructions"),
    "no instructions": ({".chains.0.instructions": ...}, "its 'instructions' is missing"),
    "no operators": ({".operators": ...}, "its 'operators' is missing"),
    "no delegates": ({".delegates": ...}, "its 'delegates' is missing"),
    "no buffers": ({".buffer_sizes": ...}, "its 'non_const_buffer_sizes' is missing"),
    "empty buffers": ({".buffer_sizes": []}, "its 'non_const_buffer_sizes' is empty"),
    "negative buffer": ({".buffer_sizes.1": -8}, r"planned buffer 1 .*is negative \(-8\)"),
    "input unknown": ({".inputs.1": 4}, "input 1 .*it is value 4, but there are 4 values"),
    "input negative": ({".inputs.0": -1}, "input 0 .*it is value -1"),
    "input twice": ({".inputs": [0, 0]}, "input 1 .*value 0 is an input twice"),
    "output unknown": ({".outputs.0": 9}, "output 0 .*it is value 9, but there are 4"),
    "output a list": (
        {".values+": listed(0), ".outputs.0": 4},
        "output 0 .*it is value 4, a list of tensors, which cannot be passed",
    ),
    "operator name": ({".operators.0.name": ...}, "operator 0 .*its 'name' is missing"),
    "overload": ({".operators.0.overload": ...}, "operator 0 .*its 'overload' is missing"),
    "operator empty": ({".operators.0.name": b""}, "operator 0 .*its 'name' is missing"),
    "operator long": ({".operators.0.name": b"a" * 96}, "operator 0 .*its name is too long"),
    # Values.
    "kind": ({".values.3.val": [12, {}]}, "value 3 .*it is of unknown kind 12"),
    "no kind": ({".values.3.val": [0, {}]}, "value 3 .*it is of unknown kind 0"),
    "no content": ({".values.3.val": [INT, None]}, "value 3 .*its int is missing"),
    "no text": ({".values.3.val": [6, {}]}, "value 3 .*its text is missing"),
    "int list unknown": (
        {".values+": listed(7, kind=7)},
        "value 4 .*item 0 is value 7, but there are 5 values",
    ),
    "int list": ({".values+": listed(0, kind=7)}, "a list of ints holds value 0, .*kind tensor"),
    "no floats": ({".values+": {"val": [8, {}]}}, "value 4 .*its 'items' is missing"),
    "no bools": ({".values+": {"val": [9, {}]}}, "value 4 .*its 'items' is missing"),
    "tensor list unknown": ({".values+": listed(99)}, "an item of the list is value 99"),
    "None in tensor list": ({".values+": listed(-1)}, "an item of the list is value -1"),
    "int in tensor list": (
        {".values+": listed(3)},
        "a list of tensors holds value 3, which is of kind int",
    ),
    "int in optional list": (
        {".values+": listed(-1, 3, kind=OPTIONALS)},
        "a list of optional tensors holds value 3",
    ),
    "list before item": (
        {".values.3": listed(4), ".values+": tensor(2, 2, low=0)},
        "value 3 .*the list comes before its item, value 4",
    ),
    # Tensors.
    "dtype": ({"v2.dtype": 99}, "value 2 .*unknown dtype number 99"),
    "storage offset": ({"v2.storage_offset": 1}, "it has a storage offset"),
    "unbound": ({"v2.dynamism": 2}, "its shape has no upper bound"),
    "dynamism": ({"v2.dynamism": -1}, "its shape is of unknown kind -1"),
    "no sizes": ({"v2.sizes": ...}, "its shape or dim order is missing"),
    "no order": ({"v2.order": ...}, "its shape or dim order is missing"),
    "rank": ({"v2.sizes": [1] * 17, "v2.order": bytes(range(17))}, "it has 17 axes"),
    "order length": ({"v2.order": b"\0"}, "its dim order names 1 axes of 2"),
    "order repeated": ({"v2.order": b"\0\0"}, "its dim order is not a permutation"),
    "order outside": ({"v2.order": b"\0\2"}, "its dim order is not a permutation"),
    "negative size": ({"v2.sizes": [2, -2]}, "axis 1 has the negative size -2"),
    "overflow": (
        {"v2.sizes": [2**31 - 1] * 3, "v2.order": b"\0\1\2"},
        "value 2 .*its size overflows",
    ),
    "overflow of strides": (
        {"v2.sizes": [0] + [2**31 - 1] * 3, "v2.order": b"\0\1\2\3"},
        "value 2 .*its size overflows",
    ),
    "memory 0": ({"v2.allocation": {}}, "it is planned in buffer 0, but there are buffers 1 to 1"),
    "memory unknown": ({"v2.allocation.memory_id": 2}, "it is planned in buffer 2"),
    "misaligned": ({"v2.allocation.low": 2}, "it begins at byte 2, which is no place for float32"),
    "too long": ({"v2.sizes": [2, 200]}, "its 1600 bytes at byte 0 do not fit into .* 1 of 48"),
    "too far": ({"v2.allocation.low": 48}, "its 16 bytes at byte 48 do not fit"),
    "far above": ({"v2.allocation.high": 2**32 - 1}, "bytes at byte 18446744069414584320 do not"),
    "location": ({"v2.extra": {"location": 2}}, "its data is at unknown location 2"),
    "external unnamed": ({"v2.extra": UNNAMED}, "its data is in a data file, but it has no name"),
    "zero in tensor name": ({"v2.extra": {"name": b"a\0b"}}, "its name holds a zero byte"),
    "device": ({"v2.extra": {"device_type": 7}}, "it is on a device of unknown type 7"),
    "device index": (
        {"v2.extra": {"device_type": 1, "device_index": -1}},
        r"its device index is negative \(-1\)",
    ),
    "constant unknown": (
        {".values+": tensor(2, data=5)},
        "value 4 .*its constant has number 5 of 0",
    ),
    "constant short": (
        {"constants": [{"data": b""}, {"data": bytes(4)}], ".values+": tensor(2, data=1)},
        "value 4 .*its constant is shorter than its 8 bytes",
    ),
    "no initial values": (
        {".values+": tensor(2, low=0, data=1)},
        "value 4 .*its initial value is in mutable data segment 0 of 0",
    ),
    "input constant": (
        {".values+": tensor(0, data=1), ".inputs.0": 4, "constants": [{}, {"data": b""}]},
        "input 0 .*it is a constant",
    ),
    # Instructions.
    "instruction kind": ({"code.0.args": [6, {}]}, "instruction 0 .*it is of unknown kind 6"),
    "no arguments": ({"code.0.args": [1, None]}, "instruction 0 .*its arguments are missing"),
    "no argument list": ({"code.0.args": [1, {}]}, "its 'args' is missing"),
    "operator index": ({"code.0": call(2, 2, index=1)}, "it calls operator 1 of 1"),
    "operator negative": ({"code.0": call(2, 2, index=-1)}, "it calls operator -1 of 1"),
    "delegate index": ({"code.0": call(2, kind=DELEGATE)}, "it calls delegate 0 of 0"),
    "argument": ({"code.0": call(0, 4, 3, 2, 2)}, "an argument is value 4, but there are 4"),
    "jump target": ({"code+": jump(3, 3)}, "instruction 1 .*it jumps to instruction 3 of 2"),
    "jump back out": ({"code+": jump(3, -1)}, "it jumps to instruction -1"),
    "condition": ({"code+": jump(3, 0)}, "condition of a jump is value 3, a int that is not bool"),
    "condition a tensor": ({"code+": jump(2, 0)}, "value 2, a tensor that is not bool"),
    "move unknown": ({"code+": move(9, 2)}, "what it moves is value 9"),
    "move kinds": ({"code+": move(3, 2)}, "it moves value 3, a int, to value 2, a tensor"),
    "move a list": (
        {".values+": listed(0), "code+": move(4, 4)},
        "instruction 1 .*it moves a list of tensors",
    ),
    "no memory": (
        {".values+": tensor(2, 2), "code.0": call(0, 4, 3, 2, 2)},
        "aten::add.out uses value 4, a tensor without memory",
    ),
    "no memory in list": (
        {".values": [*(tensor(2, 2, low=0) for _ in range(3)), tensor(2), listed(3)],
         "code.0": call(4, 0, 2, 2)},
        "aten::add.out uses value 3, a tensor without memory",
    ),
    "no memory to write": (
        {".values+": tensor(2, 2, extra={"name": b"w"}), "code.0": call(0, 1, 3, 4, 4)},
        r"aten::add.out uses value 4 \('w'\), a tensor without memory",
    ),
    "outputs differ": ({"code.0": call(0, 1, 3, 2, 1)}, "does not return the arguments that it"),
    "one argument": ({"code.0": call(2)}, "does not return the arguments that it writes"),
    "two outputs, no list": (
        {".operators.0": operator("aten::topk", "values"), "code.0": call(0, 1, 2, 2)},
        "aten::topk.values does not return the arguments that it writes",
    ),
    "two outputs, other list": (
        {".operators.0": operator("aten::topk", "values"), ".values+": listed(1, 1),
         "code.0": call(0, 1, 2, 4)},
        "aten::topk.values does not return the arguments that it writes",
    ),
    "writes external": (
        {".values+": tensor(2, 2, extra={"name": b"w", "location": 1}),
         "code.0": call(0, 1, 3, 4, 4)},
        r"would write into value 4 \('w'\), which is or may be a constant",
    ),
    "writes constant in place": (
        {".values+": tensor(2, 2, extra={"name": b"w", "location": 1}),
         ".operators.0": operator("aten::add_", ""), "code.0": call(4, 1, 3, 2)},
        r"aten::add_ would write into value 4 \('w'\)",
    ),
    "writes a moved constant": (
        {".values+": tensor(2, 2, extra={"name": b"w", "location": 1}),
         "code": [move(4, 2), call(0, 1, 3, 2, 2)]},
        "instruction 1 .*would write into value 2, which is or may be a constant",
    ),
    "writes a longer view": (
        {".values+": tensor(2, 3, low=0, dynamism=1), ".values.3": listed(kind=7),
         ".operators+": operator("executorch_prim::et_view", "default"),
         "code": [call(0, 3, 4, index=1), call(0, 1, 3, 4, 4)]},
        "would write into value 4, which is or may be .* a part of another value",
    ),
    "replaces a constant": (
        {".values+": tensor(1, data=1), "constants": [{}, {"data": bytes(4)}],
         ".operators.0": operator("aten::add_", ""), "code.0": call(0, 1, 3, 4)},
        "aten::add_ would replace the constant value 4",
    ),
    "number into a tensor": (
        {".operators.0": operator("aten::sym_size", "int"), "code.0": call(0, 3, 2)},
        "aten::sym_size.int results in a number, but value 2 is a tensor",
    ),
    "long key": (
        {".values+": tensor(*[1] * 16, low=0), "code.0": call(*[4] * 20)},
        "its call has too many tensors",
    ),
    "frees planned": ({"code+": free(1)}, "it frees value 1, whose memory is not its own"),
    "frees a number": ({"code+": free(3)}, "it frees value 3, whose memory is not its own"),
    "frees an output": (
        {"v2.allocation": ..., "code+": free(2)},
        "it frees value 2, whose memory is not its own",
    ),
    "use after free": (
        {"v1.allocation": ..., "code": [free(1), call(0, 1, 3, 2, 2)]},
        "instruction 1 .*aten::add.out uses value 1 after it was freed",
    ),
    "free in a loop": (
        {"v1.allocation": ..., ".values.3.val": [3, {}], "code": [free(1), jump(3, 0)]},
        "it frees a tensor in a method with jumps or operators unknown to pteron",
    ),
    "same value again and again": (
        {".values": [tensor(2, 2, low=0)] * 50000},
        "it refers to the same data over and over",
    ),
    "long lists": (
        {"v2.allocation": ..., ".values+": listed(*[2] * 20000), "code": [call(4, 1, 1, 1)] * 2000},
        "its lists of tensors are too long to check",
    ),
    "free beside a custom operator": (
        {"v1.allocation": ..., ".operators.0.name": b"my::add", "code+": free(1)},
        "it frees a tensor in a method with jumps or operators unknown to pteron",
    ),
}  # fmt: skip

OTHERS: dict[str, tuple[str, Edits, str]] = {
    "segment at odd place": (
        "alpha.pte",
        {"segments.0.offset": 4, "segments.0.size": 29},
        "segment 0: it begins at byte .*, not a multiple of 8",
    ),
    "segment too long": ("alpha.pte", {"segments.0.size": 64}, "segment 0: it lies beyond the end"),
    "segment overflow": ("alpha.pte", {"segments.0.size": 2**64 - 8}, "segment 0: it lies beyond"),
    "constant segment": (
        "alpha.pte",
        {"constant_segment.segment": 1},
        "its constants are in segment 1 of 1",
    ),
    "constants twice": (
        "alpha.pte",
        {"constants": [{"data": b""}]},
        "it keeps constants both in a segment and in the program itself",
    ),
    "constant number": ("alpha.pte", {"v1.data": 4}, "value 1 .*its constant has number 4 of 4"),
    "constant outside": (
        "alpha.pte",
        {"constant_segment.offsets.3": 33},
        r"value 2 .*its constant \(1 bytes\) reaches past the end of its segment",
    ),
    "constant at odd place": (
        "alpha.pte",
        {"constant_segment.offsets.2": 4},
        "value 1 .*it begins at byte 4, which is no place for int64",
    ),
    "writes constant": (
        "alpha.pte",
        {"code.0": call(3, 0, 0, 0)},
        "aten::mul.out would write into value 0, which is or may be a constant",
    ),
    "initial value number": (
        "state.pte",
        {"v0.data": 2},
        "value 0 .*its initial value has number 2 of 2",
    ),
    "initial value outside": (
        "state.pte",
        {"mutable_segments.0.offsets.1": 4},
        r"value 0 .*its initial value \(16 bytes\) reaches past the end of its segment",
    ),
    "initial value segment": (
        "state.pte",
        {"v0.extra.segment": 1},
        "value 0 .*its initial value is in mutable data segment 1 of 1",
    ),
    "method name twice": (
        "two_methods.pte",
        {"plans.1.name": b"double", "plans.0.name": b"double"},
        "two methods have the same name",
    ),
    # Delegates.
    "no id": ("mlp_xnnpack.pte", {".delegates.0.id": ...}, "delegate 0 .*its 'id' is missing"),
    "empty id": ("mlp_xnnpack.pte", {".delegates.0.id": b""}, "delegate 0 .*'id' is missing"),
    "not processed": (
        "mlp_xnnpack.pte",
        {".delegates.0.processed": ...},
        "delegate 0 .*its 'processed' data is missing",
    ),
    "payload location": (
        "mlp_xnnpack.pte",
        {".delegates.0.processed.location": 2},
        "its data is at unknown location 2",
    ),
    "payload segment": (
        "mlp_xnnpack.pte",
        {".delegates.0.processed.index": 6},
        "its data is in segment 6 of 6",
    ),
    "payload blob": (
        "mlp_xnnpack.pte",
        {".delegates.0.processed": {"index": 1}},
        "its data is in blob 1 of 0",
    ),
    "empty blob": (
        "mlp_xnnpack.pte",
        {".delegates.0.processed": {}, "payloads": [{}]},
        "delegate 0 .*its data is missing",
    ),
    "no specs": ("mlp_xnnpack.pte", {".delegates.0.specs": ...}, "'compile_specs' is missing"),
    "spec without key": (
        "mlp_xnnpack.pte",
        {".delegates.0.specs": [{"value": b""}]},
        "compile spec 0 has no key or no value",
    ),
    "spec without value": (
        "mlp_xnnpack.pte",
        {".delegates.0.specs": [{"key": b"k"}]},
        "compile spec 0 has no key or no value",
    ),
    "delegate arguments": (
        "mlp_xnnpack.pte",
        {"code.0": call(0, kind=DELEGATE)},
        "delegate XnnpackBackend is given 1 arguments and uses 2",
    ),
    "delegate writes larger elements": (
        "mlp_xnnpack.pte",
        {"v1.dtype": 0},
        "given value 1, whose elements are uint8, for elements of 4 bytes",
    ),
    "delegate reads larger elements": (
        "mlp_xnnpack.pte",
        {"v0.dtype": 5},
        "given value 0, whose elements are float16, for elements of 4 bytes",
    ),
    "delegate writes a constant": (
        "mlp_xnnpack.pte",
        {"v1.allocation": ..., "v1.extra": {"name": b"w", "location": 1}},
        r"delegate XnnpackBackend would write into value 1 \('w'\)",
    ),
    # Devices.
    "device buffer": (
        "device_add.pte",
        {".buffer_devices.0.buffer": 3},
        "device of a planned buffer, entry 0 .*it is for buffer 3 of 3",
    ),
    "device twice": (
        "device_add.pte",
        {".buffer_devices+": {"buffer": 2, "type": 1}},
        "buffer 2 has two devices",
    ),
    "buffer's device": (
        "device_add.pte",
        {".buffer_devices.0.type": 9},
        "it is on a device of unknown type 9",
    ),
    "host tensor on a device": (
        "device_add.pte",
        {"v2.extra": ...},
        "value 2 .*it is a host tensor in the planned memory of a device",
    ),
    "kernel on a device": (
        "device_add.pte",
        {".operators.0.name": b"aten::clone"},
        "aten::clone.out runs on the host, but value 2 is in the memory of a device",
    ),
    "hole beside a delegate": (
        "device_add.pte",
        {"v3.allocation": ..., "v3.extra": ...},
        "et_copy::_h2d_copy.out uses value 3, a tensor without memory",
    ),
}

DATA_FILE: dict[str, tuple[Edits, str]] = {
    "no segments": ({"segments": ...}, "its 'segments' is missing"),
    "segment outside": ({"segments.1.size": 1 << 20}, "segment 1: it lies outside of the file"),
    "segment overflow": ({"segments.1.offset": 2**64 - 8}, "segment 1: it lies outside"),
    "no entries": ({"named_data": ...}, "its 'named_data' is missing"),
    "no name": ({"named_data.1.key": ...}, "entry 1: it has no name"),
    "name no UTF-8": ({"named_data.1.key": b"\xff"}, "entry 1: its 'key' is not UTF-8"),
    "name twice": ({"named_data.1.key": b"weight"}, "entry 1: another has the same name"),
    "segment unknown": ({"named_data.1.segment": 2}, "its bytes are in segment 2 of 2"),
    "dtype": ({"named_data.0.layout.dtype": 99}, "entry 0: it has the unknown type 99"),
    "no sizes": ({"named_data.0.layout.sizes": ...}, "entry 0: its 'sizes' is missing"),
    "order length": ({"named_data.0.layout.order": b"\0"}, "it has 2 sizes in an order of 1"),
    "order": ({"named_data.0.layout.order": b"\1\1"}, "the order of its axes is none"),
    "negative": ({"named_data.0.layout.sizes": [3, -4]}, "one of its sizes is -4"),
    "overflow": (
        {"named_data.0.layout.sizes": [2**31 - 1] * 3, "named_data.0.layout.order": b"\0\1\2"},
        "it is larger than memory can be",
    ),
    "too long": ({"named_data.0.layout.sizes": [3, 5]}, "it takes 60 bytes, and the file has 48"),
}

BUNDLED: dict[str, tuple[Edits, str]] = {
    "no program": ({"program": ...}, "it holds no program"),
    "program": ({"program": b"ET12" * 20}, "program"),
    "method no UTF-8": ({"suites.0.method": b"\xff"}, "a method's name is not UTF-8"),
    "value kind": ({"suites.0.cases.0.inputs.0.val": [5, {}]}, "a value of the unknown kind 5"),
    "no content": ({"suites.0.cases.0.inputs.0.val": [1, None]}, "a value of the unknown kind 1"),
    "dtype": ({"suites.0.cases.0.inputs.0.val.1.dtype": 99}, "a tensor of the unknown type 99"),
    "order": ({"suites.0.cases.0.inputs.0.val.1.order": b"\0\0"}, r"in the order \(0, 0\)"),
    "rank": (
        {"suites.0.cases.0.inputs.0.val.1.sizes": [1] * 17,
         "suites.0.cases.0.inputs.0.val.1.order": bytes(range(17))},
        "a tensor with sizes",
    ),
    "too long": ({"suites.0.cases.0.inputs.0.val.1.sizes": [3, 4]}, "in 36 bytes of data"),
    "negative": ({"suites.0.cases.0.inputs.0.val.1.sizes": [-3, -3]}, "in 36 bytes of data"),
}  # fmt: skip

ADD_BYTES = (DATA / "add.pte").read_bytes()
NAME = ADD_BYTES.index(b"\x07\0\0\0forward") + 4


def patched(position: int, value: int, width: int = 4) -> bytes:
    """add.pte with another number at a position."""
    raw = value.to_bytes(width, "little")
    return ADD_BYTES[:position] + raw + ADD_BYTES[position + width :]


ROOT = int.from_bytes(ADD_BYTES[:4], "little")
VTABLE = ROOT - int.from_bytes(ADD_BYTES[ROOT : ROOT + 4], "little", signed=True)
FLATBUFFER = {
    "root outside": (patched(0, 1 << 30), "its 'program' reaches past the end"),
    "root at odd place": (patched(0, ROOT + 1), "its 'program' is at an odd address"),
    "vtable before the file": (patched(ROOT, 1 << 20), "its 'program' reaches past the end"),
    "vtable behind the file": (patched(ROOT, -(1 << 20) % 2**32), "reaches past the end"),
    "vtable short": (patched(VTABLE, 2, 2), "its 'program' is at an odd address"),
    "vtable long": (patched(VTABLE, 0xFFFE, 2), "its 'program' reaches past the end"),
    "table long": (patched(VTABLE + 2, 0xFFFE, 2), "its 'program' reaches past the end"),
    "field outside its table": (patched(VTABLE + 6, 0x7FFC, 2), "reaches past the end"),
    "string without end": (patched(NAME + 7, 1, 1), "its 'name' has no end"),
    "string beyond the end": (patched(NAME - 4, 1 << 30), "its 'name' reaches past the end"),
}

PROGRAMS = {key: ("add.pte", *row) for key, row in ADD.items()} | OTHERS


@pytest.mark.parametrize(("name", "edits", "says"), PROGRAMS.values(), ids=PROGRAMS)
def test_program(name: str, edits: Edits, says: str) -> None:
    """Refused in every verification mode, with the words of the rule."""
    data = changed(name, edits)
    for verification in pteron.Verification:
        with pytest.raises(errors.InvalidProgramError, match=f"invalid program file: .*{says}"):
            pteron.load(data, verification=verification)


@pytest.mark.parametrize(("data", "says"), FLATBUFFER.values(), ids=FLATBUFFER)
def test_flatbuffer(data: bytes, says: str) -> None:
    """The same for what every format is made of."""
    for verification in pteron.Verification:
        with pytest.raises(errors.InvalidProgramError, match=f"invalid program file: .*{says}"):
            pteron.load(data, verification=verification)


@pytest.mark.parametrize(("edits", "says"), DATA_FILE.values(), ids=DATA_FILE)
def test_data_file(edits: Edits, says: str) -> None:
    """The same for a data file."""
    data = changed("ptd.ptd", edits)
    for verification in pteron.Verification:
        with pytest.raises(errors.InvalidDataError, match=f"invalid data file: .*{says}"):
            pteron.load(DATA / "ptd.pte", data_path=data, verification=verification)


def test_version_outside_of_a_data_file() -> None:
    """The runtime reads it from wherever the file says."""
    data = bytearray((DATA / "ptd.ptd").read_bytes())
    root = int.from_bytes(data[:4], "little")
    vtable = root - int.from_bytes(data[root : root + 4], "little", signed=True)
    data[vtable + 4 : vtable + 6] = b"\xff\xff"
    with pytest.raises(errors.InvalidDataError, match="reaches past the end"):
        pteron.load(DATA / "ptd.pte", data_path=data)


@pytest.mark.parametrize(("edits", "says"), BUNDLED.values(), ids=BUNDLED)
def test_bundled(edits: Edits, says: str) -> None:
    """The same for a bundled program."""
    data = changed("bundled.bpte", edits)
    for verification in (None, *pteron.Verification):
        with pytest.raises(errors.InvalidProgramError, match=says):
            pteron.load_bundled(data, verification=verification)


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("*.*pte")))
def test_good_files(name: str) -> None:
    """The writer breaks no rule by itself: what a file says is all that matters."""
    data = changed(name, {})
    assert File.parse(data).tree == File.parse((DATA / name).read_bytes()).tree
    load = pteron.load_bundled if name.endswith(".bpte") else pteron.load
    for verification in pteron.Verification:
        load(data, verification=verification)
