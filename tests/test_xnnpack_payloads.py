"""XNNPACK payloads whose parts do not fit together, which XNNPACK reads outside of."""

from __future__ import annotations

import struct

import pytest
from conftest import DATA, load_fixture

import pteron
from pteron.errors import InvalidProgramError


def with_dims(name: str, old: tuple[int, ...], new: tuple[int, ...]) -> bytes:
    """The fixture with other sizes for the value of its payload that has the sizes `old`."""
    data = (DATA / f"{name}.pte").read_bytes()
    vector = struct.pack(f"<{len(old) + 1}I", len(old), *old)
    position = data.index(vector, data.index(b"XH00")) + 4
    return data[:position] + struct.pack(f"<{len(new)}I", *new) + data[position + 4 * len(new) :]


CASES = {
    "weights": ("mlp_xnnpack", (16, 8), (16, 800), "in bytes, has 512 of 51200"),
    "overflow": ("mlp_xnnpack", (16, 8), (2**32 - 1, 2**32 - 1), "in bytes, has 512 of"),
    "bias": ("mlp_xnnpack", (4, 16), (16, 4), "the bias of node 1 has 4 of 16"),
    "filter": ("conv_xnnpack", (4, 3, 3, 3), (4, 3, 3, 1), "the filter of node 1 has 36 of 108"),
    "channels": ("conv_xnnpack", (1, 8, 8, 3), (1, 8, 24, 1), "the channels of node 1 has 1 of 3"),
}


@pytest.mark.parametrize(("name", "old", "new", "says"), CASES.values(), ids=CASES.keys())
def test_parts_that_do_not_fit(
    name: str, old: tuple[int, ...], new: tuple[int, ...], says: str
) -> None:
    """The load of the method says which part is too short."""
    program = pteron.load(with_dims(name, old, new))
    with pytest.raises(InvalidProgramError, match=f"its XNNPACK payload is damaged: .*{says}"):
        program.load_method()


@pytest.mark.parametrize("name", ["mlp_xnnpack", "conv_xnnpack"])
def test_good_payloads(name: str) -> None:
    """Nothing is refused of what the exporter writes."""
    fixture = load_fixture(name)
    fixture.check(fixture.load().load_method().execute(fixture.inputs))
