"""The Python examples of ``docs/cuda.md``, for the tests that run them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

TEXT = (Path(__file__).parents[1] / "docs" / "cuda.md").read_text()
BLOCKS: list[str] = re.findall(r"^```python\n(.*?)^```$", TEXT, re.S | re.M)
VALUE = re.compile(r'^(\S.*?)  # ("[^"]*")$')  # what a line is worth


def run(without: str, names: dict[str, Any]) -> int:
    """Run the blocks that do not match a pattern as one program; returns how many they are."""
    count = 0
    for block in BLOCKS:
        if re.search(without, block):
            continue
        exec(compile(block, "docs/cuda.md", "exec"), names)
        for line in block.splitlines():
            if said := VALUE.match(line):
                assert repr(eval(said[1], names)) == repr(eval(said[2])), line
        count += 1
    return count
