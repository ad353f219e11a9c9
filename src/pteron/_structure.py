"""How a method is called and what it returns: the structures that the exporter kept in the file.

Inside, a method takes and gives flat lists. The exported function may have taken keywords and
nested containers and returned a dict: ``ExecutionPlan.container_meta_type`` in program.fbs holds
both structures, as JSON that torch's pytree wrote: a pair of a version and a node, nodes with
"type", "context" (JSON again: the keys of a dict) and "children_spec", leaves with a null type. A
file without them, or with others than we know, keeps the flat lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pteron.errors import InputError

if TYPE_CHECKING:
    from pteron._core import Method, MethodMeta, TensorInfo, ValueInfo


class Node(NamedTuple):
    """A container of the structure, or a leaf (kind "leaf")."""

    kind: str  # "leaf", "tuple", "list" or "dict"
    keys: tuple[Any, ...] = ()
    children: tuple[Node, ...] = ()

    def leaves(self) -> int:
        """Number of leaves below, itself included."""
        return 1 if self.kind == "leaf" else sum(child.leaves() for child in self.children)

    def is_flat(self) -> bool:
        """Whether all children are leaves."""
        return all(child.kind == "leaf" for child in self.children)

    def build(self, leaves: Iterator[Any]) -> Any:
        """The containers around the next leaves."""
        if self.kind == "leaf":
            return next(leaves)
        values = [child.build(leaves) for child in self.children]
        if self.kind == "dict":
            return dict(zip(self.keys, values, strict=True))
        return values if self.kind == "list" else tuple(values)

    def take_apart(self, value: Any, where: str) -> Iterator[Any]:
        """The leaves of `value`, which must have this structure."""
        if self.kind == "leaf":
            yield value
        elif self.kind == "dict":
            if not isinstance(value, Mapping) or set(value) != set(self.keys):
                wanted = ", ".join(map(repr, self.keys))
                raise InputError(f"{where} must be a dict with the keys {wanted}")
            for key, child in zip(self.keys, self.children, strict=True):
                yield from child.take_apart(value[key], f"{where}[{key!r}]")
        else:
            count = len(self.children)
            if not isinstance(value, Sequence) or len(value) != count:
                raise InputError(f"{where} must be a {self.kind} of {count}")
            for i, child in enumerate(self.children):
                yield from child.take_apart(value[i], f"{where}[{i}]")


@lru_cache(maxsize=128)  # programs are loaded again and again, and most have the same few
def parse(text: str) -> Node | None:
    """The structure in `text`, or None if it is none that we know."""
    import json  # not worth its time where no program is loaded

    try:
        _, root = json.loads(text)
        return _node(root)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _node(spec: dict[str, Any]) -> Node:
    import json

    children = tuple(_node(child) for child in spec["children_spec"])
    kind = spec["type"]
    if kind is None:
        return Node("leaf")
    if kind in {"builtins.dict", "collections.OrderedDict"}:
        keys = tuple(json.loads(spec["context"]))
        if len(keys) != len(children):
            raise ValueError("as many keys as children")
        return Node("dict", keys, children)
    return Node("list" if kind == "builtins.list" else "tuple", (), children)


class Structure:
    """The call and the return value of one method.

    Attributes:
        flat_inputs: Calls without keywords pass the flat list as it is.
        names_stream: An input is called ``stream``, which elsewhere means a CUDA stream.
        returns: "1" the only output, "t" a tuple of all, "l" a list of all, "s" unflatten() says.
    """

    def __init__(self, meta: MethodMeta) -> None:
        self._name = meta.name()
        self._count = meta.num_inputs()
        self._arguments: Node | None = None
        self._keywords: Node | None = None
        inputs = parse(meta.input_tree)
        if inputs and len(inputs.children) == 2 and inputs.leaves() == self._count:
            arguments, keywords = inputs.children
            if arguments.kind in {"tuple", "list"} and keywords.kind == "dict":
                self._arguments, self._keywords = arguments, keywords
        self.flat_inputs = self._arguments is None or (
            self._arguments.is_flat() and not self.keyword_names
        )

        self.names_stream = "stream" in self.keyword_names

        self._output = parse(meta.output_tree)
        # Inputs and buffers that the program writes come out first; the function did not return
        # them.
        outputs = meta.num_outputs()
        self._extra = outputs - self._output.leaves() if self._output else 0
        if self._output is None or self._extra < 0:
            self._output = None
            self.returns = "1" if outputs == 1 else "t"
        elif self._extra or not self._output.is_flat() or self._output.kind == "dict":
            self.returns = "s"
        else:
            self.returns = {"leaf": "1", "tuple": "t", "list": "l"}[self._output.kind]

    @property
    def keyword_names(self) -> tuple[str, ...]:
        """Names of the inputs that are passed by keyword, in order."""
        return self._keywords.keys if self._keywords else ()

    @property
    def positional_count(self) -> int:
        """How many inputs are passed by position, nested ones counted once."""
        return len(self._arguments.children) if self._arguments else self._count

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The flat list of inputs of a call; InputError if it does not have the structure."""
        unknown = [name for name in kwargs if name not in self.keyword_names]
        if unknown:
            known = ", ".join(map(repr, self.keyword_names)) or "none"
            raise InputError(
                f"Method {self._name!r} has no input named {unknown[0]!r}; inputs with names: "
                f"{known}"
            )
        missing = [name for name in self.keyword_names if name not in kwargs]
        if len(args) == self._count and not kwargs:
            return args  # the flat list, as for execute()
        if self._arguments is None or self._keywords is None:
            return args
        if len(args) != self.positional_count:
            names = "".join(f" and {name!r} by name" for name in missing)
            raise InputError(
                f"Method {self._name!r} takes {counted(self.positional_count, 'positional input')}"
                f"{names}, {len(args)} {'was' if len(args) == 1 else 'were'} given"
            )
        if missing:
            raise InputError(f"Method {self._name!r} needs the input {missing[0]!r}, by name")
        flat: list[Any] = []
        for i, (value, node) in enumerate(zip(args, self._arguments.children, strict=True)):
            flat += node.take_apart(value, f"Input {i} of method {self._name!r}")
        for name, node in zip(self._keywords.keys, self._keywords.children, strict=True):
            flat += node.take_apart(kwargs[name], f"Input {name!r} of method {self._name!r}")
        return tuple(flat)

    def call(self, inputs: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call from the flat list of inputs: what `flatten` takes apart."""
        if self._arguments is None or self._keywords is None:
            return inputs, {}
        leaves = iter(inputs)
        return list(self._arguments.build(leaves)), self._keywords.build(leaves)

    def returned(self, outputs: list[Any]) -> Any:
        """What a call returns, from the flat list of outputs."""
        if self._output is not None:
            return self.unflatten(outputs)
        return outputs[0] if self.returns == "1" else tuple(outputs)

    def unflatten(self, outputs: list[Any]) -> Any:
        """What the exported function returned, from the flat list of outputs."""
        assert self._output is not None
        return self._output.build(iter(outputs[self._extra :]))

    def input_names(self) -> list[str]:
        """A name for each flat input: its keyword where it has one, else its position."""
        names = [str(i) for i in range(self._count)]
        if self._keywords and self._keywords.is_flat() and self._keywords.children:
            names[-len(self._keywords.keys) :] = map(str, self._keywords.keys)
        return names

    def output_names(self, count: int) -> list[str]:
        """A name for each flat output: the way to it in the returned value."""
        names = [f"mutated{i}" for i in range(self._extra)]
        if self._output is not None and self._output.kind != "leaf":
            names += _paths(self._output, "")
        else:
            names += [f"out{i}" for i in range(count - self._extra)]
        return names


def _paths(node: Node, prefix: str) -> Iterator[str]:
    if node.kind == "leaf":
        yield prefix
        return
    keys = node.keys if node.kind == "dict" else range(len(node.children))
    for key, child in zip(keys, node.children, strict=True):
        start = "out" if not prefix and node.kind != "dict" else prefix
        step = str(key) if node.kind == "dict" or start == "out" else f".{key}"
        separator = "." if node.kind == "dict" and prefix else ""
        yield from _paths(child, f"{start}{separator}{step}")


def counted(number: int, what: str) -> str:
    """``1 call``, ``2 calls``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def describe_value(info: TensorInfo | ValueInfo) -> str:
    """``float32[2, 3]`` of a tensor, ``float`` of another value.

    ``float32[<=8, <=3]`` if some axes may be smaller: a file does not say which.
    """
    from pteron._core import TensorInfo

    if not isinstance(info, TensorInfo):
        return info.type
    bound = "<=" if info.is_dynamic else ""
    sizes = ", ".join(f"{bound}{size}" for size in info.sizes())
    device = "" if info.device() == "cpu" else f" on {info.device()}"
    return f"{info.dtype_name()}[{sizes}]{device}"


class _Bare(str):
    """Text that shows in containers as it is, without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def describe_signature(meta: MethodMeta) -> str:
    """``forward(float32[2, 2], mask: bool[2]) -> {'sum': float32[2, 2]}``: as it is called."""
    structure = Structure(meta)
    args, kwargs = structure.call([_Bare(describe_value(info)) for info in meta.inputs])
    inputs = [*map(repr, args), *(f"{name}: {value!r}" for name, value in kwargs.items())]
    outputs = structure.returned([_Bare(describe_value(info)) for info in meta.outputs])
    return f"{meta.name()}({', '.join(inputs)}) -> {outputs!r}"


def describe_method(method: Method) -> str:
    """``repr(method)``."""
    meta = method.metadata
    backends = sorted({delegate.backend for delegate in meta.delegates})
    parts = [f"Method {describe_signature(meta)}", *backends]
    if method.cuda_graph:
        parts.append("CUDA graph")
    return f"<{', '.join(parts)}>"
