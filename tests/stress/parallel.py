"""Run many methods at once and compare every result, to the bit, with that of a serial run.

    python tests/stress/parallel.py --cpu-minutes 30 --seed 1

Threads run methods that they share, methods of one program and of different ones, on XNNPACK (fp32
and quantized) and on the kernels that divide work among the threads of the pool, with shared state
too; meanwhile they load, close and drop methods and change the number of threads of the pool. The
serial results come from one thread and a pool of one. Prints one JSON line; exits with 1 if one of
the results differed or a call failed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import pteron
from pteron.errors import ClosedError
from pteron.runtime import Runtime

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "data"
PROGRAMS = (
    *sorted(HERE.glob("*.pte")),
    *(
        DATA / f"{name}.pte"
        for name in ("big_add", "conv", "conv_xnnpack", "mlp", "mlp_xnnpack", "quantized")
    ),
)
VARIANTS = 3  # sets of inputs for each program
SHARED = 2  # methods of each program that all threads run
THREAD_COUNTS = (1, 2, 3, 4, 6)


class Case:
    """A program, sets of inputs, and what a serial run gives for each."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.program = pteron.load(path)
        method = self.program.load_method()
        rng = np.random.default_rng(seed)
        infos = method.metadata.inputs
        self.inputs = [
            [rng.standard_normal(info.sizes()).astype(info.dtype_name()) for info in infos]
            for _ in range(VARIANTS)
        ]
        self.expected = [self.bits(method.execute(inputs)) for inputs in self.inputs]
        self.shared = [self.program.load_method() for _ in range(SHARED)]

    @staticmethod
    def bits(outputs: list[Any]) -> list[Any]:
        """The outputs as bytes, so that NaN equals itself and -0 differs from 0."""
        return [np.asarray(output).reshape(-1).view(np.uint8) for output in outputs]


class Stress:
    """Threads that work until the process has used enough processor time."""

    def __init__(self, paths: list[Path], threads: int, seed: int, cpu_seconds: float) -> None:
        self.runtime = Runtime.get()
        self.runtime.num_threads = 1
        self.cases = [Case(path, seed + i) for i, path in enumerate(paths)]
        self.counter = pteron.load(DATA / "state_shared.pte").load_method()
        self.seed, self.threads, self.cpu_seconds = seed, threads, cpu_seconds
        self.counts: Counter[str] = Counter()
        self.lock = threading.Lock()  # of counts

    def compare(self, case: Case, variant: int, outputs: list[Any], counts: Counter[str]) -> None:
        """Count the elements of a run, and the run if one of them differs."""
        counts["runs"] += 1
        bits = Case.bits(outputs)
        counts["elements"] += sum(int(np.asarray(output).size) for output in outputs)
        if not all(map(np.array_equal, bits, case.expected[variant])):
            counts["mismatches"] += 1
            print(f"{case.path.name}: variant {variant} differs", file=sys.stderr)

    def step(
        self, rng: random.Random, own: dict[Path, pteron.Method], counts: Counter[str]
    ) -> None:
        """One thing that a thread may do."""
        case, variant = rng.choice(self.cases), rng.randrange(VARIANTS)
        inputs = case.inputs[variant]
        what = rng.random()
        if what < 0.45:  # a method that others run too, and may close
            i = rng.randrange(SHARED)
            try:
                self.compare(case, variant, case.shared[i].execute(inputs), counts)
            except ClosedError:
                counts["closed"] += 1
        elif what < 0.80:  # the thread's own, of the common program
            if case.path not in own:
                own[case.path] = case.program.load_method()
                counts["loads"] += 1
            self.compare(case, variant, own[case.path].execute(inputs), counts)
        elif what < 0.86:  # a new program, which goes at once
            counts["loads"] += 1
            outputs = pteron.load(case.path).load_method().execute(inputs)
            self.compare(case, variant, outputs, counts)
        elif what < 0.90:
            own.pop(case.path, None)
        elif what < 0.92:  # closed while others may run it
            i = rng.randrange(SHARED)
            old, case.shared[i] = case.shared[i], case.program.load_method()
            old.close()
            counts["closes"] += 1
        elif what < 0.94:
            self.runtime.num_threads = rng.choice(THREAD_COUNTS)
            counts["thread changes"] += 1
        else:  # state that all threads add to; whole numbers, so that the order does not matter
            self.counter(np.ones((2, 2), np.float32))
            counts["state runs"] += 1

    def work(self, thread: int) -> None:
        """What one thread does."""
        rng, counts = random.Random(f"{self.seed}-{thread}"), Counter[str]()
        own: dict[Path, pteron.Method] = {}
        try:
            while time.process_time() < self.cpu_seconds:
                self.step(rng, own, counts)
        except Exception:
            counts["failures"] += 1
            traceback.print_exc()
        with self.lock:
            self.counts += counts

    def check_state(self) -> None:
        """All runs on the shared state were counted; it begins with 5."""
        counted = np.asarray(self.counter.state["count"]).item() - 5
        if counted != self.counts["state runs"]:
            self.counts["mismatches"] += 1
            print(f"the shared state counted {counted} runs", file=sys.stderr)

    def run(self) -> dict[str, Any]:
        """Work, and what was found."""
        start = time.perf_counter()
        threads = [threading.Thread(target=self.work, args=(i,)) for i in range(self.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.check_state()
        names = ("runs", "elements", "loads", "closes", "closed", "thread changes", "state runs")
        return {
            "seed": self.seed,
            "threads": self.threads,
            "cpu_seconds": round(time.process_time(), 1),
            "wall_seconds": round(time.perf_counter() - start, 1),
            **{name.replace(" ", "_"): self.counts[name] for name in names},
            "mismatches": self.counts["mismatches"],
            "failures": self.counts["failures"],
        }


def main() -> int:
    parser = argparse.ArgumentParser(description="Run methods in parallel and compare to the bit.")
    parser.add_argument("--cpu-minutes", type=float, default=1.0, help="processor time to use (1)")
    parser.add_argument("--threads", type=int, default=2 * (os.cpu_count() or 1) + 2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("programs", type=Path, nargs="*", help="more programs, of float inputs")
    given = parser.parse_args()
    found = Stress(
        [*PROGRAMS, *given.programs], given.threads, given.seed, 60 * given.cpu_minutes
    ).run()
    print(json.dumps(found))
    return 1 if found["mismatches"] or found["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
