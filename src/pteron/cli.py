"""The command line: ``pteron run`` and ``pteron inspect``.

Exit status: 0 good, 1 the reader of the results went away, 2 wrong usage, 3 the program cannot be
loaded, 4 the run failed. Results go to standard output, messages to standard error.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pteron
from pteron._structure import Structure, counted, describe_signature, describe_value
from pteron.errors import ExecuTorchError, FileAccessError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_NOT_READ, _USAGE, _LOAD_FAILED, _RUN_FAILED = 1, 2, 3, 4


class UsageError(Exception):
    """What was asked for cannot be done as it was asked."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    args = _parser().parse_args(argv)
    try:
        status = _perform(args)
        sys.stdout.flush()
    except BrokenPipeError:  # `pteron inspect FILE | head`; at exit Python would flush once more
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return _NOT_READ
    return status


def _perform(args: argparse.Namespace) -> int:
    started = time.perf_counter()
    try:
        program = pteron.load(args.file, data_path=args.data, mmap=args.mmap)
        if args.command == "inspect":
            return _inspect(program, args)
        method = program.load_method(args.method)
        args.load_seconds = time.perf_counter() - started
    except (ExecuTorchError, OSError) as error:
        return _complain(error, _LOAD_FAILED)
    try:
        return _run(method, args)
    except UsageError as error:
        return _complain(error, _USAGE)
    except (ExecuTorchError, OSError) as error:
        return _complain(error, _RUN_FAILED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pteron", description="Run and inspect ExecuTorch programs (.pte) without PyTorch."
    )
    versions = f"pteron {pteron.__version__} (ExecuTorch {pteron.executorch_version})"
    parser.add_argument("--version", action="version", version=versions)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("file", metavar="FILE", help="the program, a .pte file")
    shared.add_argument("--data", action="append", metavar="PTD", help="a data file; repeatable")
    shared.add_argument("--mmap", action="store_true", help="map the files instead of reading them")

    run = commands.add_parser("run", parents=[shared], help="run a method and show its outputs")
    run.add_argument("--method", default="forward", metavar="M", help="default: forward")
    run.add_argument(
        "-i",
        "--input",
        action="append",
        default=[],
        metavar="[NAME=]VALUE",
        help="an input, in order or by name: a .npy file, a .npz file with several, or a number",
    )
    run.add_argument("--random", type=int, metavar="SEED", help="make up the inputs")
    run.add_argument("-o", "--output", metavar="NPZ", help="write the outputs to this .npz file")
    run.add_argument("--repeat", type=int, default=1, metavar="N", help="run N times; median time")

    inspect = commands.add_parser("inspect", parents=[shared], help="show what is in a program")
    inspect.description = "Show what is in a program. <=8: an axis of at most 8, if it is dynamic."
    inspect.add_argument("--json", action="store_true", help="as JSON")
    return parser


def _complain(error: Exception, status: int) -> int:
    if isinstance(error, BrokenPipeError):
        raise error
    print(f"pteron: {error}", file=sys.stderr)
    return status


def _run(method: pteron.Method, args: argparse.Namespace) -> int:
    import numpy as np

    meta = method.metadata
    structure = Structure(meta)
    inputs = _inputs(meta, structure, args)
    seconds = []
    for _ in range(max(args.repeat, 1)):
        started = time.perf_counter()
        outputs = method.execute(inputs)
        seconds.append(time.perf_counter() - started)
    names = structure.output_names(len(outputs))
    width = max(map(len, names), default=0)
    arrays: dict[str, Any] = {}
    for name, output in zip(names, outputs, strict=True):
        print(f"{name:{width}}  {_summary(output)}")
        arrays[name] = _array(output)
    run = f"{np.median(seconds) * 1e3:.3f} ms"
    if len(seconds) > 1:
        run += f" (median of {len(seconds)}, best {min(seconds) * 1e3:.3f})"
    print(f"load {args.load_seconds * 1e3:.3f} ms  run {run}")
    if args.output:
        try:
            with open(args.output, "wb") as file:  # savez would add .npz to another name
                np.savez(file, **arrays)
        except OSError as error:
            raise FileAccessError(f"{args.output} cannot be written: {error.strerror}") from error
    return 0


def _summary(output: Any) -> str:
    """Dtype, shape, min, max, mean and count of NaN of one output."""
    import numpy as np

    if output is None:
        return "None"
    if not isinstance(output, pteron.ExecuTorchResult):
        return f"{type(output).__name__} {output!r}"
    shape = ", ".join(map(str, output.shape))
    text = f"{output.dtype}[{shape}]"
    values = _array(output)
    if values.size == 0:
        return f"{text}  empty"
    if values.dtype.kind == "c":
        values = np.abs(values)
        text += "  of magnitudes:"
    values = values.astype(np.float64) if values.dtype.kind != "b" else values.astype(np.uint8)
    nan = int(np.isnan(values).sum())
    known = values[~np.isnan(values)]
    if known.size == 0:
        return f"{text}  nan {nan}"
    low, high, mean = known.min(), known.max(), known.mean()
    return f"{text}  min {low:.6g}  max {high:.6g}  mean {mean:.6g}  nan {nan}"


