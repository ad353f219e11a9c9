"""Damage the files of ``tests/data`` and run them: does the process survive?

    python tests/fuzz/fuzz.py --mutants 20000 --seed 1

One mutant in eight is a DLPack capsule with changed fields, each other one a file. Files go through
load, metadata, load_method, two runs, attributes, state, an ETDump and the end of everything, each
in a forked process with little memory and time. Prints one JSON line. Exits with 1 if a process was
killed or hung, or raised what is no error of pteron; those mutants are kept.
``--peer official`` does the same with ExecuTorch's own bindings (in .venv-peers) to compare with.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

# A pool of threads would be lost in the children, and with it the fork's speed.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

sys.path.insert(0, str(Path(__file__).parent))
import capsule_mutants
from mutate import Mutant, Mutator

DATA = Path(__file__).resolve().parents[1] / "data"
PROGRAMS = (
    *(
        "add",
        "alpha",
        "add_complex64",
        "attribute",
        "bf16",
        "bool_not",
        "bundled",
        "bundled_inputs",
    ),
    *("chan_last", "cond", "cond_overlap", "conv", "conv_xnnpack", "dyn", "embedding", "empty"),
    *("mixed_out", "mlp", "mlp_xnnpack", "planned_state", "ptd", "quantized", "return_constant"),
    *("conv_qs8_xnnpack", "linear_qb4_xnnpack", "mlp_qd8_xnnpack", "mlp_qs8_xnnpack"),
    *(
        "ops_xnnpack",
        "return_view",
        "rnn_cell",
        "same_twice",
        "state",
        "state_two_methods",
        "tree",
        "two_methods",
    ),
    *("unplanned", "unplanned_state", "zero_d"),
)
MEMORY = 3 << 30
SECONDS = 20
RAN, REFUSED, OVER_MEMORY, UNEXPECTED = 0, 10, 11, 12
# Bytes of an input that a mutant may ask for before it counts as asking for too much.
LARGEST_INPUT = 64 << 20


class TooLarge(Exception):
    """A mutant wants larger inputs than it is worth to make."""


def run_with_pteron(path: Path, data_file: Path | None, number: int) -> int:
    """All that a program can be asked, with pteron."""
    import pteron
    import pteron.errors
    from pteron import _core

    options: dict[str, Any] = {"data_path": data_file, "mmap": number % 5 == 1}
    options["verification"] = list(pteron.Verification)[number % 2]
    if number % 4 == 0:
        options |= {"enable_etdump": True, "debug_buffer_size": 1 << 16}
    try:
        if path.suffix == ".bpte":
            bundled = pteron.load_bundled(path, data_path=data_file)
            for name in bundled.method_names:
                for i in range(len(bundled.cases(name))):
                    try:
                        bundled.verify(name, i)
                    except pteron.errors.VerificationError:
                        continue
            program = bundled.program
        else:
            program = pteron.load(path, **options)
        repr(program)
        for name in program:
            method = program.load_method(name)
            metadata = method.metadata
            inputs: list[Any] = []
            for info in metadata.inputs:
                if isinstance(info, _core.ValueInfo):
                    inputs.append(info.value)
                    continue
                if info.nbytes() > LARGEST_INPUT:
                    raise TooLarge
                values = bytes(i % 3 for i in range(min(info.nbytes(), 4096)))
                values = (values * (info.nbytes() // max(len(values), 1) + 1))[: info.nbytes()]
                inputs.append(_core.result_from_bytes(info.dtype_name(), info.sizes(), values))
            for clone in (True, False):
                for output in method.execute(inputs, clone_outputs=clone):
                    repr(output)
            for i in range(metadata.num_attributes()):
                bytes(method.get_attribute(metadata.attribute_tensor_meta(i).name).tobytes())
            method.state.copy()
            method.state.reset()
            if program.has_etdump:
                program.write_etdump_result_to_file("etdump", "debug")
            del method
        del program
    except (MemoryError, TooLarge):
        return OVER_MEMORY
    except pteron.ExecuTorchError:
        return REFUSED
    return RAN


def run_with_official(path: Path, data_file: Path | None, number: int) -> int:
    """The same with ExecuTorch's bindings, as far as they go."""
    import torch
    from executorch.extension.pybindings import portable_lib

    dtypes = {0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64}
    dtypes |= {5: torch.float16, 6: torch.float32, 7: torch.float64, 11: torch.bool}
    dtypes |= {9: torch.complex64, 15: torch.bfloat16}
    try:
        if path.suffix == ".bpte":
            bundled = portable_lib._load_bundled_program_from_buffer(path.read_bytes())
            module = portable_lib._load_for_executorch_from_bundled_program(bundled)
            module.verify_result_with_bundled_expected_output("forward", 0)
            return RAN
        if data_file is not None:  # only this loader takes one
            module = portable_lib._load_for_executorch(str(path), str(data_file))
            methods = {name: module.method_meta(name) for name in module.method_names()}
            run: Callable[..., Any] = module.run_method
        else:
            program = portable_lib._load_program(
                str(path),
                enable_etdump=number % 4 == 0,
                debug_buffer_size=1 << 16,
                program_verification=portable_lib.Verification.InternalConsistency,
            )
            names = [program.get_method_name(i) for i in range(program.num_methods())]
            methods = {name: program.method_meta(name) for name in names}
            loaded = {name: program.load_method(name) for name in names}

            def run(name: str, inputs: Any, clone_outputs: bool) -> Any:
                return loaded[name].call(inputs, clone_outputs)

        for name, metadata in methods.items():
            inputs: list[Any] = []
            for i in range(metadata.num_inputs()):
                try:
                    info = metadata.input_tensor_meta(i)
                except RuntimeError:
                    inputs.append(1)
                    continue
                if info.nbytes() > LARGEST_INPUT:
                    raise TooLarge
                inputs.append(torch.ones(info.sizes(), dtype=dtypes[info.dtype()]))
            for clone in (True, False):
                for output in run(name, inputs, clone):
                    repr(output)
    except (MemoryError, TooLarge):
        return OVER_MEMORY
    except Exception:
        return REFUSED
    return RAN


