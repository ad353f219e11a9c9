"""Methods that share mutable buffers give what they give on the official runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
official = pytest.importorskip("executorch.runtime")

import pteron  # noqa: E402

DATA = Path(__file__).parents[1] / "data"
CALLS = {
    "state_two_methods": ["forward", "set_state", "forward", "forward", "set_state", "forward"],
    "state_shared": ["peek", "forward", "get", "forward", "peek", "get"],
    "state_shared_unnamed": ["forward", "peek", "get", "forward", "get", "peek"],
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_in_turn(name: str) -> None:
    """Design decision 10: every method is loaded first, since the official loading resets state."""
    path = DATA / f"{name}.pte"
    ours = pteron.load(path)
    theirs = official.Runtime.get().load_program(path)
    loaded = {method: theirs.load_method(method) for method in ours.method_names}
    for step, method in enumerate(CALLS[name]):
        inputs = [np.full((2, 2), step + 1, np.float32)] * len(ours[method].metadata.inputs)
        want = loaded[method].execute([torch.from_numpy(x) for x in inputs])
        got = ours[method].execute(inputs)
        for a, b in zip(got, want, strict=True):
            assert np.array_equal(a, b.numpy()), (step, method)
