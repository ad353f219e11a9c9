"""Torch tensors in, torch tensors out: pteron's official faces with torch in the process."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from conftest import DATA

import pteron
from pteron import portable_lib, runtime

X = torch.full((2, 2), 2.0)
Y = torch.full((2, 2), 3.0)


def method(name: str) -> portable_lib.ExecuTorchMethod:
    return portable_lib._load_program(str(DATA / f"{name}.pte")).load_method("forward")


def test_every_way_to_the_outputs() -> None:
    """M103: torch tensors from each entry point; results for NumPy."""
    m = method("mul_add")
    m.set_inputs([X, Y])
    m.execute()
    module = portable_lib._load_for_executorch(str(DATA / "mul_add.pte"))
    program = runtime.Runtime.get().load_program(DATA / "mul_add.pte")
    outputs = [
        m.get_outputs(),
        m.get_outputs(clone_outputs=False),
        m.call([X, Y]),
        module.forward([X, Y]),
        module.plan_execute("forward"),
        module.forward(inputs=[X], clone_outputs=False),
        program.load_method("forward").execute((X, Y)),
    ]
    for (output,) in outputs:
        assert type(output) is torch.Tensor and torch.equal(output, torch.full((2, 2), 15.0))
    (result,) = m.call([X.numpy(), Y.numpy()])
    assert type(result) is pteron.ExecuTorchResult
    (again,) = m.get_outputs()
    assert type(again) is pteron.ExecuTorchResult


def test_nothing_to_ask() -> None:
    """A method without tensor inputs gives torch tensors, as torch is imported."""
    (output,) = method("no_inputs").call()
    assert type(output) is torch.Tensor
    (plain,) = pteron.load(DATA / "no_inputs.pte").load_method().execute([])
    assert type(plain) is pteron.ExecuTorchResult


def test_bundled_outputs() -> None:
    """The outputs of a verified case are torch tensors, as the official ones."""
    bundle = portable_lib._load_bundled_program_from_buffer((DATA / "bundled.bpte").read_bytes())
    (output,) = bundle.verify_result_with_bundled_expected_output("forward", 0)
    assert type(output) is torch.Tensor


def test_attributes() -> None:
    """M45, M46: a constant is a copy; a mutable buffer is live and outlives its method."""
    m = portable_lib._load_program(
        str(DATA / "attribute.pte"), data_path=str(DATA / "attribute.ptd")
    ).load_method("forward")
    constant = m.get_attribute("table.values")
    before = m.call([torch.zeros(2, 3)])[0]
    constant.add_(100)
    assert torch.equal(m.call([torch.zeros(2, 3)])[0], before)

    m = method("state")
    m.call([X])
    state = m.get_attribute("acc")
    assert torch.equal(state, torch.full((2, 2), 3.0))
    m.call([X])
    assert torch.equal(state, torch.full((2, 2), 5.0))
    del m
    gc.collect()
    assert torch.equal(state, torch.full((2, 2), 5.0))


def test_parameters_and_subclasses() -> None:
    """X13: every kind of tensor is an input."""

    class Mine(torch.Tensor):
        pass

    parameter = torch.nn.Parameter(X.clone())
    (output,) = method("mul_add").call([parameter, Y.as_subclass(Mine)])
    assert torch.equal(output, torch.full((2, 2), 15.0))


@pytest.mark.parametrize("call", ["method", "module"])
def test_meta_device(call: str) -> None:
    """M8: refused by both, with the device's name."""
    run = (
        method("mul_add").call
        if call == "method"
        else portable_lib._load_for_executorch(str(DATA / "mul_add.pte")).forward
    )
    with pytest.raises(RuntimeError, match="is on device meta.*only CPU and CUDA tensors"):
        run([X.to("meta"), Y])


def test_kept_tensor_with_other_storage() -> None:
    """M69, M74: a kept torch tensor whose storage was replaced must be passed again."""
    module = pteron.Module(pteron.load(DATA / "mul_add.pte"))
    y = Y.clone()
    module.forward([X, y])
    y.mul_(0)
    assert torch.equal(module.forward([X])[0], torch.zeros(2, 2))  # M66
    y.set_(torch.ones(2, 2))
    with pytest.raises(
        pteron.errors.MethodStateError, match="kept from an earlier call.*pass the input again"
    ):
        module.forward([X])


def test_borrowed_output_as_input() -> None:
    """M76: a borrowed torch output passed in gives the same each run, as a torch tensor."""
    program = portable_lib._load_program(str(DATA / "two_methods.pte"))
    m = program.load_method("forward")
    (borrowed,) = m.call([X], clone_outputs=False)
    m.set_inputs([borrowed])
    for _ in range(2):
        m.execute()
        (output,) = m.get_outputs()
        assert torch.equal(output, torch.full((2, 2), 4.0))
    assert np.asarray(X)[0, 0] == 2
