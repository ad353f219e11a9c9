"""Latency and bandwidth of CUDA programs on this GPU, beside torch in the same process.

Works of one table run by turns; a cell is the median over the rounds of the time of one call. It
ends when the device is done, except under "returned". Needs a GPU, torch and a C++ compiler; the
programs are those of ``tests/data/cuda``: ``make bench-gpu`` sets that up. Prints tables as they
stand in ``docs/cuda.md`` and writes all numbers with their quartiles.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bare_container import BareContainer, Shape, model_libraries

import pteron

TESTS = Path(__file__).parent.parent / "tests"
sys.path.insert(0, str(TESTS))

from cuda_fakes import Golden, read_golden, unpack_goldens  # noqa: E402

Work = Callable[[], object]
Cells = dict[tuple[str, str], Work | None]  # (row, column) to the work; None where there is none
from_host = pteron.ExecuTorchResult.from_host
sync = torch.cuda.synchronize


class Mlp(torch.nn.Module):
    """The model of ``mlp_fp32`` and ``mlp_devio``."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(64, 128)
        self.b = torch.nn.Linear(128, 16)

    def forward(self, x: torch.Tensor) -> Any:
        """Two layers."""
        return self.b(torch.relu(self.a(x)))


def add(x: Any, y: Any) -> Any:
    """What ``add`` computes."""
    return x + y


def then_sync(work: Work | None) -> Work | None:
    """The work, and the wait for the device."""
    if work is None:
        return None

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


def load(program: Golden) -> tuple[pteron.Method, str | None]:
    """The method, and the name of its library if it is new to the process."""
    before = model_libraries()
    method = program.load().load_method()
    return method, next(iter(model_libraries() - before), None)


def bare(library: str | None, model: Any, inputs: list[Any]) -> Work | None:
    """The container alone, with torch's tensors."""

    def where(x: Any) -> tuple[int, Shape]:
        return x.data_ptr(), tuple(x.shape)

    if library is None:
        return None
    weights = model.state_dict() if isinstance(model, torch.nn.Module) else {}
    try:
        container = BareContainer(library, {name: where(x) for name, x in weights.items()})
    except OSError as error:
        print(f"bare container: {error}")
        return None
    return container.call([where(x) for x in inputs])


def device_rows(name: str, program: Golden, model: Any) -> Cells:
    """Device tensors in and out."""
    method, library = load(program)
    graph = program.load().load_method(cuda_graph=True)
    stream = torch.cuda.Stream()
    inputs = [torch.from_numpy(x).cuda() for x in program.inputs]
    own = program.place(method)
    kept: list[Any] = [None]

    def keep() -> None:
        """With the result of the last call still there, as in a loop that uses it."""
        kept[0] = graph.execute(own)

    sync()
    rows: dict[str, Work | None] = {
        "bare container": then_sync(bare(library, model, inputs)),
        "default mode": lambda: method.execute(own),
        "default mode, torch tensors": lambda: method.execute(inputs),
        "`stream=`": then_sync(lambda: method.execute(own, stream=stream)),
        "`stream=`, returned": lambda: method.execute(own, stream=stream),
        "`cuda_graph=True`": lambda: graph.execute(own),
        "`cuda_graph=True`, the last result kept": keep,
        "`cuda_graph=True`, torch tensors": lambda: graph.execute(inputs),
        "`cuda_graph=True`, `clone_outputs=False`": lambda: graph.execute(own, clone_outputs=False),
        "`cuda_graph=True`, `stream=`": then_sync(lambda: graph.execute(own, stream=stream)),
        "`cuda_graph=True`, `stream=`, `clone_outputs=False`": then_sync(
            lambda: graph.execute(own, stream=stream, clone_outputs=False)
        ),
        "`cuda_graph=True`, `stream=`, returned": lambda: graph.execute(own, stream=stream),
        "torch eager": then_sync(lambda: model(*inputs)),
        "torch eager, returned": lambda: model(*inputs),
        "torch.compile": then_sync(compiled(model, inputs)),
        "torch CUDA graph, its own memory": then_sync(replay(lambda: model(*inputs))),
    }
    return {(row, name): work for row, work in rows.items()}


