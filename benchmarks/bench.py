"""Speed, start and memory of pteron beside the official bindings, interleaved in one run.

Prints one row for each piece of work and writes them to ``benchmarks/results.json``: our median,
theirs, and the ratio of the two with its spread. Only the ratio carries over to another machine.
Needs torch and executorch: ``make bench`` sets that up.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
ROOT = HERE.parent
MODELS = HERE / "models"
DATA = ROOT / "tests" / "data"
OFFICIAL = "executorch 1.5.1"

Work = Callable[[], object]


@dataclass
class Row:
    """One piece of work, done by us and by a peer."""

    name: str
    peer: str
    unit: str
    ours: float  # median
    theirs: float
    ratio: float  # ours / theirs, median over the rounds; below 1 is better
    low: float  # 10th and 90th percentile of the ratio
    high: float

    def __str__(self) -> str:
        """A line of the table."""
        return (
            f"{self.name:40} {self.peer:24} {_scaled(self.ours, self.unit):>10} "
            f"{_scaled(self.theirs, self.unit):>10}   {self.ratio:6.3f}  "
            f"({self.low:.3f} to {self.high:.3f})"
        )


def _scaled(value: float, unit: str) -> str:
    if unit != "s":
        return f"{value:.1f} {unit}"
    for name, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {name}"
    return f"{value / 1e-9:.0f} ns"


def row(name: str, peer: str, unit: str, ours: list[float], theirs: list[float]) -> Row:
    """The row of paired measurements."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, high = np.percentile(ratios, [10, 90])
    return Row(
        name,
        peer,
        unit,
        statistics.median(ours),
        statistics.median(theirs),
        statistics.median(ratios),
        float(low),
        float(high),
    )


def compare(name: str, peer: str, ours: Work, theirs: Work, seconds: float = 3.0) -> Row:
    """Time both in turns, in batches of about 10 ms, for `seconds`."""
    counts = [_batch(work) for work in (ours, theirs)]
    measured: tuple[list[float], list[float]] = ([], [])
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(measured[0]) < 7:
        for times, work, count in zip(measured, (ours, theirs), counts, strict=True):
            started = time.perf_counter()
            for _ in range(count):
                work()
            times.append((time.perf_counter() - started) / count)
    return row(name, peer, "s", *measured)


def _batch(work: Work) -> int:
    """How often `work` is done in about 10 ms; also warms it up."""
    for _ in range(3):
        work()
    started = time.perf_counter()
    work()
    return max(1, int(0.01 / max(time.perf_counter() - started, 1e-7)))


COLD = """
import resource
{code}
usage = resource.getrusage(resource.RUSAGE_SELF)
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
"""
COLD_OURS = """
import numpy as np, pteron
x = np.ones((2, 2), np.float32)
pteron.load({path!r}).forward.execute([x, x])
"""
COLD_OFFICIAL = """
import torch
from executorch.runtime import Runtime
x = torch.ones(2, 2)
Runtime.get().load_program({path!r}).load_method("forward").execute([x, x])
"""


def cold_rows() -> list[Row]:
    """A new process to the first result: CPU seconds and peak memory."""
    path = str(DATA / "add.pte")
    cpu: tuple[list[float], list[float]] = ([], [])
    memory: tuple[list[float], list[float]] = ([], [])
    for round_ in range(4):
        for side, code in enumerate((COLD_OURS, COLD_OFFICIAL)):
            program = COLD.format(code=code.format(path=path))
            command = [sys.executable, "-W", "ignore", "-c", program]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            if round_ > 0:  # the first fills the page cache
                seconds, mebibytes = map(float, out.split()[-2:])
                cpu[side].append(seconds)
                memory[side].append(mebibytes)
    return [
        row("cold start to first result, CPU", OFFICIAL, "s", *cpu),
        row("cold start, peak memory", OFFICIAL, "MiB", *memory),
    ]


