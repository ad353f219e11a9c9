"""torch tensors in and out: without importing torch, and never with wrong values."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from capsules import flat_memory
from conftest import DATA, load_fixture

import pteron
from pteron import errors

torch = pytest.importorskip("torch", "2.10")
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"
)
ROOT = Path(__file__).parents[2]
DTYPES = {  # fixtures that give their input back, or add one
    "same_uint16": torch.uint16,
    "same_uint32": torch.uint32,
    "same_complex32": torch.complex32,
    "same_float8_e4m3fn": torch.float8_e4m3fn,
    "same_float8_e5m2": torch.float8_e5m2,
}
TYPED = {
    "add_float64": torch.float64,
    "add_int8": torch.int8,
    "add_int16": torch.int16,
    "add_int32": torch.int32,
    "add_int64": torch.int64,
    "add_uint8": torch.uint8,
    "add_complex64": torch.complex64,
    "add_complex128": torch.complex128,
}
ALL_TYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32,
    torch.int64, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex32, torch.complex64, torch.complex128, torch.float8_e5m2, torch.float8_e4m3fn,
    torch.float8_e5m2fnuz, torch.float8_e4m3fnuz,
]  # fmt: skip


def load(name: str) -> pteron.Method:
    return load_fixture(name).load().load_method()


def name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def same(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


ONES = torch.ones(2, 2)


def test_torch_in_torch_out(add: pteron.Method) -> None:
    """M103: real tensors, when one of the inputs is one; results otherwise."""
    for inputs in ([ONES, ONES], [ONES, np.ones((2, 2), np.float32)]):
        for outputs in (add.execute(inputs), [add(*inputs)]):
            assert type(outputs[0]) is torch.Tensor
            assert torch.equal(outputs[0], ONES * 2)
    assert type(add(*([ONES.numpy()] * 2))) is pteron.ExecuTorchResult
    add.set_inputs([ONES, ONES])
    assert type(add.execute()[0]) is type(add.get_outputs()[0]) is torch.Tensor


def test_outputs_are_owned_tensors(add: pteron.Method) -> None:
    """M60, M103: they share no memory, take part in autograd, and outlive everything."""
    a, b = add(ONES, ONES), add(ONES * 2, ONES)
    a += 1
    assert torch.equal(b, ONES * 3) and a.data_ptr() % 64 == 0 and not a.requires_grad
    a.requires_grad_().sum().backward()
    assert torch.equal(a.grad, ONES)
    del add
    gc.collect()
    assert torch.equal(b, ONES * 3)


class Tagged(torch.Tensor):
    """A plain subclass."""


class Parallel(torch.Tensor):
    """A subclass that intercepts all functions."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} was called")


def expanded(x: Any) -> Any:
    return x.t().contiguous().t()


TENSORS = {
    "tensor": lambda x: x,
    "parameter": torch.nn.Parameter,
    "buffer": lambda x: torch.nn.Buffer(x),
    "requires_grad": lambda x: x.clone().requires_grad_(),
    "inside autograd": lambda x: torch.nn.Parameter(x) * 1,
    "subclass": lambda x: x.as_subclass(Tagged),
    "intercepting subclass": lambda x: x.as_subclass(Parallel),
    "transposed": expanded,
    "sliced": lambda x: torch.stack([x, x * 0], -1)[..., 0],
    "offset": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view_as(x),
    "negative": lambda x: torch._neg_view(-torch.stack([x, x], -1))[..., 0],
    "imaginary part of a conjugate": lambda x: torch.complex(x * 0, -x).conj().imag,
    "inference": lambda x: torch.inference_mode()(x.clone)(),
    "shared": lambda x: x.clone().share_memory_(),
}


@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.parametrize("name", ["add", "unplanned"])
def test_every_kind_of_tensor(kind: str, name: str) -> None:
    """X13, M103, M106: its values, whatever it is a view of."""
    method = load(name)
    x = torch.arange(4.0).reshape(2, 2)
    value = TENSORS[kind](x)
    for _ in range(2):
        out = method(value, ONES)
        assert type(out) is torch.Tensor and not out.requires_grad
        assert torch.equal(out, x + 1)
    method.set_inputs([value, ONES])
    for _ in range(2):
        assert torch.equal(method.execute()[0], x + 1)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize(
    "view", [lambda z: z, torch.conj, lambda z: z.conj().conj(), lambda z: z.mH, lambda z: z.t()],
    ids=["plain", "conj", "conj twice", "mH", "transposed"],
)  # fmt: skip
def test_lazy_conjugates(dtype: Any, view: Any) -> None:
    """Conjugates are resolved; packed ones too."""
    z = torch.tensor([[1 + 2j, 3 - 4j], [5j, -6]], dtype=dtype)
    zero = torch.zeros_like(z)
    method = load(f"add_{name_of(dtype)}")
    assert torch.equal(method(view(z), zero), view(z).resolve_conj())


