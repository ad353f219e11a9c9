"""The README does what it says: its Python runs, prints what it shows, its commands work."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from pteron.cli import main

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.S | re.M)


def test_python_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks run as one program; a plain block after one is what it prints."""
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    printed = ""
    count = 0
    for language, body in BLOCKS:
        if language == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(body, "README.md", "exec"), names)
            printed = out.getvalue()
            count += 1
        elif language == "":
            assert body == printed
    assert count >= 4


def commands() -> list[str]:
    """The lines of console blocks."""
    lines = [
        line for language, body in BLOCKS if language == "console" for line in body.split("\n")
    ]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("pteron ")])
def test_pteron_commands(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They succeed, from the root of the repository."""
    monkeypatch.chdir(ROOT)
    words = shlex.split(command)[1:]
    if "-o" in words:
        words[words.index("-o") + 1] = str(tmp_path / "out.npz")
    assert main(words) == 0


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("make ")])
def test_make_commands(command: str) -> None:
    """Their targets exist; CI runs them."""
    assert re.search(rf"^{command.split()[1]}:", (ROOT / "Makefile").read_text(), re.M)


def test_length() -> None:
    """Details belong in docs."""
    assert len(TEXT.splitlines()) < 200
