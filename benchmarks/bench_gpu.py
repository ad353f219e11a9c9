"""Latency and bandwidth of CUDA programs on this GPU, beside torch in the same process.

Rounds are interleaved; each row is the median over the rounds of the time of one call, with the
quartiles. "synchronised" calls end when the device is done. Needs a GPU and torch; the programs are
those of ``tests/data/cuda``: ``make bench-gpu`` sets that up.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pteron

TESTS = Path(__file__).parent.parent / "tests"
sys.path.insert(0, str(TESTS))

from cuda_fakes import Golden, read_golden, unpack_goldens  # noqa: E402

Work = Callable[[], object]
from_host = pteron.ExecuTorchResult.from_host
sync = torch.cuda.synchronize


class Mlp(torch.nn.Module):
    """The model of ``mlp_fp32``."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(64, 128)
        self.b = torch.nn.Linear(128, 16)

    def forward(self, x: torch.Tensor) -> Any:
        """Two layers."""
        return self.b(torch.relu(self.a(x)))


def then_sync(work: Work) -> Work:
    """The work, and the wait for the device."""

    def both() -> None:
        work()
        sync()

    return both


def replay(work: Callable[[], Any]) -> Work:
    """A CUDA graph of the work."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    sync()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def compiled(model: Any, inputs: list[Any]) -> Work | None:
    """torch.compile's version of a model, warm; None where it does not work."""
    try:
        fast = torch.compile(model)
        for _ in range(5):
            fast(*inputs)
    except Exception as error:
        print(f"torch.compile: {type(error).__name__}")
        return None
    return lambda: fast(*inputs)


def binary_add(x: Any, y: Any) -> Any:
    """What ``add`` computes."""
    return x + y


def add_rows(name: str, program: Golden) -> dict[str, Work | None]:
    """Device tensors in and out: the sum of two."""
    method = program.load().load_method()
    stream = torch.cuda.Stream()
    x, y = (torch.from_numpy(x).cuda() for x in program.inputs)
    own = program.place(method)
    sync()
    return {
        f"{name}: pteron, results in, default mode": lambda: method.execute(own),
        f"{name}: pteron, torch in and out, default mode": lambda: method.execute([x, y]),
        f"{name}: pteron, results in, stream=": lambda: method.execute(own, stream=stream),
        f"{name}: pteron, results in, stream=, synchronised": then_sync(
            lambda: method.execute(own, stream=stream)
        ),
        f"{name}: pteron, torch in and out, stream=0, synchronised": then_sync(
            lambda: method.execute([x, y], stream=0)
        ),
        f"{name}: torch eager": lambda: x + y,
        f"{name}: torch eager, synchronised": then_sync(lambda: x + y),
        f"{name}: torch.compile, synchronised": then_sync(fast)
        if (fast := compiled(binary_add, [x, y]))
        else None,
        f"{name}: CUDA graph, synchronised": then_sync(replay(lambda: x + y)),
    }


def planned_rows(program: Golden) -> dict[str, Work | None]:
    """Planned memory on the device: inputs are copied there, outputs from there or borrowed."""
    method = program.load().load_method()
    own = program.place(method)
    return {
        "add 2x3, planned: pteron, default mode": lambda: method.execute(own),
        "add 2x3, planned: pteron, default mode, clone_outputs=False": lambda: method.execute(
            own, clone_outputs=False
        ),
    }


def mlp_rows(program: Golden) -> dict[str, Work | None]:
    """Host arrays in and out; torch with the copies, and without them on the device."""
    method = program.load().load_method()
    model = Mlp().cuda().eval()
    host = program.inputs[0]
    pinned = torch.from_numpy(host).pin_memory()
    x = torch.from_numpy(host).cuda()
    static = x.clone()

    def copies(run: Callable[[Any], Any]) -> Work:
        return lambda: run(pinned.to("cuda", non_blocking=True)).cpu()

    graph = replay(lambda: model(static))
    fast = compiled(model, [x])
    return {
        "mlp: pteron, host arrays in and out": lambda: method.execute([host]),
        "mlp: torch eager, host tensors in and out": copies(model),
        "mlp: torch eager, on the device, synchronised": then_sync(lambda: model(x)),
        "mlp: torch.compile, on the device, synchronised": then_sync(fast) if fast else None,
        "mlp: CUDA graph, on the device, synchronised": then_sync(graph),
    }


