"""Export the test programs of this folder: one `.pte` and one `.npz` for each row of TABLE.

Usage, in an environment with torch 2.13 and executorch 1.5.1 (pteron itself needs neither):

    python export_fixtures.py [name ...]          # write the files again
    python export_fixtures.py --check [name ...]  # run them on the official runtime

The `.npz` holds what the program was exported with and what torch computed: `in0`, `in1`, ...,
`out0`, `out1`, ... in the flat order of the program. A method other than `forward` puts its name
before the key (`double.in0`). A suffix says what NumPy alone could not:

    in0__bfloat16, in0__float8_e4m3fn, in0__complex32   bits, as unsigned integers of that width
    in1__scalar                                         a Python bool, int or float, not a tensor
    out3__none                                          None
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import executorch.kernels.quantized  # noqa: F401  (registers the quantize ops and kernels)
import numpy as np
import torch
from executorch.backends.xnnpack.partition.config.xnnpack_config import ConfigPrecisionType
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.devtools import BundledProgram
from executorch.devtools.bundled_program.config import MethodTestCase, MethodTestSuite
from executorch.devtools.bundled_program.serialize import (
    serialize_from_bundled_program_to_flatbuffer,
)
from executorch.exir import (
    EdgeCompileConfig,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    to_edge_transform_and_lower,
)
from executorch.exir.backend.test.device_util import CpuOnlyPartitioner, DeviceAwarePartitioner
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig
from executorch.extension.pybindings import portable_lib
from fixture_models import (
    AddTable,
    Constant,
    ConstantView,
    EightOutputs,
    Method,
    State,
    add,
    conditional,
    conditional_overlap,
    conv,
    count,
    filters,
    forward,
    groupwise,
    many_ops,
    method,
    missing_ops,
    mlp,
    nested,
    pool,
    quantized,
    same_twice,
    state,
    state_two_methods,
    update_input,
    view_and_input,
    whole,
)
from torch import nn
from torch.export import Dim, export
from torch.utils import _pytree as pytree

HERE = Path(__file__).resolve().parent

# NumPy has no such types: the bits are stored as the unsigned integer of the same width.
BITS = {
    torch.bfloat16: np.uint16,
    torch.float8_e4m3fn: np.uint8,
    torch.float8_e5m2: np.uint8,
    torch.complex32: np.uint32,
}


@dataclass(frozen=True)
class Row:
    """One fixture: how to make its methods and how to lower them."""

    make: Callable[[], dict[str, Method]]
    options: dict[str, Any] = field(default_factory=dict)  # of ExecutorchBackendConfig
    partitioner: Callable[[], Any] | None = None
    dynamic: Any = None
    data: bool = False  # weights go to <name>.ptd
    bundled: bool = False  # written as <name>.bpte with its inputs
    expected: bool = True  # a bundled program also holds the expected outputs
    channels_last: bool = False  # the .npz cannot say this of an input
    stress: bool = False  # written to tests/stress, without values
    skip_check: str = ""  # why the official runtime is not asked to run it


def planning(**options: Any) -> dict[str, Any]:
    return {"memory_planning_pass": MemoryPlanningPass(**options)}


def add_typed(dtype: torch.dtype) -> Row:
    a, b = (1, 2, 3, 4), (5, 6, 7, 8)
    return Row(lambda: forward(lambda x, y: x + y, whole(dtype, *a), whole(dtype, *b)))


def same_typed(dtype: torch.dtype) -> Row:
    return Row(lambda: forward(lambda x: x, whole(dtype, 1, 2, 3, 4, 5, 6)))


def device_add(device: str = "cuda:0", **options: Any) -> Row:
    """An add for a fake backend on a CUDA device."""
    return Row(
        lambda: add(2, 2),
        options,
        partitioner=lambda: DeviceAwarePartitioner(device),
        skip_check="needs a device backend of the test's own",
    )


NO_COPIES = PropagateDeviceConfig(skip_h2d_for_method_inputs=True, skip_d2h_for_method_outputs=True)
NAMED = {"emit_mutable_buffer_names": True}

TABLE: dict[str, Row] = {
    # Plain arithmetic.
    "add": Row(lambda: add(2, 2)),
    "big_add": Row(lambda: add(1024, 1024)),
    "mul_add": Row(lambda: forward(lambda x, y: (x + y) * y, torch.randn(2, 2), torch.randn(2, 2))),
    "sub2": Row(lambda: forward(lambda x, y: x - 2 * y, torch.randn(3, 3), torch.randn(3, 3))),
    "times2_4d": Row(lambda: forward(lambda x: x * 2, torch.randn(1, 3, 2, 2))),
    # Not x * 2: the portable kernels refuse a contiguous constant beside a channels-last input.
    "chan_last": Row(
        lambda: forward(
            lambda x: x + x, torch.randn(1, 3, 2, 2).to(memory_format=torch.channels_last)
        ),
        channels_last=True,
    ),
    "dyn": Row(
        lambda: forward(lambda x: x * 2, torch.randn(3, 5)),
        dynamic=({0: Dim("rows", max=4), 1: Dim("columns", max=8)},),
    ),
    "empty": Row(
        lambda: forward(lambda x: x * 2, torch.randn(0, 4)),
        skip_check="the official bindings abort on an empty input",
    ),
    # Scalars. Export fixes their values: a run must pass the same ones.
    "alpha": Row(
        lambda: forward(lambda x, f, i, b: x * f * i * b, torch.randn(2, 2), 0.5, 3, True)
    ),
    "zero_d": Row(lambda: forward(lambda x, n: (x * 2, n + 1), torch.tensor(1.5), torch.tensor(3))),
    # Nets, on the portable kernels and on a delegate.
    "mlp": Row(mlp),
    "mlp_xnnpack": Row(mlp, partitioner=XnnpackPartitioner),
    "conv": Row(conv),
    "conv_xnnpack": Row(conv, partitioner=XnnpackPartitioner),
    "rnn_cell": Row(lambda: forward(nn.RNNCell(4, 3), torch.randn(1, 4), torch.zeros(1, 3))),
    "embedding": Row(lambda: forward(nn.Embedding(10, 4), torch.tensor([0, 3, 9]))),
    # Quantized but not delegated: the quantize ops stay in the program.
    "quantized": Row(lambda: quantized(mlp)),
    "conv_qs8_xnnpack": Row(
        lambda: quantized(conv, is_per_channel=True), partitioner=XnnpackPartitioner
    ),
    "mlp_qs8_xnnpack": Row(lambda: quantized(mlp), partitioner=XnnpackPartitioner),
    "mlp_qd8_xnnpack": Row(
        lambda: quantized(mlp, is_per_channel=True, is_dynamic=True),
        partitioner=lambda: XnnpackPartitioner(
            config_precisions=ConfigPrecisionType.DYNAMIC_QUANT, per_op_mode=True
        ),
    ),
    "linear_qb4_xnnpack": Row(
        groupwise,
        partitioner=lambda: XnnpackPartitioner(
            config_precisions=ConfigPrecisionType.DYNAMIC_QUANT, per_op_mode=True
        ),
    ),
    "ops_xnnpack": Row(
        lambda: forward(many_ops, torch.randn(1, 2, 6, 6), torch.randn(1, 2, 6, 6)),
        partitioner=XnnpackPartitioner,
    ),
    # Large enough that kernels and the delegate divide the work among threads.
    "pool": Row(pool, stress=True),
    "pool_xnnpack": Row(pool, partitioner=XnnpackPartitioner, stress=True),
    "filters_xnnpack": Row(filters, partitioner=XnnpackPartitioner, stress=True),
    "filters_quantized_xnnpack": Row(
        lambda: quantized(filters, is_per_channel=True),
        partitioner=XnnpackPartitioner,
        stress=True,
    ),
    # ExecuTorch 1.5.1 plans the results of both conditionals into one place. In `cond` the first is
    # used before the second is made; in `cond_overlap` it is lost, whatever runtime runs the file.
    "cond": Row(lambda: forward(conditional, torch.ones(2, 2), torch.full((2, 2), 2.0))),
    "cond_overlap": Row(
        lambda: forward(conditional_overlap, torch.ones(2, 2), torch.full((2, 2), 2.0)),
        skip_check="the exporter plans it wrongly",
    ),
    # State. `state` starts from ones that are in the file, the others from zeroed memory.
    "state": Row(lambda: state(1.0), NAMED | {"passes": [InitializedMutableBufferPass(["acc"])]}),
    "state_unnamed": Row(lambda: state(0.0)),
    "state_two_methods": Row(state_two_methods, NAMED | planning(share_mutable_buffers=True)),
    # Two buffers in forward, one of them in peek and in get, none in plain.
    "state_shared": Row(
        lambda: count(5),
        NAMED
        | planning(share_mutable_buffers=True)
        | {"passes": [InitializedMutableBufferPass(["acc", "count"])]},
    ),
    "state_shared_unnamed": Row(lambda: count(0), planning(share_mutable_buffers=True)),
    # The same two buffers in the memory of each method.
    "state_private": Row(lambda: count(0)),
    "state_bf16": Row(
        lambda: forward(State(torch.zeros(2, 2, dtype=torch.bfloat16)), torch.ones(2, 2).bfloat16())
    ),
    "planned_state": Row(lambda: forward(update_input, torch.randn(2, 2), torch.randn(2, 2))),
    "unplanned_state": Row(
        lambda: forward(update_input, torch.randn(2, 2), torch.randn(2, 2)),
        planning(alloc_graph_input=False),
    ),
    # Other files beside the program.
    "ptd": Row(lambda: forward(nn.Linear(4, 3), torch.randn(2, 4)), data=True),
    "attribute": Row(lambda: forward(AddTable(), torch.randn(2, 3)), data=True),
    "bundled": Row(
        lambda: forward(lambda x, y: x - 2 * y, torch.randn(3, 3), torch.randn(3, 3)),
        bundled=True,
    ),
    "bundled_inputs": Row(
        lambda: forward(lambda x, y: x - 2 * y, torch.randn(3, 3), torch.randn(3, 3)),
        bundled=True,
        expected=False,
    ),
    # Shapes of a signature.
    "no_inputs": Row(lambda: forward(Constant(2.0))),
    "mixed_out": Row(lambda: forward(lambda x: (x + 1, 7, True, None, 0.5), torch.randn(2, 2))),
    "two_methods": Row(
        lambda: {
            "forward": method(lambda x: x + 1, torch.randn(2, 2)),
            "double": method(lambda x: x * 2, torch.randn(3)),
        }
    ),
    "tree": Row(
        lambda: forward(nested, torch.randn(2, 2), mask=torch.eye(2), scale=torch.tensor(0.5))
    ),
    # Beside `add` and `return_input`: what one more input and one more output cost.
    "eight_inputs": Row(
        lambda: forward(lambda *xs: xs[0] + xs[1], *(torch.randn(2, 2) for _ in range(8)))
    ),
    "eight_outputs": Row(lambda: forward(EightOutputs(), torch.randn(2, 3))),
    # Planning and aliasing.
    "unplanned": Row(
        lambda: add(2, 2), planning(alloc_graph_input=False, alloc_graph_output=False)
    ),
    "return_input": Row(lambda: forward(lambda x: x, torch.randn(2, 3))),
    "return_view": Row(lambda: forward(lambda x: x.view(3, 2), torch.randn(2, 3))),
    "return_input_unplanned": Row(
        lambda: forward(lambda x, y: (x, y + 1), torch.randn(2, 3), torch.randn(2, 3)),
        planning(alloc_graph_input=False, alloc_graph_output=False),
    ),
    "return_constant": Row(lambda: forward(Constant(None))),
    "return_constant_view": Row(lambda: forward(ConstantView())),
    "same_twice": Row(lambda: forward(same_twice, torch.randn(2, 2))),
    "view_in": Row(lambda: forward(view_and_input, torch.randn(2, 3))),
    # Types.
    "f16": Row(lambda: forward(lambda x: x + 1, torch.randn(2, 3).half())),
    "bf16": Row(lambda: forward(lambda x: x + 1, torch.randn(2, 3).bfloat16())),
    "bool_not": Row(lambda: forward(lambda x: ~x, torch.tensor([True, False, True]))),
    **{
        f"add_{str(dtype).removeprefix('torch.')}": add_typed(dtype)
        for dtype in (
            torch.float64,
            torch.int8,
            torch.int16,
            torch.int32,
            torch.int64,
            torch.uint8,
            torch.complex32,
            torch.complex64,
            torch.complex128,
        )
    },
    # torch itself cannot add these, and the file format has no uint64.
    **{
        f"same_{str(dtype).removeprefix('torch.')}": same_typed(dtype)
        for dtype in (
            torch.uint16,
            torch.uint32,
            torch.complex32,
            torch.float8_e4m3fn,
            torch.float8_e5m2,
        )
    },
    "from_float8": Row(
        lambda: forward(lambda x: x.to(torch.float32), whole(torch.float8_e4m3fn, 1, 2, 3, 4)),
        skip_check="the portable kernels refuse float8",
    ),
    "to_float8": Row(
        lambda: forward(lambda x: x.to(torch.float8_e4m3fn), whole(torch.float32, 1, 2, 3, 4)),
        skip_check="the portable kernels refuse float8",
    ),
    # Programs that do not load, each for one reason.
    "missing_op": Row(missing_ops, skip_check="its kernels do not exist"),
    "missing_backend": Row(
        lambda: add(2, 2), partitioner=CpuOnlyPartitioner, skip_check="its backend does not exist"
    ),
    # Programs for a fake backend on a device.
    "device_add": device_add(),
    "device_add_noout": device_add(**planning(alloc_graph_output=False)),
    "device_add_io": device_add(
        propagate_device_config=NO_COPIES,
        **planning(alloc_graph_input=False, alloc_graph_output=False),
    ),
    "device_add_io_planned": device_add(propagate_device_config=NO_COPIES),
    "device_add_cuda1": device_add("cuda:1"),
}


def lower(
    name: str, row: Row, exported: dict[str, torch.export.ExportedProgram]
) -> ExecutorchProgramManager:
    edge = to_edge_transform_and_lower(
        exported,
        partitioner=[row.partitioner()] if row.partitioner else None,
        # Exotic types are what some rows are for, and the checker knows the usual ones only.
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
    options = dict(row.options)
    if row.data:
        options["external_constants"] = lambda node: name
    return edge.to_executorch(ExecutorchBackendConfig(**options))


def pack(key: str, value: Any) -> dict[str, np.ndarray]:
    """A value as one entry of the `.npz`."""
    if value is None:
        return {f"{key}__none": np.array(True)}
    if not isinstance(value, torch.Tensor):
        return {f"{key}__scalar": np.array(value)}
    value = value.detach()
    if value.dtype in BITS:
        bits = value.contiguous().reshape(-1).view(torch.uint8).numpy().view(BITS[value.dtype])
        suffix = str(value.dtype).removeprefix("torch.")
        return {f"{key}__{suffix}": bits.reshape(tuple(value.shape))}
    return {key: value.numpy()}


def unpack(arrays: dict[str, np.ndarray], prefix: str) -> list[Any]:
    """The values `<prefix>0`, `<prefix>1`, ... as the official runtime takes them."""
    values = []
    by_stem = {key.partition("__")[0]: key for key in arrays}
    while (stem := f"{prefix}{len(values)}") in by_stem:
        key = by_stem[stem]
        suffix = key.partition("__")[2]
        array = arrays[key]
        if suffix == "none":
            values.append(None)
        elif suffix == "scalar":
            values.append(array.item())
        elif suffix:
            dtype = getattr(torch, suffix)
            values.append(torch.from_numpy(array.copy()).view(dtype))
        else:
            values.append(torch.from_numpy(array.copy()))
    return values


def stored(value: Any) -> list[bytes]:
    """The bytes of a value, to compare types that torch cannot."""
    return [array.tobytes() for array in pack("", value).values()]


def leaves(tree: Any) -> list[Any]:
    """The values of nested containers in order, None among them."""
    return pytree.tree_leaves(tree, is_leaf=lambda value: value is None)


def eager(source: Method) -> list[Any]:
    """What the program should return; run on copies because a method may change what it gets.

    ExecuTorch returns the inputs that a method changes too, before everything else.
    """
    inputs, keywords = copy.deepcopy((source.inputs, source.keywords))
    with torch.no_grad():
        outputs = leaves(copy.deepcopy(source.module)(*inputs, **keywords))
    pairs = zip(leaves((inputs, keywords)), leaves((source.inputs, source.keywords)), strict=True)
    changed = [after for after, before in pairs if stored(after) != stored(before)]
    return changed + outputs


def write(name: str, row: Row) -> None:
    torch.manual_seed(0)
    methods = row.make()
    exported = {
        key: export(m.module, m.inputs, m.keywords, dynamic_shapes=row.dynamic, strict=False)
        for key, m in methods.items()
    }
    expected = {key: eager(m) for key, m in methods.items()}
    program = lower(name, row, exported)
    if row.bundled:
        suites = [
            MethodTestSuite(
                key, [MethodTestCase(list(m.inputs), expected[key] if row.expected else None)]
            )
            for key, m in methods.items()
        ]
        bundle = BundledProgram(program, suites)
        (HERE / f"{name}.bpte").write_bytes(serialize_from_bundled_program_to_flatbuffer(bundle))
    else:
        folder = HERE.parent / "stress" if row.stress else HERE
        (folder / f"{name}.pte").write_bytes(program.buffer)
    if row.data:
        program.write_tensor_data_to_file(str(HERE))
    if name == "big_add" or row.stress:  # megabytes, which the tests can make by themselves
        return
    arrays: dict[str, np.ndarray] = {}
    for key, m in methods.items():
        start = "" if key == "forward" else f"{key}."
        for i, value in enumerate(leaves((m.inputs, m.keywords))):
            arrays |= pack(f"{start}in{i}", value)
        for i, value in enumerate(expected[key]):
            arrays |= pack(f"{start}out{i}", value)
    np.savez(HERE / f"{name}.npz", **arrays)


def compare(got: Any, want: Any) -> None:
    if isinstance(want, torch.Tensor):
        if want.dtype in BITS:
            want, got = want.to(torch.float32), got.to(torch.float32)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    elif got != want or type(got) is not type(want):
        raise AssertionError(f"got {got!r}, expected {want!r}")


def check(name: str, row: Row) -> str:
    """Run a fixture on the official runtime: '' or why it is not run."""
    if row.skip_check:
        return row.skip_check
    if name == "big_add" or row.stress:
        return "its inputs are not stored"
    arrays = dict(np.load(HERE / f"{name}.npz"))
    if row.bundled:
        bundle = portable_lib._load_bundled_program_from_buffer(
            (HERE / f"{name}.bpte").read_bytes()
        )
        module = portable_lib._load_for_executorch_from_bundled_program(bundle)
        if row.expected:
            bundle.verify_result_with_bundled_expected_output("forward", 0, 1e-5, 1e-8)
    else:
        data = str(HERE / f"{name}.ptd") if row.data else None
        module = portable_lib._load_for_executorch(str(HERE / f"{name}.pte"), data)
    for method_name in module.method_names():
        start = "" if method_name == "forward" else f"{method_name}."
        inputs = unpack(arrays, f"{start}in")
        if row.channels_last:
            inputs = [value.to(memory_format=torch.channels_last) for value in inputs]
        outputs = module.run_method(method_name, tuple(inputs))
        expected = unpack(arrays, f"{start}out")
        if len(outputs) != len(expected):
            raise AssertionError(f"{len(outputs)} outputs, expected {len(expected)}")
        for got, want in zip(outputs, expected, strict=True):
            compare(got, want)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Export the test programs, or check them.")
    parser.add_argument("names", nargs="*", metavar="name", help="rows of the table (all)")
    parser.add_argument("--check", action="store_true", help="run them on the official runtime")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    failed = 0
    for name in arguments.names or TABLE:
        row = TABLE[name]
        try:
            if arguments.check:
                print(f"{name}: {check(name, row) or 'ok'}", flush=True)
            else:
                write(name, row)
        except Exception as error:  # one bad row must not hide the state of the others
            failed += 1
            text = " ".join(str(error).split())
            print(f"{name}: {type(error).__name__}: {text[:400]}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
