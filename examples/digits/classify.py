"""Classify scanned handwritten digits with pteron.

The two programs beside this file are one small CNN, exported by ``train_and_export.py`` with and
without XNNPACK; ``digits_test.npz`` has the 450 images that it never saw (8 x 8 pixels, scanned,
from scikit-learn's copy of the UCI set). Needs pteron and NumPy, nothing else.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

import numpy as np

import pteron

HERE = Path(__file__).parent
SHADES = " .:-=+*#%@"


def draw(image: np.ndarray) -> list[str]:
    """The lines of a digit: two characters a pixel, darker where there is more ink."""
    return [
        "".join(2 * SHADES[int(pixel) * (len(SHADES) - 1) // 16] for pixel in row) for row in image
    ]


def main() -> None:
    """Run both programs on all images and report."""
    with np.load(HERE / "digits_test.npz") as data:
        images, labels = data["images"], data["labels"]
    inputs = images.astype(np.float32)[:, None, None] / 16  # one image a call: (1, 1, 8, 8)

    print(f"{len(images)} scanned digits that the network never saw\n")
    guesses = np.empty_like(labels)
    for name in ("digits.pte", "digits_xnnpack.pte"):
        started = time.perf_counter()
        forward = pteron.load(HERE / name).load_method("forward")
        load = time.perf_counter() - started

        seconds = np.empty(len(inputs))
        for i, image in enumerate(inputs):
            started = time.perf_counter()
            logits = forward(image)
            seconds[i] = time.perf_counter() - started
            guesses[i] = np.argmax(logits)
        accuracy = np.mean(guesses == labels)
        median, p90 = np.percentile(seconds, [50, 90]) * 1e6
        print(
            f"{name:20} accuracy {accuracy:.1%}   {median:.0f} us per image (90 %: {p90:.0f} us)   "
            f"load {load * 1e3:.1f} ms"
        )
        assert accuracy >= 0.97, "the programs are damaged: 97 % were right when they were exported"

    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    torch = "imported, but not by us" if "torch" in sys.modules else "not imported"
    print(f"process memory {memory:.0f} MiB at most, torch {torch}\n")

    some = range(0, len(images), len(images) // 5)[:5]
    print("   ".join(f"{f'this is a {guesses[i]}':16}" for i in some))
    for lines in zip(*(draw(images[i]) for i in some), strict=True):
        print("   ".join(lines))
    wrong = np.flatnonzero(guesses != labels)
    if len(wrong):
        i = wrong[0]
        print(f"\nof the {len(wrong)} mistakes, one: a {labels[i]} taken for a {guesses[i]}")
        print("\n".join(draw(images[i])))


if __name__ == "__main__":
    main()
