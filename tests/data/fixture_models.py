"""The modules that `export_fixtures.py` exports, with the inputs that it exports them with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from torch import library, nn
from torch.export import export
from torch.nn import functional
from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
from torchao.quantization.granularity import PerGroup
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.utils import unwrap_tensor_subclass


class Method(NamedTuple):
    """One method of a program: a module and the example inputs that it is exported with."""

    module: nn.Module
    inputs: tuple[Any, ...]
    keywords: dict[str, Any]


class Function(nn.Module):
    """A plain function as a module, so that a row can be one line."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function


def method(body: nn.Module | Callable[..., Any], *inputs: Any, **keywords: Any) -> Method:
    module = body if isinstance(body, nn.Module) else Function(body)
    return Method(module.eval(), inputs, keywords)


def forward(
    body: nn.Module | Callable[..., Any], *inputs: Any, **keywords: Any
) -> dict[str, Method]:
    return {"forward": method(body, *inputs, **keywords)}


def mlp() -> dict[str, Method]:
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return forward(net, torch.randn(2, 8))


def conv() -> dict[str, Method]:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 8 * 8, 5)
    )
    return forward(net, torch.randn(1, 3, 8, 8))


class State(nn.Module):
    """Adds each input to what it has seen so far."""

    def __init__(self, start: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("acc", start)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.acc.add_(x)
        return self.acc


class SetState(State):
    """Overwrites what `State` has seen: a second method on the same buffer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.acc.copy_(x)
        return self.acc


def state(start: float) -> dict[str, Method]:
    return forward(State(torch.full((2, 2), start)), torch.randn(2, 2))


def state_two_methods() -> dict[str, Method]:
    start = torch.zeros(2, 2)
    return {
        "forward": method(State(start), torch.randn(2, 2)),
        "set_state": method(SetState(start), torch.randn(2, 2)),
    }


class Count(State):
    """Counts beside what it adds up."""

    def __init__(self, start: int) -> None:
        super().__init__(torch.full((2, 2), float(start)))
        self.register_buffer("count", torch.tensor(start))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.acc.add_(x)
        self.count.add_(1)
        return self.acc, self.count


class Peek(Count):
    """Reads one of the two buffers of `Count`, and changes none."""

    def forward(self) -> torch.Tensor:
        return self.count * 1


class Get(Count):
    """Gives a buffer of `Count` back as it is."""

    def forward(self) -> torch.Tensor:
        return self.acc


def count(start: int) -> dict[str, Method]:
    return {
        "forward": method(Count(start), torch.randn(2, 2)),
        "peek": method(Peek(start)),
        "get": method(Get(start)),
        "plain": method(lambda x: x + 1, torch.randn(2, 2)),
    }


def update_input(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    state.add_(x)
    return state


def quantized(make: Callable[[], dict[str, Method]], **config: Any) -> dict[str, Method]:
    """A net quantized for XNNPACK."""
    plain = make()["forward"]
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(**config))
    prepared = prepare_pt2e(export(plain.module, plain.inputs).module(), quantizer)
    prepared(*plain.inputs)
    return {"forward": Method(convert_pt2e(prepared), plain.inputs, {})}


def pool_work(
    x: torch.Tensor, y: torch.Tensor, image: torch.Tensor, filters: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """What kernels divide among the threads of the pool. No weights: the file stays small."""
    product = torch.relu(x @ y)
    return (
        torch.softmax(product, -1) + product * 0.5,
        functional.conv2d(image, filters, padding=1),
        functional.gelu(x) + x,
    )


def pool() -> dict[str, Method]:
    image, weights = torch.randn(1, 8, 48, 48), torch.randn(8, 8, 3, 3)
    return forward(pool_work, torch.randn(256, 192), torch.randn(192, 256), image, weights)


def filters() -> dict[str, Method]:
    """Convolutions, dense and by channel, and what is between them in image nets."""
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16),
        nn.ReLU6(),
        nn.Conv2d(16, 24, 1),
        nn.AvgPool2d(2),
    )
    return forward(net, torch.randn(1, 3, 64, 64))


def many_ops(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Kinds of nodes that have parameters of their own."""
    both = torch.cat([x + y, functional.hardswish(x) / (y.abs() + 1)], 1)
    pooled = functional.max_pool2d(both, 2) - functional.avg_pool2d(both, 2)
    padded = functional.pad(pooled, (1, 1, 0, 0)).permute(0, 2, 3, 1)
    return torch.softmax(functional.elu(padded[:, :, 1:4].reshape(1, 3, -1)), -1)


def groupwise() -> dict[str, Method]:
    """A linear layer with weights of 4 bits in groups of 32, and inputs quantized as they come."""
    plain = forward(nn.Linear(64, 4), torch.randn(2, 64))["forward"]
    config = Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=PerGroup(32)
    )
    quantize_(plain.module, config)
    unwrap_tensor_subclass(plain.module)
    return {"forward": plain}


