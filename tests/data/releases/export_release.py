"""Export a handful of programs with the ExecuTorch release that is installed, whichever it is.

Usage, in an environment with executorch 1.0 or later and a torch that it runs with:

    python export_release.py FOLDER [name ...]

Writes ``FOLDER/RELEASE/NAME.pte`` (``.bpte``, ``.ptd``) and ``FOLDER/NAME.npz`` with the inputs and
what torch computed: `in0`, ..., `out0`, ...; another method than `forward` puts its name before
that. A program that this release cannot export is named with the reason, and the others are still
written. Beside this file is what the releases wrote, each with torch 2.13, without those files that
are the same as an older release's.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from executorch.devtools import BundledProgram
from executorch.devtools.bundled_program.config import MethodTestCase, MethodTestSuite
from executorch.devtools.bundled_program.serialize import (
    serialize_from_bundled_program_to_flatbuffer,
)
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from torch import nn
from torch.export import Dim, export
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

Methods = dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]


class Function(nn.Module):
    """A plain function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function


class State(nn.Module):
    """Adds each input to what it has seen so far."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("acc", torch.zeros(2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.acc.add_(x)
        return self.acc * 2


def add() -> Methods:
    x, y = torch.randn(2, 2), torch.randn(2, 2)
    return {"forward": (Function(lambda x, y: x + y), (x, y))}


def twice() -> Methods:
    return {"forward": (Function(lambda x: x * 2), (torch.randn(3, 5),))}


def mlp() -> Methods:
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return {"forward": (net.eval(), (torch.randn(2, 8),))}


def conv() -> Methods:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 5))
    return {"forward": (net.eval(), (torch.randn(1, 3, 8, 8),))}


def quantized() -> Methods:
    """Weights of the convolution by channel, as those of the linear layer."""
    net, inputs = conv()["forward"]
    quantizer = XNNPACKQuantizer().set_global(
        get_symmetric_quantization_config(is_per_channel=True)
    )
    prepared = prepare_pt2e(export(net, inputs).module(), quantizer)
    prepared(*inputs)
    return {"forward": (convert_pt2e(prepared), inputs)}


def condition() -> Methods:
    def choose(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x, y: x + y, lambda x, y: x * y, (x, y))

    return {"forward": (Function(choose), (torch.ones(2, 2), torch.full((2, 2), 3.0)))}


def two_methods() -> Methods:
    return {
        "forward": (Function(lambda x: x + 1), (torch.randn(2, 2),)),
        "double": (Function(lambda x: x * 2), (torch.randn(3),)),
    }


# What to export, and how: by name, the methods and the options of the lowering.
TABLE: dict[str, tuple[Callable[[], Methods], dict[str, Any]]] = {
    "add": (add, {}),
    "dynamic": (twice, {"dynamic": ({0: Dim("rows", max=4), 1: Dim("columns", max=8)},)}),
    "mlp": (mlp, {}),
    "mlp_xnnpack": (mlp, {"xnnpack": True}),
    "conv_xnnpack": (conv, {"xnnpack": True}),
    "quantized_xnnpack": (quantized, {"xnnpack": True}),
    "state": (lambda: {"forward": (State(), (torch.randn(2, 2),))}, {}),
    "condition": (condition, {}),
    "two_methods": (two_methods, {}),
    "weights_beside": (mlp, {"data": True}),
    "bundled": (add, {"bundled": True}),
}


def write(folder: Path, name: str) -> None:
    release = folder / version("executorch")
    release.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    make, options = TABLE[name]
    methods = make()
    exported = {
        key: export(module, inputs, dynamic_shapes=options.get("dynamic"))
        for key, (module, inputs) in methods.items()
    }
    with torch.no_grad():
        expected = {key: copy.deepcopy(m)(*inputs) for key, (m, inputs) in methods.items()}
    partitioner = [XnnpackPartitioner()] if options.get("xnnpack") else None
    config: dict[str, Any] = {}
    if options.get("data"):
        config["external_constants"] = lambda node: name
    edge = to_edge_transform_and_lower(exported, partitioner=partitioner)
    program = edge.to_executorch(ExecutorchBackendConfig(**config))
    if options.get("bundled"):
        suites = [
            MethodTestSuite(key, [MethodTestCase(list(inputs), [expected[key]])])
            for key, (_, inputs) in methods.items()
        ]
        bundle = serialize_from_bundled_program_to_flatbuffer(BundledProgram(program, suites))
        (release / f"{name}.bpte").write_bytes(bundle)
    else:
        (release / f"{name}.pte").write_bytes(program.buffer)
    if options.get("data"):
        with tempfile.TemporaryDirectory() as scratch:  # 1.0 gives the file a name of its own
            program.write_tensor_data_to_file(scratch)
            (data,) = Path(scratch).iterdir()
            (release / f"{name}.ptd").write_bytes(data.read_bytes())
    arrays: dict[str, np.ndarray] = {}
    for key, (_, inputs) in methods.items():
        start = "" if key == "forward" else f"{key}."
        arrays |= {f"{start}in{i}": value.numpy() for i, value in enumerate(inputs)}
        arrays[f"{start}out0"] = expected[key].detach().numpy()
    np.savez(folder / f"{name}.npz", **arrays)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    failed = 0
    for name in given.names or TABLE:
        try:
            write(given.folder, name)
            print(name)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
