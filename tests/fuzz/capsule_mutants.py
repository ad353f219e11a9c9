"""DLPack capsules with changed fields, the same for the same seed.

A capsule's pointers must be believed: whether its shape and strides stay inside of the memory that
they describe only its owner knows. So a mutant that would be read keeps inside of a large arena;
all else is free, and must be refused or give numbers.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from capsules import Export

DATA = Path(__file__).resolve().parents[1] / "data"
PROGRAMS = ("add", "bf16", "bool_not", "chan_last", "dyn", "embedding", "empty", "unplanned_state")
PROGRAMS += ("zero_d", "add_complex64", "mlp_xnnpack", "same_uint16")
ARENA = 32 << 20
_EDGES = (-(2**63), -(2**31), -(2**31) - 1, -17, -2, -1, 0, 1, 2, 3, 4, 16, 17, 63, 64, 65, 127)
_EDGES += (128, 255, 256, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**61, 2**62, 2**63 - 1)
_FIELDS = ("ndim", "code", "bits", "lanes", "device_type", "device_id", "byte_offset", "major")
_FIELDS += ("minor", "flags", "data", "name", "shape", "strides", "shape", "strides", "strides")
_WIDTHS = {"code": 8, "bits": 8, "lanes": 16, "byte_offset": 64, "flags": 64, "data": 64}


class Producer:
    """An object whose ``__dlpack__`` gives what it was made with."""

    def __init__(self, export: Export, device: tuple[int, int]) -> None:
        self.export, self.device = export, device

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.export.capsule()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


@dataclass(frozen=True)
class CapsuleMutant:
    """Which program gets it, in the place of which input, and what its struct says."""

    program: str
    position: int
    bare: bool  # a capsule, not an object that makes one
    versioned: bool
    wrong: dict[str, Any]


def mutant(seed: str) -> CapsuleMutant:
    """The mutant of that seed: one to three fields of a good tensor changed."""
    chance = random.Random(seed)
    wrong: dict[str, Any] = {}
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        name = chance.choice(_FIELDS)
        if name == "name":
            names = (b"", b"tensor", b"used_dltensor", b"\xff", b"dltensor_versio")
            wrong[name] = chance.choice(names)
        elif name in ("shape", "strides"):
            wrong[name] = None if chance.random() < 0.1 else [chance.random() for _ in range(20)]
        else:
            width = _WIDTHS.get(name, 32)
            value = chance.choice(_EDGES) if chance.random() < 0.5 else chance.randrange(20)
            signed = value & ((1 << width) - 1)
            wrong[name] = signed - (1 << width if name in ("ndim", "device_type", "device_id")
                                    and signed >> 31 else 0)  # fmt: skip
    return CapsuleMutant(
        chance.choice(PROGRAMS),
        chance.randrange(3),
        chance.random() < 0.3,
        chance.random() < 0.7,
        wrong,
    )


def export_of(mutant: CapsuleMutant, array: Any, chance: random.Random) -> Export | None:
    """The capsule in the place of `array`; None if only belief could tell it from a good one.

    Strides and offsets are drawn until they stay in the arena or cannot be those of any memory.
    """
    arena = np.zeros(ARENA, np.uint8)
    middle = ARENA // 2
    room = arena[middle : middle + array.nbytes].view(array.dtype).reshape(array.shape)
    room[...] = array
    wrong = dict(mutant.wrong)
    ndim = wrong.get("ndim", array.ndim)
    rank = min(max(ndim, 0), 20)
    for name, good in (("shape", array.shape), ("strides", _strides(array))):
        drawn = wrong.get(name, ())
        if drawn is not None:
            values = (*good, *[1] * 20)[: max(rank, array.ndim)]
            wrong[name] = tuple(
                _EDGES[int(way * 1e6) % len(_EDGES)] if i < len(drawn) and way < 0.4 else value
                for i, (value, way) in enumerate(zip(values, [*drawn, *[1.0] * 20], strict=False))
            )
    if wrong.get("data") != 0:  # other addresses are its owner's word
        wrong.pop("data", None)
    if not _stays_inside(wrong, array, middle, rank):
        return None
    versioned = mutant.versioned
    if not versioned:
        for name in ("major", "minor", "flags"):
            wrong.pop(name, None)
    return Export(room, versioned, **wrong)


def _strides(array: Any) -> tuple[int, ...]:
    return tuple(stride // array.itemsize for stride in array.strides)


def _stays_inside(wrong: dict[str, Any], array: Any, middle: int, rank: int) -> bool:
    """Whether the description is of memory in the arena, or of none that can be."""
    shape, strides = wrong["shape"], wrong["strides"]
    if shape is None or any(size < 0 for size in shape[:rank]) or 0 in shape[:rank]:
        return True
    width = max(array.itemsize, wrong.get("bits", 8) // 8, 16)
    if strides is None:
        strides = [int(np.prod([float(s) for s in shape[i + 1 : rank]])) for i in range(rank)]
    steps = [
        (size - 1) * stride for size, stride in zip(shape[:rank], strides[:rank], strict=False)
    ]
    low = sum(step for step in steps if step < 0) * width
    high = sum(step for step in steps if step > 0) * width + width
    offset = wrong.get("byte_offset", 0)
    if middle + offset + low >= 0 and middle + offset + high <= ARENA:
        return True
    numbers = [step * array.itemsize for step in steps] + [offset]
    return max(map(abs, numbers), default=0) >= 2**63 or offset >= 2**63


def run(mutant: CapsuleMutant, seed: str) -> bool:
    """Give it to a program in every way; whether some way took it."""
    import pteron
    from pteron import _core

    chance = random.Random(seed)
    with np.load(DATA / f"{mutant.program}.npz") as values:
        inputs: list[Any] = [values[key] for key in sorted(values.files) if key[:2] == "in"]
        names = [key for key in sorted(values.files) if key[:2] == "in"]
    for i, name in enumerate(names):
        suffix = name.partition("__")[2]
        if suffix == "scalar":
            inputs[i] = inputs[i].item()
        elif suffix:
            inputs[i] = _core.result_from_bytes(suffix, inputs[i].shape, inputs[i].tobytes())
    position = mutant.position % len(inputs)
    array = np.asarray(inputs[position])
    method = pteron.load(DATA / f"{mutant.program}.pte").load_method()
    taken = False
    for way in range(4):
        export = export_of(mutant, array, chance)
        if export is None:
            return False
        device = (mutant.wrong.get("device_type", 1), mutant.wrong.get("device_id", 0))
        value: Any = export.capsule() if mutant.bare else Producer(export, device)
        given = [*inputs[:position], value, *inputs[position + 1 :]]
        try:
            if way == 0:
                method.execute(given)
            elif way == 1:
                method.set_inputs(given)
                method.execute()
                method.execute()
            elif way == 2:
                method.execute(given, clone_outputs=False)
            else:
                repr(pteron.ExecuTorchResult.from_host(value))
            taken = True
        except pteron.ExecuTorchError:
            pass
    return taken