def _array(output: Any) -> NDArray[Any]:
    """The values of an output in a type that NumPy has; the bits of quantized types."""
    import numpy as np

    if not isinstance(output, pteron.ExecuTorchResult):
        return np.asarray(output)
    exact = {"bfloat16": "float32", "complex32": "complex64"}
    dtype = "float32" if output.dtype.startswith("float8") else exact.get(output.dtype)
    return output.numpy(dtype)


def _inputs(meta: pteron.MethodMeta, structure: Structure, args: argparse.Namespace) -> list[Any]:
    names = structure.input_names()
    if args.random is not None:
        return _random_inputs(meta, args.random)
    given: dict[str, Any] = {}
    position = 0
    for text in args.input:
        name, _, value = text.rpartition("=")
        for key, array in _read(value).items():
            label = name or (key if key in names else str(position))
            position += 1
            if label not in names:
                raise UsageError(f"no input is named {label!r}; the names are {', '.join(names)}")
            given[label] = array
    missing = [name for name in names if name not in given]
    if missing:
        wanted = ", ".join(
            f"{name}: {describe_value(info)}" for name, info in zip(names, meta.inputs, strict=True)
        )
        raise UsageError(
            f"method {meta.name()!r} takes {wanted}; input {missing[0]} is missing: give each with "
            "-i FILE.npy, or all with --random SEED"
        )
    return [given[name] for name in names]


def _read(text: str) -> dict[str, Any]:
    """The arrays of a file by name, or the one value that `text` spells."""
    import numpy as np

    path = Path(text)
    if path.suffix in {".npy", ".npz"} or path.exists():
        try:
            loaded = np.load(path, allow_pickle=False)
        except FileNotFoundError:
            raise UsageError(f"there is no input file {text}") from None
        except (OSError, ValueError) as error:
            raise UsageError(f"{text} is no .npy or .npz file: {error}") from None
        if isinstance(loaded, np.ndarray):
            return {"": loaded}
        with loaded:
            return {key: loaded[key] for key in loaded.files}
    try:
        return {"": ast.literal_eval(text)}
    except (ValueError, SyntaxError):
        raise UsageError(f"{text!r} is neither a file nor a number") from None


def _random_inputs(meta: pteron.MethodMeta, seed: int) -> list[Any]:
    """Standard normal floats, small integers, and the fixed values of other inputs."""
    import numpy as np

    random = np.random.default_rng(seed)
    inputs: list[Any] = []
    for info in meta.inputs:
        if isinstance(info, pteron.ValueInfo):
            inputs.append(info.value)
            continue
        values = random.standard_normal(info.sizes())
        name = info.dtype_name()
        if name.startswith(("int", "uint")):
            inputs.append(random.integers(0, 10, info.sizes()).astype(name))
        elif name == "bool":
            inputs.append(values > 0)
        elif name.startswith(("float16", "float32", "float64", "complex64", "complex128")):
            inputs.append(values.astype(name))
        else:
            inputs.append(bytes(info.nbytes()))
    return inputs


def _inspect(program: pteron.Program, args: argparse.Namespace) -> int:
    metas = [program.metadata(name) for name in program.method_names]
    if args.json:
        print(json.dumps({"schema": 1, "methods": [_facts(meta) for meta in metas]}, indent=2))
        return 0
    size = Path(args.file).stat().st_size
    print(f"{args.file}  {size:,} bytes")
    for meta in metas:
        print(describe_signature(meta))
        for label, items in (
            (
                "backends",
                [
                    f"{d.backend} {counted(d.calls, 'call')}, {d.nbytes:,} bytes"
                    for d in meta.delegates
                ],
            ),
            ("operators", [f"{op.name} {op.calls}" for op in meta.operators if op.calls]),
            ("memory", [f"{b.nbytes:,} bytes on {b.device}" for b in meta.planned_memory]),
            ("state", _attributes(meta)),
        ):
            if items:
                print(f"  {label:9}  {'; '.join(items)}")
    return 0


def _attributes(meta: pteron.MethodMeta) -> list[str]:
    infos = [meta.attribute_tensor_meta(i) for i in range(meta.num_attributes())]
    return [f"{info.name} {describe_value(info)}" for info in infos]


def _facts(meta: pteron.MethodMeta) -> dict[str, Any]:
    """What ``inspect --json`` says of a method."""
    names = Structure(meta)
    return {
        "name": meta.name(),
        "inputs": [
            {"name": name, **_value_facts(info)}
            for name, info in zip(names.input_names(), meta.inputs, strict=True)
        ],
        "outputs": [
            {"name": name, **_value_facts(info)}
            for name, info in zip(names.output_names(meta.num_outputs()), meta.outputs, strict=True)
        ],
        "operators": {op.name: op.calls for op in meta.operators},
        "delegates": [
            {"backend": d.backend, "calls": d.calls, "nbytes": d.nbytes} for d in meta.delegates
        ],
        "planned_memory": [
            {"nbytes": buffer.nbytes, "device": buffer.device} for buffer in meta.planned_memory
        ],
    }


def _value_facts(info: pteron.TensorInfo | pteron.ValueInfo) -> dict[str, Any]:
    if isinstance(info, pteron.ValueInfo):
        return {"type": info.type, "value": info.value}
    return {
        "type": "tensor",
        "dtype": info.dtype_name(),
        "shape": info.sizes(),
        "dynamic": info.is_dynamic,
        "device": info.device(),
        "nbytes": info.nbytes(),
        "planned": info.is_memory_planned(),
    }
