"""The command line: what it prints, writes and returns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import DATA, load_fixture

from pteron.cli import main


@pytest.fixture
def x_npy(tmp_path: Path) -> str:
    """A file with the first input of `tree`."""
    path = tmp_path / "x.npy"
    np.save(path, load_fixture("tree").inputs[0])
    return str(path)


def test_run_prints_and_writes_every_output(
    tmp_path: Path, x_npy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Name, dtype, shape, min, max, mean, NaN; times; an .npz under the names."""
    fixture = load_fixture("tree")
    mask, scale = tmp_path / "mask.npy", tmp_path / "named.npz"
    np.save(mask, fixture.inputs[1])
    np.savez(scale, scale=fixture.inputs[2])
    out = tmp_path / "out.npz"
    command = ["run", str(fixture.path), "-i", x_npy, "-i", f"mask={mask}", "-i", str(scale)]
    assert main([*command, "-o", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    want = fixture.outputs[0]
    figures = f"min {want.min():.6g} max {want.max():.6g} mean {want.mean():.6g} nan 0"
    assert lines[0].split() == f"scaled float32[2, 2] {figures}".split()
    assert [line.split()[0] for line in lines[1:]] == ["parts.0", "parts.1.0", "parts.1.1", "load"]
    assert "ms  run " in lines[-1]
    with np.load(out) as data:
        np.testing.assert_allclose(data["parts.1.1"], fixture.outputs[3], rtol=1e-6)


def test_run_counts_nan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NaN is counted and left out of the other figures."""
    path = tmp_path / "x.npy"
    np.save(path, np.array([[np.nan, 1], [2, 3]], np.float32))
    assert main(["run", str(DATA / "add.pte"), "-i", str(path), "-i", str(path)]) == 0
    assert "min 2  max 6  mean 4  nan 1" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["mixed_out", "bf16", "bool_not", "add_complex64", "empty", "dyn"])
def test_run_random(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Made-up inputs suit every kind of program."""
    assert main(["run", str(DATA / f"{name}.pte"), "--random", "0", "--repeat", "3"]) == 0
    assert "median of 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, status, words",
    [
        (["run", "nothing.pte"], 3, "No such file"),
        (["run", str(DATA)], 3, "folder"),
        (["run", str(DATA / "add.npz")], 3, "zip archive"),
        (["run", str(DATA / "add.pte"), "--method", "f"], 3, "has no method 'f'"),
        (["run", str(DATA / "missing_op.pte")], 3, "pteron_test::twist.out"),
        (["run", str(DATA / "add.pte")], 2, "takes 0: float32[2, 2], 1: float32[2, 2]"),
        (["run", str(DATA / "add.pte"), "-i", "no.npy"], 2, "no input file no.npy"),
        (["run", str(DATA / "add.pte"), "-i", "why"], 2, "neither a file nor a number"),
        (["run", str(DATA / "add.pte"), "-i", "z=1"], 2, "no input is named 'z'"),
        (["run", str(DATA / "add.pte"), "-i", "1", "-i", "2"], 4, "Input 0 of method 'forward'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_complaints(
    arguments: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line on stderr, nothing on stdout, a status of its own for each kind."""
    assert main(arguments) == status
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("pteron: ") and words in err


def test_inspect(capsys: pytest.CaptureFixture[str]) -> None:
    """Text for people, JSON for programs."""
    assert main(["inspect", str(DATA / "conv_xnnpack.pte")]) == 0
    text = capsys.readouterr().out
    assert "forward(float32[1, 3, 8, 8]) -> float32[1, 5]" in text
    assert "XnnpackBackend 1 call," in text
    assert main(["inspect", "--json", str(DATA / "tree.pte")]) == 0
    facts = json.loads(capsys.readouterr().out)
    (method,) = facts["methods"]
    assert facts["schema"] == 1
    assert [value["name"] for value in method["inputs"]] == ["0", "mask", "scale"]


def test_both_entry_points() -> None:
    """`python -m pteron` is the command."""
    command = [sys.executable, "-m", "pteron", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("pteron 0.1.0 (ExecuTorch 1.5.1)")


def test_output_is_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    """Not every terminal can show more: a shape that may be smaller too."""
    assert main(["inspect", str(DATA / "dyn.pte")]) == 0
    text = capsys.readouterr().out
    assert text.isascii() and "float32[<=4, <=8]" in text


def test_a_reader_that_goes_away() -> None:
    """`pteron inspect FILE | head` is silent."""
    command = [sys.executable, "-X", "dev", "-m", "pteron", "inspect", str(DATA / "add.pte")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait() == 1


def test_a_place_that_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    """The file and the reason, not Python's own text."""
    assert main(["run", str(DATA / "add.pte"), "--random", "0", "-o", "/nowhere/out.npz"]) == 4
    wanted = "pteron: /nowhere/out.npz cannot be written: No such file or directory\n"
    assert capsys.readouterr().err == wanted