@pytest.mark.parametrize("name", [*DTYPES, *TYPED, "bf16", "f16", "bool_not", "embedding"])
def test_every_dtype_of_a_program(name: str) -> None:
    """M32, M94, M103: the same type and bits as from torch."""
    fixture = load_fixture(name)
    method = fixture.load().load_method()
    results = [pteron.ExecuTorchResult.from_host(x) for x in fixture.inputs]
    want = [pteron.ExecuTorchResult.from_host(x) for x in fixture.outputs]
    tensors = [r.torch() for r in results]
    outputs = method.execute(tensors)
    assert [name_of(out.dtype) for out in outputs] == [r.dtype for r in want]
    for out, result in zip(outputs, want, strict=True):
        assert same(out.contiguous(), result.torch())
    # torch's own __dlpack__, as a producer like any other.
    fixture.check(method.execute([torch.utils.dlpack.to_dlpack(t) for t in tensors]))


@pytest.mark.parametrize("dtype", ALL_TYPES, ids=name_of)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4), (1, 1)], ids=str)
def test_exchange_both_ways(dtype: Any, shape: tuple[int, ...]) -> None:
    """M31, M32, M94: `torch()`, torch.from_dlpack and back, to the bit."""
    count = int(np.prod(shape))
    bits = torch.arange(16 * count, dtype=torch.uint8)[: count * dtype.itemsize]
    x = (bits % 2 if dtype is torch.bool else bits).view(dtype).reshape(shape)
    r = pteron.ExecuTorchResult.from_host(x)
    assert (r.dtype, r.shape) == (name_of(dtype), tuple(shape))
    for back in (r.torch(), torch.from_dlpack(r), torch.from_dlpack(r, copy=True)):
        assert (back.dtype, tuple(back.shape)) == (dtype, tuple(shape))
        assert same(back.reshape(-1), x.reshape(-1))
    if count:
        assert r.torch().data_ptr() == torch.from_dlpack(r).data_ptr()
        assert torch.from_dlpack(r, copy=True).data_ptr() != r.torch().data_ptr()
    r.torch().zero_()
    assert not any(r.tobytes())
    again = pteron.ExecuTorchResult.from_host(torch.from_dlpack(r))
    assert (again.dtype, again.shape) == (r.dtype, r.shape)


def test_types_that_torch_cannot_be_given() -> None:
    """A BufferError that says so."""
    r = pteron._core.result_from_bytes("qint8", (2,), b"12")
    with pytest.raises(errors.ExportError, match="cannot be given a qint8 tensor"):
        r.torch()
    with pytest.raises(BufferError, match="no type for qint8"):
        torch.from_dlpack(r)