class Fuzzer:
    """Runs mutants of the fixtures and counts what becomes of them."""

    def __init__(self, seed: int, peer: str, keep: Path) -> None:
        self.seed, self.peer, self.keep = seed, peer, keep
        self.counts: Counter[str] = Counter()
        self.payload: Counter[str] = Counter()
        self.capsules = 0
        self.bad: list[str] = []
        self.run = run_with_official if peer == "official" else run_with_pteron
        self.folder = (
            Path("/dev/shm" if Path("/dev/shm").is_dir() else "/tmp") / f"fuzz{os.getpid()}"
        )
        self.folder.mkdir()
        self.files = [path for name in PROGRAMS for path in sorted(DATA.glob(f"{name}.*pt[ed]"))]
        self.mutators = {path: Mutator(path.read_bytes()) for path in self.files}
        # Few files have payloads, and there is much to break in them.
        self.files += [path for path in self.files if self.mutators[path].layout.payload] * 4

    def warm(self) -> None:
        """Import everything before the first fork, without starting a thread."""
        if self.run(DATA / "zero_d.pte", None, 1) != RAN:
            raise SystemExit("a good program does not run")
        if len([*Path("/proc/self/task").iterdir()]) > 1 and self.peer != "official":
            raise SystemExit("the parent has threads, which forked children would miss")

    def one(self, number: int, only: str) -> None:
        """Make and run mutant `number`: one in eight is a capsule, the others are files."""
        if only == "capsules" or (not only and number % 8 == 7 and self.peer != "official"):
            self._capsule(number)
            return
        files = [path for path in self.files if only in ("", path.stem)]
        path = files[number % len(files)]
        label = f"{path.stem}-{self.seed}-{number}{path.suffix}"
        mutant = self.mutators[path].mutant(label)
        file = self.folder / f"mutant{path.suffix}"
        file.write_bytes(mutant.data)
        program, data_file = file, None
        if path.suffix == ".ptd":
            program, data_file = path.with_suffix(".pte"), file
        elif path.with_suffix(".ptd").exists():
            data_file = path.with_suffix(".ptd")
        self._count(self._child(program, data_file, number), label, mutant)

    def _capsule(self, number: int) -> None:
        label = f"capsule-{self.seed}-{number}"
        mutant = capsule_mutants.mutant(label)

        def run() -> int:
            return RAN if capsule_mutants.run(mutant, label) else REFUSED

        self._count(self._fork(run), label, Mutant(repr(mutant).encode(), payload=False))
        self.capsules += 1

    def _child(self, program: Path, data_file: Path | None, number: int) -> str:
        return self._fork(lambda: self.run(program, data_file, number))

    def _fork(self, run: Callable[[], int]) -> str:
        child = os.fork()
        if child == 0:
            try:
                _limit(self.folder / "output")
                code = run()
            except BaseException:
                import traceback

                traceback.print_exc()
                code = UNEXPECTED
            os._exit(code)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            return "hung" if os.WTERMSIG(status) in (signal.SIGALRM, signal.SIGXCPU) else "killed"
        names = {RAN: "ran", REFUSED: "refused", OVER_MEMORY: "over_memory"}
        return names.get(os.WEXITSTATUS(status), "unexpected")

    def _count(self, outcome: str, label: str, mutant: Mutant) -> None:
        counts = self.payload if mutant.payload else self.counts
        counts["mutants"] += 1
        counts[outcome] += 1
        if outcome in ("killed", "hung", "unexpected"):
            self.keep.mkdir(parents=True, exist_ok=True)
            name = f"{outcome}-{'payload-' if mutant.payload else ''}{label}"
            (self.keep / name).write_bytes(mutant.data)
            said = (self.folder / "output").read_bytes()
            (self.keep / f"{name}.txt").write_bytes(said)
            self.bad.append(name)

    def report(self, seconds: float) -> dict[str, Any]:
        """The line to print."""
        names = ("mutants", "refused", "ran", "killed", "hung", "over_memory", "unexpected")
        total = self.counts + self.payload
        line: dict[str, Any] = {"peer": self.peer, "seed": self.seed, "files": len(self.mutators)}
        line |= {name: total[name] for name in names}
        line["capsules"] = self.capsules
        line["payload"] = {name: self.payload[name] for name in names}
        return line | {"seconds": round(seconds, 1)}


def _limit(output: Path) -> None:
    import faulthandler

    os.chdir(output.parent)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    faulthandler.enable(2)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + MEMORY, in_use + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    signal.alarm(3 * SECONDS)


def main() -> int:
    """Run the fuzzer as a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--mutants", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="NAME", help="mutants of this fixture only")
    parser.add_argument("--peer", choices=("pteron", "official"), default="pteron")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), metavar="FOLDER")
    parser.add_argument("--number", type=int, help="only this mutant, to see it again")
    given = parser.parse_args()

    fuzzer = Fuzzer(given.seed, given.peer, given.keep)
    start = time.monotonic()
    try:
        fuzzer.warm()
        numbers = range(given.mutants) if given.number is None else [given.number]
        for number in numbers:
            fuzzer.one(number, given.only)
    except KeyboardInterrupt:  # what there is so far
        pass
    finally:
        for file in fuzzer.folder.iterdir():
            file.unlink()
        fuzzer.folder.rmdir()
    print(json.dumps(fuzzer.report(time.monotonic() - start)))
    for name in fuzzer.bad[:20]:
        print(f"kept {given.keep / name}", file=sys.stderr)
    return 1 if fuzzer.bad else 0


if __name__ == "__main__":
    sys.exit(main())
