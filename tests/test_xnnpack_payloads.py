"""XNNPACK payloads whose parts do not fit together, which XNNPACK would read outside of."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import DATA, load_fixture
from formats import File, edit

import pteron
from pteron.errors import InvalidProgramError

ABSENT = 2**32 - 1

# mlp_xnnpack: 0 -> linear(0, 1, 2) -> 3 -> linear(3, 4, 5) -> 6; "v1.x" is in the tensor 1.
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "weights": ("mlp", {"v1.dims": [16, 800]}, "value 1, in bytes, has 512 of 51200"),
    "overflow": ("mlp", {"v1.dims": [ABSENT] * 2}, "value 1, in bytes, has 512 of"),
    "constant number": ("mlp", {"v1.constant": 5}, "value 1 is constant 5"),
    "constant outside": (
        "mlp",
        {"constants.1": {"offset": 1 << 20, "size": 512}},
        "constant 1 lies outside of it",
    ),
    "unknown key": ("mlp", {"constants.1.key": b"other"}, "value 1, in bytes, has 0 of 512"),
    "no value": ("mlp", {"values.1.value": [1, None]}, "value 1 is missing"),
    "no tensor": ("qs8", {"values.1.value.1.tensor": ...}, "value 1 has no tensor"),
    "rank": ("mlp", {"v1.rank": 3}, "value 1 has a wrong rank"),
    "type": ("mlp", {"v1.type": 15}, "value 1 is of the unknown type 15"),
    "no type": ("mlp", {"v1.type": 0}, "value 1 is of the unknown type 0"),
    "type of quantized": ("mlp", {"v3.type": 3}, "value 3 is of the type 3, which is quantized"),
    "type of scales": (
        "qs8",
        {"values.2.value.1.tensor.type": 6},
        "value 2 is of the type 6, which is quantized otherwise",
    ),
    "argument by flag": ("mlp", {"v3.flags": 1}, "value 3 is an argument and is none"),
    "argument by number": ("mlp", {"v3.external": 0}, "value 3 is an argument and is none"),
    "constant argument": ("mlp", {"v0.constant": 1}, "value 0 is an argument and is none"),
    "unknown argument": ("mlp", {"num_externals": 1}, "value 6 is an unknown argument"),
    "argument twice": ("mlp", {"v6.external": 0}, "value 6 is the argument of another"),
    "id twice": ("mlp", {"v3.id": 1}, "value 3 has the id of another"),
    "arguments not listed": ("mlp", {"inputs": []}, "it has 2 arguments, and lists others"),
    "other argument listed": ("mlp", {"inputs.0": 3}, "one of its 'input_ids' is no argument"),
    "other output listed": ("mlp", {"outputs.0": 77}, "one of its 'output_ids' is no argument"),
    "no scales": ("qs8", {"values.2.value.1.quant": [2, None]}, "value 2 has no scales"),
    "scales of a channel": (
        "conv_qs8",
        {"values.3.value.1.quant.1.channel": 4},
        "value 3 has its scales along no dimension",
    ),
    "negative channel": (
        "conv_qs8",
        {"values.3.value.1.quant.1.channel": -1},
        "value 3 has its scales along no dimension",
    ),
    "few scales": (
        "conv_qs8",
        {"values.3.value.1.quant.1.channel": 1, "values.3.value.1.tensor.dims": [3, 12, 3, 1]},
        "the list of scales of value 3 has 4 of 12",
    ),
    "rows": ("qb4", {"values.1.value.1.quant.1.dims": 3}, "value 1 has rows of more dimensions"),
    "group": ("qb4", {"values.2.value.1.quant.1.group": 0}, "value 2 has groups of 0"),
    "negative group": ("qb4", {"values.2.value.1.quant.1.group": -32}, "has groups of -32"),
    "part of a group": ("qb4", {"values.2.value.1.quant.1.group": 48}, "has a part of a group"),
    "small groups": (
        "qb4",
        {"values.2.value.1.quant.1.group": 16},
        "the list of scales of value 2 has 8 of 16",
    ),
    "no node": ("mlp", {"nodes.0.node": [2, None]}, "node 0 is missing"),
    "filter": ("mlp", {"v1.rank": 1, "v1.dims": [128]}, "the filter of node 0 is no matrix"),
    "bias": ("mlp", {"v4.dims": [16, 4]}, "the bias of node 1 has 4 of 16"),
    "conv filter": ("conv", {"v2.dims": [4, 3, 3, 1]}, "the filter of node 1 has 36 of 108"),
    "conv bias": ("conv", {"nodes.1.node.1.group_outputs": 8, "v2.dims": [4, 3, 3, 3],
                           "nodes.1.node.1.height": 1}, "the bias of node 1 has 4 of 8"),
    "channels": ("conv", {"v1.dims": [1, 8, 24, 1]}, "the channels of node 1 has 1 of 3"),
    "image": ("conv", {"v1.dims": [1, 192], "v1.rank": 2}, "the input of node 1 is no image"),
    "list too short": ("conv", {"nodes.0.node.1.perm": [0, 2, 3]}, "3 numbers for 4 axes"),
    "no list": ("conv", {"nodes.0.node.1.perm": ...}, "a list of node 0 has 0 numbers for 4"),
    "paddings": ("ops", {"nodes.10.node.1.after": [0]}, "a list of node 10 has 1 numbers for 4"),
    "slice": ("ops", {"nodes.12.node.1.sizes": [1]}, "a list of node 12 has 1 numbers for 4"),
    "writes a constant": ("mlp", {"nodes.0.node.1.output": 1}, "output of node 0 is a constant"),
    "writes an input": ("mlp", {"nodes.0.node.1.output": 0}, "output of node 0 is that of another"),
    "writes twice": ("mlp", {"nodes.1.node.1.output": 3}, "output of node 1 is that of another"),
    "reads too early": ("mlp", {"nodes.0.node.1.input": 3}, "input of node 0 is not there yet"),
    "reads its output": ("mlp", {"nodes.1.node.1.input": 6}, "input of node 1 is not there yet"),
}  # fmt: skip
NAMES = {"qs8": "mlp_qs8_xnnpack", "qb4": "linear_qb4_xnnpack"}


@pytest.mark.parametrize(("name", "edits", "says"), CASES.values(), ids=CASES)
def test_parts_that_do_not_fit(name: str, edits: dict[str, Any], says: str) -> None:
    """The load of the method says which part is wrong."""
    file = File.parse((DATA / f"{NAMES.get(name, name + '_xnnpack')}.pte").read_bytes())
    payload = file.payload
    for path, value in edits.items():
        if path[0] == "v" and path[1].isdigit():
            path = f"values.{path[1]}.value.1{path[2:]}"
        edit(payload.tree, path, value)
    file.payload = payload
    program = pteron.load(file.write())
    with pytest.raises(InvalidProgramError, match=f"its XNNPACK payload is damaged: .*{says}"):
        program.load_method()


GOOD = sorted(path.stem for path in DATA.glob("*_xnnpack.pte"))


@pytest.mark.parametrize("name", GOOD)
def test_good_payloads(name: str) -> None:
    """Nothing is refused of what the exporter writes, nor when it is taken apart and written."""
    fixture = load_fixture(name)
    file = File.parse(fixture.path.read_bytes())
    file.payload = file.payload
    for source in (fixture.path, file.write()):
        fixture.check(pteron.load(source).load_method().execute(fixture.inputs))
