"""Run ExecuTorch programs (``.pte``) from Python without PyTorch.

>>> import numpy as np, pteron
>>> program = pteron.load("model.pte")
>>> result = program(np.ones((2, 2), np.float32), np.ones((2, 2), np.float32))
>>> np.asarray(result)
"""

from __future__ import annotations

import os as _os
from typing import TYPE_CHECKING as _TYPE_CHECKING

from pteron import _core, errors
from pteron._core import (
    DelegateInfo,
    ExecuTorchResult,
    Method,
    MethodMeta,
    OperatorInfo,
    PlannedBuffer,
    TensorInfo,
    ValueInfo,
    Verification,
)
from pteron._library import load_library
from pteron.errors import ExecuTorchError
from pteron.module import Module
from pteron.program import Program, load

if _TYPE_CHECKING:
    from pteron.bundled import BundledCase, BundledProgram, load_bundled
    from pteron.runtime import Runtime

__version__ = "0.1.0"
executorch_version = "1.5.1"

__all__ = [
    "BundledCase",
    "BundledProgram",
    "DelegateInfo",
    "ExecuTorchError",
    "ExecuTorchResult",
    "Method",
    "MethodMeta",
    "Module",
    "OperatorInfo",
    "PlannedBuffer",
    "Program",
    "Runtime",
    "TensorInfo",
    "ValueInfo",
    "Verification",
    "__version__",
    "errors",
    "executorch_version",
    "load",
    "load_bundled",
    "load_library",
]


# Imported when first asked for: importing pteron stays quick.
_LAZY = {
    "BundledCase": "bundled",
    "BundledProgram": "bundled",
    "load_bundled": "bundled",
    "Runtime": "runtime",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'pteron' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"pteron.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


_MODES = {"": 0, "executorch": 1, "torch": 2}


def _set_output_mode() -> None:
    """Read once: whether outputs are results or torch tensors must not change in a process."""
    variable = "EXECUTORCH_PYBINDINGS_TENSOR_OUTPUT"
    value = _os.environ.get(variable, "")
    if value not in _MODES:
        raise errors.ArgumentError(f"{variable} is {value!r}; it can be 'executorch' or 'torch'")
    _core.set_output_mode(_MODES[value])


def _set_memory_limit() -> None:
    variable = "PTERON_MEMORY_LIMIT"
    value = _os.environ.get(variable, "")
    if not value:
        return
    if not value.isdecimal() or int(value) == 0:
        raise errors.ArgumentError(f"{variable} is {value!r}; it must be a number of bytes")
    _core.set_memory_limit(min(int(value), 2**63 - 1))


def _set_num_threads() -> None:
    variable = "PTERON_NUM_THREADS"
    value = _os.environ.get(variable, "")
    if not value:
        return
    try:
        _core.set_num_threads(min(int(value), 1 << 62))
    except ValueError as error:  # of int(), and ArgumentError
        raise errors.ArgumentError(f"{variable} is {value!r}: {error}") from None


_set_output_mode()
_set_memory_limit()
_set_num_threads()
