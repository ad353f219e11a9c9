"""Turn golden CUDA programs into ones that run on the fake driver.

make_fake_programs.py GOLDENS MODELS OUT: for each golden whose computation one of the fake models
knows, the library inside the program is replaced by that model, in place, padded with zeros (an ELF
file may have trailing bytes). Everything else of the program stays as the official exporter wrote
it: devices, planned buffers, copies, payload, weights. MODELS holds libfake_<name>.so.
"""

import shutil
import sys
from pathlib import Path

MODEL_OF = {
    "add": "add",
    "add1": "add",
    "sums": "add",
    "muladd": "muladd",
    "state": "state",
    "mlp": "mlp",
    "two_methods": "mlp",
}
SHARED_OBJECT = 3  # e_type ET_DYN: the cubins inside a library are of other types
EM_X86_64, EM_AARCH64 = 62, 183


def libraries(data: bytes) -> list[int]:
    """Offsets of the shared libraries in a program."""
    found = []
    at = data.find(b"\x7fELF")
    while at >= 0:
        kind = int.from_bytes(data[at + 16 : at + 18], "little")
        machine = int.from_bytes(data[at + 18 : at + 20], "little")
        if kind == SHARED_OBJECT and machine in (EM_X86_64, EM_AARCH64):
            found.append(at)
        at = data.find(b"\x7fELF", at + 1)
    return found


def with_library(program: bytes, library: bytes) -> bytes:
    """The program with each of its libraries replaced."""
    out = bytearray(program)
    for at in libraries(program):
        size = original_size(program, at)
        if len(library) > size:
            raise ValueError(f"the fake library has {len(library)} bytes, the original {size}")
        out[at : at + size] = library.ljust(size, b"\0")
    return bytes(out)


def original_size(program: bytes, at: int) -> int:
    """Bytes of the library at this offset: up to the end of its section headers."""
    sections = int.from_bytes(program[at + 40 : at + 48], "little")
    entry = int.from_bytes(program[at + 58 : at + 60], "little")
    count = int.from_bytes(program[at + 60 : at + 62], "little")
    return sections + entry * count


def main(goldens: Path, models: Path, out: Path) -> None:
    """Write OUT/<name> for every golden that a fake model can stand in for."""
    for folder in sorted(goldens.iterdir()):
        name = folder.name
        family = name if name in MODEL_OF else name.split("_")[0]
        if family not in MODEL_OF or name in ("mlp_bf16", "mlp_fp16"):
            continue
        library = (models / f"libfake_{MODEL_OF[family]}.so").read_bytes()
        target = out / name
        shutil.copytree(folder, target, dirs_exist_ok=True)
        program = (folder / "model.pte").read_bytes()
        (target / "model.pte").write_bytes(with_library(program, library))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
