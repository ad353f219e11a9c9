"""A real network on a real photograph: EfficientNet-Lite0 and scikit-image's cat."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import pteron

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "benchmarks" / "models"
EGYPTIAN_CAT = 285  # of ImageNet's 1000 classes


@pytest.fixture(scope="module")
def models() -> Path:
    """The exported programs; the export takes about a minute, once."""
    if not (MODELS / "cat.npz").exists():
        MODELS.mkdir(exist_ok=True)
        script = ROOT / "benchmarks" / "export_efficientnet.py"
        subprocess.run([sys.executable, str(script), str(MODELS)], check=True)
    return MODELS


@pytest.mark.parametrize("name", ["efficientnet_lite0_xnnpack", "efficientnet_lite0"])
def test_same_cat(models: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Both bindings see the cat, agree to 1e-5, and are timed side by side."""
    import torch
    from executorch.runtime import Runtime

    with np.load(models / "cat.npz") as data:
        image, eager = data["image"], data["logits"]
    ours = pteron.load(models / f"{name}.pte").load_method()
    theirs = Runtime.get().load_program(models / f"{name}.pte").load_method("forward")
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(3):
        started = time.perf_counter()
        result = np.asarray(ours(image))
        seconds[0].append(time.perf_counter() - started)
        started = time.perf_counter()
        official = theirs.execute([torch.from_numpy(image)])[0].numpy()
        seconds[1].append(time.perf_counter() - started)
    assert result.argmax() == official.argmax() == EGYPTIAN_CAT
    np.testing.assert_allclose(result, official, rtol=0, atol=1e-5)
    np.testing.assert_allclose(result, eager, rtol=0, atol=1e-3)
    with capsys.disabled():
        ours_ms, theirs_ms = (min(times) * 1e3 for times in seconds)
        print(f"\n{name}: pteron {ours_ms:.1f} ms, official {theirs_ms:.1f} ms")
