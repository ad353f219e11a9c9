"""Programs of every exporter release since 1.0: ``tests/data/releases`` says how they were made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import DATA

import pteron

FOLDER = DATA / "releases"
FILES = sorted(path for path in FOLDER.glob("*/*.*") if path.suffix in (".pte", ".bpte"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
@pytest.mark.parametrize("verification", pteron.Verification)
@pytest.mark.parametrize("mmap", [False, True])
def test_program(path: Path, verification: pteron.Verification, mmap: bool) -> None:
    """It loads in every way, can be looked into, and gives the numbers of torch."""
    if path.suffix == ".bpte":
        bundle = pteron.load_bundled(path, verification=verification)
        bundle.verify()
        program = bundle.program
    else:
        data = path.with_suffix(".ptd")
        data_path = data if data.exists() else None
        program = pteron.load(path, data_path=data_path, verification=verification, mmap=mmap)
    with np.load(FOLDER / f"{path.stem}.npz") as values:
        for name in program:
            start = "" if name == "forward" else f"{name}."
            count = program.metadata(name).num_inputs()
            inputs = [values[f"{start}in{i}"] for i in range(count)]
            for method in (program.load_method(name), program[name]):
                (got,) = method.execute(inputs)
                np.testing.assert_allclose(got, values[f"{start}out0"], rtol=1e-5, atol=1e-5)


def test_distinct_formats() -> None:
    """The oldest and the newest, and no less than was kept."""
    assert {path.parent.name for path in FILES} >= {"1.0.1", "1.1.0", "1.2.0", "1.3.1"}
    assert len(FILES) > 25
