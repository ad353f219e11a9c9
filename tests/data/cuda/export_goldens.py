"""Export CUDA programs with releases of the official exporter: export_goldens.py OUT EXPORTERS.

Needs a GPU, torch with CUDA, triton and a C++ compiler. EXPORTERS has a folder for each release and
one for what they share:

    pip install --no-deps --target EXPORTERS/1.4.1 executorch==1.4.1
    pip install --no-deps --target EXPORTERS/common torchao tabulate ruamel.yaml

Writes OUT/<program>_<release>/ as described in README.md; with `--run` it runs what is there in
pteron instead (what names cuda:1 needs a second GPU then). A program takes about a minute; each has
a process of its own, eight at a time, and what has not come to an end after `--seconds` is stopped.
A failure is printed and harms nothing else.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

OLD = "add mlp kv state"
PROGRAMS = {
    "1.2.0": OLD,
    "1.3.1": OLD,
    "1.4.1": OLD,
    "1.5.1": "mlp_devio mlp_dyn_devio kv_devio state_devio rows_dyn add1_devio sums_devio sums",
}
STEPS = {"kv": 3, "state": 3}
TESTS = Path(__file__).parent.parent.parent


def model(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A module and its inputs."""
    import torch
    from torch import nn

    class Add(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return x + y

    class Mlp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(64, 128)
            self.b = nn.Linear(128, 16)

        def forward(self, x: Any) -> Any:
            return self.b(torch.relu(self.a(x)))

    class Kv(nn.Module):
        """Writes a row of a cache, and where is decided by an input."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(1, 2, 16, 8))
            self.register_buffer("rows", torch.arange(16).reshape(1, 1, 16, 1))

        def forward(self, pos: Any, k: Any) -> Any:
            self.cache.copy_(torch.where(self.rows == pos, k, self.cache * 0.5))
            return self.cache.sum(2)

    class State(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("acc", torch.zeros(4, 8))

        def forward(self, x: Any) -> Any:
            self.acc.add_(x)
            return self.acc * 1.0

    class Sums(nn.Module):
        """Two parts that have nothing to do with each other."""

        def forward(self, x: Any, y: Any, z: Any, w: Any) -> Any:
            return x + y, z + w

    class Rows(nn.Module):
        """A large input and a small output."""

        def forward(self, x: Any) -> Any:
            return x.sum(-1)

    torch.manual_seed(0)
    r = torch.randn
    models: dict[str, Any] = {
        "add": lambda: (Add(), (r(2, 3), r(2, 3))),
        "add1": lambda: (Add(), (r(2, 3), r(2, 3))),
        "mlp": lambda: (Mlp(), (r(2, 64),)),
        "kv": lambda: (Kv(), (torch.tensor([3]), r(1, 2, 1, 8))),
        "state": lambda: (State(), (r(4, 8),)),
        "rows": lambda: (Rows(), (r(4, 1024),)),
        "sums": lambda: (Sums(), tuple(r(2, 3) for _ in range(4))),
    }
    module, inputs = models[name.split("_")[0]]()
    return module.eval(), inputs


def export(name: str, release: str, target: Path) -> None:
    """Export one program with the exporter that is on the path and write it with its golden."""
    import torch
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.exir import (
        EdgeCompileConfig,
        ExecutorchBackendConfig,
        to_edge_transform_and_lower,
    )
    from executorch.exir.backend.compile_spec_schema import CompileSpec
    from executorch.exir.passes import MemoryPlanningPass

    module, inputs = model(name)
    specs = [CudaBackend.generate_method_name_compile_spec("forward")]
    if not name.startswith("mlp") and release >= "1.4":
        specs.append(CompileSpec("max_autotune", b"OFF"))  # quicker; matrix products need it on
    config: dict[str, Any] = {}
    if name.endswith("_devio"):
        from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig

        config = {
            "memory_planning_pass": MemoryPlanningPass(
                alloc_graph_input=False, alloc_graph_output=False
            ),
            "propagate_device_config": PropagateDeviceConfig(
                skip_h2d_for_method_inputs=True, skip_d2h_for_method_outputs=True
            ),
        }
    most = 65536 if name == "rows_dyn" else 8  # 65536 rows are 256 MiB
    shapes = ({0: torch.export.Dim("b", min=1, max=most)},) if "dyn" in name else None
    exported = torch.export.export(module, inputs, dynamic_shapes=shapes, strict=True)
    program = to_edge_transform_and_lower(
        exported,
        partitioner=[partitioner(name, specs)],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    ).to_executorch(ExecutorchBackendConfig(**config))
    target.mkdir(parents=True, exist_ok=True)
    (target / "model.pte").write_bytes(program.buffer)
    program.write_tensor_data_to_file(str(target))
    write_golden(module, inputs, STEPS.get(name.split("_")[0], 1), target)


def partitioner(name: str, specs: list[Any]) -> Any:
    """All on cuda:0; ``add1`` on cuda:1; each operator of ``sums`` on a device of its own."""
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
    from executorch.exir.backend.compile_spec_schema import CompileSpec
    from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult

    def on(device: int) -> list[Any]:
        return [*specs, CompileSpec("target_device", f"cuda:{device}".encode())]

    class OnePerDevice(Partitioner):  # type: ignore[misc]
        def partition(self, exported_program: Any) -> Any:
            tags = {}
            calls = [n for n in exported_program.graph.nodes if n.op == "call_function"]
            for device, node in enumerate(calls):
                node.meta["delegation_tag"] = tag = f"cuda{device}"
                tags[tag] = DelegationSpec("CudaBackend", on(device))
            return PartitionResult(exported_program, tags)

    if name.startswith("sums"):
        return OnePerDevice()
    return CudaPartitioner(on(1) if name.startswith("add1") else specs)


def write_golden(module: Any, inputs: tuple[Any, ...], steps: int, target: Path) -> None:
    """Inputs, and what torch eager gives."""
    import numpy as np
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    module = module.to(device)
    arrays = {f"in{i}__{str(x.dtype)[6:]}": x.numpy() for i, x in enumerate(inputs)}
    with torch.no_grad():
        for step in range(steps):
            outputs = module(*(x.clone().to(device) for x in inputs))
            for i, y in enumerate(outputs if isinstance(outputs, tuple) else (outputs,)):
                arrays[f"step{step}_out{i}__{str(y.dtype)[6:]}"] = y.cpu().numpy()
    np.savez_compressed(target / "golden.npz", **arrays)


def run(folder: Path) -> None:
    """Run a golden in pteron and compare."""
    sys.path.insert(0, str(TESTS))
    from cuda_fakes import read_golden

    golden = read_golden(folder)
    method = golden.load().load_method()
    for step in range(len(golden.steps)):
        golden.check(method.execute(golden.place(method)), step)


def environment(exporters: Path, release: str, cache: Path) -> dict[str, str]:
    """What an exporter needs: its packages, flatc, and what the compilers ask for."""
    env = dict(os.environ)
    home = exporters / release
    flatc = home / "executorch" / "data" / "bin"
    if (flatc / "flatc").exists():
        (flatc / "flatc").chmod(0o755)
        env["FLATC_EXECUTABLE"] = str(flatc / "flatc")
    env["PATH"] = f"{flatc}:{env['PATH']}"
    paths = [str(home), str(exporters / "common"), env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = ":".join(filter(None, paths))
    env.setdefault("CUDA_HOME", "/usr/local/cuda")
    env["LIBRARY_PATH"] = f"{driver_stub(cache)}:{env.get('LIBRARY_PATH', '')}"
    env["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    env["TRITON_CACHE_DIR"] = str(cache / "triton")
    env["TORCHINDUCTOR_COMPILE_THREADS"] = "2"
    return env


def driver_stub(folder: Path) -> Path:
    """A folder with libcuda.so, which -lcuda asks for and a machine with only a driver lacks."""
    stub = folder / "stub"
    stub.mkdir(parents=True, exist_ok=True)
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout
    found = [line.split()[-1] for line in listed.splitlines() if "libcuda.so.1 " in line]
    if found and not (stub / "libcuda.so").is_symlink():
        (stub / "libcuda.so").symlink_to(found[0])
    return stub


def run_jobs(jobs: dict[str, tuple[list[str], dict[str, str]]], logs: Path, seconds: float) -> None:
    """Run the jobs, eight at a time; what is not done in time is stopped."""
    start = time.monotonic()
    waiting, running = list(jobs), {}
    while (waiting or running) and time.monotonic() - start < seconds:
        while waiting and len(running) < 8:
            name = waiting.pop(0)
            command, env = jobs[name]
            with (logs / f"{name}.log").open("a") as log:
                running[name] = subprocess.Popen(
                    command, stdout=log, stderr=log, env=env, start_new_session=True
                )
        for name in [name for name, process in running.items() if process.poll() is not None]:
            code = running.pop(name).returncode
            took = f"{time.monotonic() - start:4.0f} s"
            print(took, "ok  " if code == 0 else f"FAIL {code}", name, flush=True)
            if code != 0:
                print((logs / f"{name}.log").read_text()[-1200:], flush=True)
        time.sleep(0.2)
    for name, process in running.items():
        print("STOPPED", name, flush=True)
        os.killpg(process.pid, signal.SIGKILL)  # and the compilers that it has started
        process.wait()
    for name in waiting:
        print("NOT STARTED", name, flush=True)


def main() -> None:
    """Export everything, or do the one job that a process of this script is for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("exporters", type=Path)
    parser.add_argument("--run", action="store_true", help="run what is in OUT in pteron")
    parser.add_argument("--only", nargs="*", help="<program>_<release>")
    parser.add_argument("--seconds", type=float, default=330, help="for everything")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    out, exporters = options.out.resolve(), options.exporters.resolve()
    if options.job and options.run:
        run(out / options.job)
        return
    if options.job:
        export(*options.job.rsplit("_", 1), out / options.job)
        return

    names = [f"{n}_{v}" for v in PROGRAMS if (exporters / v).is_dir() for n in PROGRAMS[v].split()]
    if options.run:
        names = sorted(path.parent.name for path in out.glob("*/golden.npz"))
    # The slow ones, those that tune matrix products, come first.
    names = sorted(options.only or names, key=lambda name: not name.startswith("mlp"))
    command = [sys.executable, __file__, str(out), str(exporters), "--job"]
    jobs = {}
    for name in names:
        if options.run:
            jobs[name] = ([*command, name, "--run"], dict(os.environ))
        else:
            env = environment(exporters, name.rsplit("_", 1)[1], out / "cache" / name)
            jobs[name] = ([*command, name], env)
    logs = out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    run_jobs(jobs, logs, options.seconds)


if __name__ == "__main__":
    main()
