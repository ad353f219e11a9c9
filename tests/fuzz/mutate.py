"""Damaged copies of a file, the same for the same seed."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

from schema import Layout, Site, layout_of

_EDGES: tuple[int, ...] = (0, 1, 2, 3, 4, 7, 15, 16, 17, 63, 127, 128, 255)
_EDGES += (2**15 - 1, 2**15, 2**16 - 1, 2**16)
_EDGES += (2**31 - 1, 2**31, 2**32 - 16, 2**32 - 4, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


@dataclass(frozen=True)
class Mutant:
    """A damaged file; `payload`: only bytes that a delegate reads are damaged."""

    data: bytes
    payload: bool


class Mutator:
    """Damages one file in many ways."""

    def __init__(self, data: bytes) -> None:
        self.original = data
        self.layout: Layout = layout_of(data)

    def mutant(self, seed: str) -> Mutant:
        """The mutant of that seed: one damage mostly, up to three."""
        chance = random.Random(seed)
        data = bytearray(self.original)
        if self.layout.payload and chance.random() < 0.5:
            graphs = self.layout.graphs
            for _ in range(chance.choice((1, 1, 2, 4))):
                if graphs and chance.random() < 0.7:
                    self._damage_site(data, chance.choice(graphs), chance)
                else:
                    self._damage_payload(data, chance)
            return Mutant(bytes(data), payload=True)
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            self._damage(data, chance)
        return Mutant(bytes(data), payload=False)

    def _damage(self, data: bytearray, chance: random.Random) -> None:
        way = chance.random()
        if way < 0.03:
            del data[chance.randrange(len(data)) :]
        elif way < 0.05:
            data += bytes(chance.randrange(1, 64))
        elif way < 0.13 and data:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        else:
            self._damage_site(data, self.layout, chance)

    def _damage_site(self, data: bytearray, layout: Layout, chance: random.Random) -> None:
        # Scalars are most of the sites and most of what matters.
        kind = chance.choice(("scalar", "slot", "offset", "length", "scalar", "scalar", "text"))
        site = chance.choice(layout.of_kind(kind) or layout.sites)
        if site.position + site.width <= len(data):
            _write(data, site, self._new_value(data, site, layout, chance))

    def _new_value(self, data: bytearray, site: Site, layout: Layout, chance: random.Random) -> int:
        old = _read(data, site)
        if site.kind == "slot":
            return chance.choice((0, 0, 0, 4, old + 4, old - 1, 2**16 - 1))
        if site.kind == "offset" and chance.random() < 0.6:
            return chance.choice(layout.tables) - site.position
        if site.kind == "length" and chance.random() < 0.7:
            return chance.choice((0, old - 1, old + 1, old // 2, old * 2))
        way = chance.random()
        if way < 0.35:
            return chance.choice(_EDGES)
        if way < 0.65:
            return old + chance.choice((-2, -1, 1, 2, 4, 8, 16))
        if way < 0.85:
            return chance.randrange(16)
        other = chance.choice(layout.sites)
        return _read(data, Site(other.kind, min(other.position, len(data) - 8), site.width))

    def _damage_payload(self, data: bytearray, chance: random.Random) -> None:
        start, size = chance.choice(self.layout.payload)
        # Graphs come before weights, and are what a backend can stumble over.
        at = start + chance.randrange(size if chance.random() < 0.3 else min(size, 2048))
        if chance.random() < 0.5 or size < 8:
            data[at] = chance.randrange(256)
            return
        width = chance.choice((2, 4, 4, 8))
        site = Site(
            "scalar", min(start + (at - start) // width * width, start + size - width), width
        )
        _write(data, site, self._new_value(data, site, self.layout, chance))


def _read(data: bytearray, site: Site) -> int:
    return int.from_bytes(data[site.position : site.position + site.width], "little")


def _write(data: bytearray, site: Site, value: int) -> None:
    value &= (1 << (8 * site.width)) - 1
    struct.pack_into(f"<{site.width}s", data, site.position, value.to_bytes(site.width, "little"))