def program_rows() -> list[Row]:
    """Loading and calling programs, NumPy in and result out against torch in and torch out."""
    import torch
    from executorch.runtime import Runtime

    import pteron

    runtime = Runtime.get()

    def call(name: str, path: Path, *inputs: np.ndarray) -> Row:
        ours = pteron.load(path).load_method()
        theirs = runtime.load_program(path).load_method("forward")
        tensors = [torch.from_numpy(x) for x in inputs]
        np.testing.assert_allclose(
            np.asarray(ours.execute(list(inputs))[0]), theirs.execute(tensors)[0], atol=1e-4
        )
        return compare(name, OFFICIAL, lambda: ours(*inputs), lambda: theirs.execute(tensors))

    def load(name: str, path: Path, mmap: bool = False) -> Row:
        # The official bindings map files: mapping is what compares where there are weights.
        return compare(
            name,
            OFFICIAL,
            lambda: pteron.load(path, mmap=mmap).load_method(),
            lambda: runtime.load_program(path).load_method("forward"),
        )

    ones = np.ones((2, 2), np.float32)
    big = np.ones((1024, 1024), np.float32)
    digits = ROOT / "examples" / "digits"
    digit = np.ones((1, 1, 8, 8), np.float32)
    add = pteron.load(DATA / "add.pte").load_method()
    official_add = runtime.load_program(DATA / "add.pte").load_method("forward")
    x = torch.ones(2, 2)
    rows = [
        load("load add", DATA / "add.pte"),
        call("add 2x2", DATA / "add.pte", ones, ones),
        compare(
            "add 2x2, torch in and out",
            OFFICIAL,
            lambda: add(x, x),
            lambda: official_add.execute([x, x]),
        ),
        call("add 1024x1024", DATA / "big_add.pte", big, big),
        call("digits", digits / "digits.pte", digit),
        call("digits, XNNPACK", digits / "digits_xnnpack.pte", digit),
    ]
    image = np.load(efficientnet() / "cat.npz")["image"]
    for suffix, label in (("_xnnpack", ", XNNPACK"), ("", "")):
        path = MODELS / f"efficientnet_lite0{suffix}.pte"
        rows.append(load(f"map EfficientNet-Lite0{label}", path, mmap=True))
        rows.append(call(f"EfficientNet-Lite0{label}", path, image))
    return rows


def check_rows() -> list[Row]:
    """The check of a file's structure, as a share of the load that begins with it."""
    import pteron
    from pteron import _core

    def share(name: str, path: Path) -> Row:
        data = path.read_bytes()
        return compare(
            f"check of {name} in its load",
            "the load, in pteron",
            lambda: _core.check_program(data),
            lambda: pteron.load(path).load_method(),
        )

    rows = [share("add", DATA / "add.pte")]
    for suffix, label in (("_xnnpack", ", XNNPACK"), ("", "")):
        path = efficientnet() / f"efficientnet_lite0{suffix}.pte"
        rows.append(share(f"EfficientNet{label}", path))
    return rows


def value_rows() -> list[Row]:
    """One value on its way in or out, above the bare call: bench_values.py says how."""
    import bench_values

    return [
        Row(
            found["name"],
            found["peer"],
            "ns",
            found["ours_ns"],
            found["theirs_ns"],
            found["ratio"],
            *found["spread"],
        )
        for found in bench_values.rows()
    ]


def efficientnet() -> Path:
    """The folder of the exported EfficientNet-Lite0, exported if it is not there yet."""
    if not (MODELS / "cat.npz").exists():
        MODELS.mkdir(exist_ok=True)
        script = HERE / "export_efficientnet.py"
        subprocess.run([sys.executable, str(script), str(MODELS)], check=True)
    return MODELS


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=HERE / "results.json")
    args = parser.parse_args()
    print(f"{'work':40} {'peer':24} {'pteron':>10} {'peer':>10}    ratio  (10 to 90 %)", flush=True)
    rows = []
    for measure in (cold_rows, program_rows, check_rows, value_rows):
        for result in measure():
            print(result, flush=True)
            rows.append(asdict(result))
    args.output.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
