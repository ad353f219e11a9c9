"""Write the golden tensors as raw files that the C++ tests read: dump_goldens.py FOLDER.

FOLDER holds one folder a program, each with a golden.npz (names like in0__float32; bfloat16 is
stored as uint16 bits). Beside it appear golden.txt and one .bin file a tensor.
"""

import sys
from pathlib import Path

import numpy as np


def dump(folder: Path) -> None:
    lines = []
    with np.load(folder / "golden.npz") as data:
        for name in data.files:
            array = data[name]
            dtype = name.split("__")[1]
            sizes = " ".join(str(size) for size in array.shape)
            lines.append(f"{name} {dtype} {array.ndim} {sizes}".rstrip())
            (folder / f"{name}.bin").write_bytes(np.ascontiguousarray(array).tobytes())
    (folder / "golden.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    for archive in sorted(Path(sys.argv[1]).glob("*/golden.npz")):
        dump(archive.parent)