REFUSED = {
    "meta": (lambda: torch.ones(2, 2, device="meta"), errors.DeviceError,
             "is on device meta, and only CPU and CUDA tensors"),
    "empty meta": (lambda: torch.ones(0, 2, device="meta"), errors.InputError,
                   r"has shape \(0, 2\), expected \(2, 2\)"),
    "empty meta of another dtype": (
        lambda: torch.ones(0, 2, dtype=torch.int8, device="meta"), errors.InputTypeError,
        "is int8, expected float32"),
    "sparse": (lambda: torch.eye(2).to_sparse(), errors.InputError,
               "could not be read: RuntimeError: [^\n]*$"),
    "sparse rows": (lambda: torch.eye(2).to_sparse_csr(), errors.InputError,
                    "could not be read: RuntimeError"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(1)]),
               errors.InputError, "could not be read: RuntimeError"),
    "quantized": (lambda: torch.quantize_per_tensor(ONES, 0.1, 0, torch.qint8),
                  errors.InputError, "could not be read: RuntimeError"),
    "mkldnn": (lambda: ONES.to_mkldnn(), errors.InputError, "could not be read: RuntimeError"),
    "dtype": (lambda: ONES.double(), errors.InputTypeError, "is float64, expected float32"),
    "rank": (lambda: torch.ones(2), errors.InputError, r"has shape \(2,\), expected \(2, 2\)"),
    "many axes": (lambda: torch.ones((1,) * 20), errors.InputError, "has 20 dimensions"),
    "size": (lambda: torch.Size([2, 2]), errors.InputTypeError, "is a torch.Size"),
    "dtype object": (lambda: torch.float32, errors.InputTypeError, "is a torch.dtype"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(add: pteron.Method, case: str) -> None:
    """M8, M9, M10: one line, input and method named."""
    make, error, words = REFUSED[case]
    for call in (lambda: add(ONES, make()), lambda: add.set_inputs([ONES, make()])):
        with pytest.raises(error, match=rf"Input 1 of method 'forward' .*{words}") as caught:
            call()
        assert isinstance(caught.value, RuntimeError)
        assert "\n" not in str(caught.value)
    assert torch.equal(add(ONES, ONES), ONES * 2)


def test_fake_tensors(add: pteron.Method) -> None:
    """A shape without data."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(2, 2)
    with pytest.raises(errors.InputError, match="Input 0 .* has no memory: a fake or meta tensor"):
        add(fake, ONES)


@pytest.mark.parametrize(
    "change",
    [lambda x: x.resize_(64, 64), lambda x: x.set_(torch.ones(2, 2)), lambda x: x.t_(),
     lambda x: x.unsqueeze_(0), lambda x: setattr(x, "data", torch.zeros(2, 2))],
    ids=["resize_", "set_", "t_", "unsqueeze_", "data"],
)  # fmt: skip
def test_storage_replaced(add: pteron.Method, change: Any) -> None:
    """M15, M69, M78: never silently other numbers."""
    x = torch.arange(4.0).reshape(2, 2).clone()
    add.set_inputs([ONES, x])
    assert torch.equal(add.execute()[0], x + 1)
    x += 1
    assert torch.equal(add.execute()[0], x + 1)  # M65, M66
    change(x)
    with pytest.raises(errors.MethodStateError, match="Input 1 .*pass the input again"):
        add.execute()


def test_state_written_in_place() -> None:
    """M67, M68: planned, the tensor stays; not planned, it is the program's to write."""
    state = torch.zeros(2, 2)
    planned, unplanned = load("planned_state"), load("unplanned_state")
    for _ in range(2):
        assert torch.equal(planned(ONES, state), ONES)
    assert torch.equal(state, ONES * 0)
    unplanned(ONES, state)
    assert torch.equal(state, ONES)


def test_constants(add: pteron.Method) -> None:
    """M42: an independent copy, since torch would write through."""
    method = load("attribute")
    constant = method.get_attribute("table.values")
    for tensor in (torch.from_dlpack(constant), constant.torch(), torch.as_tensor(constant)):
        tensor.fill_(9)
    x = np.zeros((2, 3), np.float32)
    assert np.array_equal(method(x), np.arange(6).reshape(2, 3))
    state = load("state").get_attribute("acc")
    state.torch().fill_(4)
    assert np.asarray(state)[0, 0] == 4


def test_channels_last() -> None:
    """I1, X6: both plans, both layouts."""
    x = torch.arange(12.0).reshape(1, 3, 2, 2)
    for name in ("times2_4d", "chan_last"):
        for value in (x, x.to(memory_format=torch.channels_last)):
            assert torch.equal(load(name)(value), x * 2)


@pytest.mark.parametrize("scalars", [(torch.tensor(0.5), torch.tensor(3), torch.tensor(True))])
def test_scalars(scalars: Any) -> None:
    """M105: tensors of no dimensions for scalar inputs and for tensors of no dimensions."""
    assert torch.equal(load("alpha")(ONES, *scalars), ONES * 1.5)
    a, b = load("zero_d")(torch.tensor(1.5), torch.tensor(3))
    assert (a.item(), b.item(), a.shape, b.dtype) == (3.0, 4, (), torch.int64)


MODES = """
import numpy as np, pteron, sys
ones = np.ones((2, 2), np.float32)
m = pteron.load({add!r}).load_method()
print(type(m(ones, ones)).__name__, "torch" in sys.modules)
import torch
out = m(torch.from_numpy(ones), ones)
print(type(out).__name__)
attribute = pteron.load({attribute!r}, data_path={data!r}).load_method()
constant = attribute.get_attribute("table.values")
print(type(constant).__name__)
if isinstance(constant, torch.Tensor):
    constant.fill_(9)
print(float(attribute(np.zeros((2, 3), np.float32)).sum() if isinstance(constant, torch.Tensor)
            else np.asarray(attribute(np.zeros((2, 3), np.float32))).sum()))
"""
R, T = "ExecuTorchResult", "Tensor"


@pytest.mark.parametrize(
    ("mode", "lines"),
    [
        ("", [f"{R} False", T, R, "15.0"]),
        ("executorch", [f"{R} False", R, R, "15.0"]),
        ("torch", [f"{T} True", T, T, "15.0"]),  # M45
    ],
)
def test_output_modes(mode: str, lines: list[str]) -> None:
    """M101, M102, M45: set before the import, fixed from then on."""
    code = MODES.format(
        add=str(DATA / "add.pte"),
        attribute=str(DATA / "attribute.pte"),
        data=str(DATA / "attribute.ptd"),
    )
    variables = {**os.environ, "EXECUTORCH_PYBINDINGS_TENSOR_OUTPUT": mode}
    variables["PYTHONPATH"] = os.pathsep.join([str(Path(pteron.__file__).parents[1]), *sys.path])
    run = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False
    )
    assert run.stdout.splitlines() == lines, run.stderr


def test_memory_stays_flat(add: pteron.Method) -> None:
    """M110: 10,000 calls in and out, and refusals."""
    z = torch.ones(2, 2, dtype=torch.complex64).conj()
    complex64 = load("add_complex64")

    def calls(count: int) -> None:
        for _ in range(count):
            out = add(torch.ones(2, 2), ONES)
            pteron.ExecuTorchResult.from_host(out).torch()
            complex64(z, z)
            with pytest.raises(errors.DeviceError):
                add(ONES, torch.ones(2, 2, device="meta"))

    calls(200)
    with flat_memory():
        calls(2500)