def planned_rows(program: Golden) -> Cells:
    """Planned memory on the device: inputs are copied there, outputs from there or borrowed."""
    method, _ = load(program)
    graph = program.load().load_method(cuda_graph=True)
    own = program.place(method)
    name = "add 2x3, planned"
    return {
        ("default mode", name): lambda: method.execute(own),
        ("default mode, `clone_outputs=False`", name): lambda: method.execute(
            own, clone_outputs=False
        ),
        ("`cuda_graph=True`", name): lambda: graph.execute(own),
    }


def host_rows(name: str, program: Golden, model: Any) -> Cells:
    """Host arrays in and out; torch with its copies, from pinned and from pageable memory."""
    method, _ = load(program)
    graph = program.load().load_method(cuda_graph=True)
    host = program.inputs
    pageable = [torch.from_numpy(x) for x in host]
    pinned = [x.pin_memory() for x in pageable]
    result = model(*(x.cuda() for x in pinned)).cpu().pin_memory()

    def with_pinned_copies() -> None:
        on_device = (x.to("cuda", non_blocking=True) for x in pinned)
        result.copy_(model(*on_device), non_blocking=True)
        sync()

    return {
        (name, "pteron"): lambda: method.execute(host),
        (name, "`cuda_graph=True`"): lambda: graph.execute(host),
        (name, "torch eager, pinned copies"): with_pinned_copies,
        (name, "torch eager, pageable copies"): lambda: model(*(x.cuda() for x in pageable)).cpu(),
    }


def wait_rows() -> Cells:
    """What waits and orderings cost."""
    event = torch.cuda.Event()
    stream, other = torch.cuda.Stream(), torch.cuda.Stream()

    def order() -> None:
        event.record(stream)
        event.wait(other)

    return {
        ("waiting for an idle device (torch.cuda.synchronize)", "us"): sync,
        ("recording an event and letting a stream wait for it (torch)", "us"): order,
    }


def busy_rows(program: Golden, table: Table) -> None:
    """A call in each mode while the device is idle, and while another stream is busy for 10 ms."""
    method, _ = load(program)
    own = program.place(method)
    x, y = (torch.from_numpy(x).cuda() for x in program.inputs)
    stream, busy = torch.cuda.Stream(), torch.cuda.Stream()

    def on_stream() -> None:
        method.execute(own, stream=stream)
        stream.synchronize()

    def eager() -> None:
        with torch.cuda.stream(stream):
            add(x, y)
        stream.synchronize()

    modes: dict[str, Work] = {
        "default mode": lambda: method.execute(own),
        "stream=, returned": lambda: method.execute(own, stream=stream),
        "stream=, its stream synchronised": on_stream,
        "torch eager, its stream synchronised": eager,
    }
    for column, cycles in (("idle", 0), ("another stream busy for 10 ms", 20_000_000)):
        for name, work in modes.items():
            times = []
            for _ in range(30):
                sync()
                if cycles:
                    with torch.cuda.stream(busy):
                        torch.cuda._sleep(cycles)
                start = time.perf_counter()
                work()
                times.append((time.perf_counter() - start) * 1e6)
            table.add((name, column), times)
    sync()


