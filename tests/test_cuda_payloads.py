"""Payloads of older and newer exporters, executed on the fake driver."""

from __future__ import annotations

from typing import Any

import pytest
from cuda_fakes import FALLBACK, KEY, FakeDriver, Goldens, with_variants

from pteron import errors

RELEASES = ("1.2.0", "1.3.1", "1.4.1")


# One blob of weights, up to 1.4


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("model", ["add", "mlp", "state"])
def test_blobs(driver: FakeDriver, golden: Goldens, release: str, model: str) -> None:
    """Keys by the method's name (1.2, 1.3) or in the payload (1.4); weights and state in a blob."""
    program = golden(f"{model}_{release}")
    assert b"ETCUDAFQN" not in program.data
    method = program.load().load_method()
    for step in range(len(program.steps)):
        program.check(method.execute(program.place(method)), step)
    again = program.load().load_method()  # with a state of its own
    program.check(again.execute(program.place(again)))


@pytest.mark.parametrize(
    ("release", "key"),
    [("1.2.0", "forward_weights_blob"), ("1.4.1", "[0-9a-f]{64}_weights_blob")],
)
def test_missing_blob(golden: Goldens, release: str, key: str) -> None:
    """Without its .ptd a program names the entry that it misses."""
    program = golden(f"mlp_{release}")
    with pytest.raises(errors.ExecuTorchError, match=rf"no data entry '{key}'.*\.ptd"):
        program.load(data_path=()).load_method()


# Several libraries, newer than 1.5.1


@pytest.mark.parametrize(
    "variants",
    [
        [(0, 0, 0, KEY)],
        [(90, 0, 0, KEY)],
        [(80, 0, 0, "other"), (90, 0, 0, KEY)],
        [(80, 80, FALLBACK, "ptx"), (90, 90, 0, KEY)],
        [(80, 80, 0, KEY)],
        [(100, 0, 0, "newer"), (80, 80, FALLBACK, KEY)],
        [(70, 70, FALLBACK, "p"), (100, 0, 0, "q"), (80, 80, FALLBACK, KEY)],
    ],
    ids=["any", "one", "exact", "exact before PTX", "PTX alone", "PTX", "newest PTX"],
)
def test_choice_of_library(
    driver: FakeDriver, golden: Goldens, variants: list[tuple[int, int, int, str]]
) -> None:
    """A GPU of sm_90 gets its own machine code, else PTX that it can compile."""
    program = golden("mlp_fp32")
    method = program.load(with_variants(program.data, variants)).load_method()
    program.check(method.execute(program.inputs))


@pytest.mark.parametrize(
    ("variants", "words"),
    [
        (
            [(80, 0, 0, KEY), (100, 0, 0, "b")],
            r"no code for this GPU \(sm_90\), only for sm_80, sm_100",
        ),
        ([(100, 100, FALLBACK, KEY)], r"no code for this GPU \(sm_90\), only for sm_100"),
        ([(80, 80, 0, KEY), (86, 0, 0, "b")], r"no code for this GPU \(sm_90\)"),
    ],
    ids=["other GPUs", "newer PTX", "PTX that is no fallback"],
)
def test_no_library_fits(
    driver: FakeDriver, golden: Goldens, variants: list[Any], words: str
) -> None:
    """What the file has is said, and what the GPU is."""
    program = golden("add")
    with pytest.raises(errors.ExecuTorchError, match=words) as caught:
        program.load(with_variants(program.data, variants)).load_method()
    assert "NotSupported" in str(caught.value)


def test_unknown_form(golden: Goldens) -> None:
    """A payload of a later exporter is refused by its name."""
    program = golden("add")
    data = program.data.replace(b"ETCUDAFQN3", b"ETCUDAFQN7")
    with pytest.raises(errors.ExecuTorchError, match="unknown magic: ETCUDAFQN7"):
        program.load(data).load_method()
