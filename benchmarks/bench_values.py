"""What values cost on their way in and out: nanoseconds for each above the bare call.

An input's cost is the difference between a program of eight inputs and one of two that runs the
same kernel; an output's that between eight outputs and one. Beside each stands the same exchange
by NumPy or torch, measured in turns with ours, for which only the ratio carries over to another
machine. Times are the lower quartile over the rounds, of the thread's own CPU time. ``rows()`` is
for bench.py; run as a script it prints the table.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pteron

DATA = Path(__file__).parents[1] / "tests" / "data"
ROUNDS = 41
Work = Callable[[], object]


def rows() -> list[dict[str, Any]]:
    """One row for each kind of value; torch's only where torch is installed."""
    try:
        import torch
    except ImportError:
        torch = None
    found = [*input_rows(torch), *output_rows(torch), *exchange_rows(torch)]
    return found


def input_rows(torch: Any) -> list[dict[str, Any]]:
    """Reading and checking one input of each kind."""
    x = np.arange(4, dtype=np.float32).reshape(2, 2)
    r = pteron.ExecuTorchResult.from_host(x)
    view = memoryview(x)
    legacy = Legacy(x)
    kinds: dict[str, tuple[Any, str, Work]] = {
        "ndarray": (x, "np.array(x)", lambda: np.array(x)),
        "strided ndarray": (x.T, "np.ascontiguousarray(x)", lambda: np.ascontiguousarray(x.T)),
        "result": (r, "np.from_dlpack(r)", lambda: np.from_dlpack(r)),
        "memoryview": (view, "np.asarray(view)", lambda: np.asarray(view)),
        "__dlpack__": (legacy, "np.from_dlpack(x)", lambda: np.from_dlpack(legacy)),
    }
    if torch is not None:
        t = torch.from_numpy(x.copy())
        p = torch.nn.Parameter(t)
        kinds["ndarray, beside torch"] = (x, "torch.from_numpy(x)", lambda: torch.from_numpy(x))
        kinds["torch.Tensor"] = (t, "t.numpy()", t.numpy)
        kinds["torch.nn.Parameter"] = (p, "p.detach()", p.detach)
    eight, two = load("eight_inputs").execute, load("add").execute

    def row(name: str, value: Any, peer: str, theirs: Work) -> dict[str, Any]:
        many, few = [value] * 8, [value] * 2
        return compare(
            f"in: {name}", peer, lambda: eight(many), theirs, bare=lambda: two(few), count=6
        )

    return [row(name, *kind) for name, kind in kinds.items()]


def output_rows(torch: Any) -> list[dict[str, Any]]:
    """Making one output, its memory and its copy of 24 bytes included."""
    eight, one = load("eight_outputs").execute, load("return_input").execute
    x = [np.zeros((2, 3), np.float32)]
    found = [
        compare(
            "out: result", "x.copy()", lambda: eight(x), x[0].copy, bare=lambda: one(x), count=7
        )
    ]
    if torch is not None:
        t = [torch.zeros(2, 3)]
        found.append(
            compare(
                "out: torch.Tensor", "t.clone()", lambda: eight(t), t[0].clone,
                bare=lambda: one(t), count=7,
            )
        )  # fmt: skip
    return found


def exchange_rows(torch: Any) -> list[dict[str, Any]]:
    """What results are asked for."""
    x = np.zeros((2, 3), np.float32)
    r = pteron.ExecuTorchResult.from_host(x)
    version = (1, 0)
    found = [
        compare("numpy()", "x.view()", r.numpy, x.view),
        compare(
            "__dlpack__(max_version)", "NumPy's",
            lambda: r.__dlpack__(max_version=version), lambda: x.__dlpack__(max_version=version),
        ),
        compare(
            "np.from_dlpack", "of an ndarray",
            lambda: np.from_dlpack(r), lambda: np.from_dlpack(x),
        ),
        compare("np.asarray", "of a memoryview", lambda: np.asarray(r), Asarray(x)),
        compare("memoryview", "of an ndarray", lambda: memoryview(r), lambda: memoryview(x)),
    ]  # fmt: skip
    if torch is not None:
        found += [
            compare("numpy(), beside torch", "t.numpy()", r.numpy, torch.zeros(2, 3).numpy),
            compare("torch()", "torch.from_numpy(x)", r.torch, lambda: torch.from_numpy(x)),
            compare(
                "torch.from_dlpack", "of an ndarray",
                lambda: torch.from_dlpack(r), lambda: torch.from_dlpack(x),
            ),
        ]  # fmt: skip
    return found


class Legacy:
    """An array that shows nothing but ``__dlpack__``, which is NumPy's own."""

    def __init__(self, x: Any) -> None:
        self.__dlpack__ = x.__dlpack__
        self.__dlpack_device__ = x.__dlpack_device__


class Asarray:
    """``np.asarray`` of a buffer that is no array."""

    def __init__(self, x: Any) -> None:
        self.view = memoryview(x)

    def __call__(self) -> Any:
        return np.asarray(self.view)


def load(name: str) -> pteron.Method:
    return pteron.load(DATA / f"{name}.pte").load_method()


def compare(
    name: str, peer: str, ours: Work, theirs: Work, bare: Work | None = None, count: int = 1
) -> dict[str, Any]:
    """Rounds in which all are timed in turns; `bare` is taken off ours."""
    works = [ours, theirs, bare or empty, empty]
    loops = [_loops(work) for work in works]
    mine, other = [], []
    for _ in range(ROUNDS):
        a, b, c, d = (_time(work, n) for work, n in zip(works, loops, strict=True))
        mine.append(max(a - c, 0.1) / count)
        other.append(max(b - d, 0.1))
    ratios = sorted(a / b for a, b in zip(mine, other, strict=True))
    return {
        "name": name,
        "peer": peer,
        "ours_ns": statistics.quantiles(mine)[0],
        "theirs_ns": statistics.quantiles(other)[0],
        "ratio": statistics.median(ratios),
        "spread": (ratios[ROUNDS // 10], ratios[-1 - ROUNDS // 10]),
    }


def empty() -> None:
    """The call of a Python function, which is in every measurement."""


def _loops(work: Work) -> int:
    """How often `work` is done in about 2 ms; also warms it up."""
    for _ in range(20):
        work()
    return max(5, int(2e6 / max(_time(work, 20), 1)))


def _time(work: Work, loops: int) -> float:
    """Nanoseconds of one."""
    repeat = range(loops)
    start = time.thread_time_ns()  # another process may take the processor
    for _ in repeat:
        work()
    return (time.thread_time_ns() - start) / loops


def main() -> None:
    """Print the table."""
    print(f"{'value':26} {'beside':24} {'ours':>8} {'theirs':>8}  ratio (10th to 90th percentile)")
    for row in rows():
        low, high = row["spread"]
        print(
            f"{row['name']:26} {row['peer']:24} {row['ours_ns']:5.0f} ns {row['theirs_ns']:5.0f} ns"
            f"  {row['ratio']:.2f} ({low:.2f} to {high:.2f})"
        )


if __name__ == "__main__":
    sys.exit(main())