def copy_rows(nbytes: int) -> Cells:
    """To the device and back."""
    array = np.ones(nbytes // 4, np.float32)
    there = from_host(array, "cuda:0")
    tensor = torch.from_numpy(array)
    pinned, on_device = tensor.pin_memory(), tensor.cuda()
    column = f"{nbytes >> 20} MiB"
    rows: dict[str, Work | None] = {
        "`from_host`": then_sync(lambda: from_host(array, "cuda:0")),
        "torch, from pageable memory": then_sync(tensor.cuda),
        "torch, from pinned memory": then_sync(lambda: pinned.to("cuda", non_blocking=True)),
        "`to_host`": there.to_host,
        "torch, to pageable memory": on_device.cpu,
        "torch, to pinned memory": then_sync(lambda: pinned.copy_(on_device, non_blocking=True)),
    }
    return {(row, column): work for row, work in rows.items()}


def input_row(program: Golden, nbytes: int) -> Cells:
    """A host array into a program that gives little back."""
    method, _ = load(program)
    x = np.ones((nbytes // 4096, 1024), np.float32)
    return {("host input of a program", f"{nbytes >> 20} MiB"): lambda: method.execute([x])}


@dataclass
class Table:
    """The times of some works, in microseconds, by row and column."""

    title: str
    cells: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add(self, cell: tuple[str, str], times: list[float]) -> None:
        """Median and quartiles of a cell."""
        low, middle, high = statistics.quantiles(times, n=4)
        self.cells[cell] = [round(x, 2) for x in (low, middle, high)]
        name = ": ".join(cell)
        print(f"{middle:10.1f} us  [{low:.1f}, {high:.1f}]  {name}", flush=True)

    def measure(self, works: Cells, rounds: int, calls: int) -> None:
        """Time each work `calls` times a round, all works by turns."""
        given = {cell: work for cell, work in works.items() if work is not None}
        times: dict[tuple[str, str], list[float]] = {cell: [] for cell in given}
        for work in given.values():
            for _ in range(min(20, 2 * calls)):
                work()
        for _ in range(rounds):
            for cell, work in given.items():
                sync()
                start = time.perf_counter()
                for _ in range(calls):
                    work()
                times[cell].append((time.perf_counter() - start) / calls * 1e6)
                sync()
        for cell, values in times.items():
            self.add(cell, values)

    def markdown(self, text: Callable[[str, float], str]) -> str:
        """The medians; `text` makes a cell of a column and a time."""
        rows = list(dict.fromkeys(row for row, _ in self.cells))
        columns = list(dict.fromkeys(column for _, column in self.cells))
        lines = [f"| {self.title} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        for row in rows:
            values = [self.cells.get((row, column)) for column in columns]
            cells = [text(c, v[1]) if v else "" for c, v in zip(columns, values, strict=True)]
            lines.append(f"| {row} | {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"


def microseconds(column: str, value: float) -> str:
    """Short, for a table."""
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def gigabytes(column: str, value: float) -> str:
    """The bandwidth of a copy of as much as its column says."""
    return f"{(int(column.split()[0]) << 20) / value / 1e3:.1f}"


def main() -> None:
    """Measure everything and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results_gpu.json")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, pteron._core.cuda_driver())
    device = Table("microseconds, device tensors")
    host = Table("microseconds, host arrays in and out")
    waits = Table("microseconds")
    busy = Table("add 2x3, microseconds")
    copies = Table("GB/s")
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        goldens = unpack_goldens(Path(folder))
        mlp = Mlp().cuda().eval()
        for name, title, model in (
            ("add_devio", "add 2x3", add),
            ("add_big_devio", "add 1024x1024", add),
            ("mlp_devio", "mlp", mlp),
        ):
            if (goldens / name).is_dir():
                program = read_golden(goldens / name)
                device.measure(device_rows(title, program, model), options.rounds, 200)
        planned = planned_rows(read_golden(goldens / "add_devio_planned"))
        device.measure(planned, options.rounds, 200)
        for name, title, model in (
            ("add", "add 2x3", add),
            ("add_big", "add 1024x1024", add),
            ("mlp_fp32", "mlp", mlp),
        ):
            calls = 20 if "big" in name else 200
            program = read_golden(goldens / name)
            host.measure(host_rows(title, program, model), options.rounds, calls)
        waits.measure(wait_rows(), options.rounds, 200)
        busy_rows(read_golden(goldens / "add_devio"), busy)
        for nbytes in (4 << 20, 256 << 20):
            works = copy_rows(nbytes)
            if (goldens / "rows_dyn").is_dir():
                works |= input_row(read_golden(goldens / "rows_dyn"), nbytes)
            copies.measure(works, 7, max(2, (64 << 20) // nbytes))
    tables = (device, host, waits, busy, copies)
    for table in tables:
        print("\n" + table.markdown(gigabytes if table is copies else microseconds))
    cells = [
        {"table": table.title, "row": row, "column": column, "us": values[1], "quartiles": values}
        for table in tables
        for (row, column), values in table.cells.items()
    ]
    options.out.write_text(json.dumps({"device": torch.cuda.get_device_name(), "cells": cells}))


if __name__ == "__main__":
    main()