def wait_rows() -> dict[str, Work | None]:
    """What waits and orderings cost."""
    event = torch.cuda.Event()
    stream, other = torch.cuda.Stream(), torch.cuda.Stream()

    def order() -> None:
        event.record(stream)
        event.wait(other)

    return {
        "wait for the idle device (torch.cuda.synchronize)": sync,
        "record an event and let a stream wait for it (torch)": order,
    }


def copy_rows(nbytes: int) -> dict[str, Work | None]:
    """To the device and back."""
    array = np.ones(nbytes // 4, np.float32)
    there = from_host(array, "cuda:0")
    tensor = torch.from_numpy(array)
    size = f"{nbytes >> 20} MiB"

    def upload() -> None:
        from_host(array, "cuda:0")
        sync()

    return {
        f"{size}: from_host": upload,
        f"{size}: to_host": there.to_host,
        f"{size}: torch, pageable memory to the device": then_sync(tensor.cuda),
        f"{size}: torch, from the device": tensor.cuda().cpu,
    }


def busy_rows(program: Golden) -> list[dict[str, Any]]:
    """How long a call takes on the host while another stream is busy for 10 ms."""
    method = program.load().load_method()
    own = program.place(method)
    stream, busy = torch.cuda.Stream(), torch.cuda.Stream()
    rows = []
    for name, options in (("default mode", {}), ("stream=", {"stream": stream})):
        times = []
        for _ in range(20):
            sync()
            with torch.cuda.stream(busy):
                torch.cuda._sleep(20_000_000)
            start = time.perf_counter()
            method.execute(own, **options)
            times.append((time.perf_counter() - start) * 1e6)
        rows.append(row(f"add: pteron, {name}, another stream busy for about 10 ms", times))
    sync()
    return rows


def row(name: str, times: list[float]) -> dict[str, Any]:
    """Median and quartiles, in microseconds."""
    low, middle, high = statistics.quantiles(times, n=4)
    print(f"{middle:10.1f} us  [{low:.1f}, {high:.1f}]  {name}", flush=True)
    return {"name": name, "us": round(middle, 2), "quartiles": [round(low, 2), round(high, 2)]}


def measure(works: dict[str, Work | None], rounds: int, calls: int) -> list[dict[str, Any]]:
    """Time each work `calls` times a round, all works by turns."""
    given = {name: work for name, work in works.items() if work is not None}
    times: dict[str, list[float]] = {name: [] for name in given}
    for work in given.values():
        for _ in range(20):
            work()
    for _ in range(rounds):
        for name, work in given.items():
            sync()
            start = time.perf_counter()
            for _ in range(calls):
                work()
            times[name].append((time.perf_counter() - start) / calls * 1e6)
            sync()
    return [row(name, values) for name, values in times.items()]


def main() -> None:
    """Measure everything and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results_gpu.json")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, pteron._core.cuda_driver())
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        goldens = unpack_goldens(Path(folder))
        for works in (
            add_rows("add 2x3", read_golden(goldens / "add_devio")),
            add_rows("add 1024x1024", read_golden(goldens / "add_big_devio")),
            planned_rows(read_golden(goldens / "add_devio_planned")),
            mlp_rows(read_golden(goldens / "mlp_fp32")),
            wait_rows(),
        ):
            rows += measure(works, options.rounds, 200)
        rows += busy_rows(read_golden(goldens / "add_devio"))
        for nbytes in (4 << 20, 256 << 20):
            rows += measure(copy_rows(nbytes), 5, max(2, (64 << 20) // nbytes))
    options.out.write_text(json.dumps({"device": torch.cuda.get_device_name(), "rows": rows}))


if __name__ == "__main__":
    main()