class Constant(nn.Module):
    """A method without inputs; `scale` None gives the constant itself back."""

    def __init__(self, scale: float | None) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("table", torch.arange(6, dtype=torch.float32).reshape(2, 3))

    def forward(self) -> torch.Tensor:
        return self.table if self.scale is None else self.table * self.scale


class ConstantView(Constant):
    """Gives a view of its constant back."""

    def __init__(self) -> None:
        super().__init__(None)

    def forward(self) -> torch.Tensor:
        return self.table.view(3, 2)


class EightOutputs(nn.Module):
    """Gives its input and seven constants back: no kernel runs."""

    def __init__(self) -> None:
        super().__init__()
        for i in range(7):
            self.register_buffer(f"t{i}", torch.full((2, 3), float(i)))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x, *(getattr(self, f"t{i}") for i in range(7))


class AddTable(nn.Module):
    """Adds a constant whose full name is `table.values`."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Module()
        self.table.register_buffer("values", torch.arange(6, dtype=torch.float32).reshape(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table.values


def deeper(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 10, lambda x, y: x * y, lambda x, y: x - y, (x, y))


def first_choice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, deeper, lambda x, y: x + y, (x, y))


def second_choice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cond(y.sum() > 0, lambda x, y: y * 2, lambda x, y: x * 3, (x, y))


def conditional(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Two conditionals, the first with another inside, and both results in the answer."""
    first = first_choice(x, y) - 1
    return first + second_choice(x, y)


def conditional_overlap(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    first = first_choice(x, y)
    return first + second_choice(x, y)


def view_and_input(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    flat = x.view(-1)
    return flat * 2, x + 1


def same_twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x + 1
    return y, y


def nested(x: torch.Tensor, *, mask: torch.Tensor, scale: torch.Tensor) -> dict[str, Any]:
    return {"scaled": x * scale, "parts": (x * mask, [x + mask, x - 1])}


def missing_ops() -> dict[str, Method]:
    """Two ops that no runtime has a kernel for."""
    for name in ("twist", "bend"):
        if hasattr(torch.ops.pteron_test, name):
            continue
        full = f"pteron_test::{name}"
        library.define(full, "(Tensor x) -> Tensor")
        library.define(f"{full}.out", "(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
        library.impl(full, "CompositeExplicitAutograd", lambda x: x.clone())
        library.impl(f"{full}.out", "CompositeExplicitAutograd", lambda x, *, out: out.copy_(x))
        library.register_fake(full, torch.empty_like)
    ops = torch.ops.pteron_test
    return forward(lambda x: ops.bend(ops.twist(x) + 1), torch.randn(2, 2))


def whole(dtype: torch.dtype, *values: int) -> torch.Tensor:
    """Small whole numbers: every type holds them exactly."""
    return torch.tensor(values).to(dtype).reshape(2, -1)


def add(*shape: int) -> dict[str, Method]:
    return forward(lambda x, y: x + y, torch.randn(shape), torch.randn(shape))
