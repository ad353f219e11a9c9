"""DLPack producers made by hand: any struct, right or wrong, and how often its deleter ran."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Older ones know no keywords, and make every array from DLPack read-only.
numpy_2 = pytest.mark.skipif(np.__version__ < "2.1", reason="needs DLPack of NumPy 2.1")

CPU, CUDA, PINNED = 1, 2, 3
READ_ONLY, IS_COPIED = 1, 2
CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


class Tensor(ctypes.Structure):
    """``DLTensor``."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    """``DLManagedTensor``."""

    _fields_ = [
        ("tensor", Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class ManagedVersioned(ctypes.Structure):
    """``DLManagedTensorVersioned``."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


NAMES = {False: b"dltensor", True: b"dltensor_versioned"}
_api = ctypes.pythonapi
_DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", _api)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
_get_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", _api))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)
_live: dict[int, Export] = {}  # by address, until the deleter ran


@_DELETER
def _delete(address: int) -> None:
    export = _live.pop(address)
    export.deleted += 1
    export.on_delete()


@_DESTRUCTOR
def _destroy(capsule: int) -> None:
    """What a producer does with a capsule that nobody consumed."""
    for versioned, name in NAMES.items():
        if _is_valid(capsule, name):
            address = _get_pointer(capsule, name)
            kind = ManagedVersioned if versioned else Managed
            deleter = ctypes.cast(address, ctypes.POINTER(kind)).contents.deleter
            if deleter:
                _DELETER(deleter)(address)


class Export:
    """A tensor to export: that of `array`, except for what `wrong` says instead.

    `__dlpack__` makes one capsule; `deleted` counts the calls of its deleter. `wrong` may set any
    field of the structs, the capsule's `name`, and ``deleter=None``.
    """

    def __init__(
        self, array: Any, versioned: bool = True, *, offset: int = 0, **wrong: Any
    ) -> None:
        self.array = array
        self.versioned = versioned
        self.deleted = 0
        self.managed = ManagedVersioned() if versioned else Managed()
        ndim = array.ndim
        shape = wrong.pop("shape", array.shape)
        strides = wrong.pop("strides", tuple(s // array.itemsize for s in array.strides))
        self._arrays = [
            (ctypes.c_int64 * max(1, len(values)))(*values) if values is not None else None
            for values in (shape, strides)
        ]
        self.name = wrong.pop("name", NAMES[versioned])
        self.managed.deleter = None if "deleter" in wrong else ctypes.cast(_delete, ctypes.c_void_p)
        wrong.pop("deleter", None)
        fields = {
            "data": array.ctypes.data - offset,
            "byte_offset": offset,
            "device_type": CPU,
            "ndim": ndim,
            "code": CODES[array.dtype.kind],
            "bits": array.itemsize * 8,
            "lanes": 1,
        }
        if versioned:
            fields |= {"major": 1, "minor": 1}
        for field, value in {**fields, **wrong}.items():
            owner = self.managed.tensor if field in dict(Tensor._fields_) else self.managed
            setattr(owner, field, value)
        for field, values in zip(("shape", "strides"), self._arrays, strict=True):
            if values is not None:
                setattr(self.managed.tensor, field, values)

    def forget(self) -> None:
        """Nobody will call the deleter: that of a capsule of another name."""
        _live.pop(ctypes.addressof(self.managed), None)

    def on_delete(self) -> None:
        """Called by the deleter."""

    def capsule(self) -> Any:
        """A capsule of it; made once."""
        address = ctypes.addressof(self.managed)
        if self.managed.deleter:
            _live[address] = self
        return _new(address, self.name, ctypes.cast(_destroy, ctypes.c_void_p))


class Producer:
    """An object with ``__dlpack__(**keywords)`` that counts and keeps what it was asked."""

    def __init__(self, array: Any, **options: Any) -> None:
        self.array = array
        self.options = options
        self.asked: list[dict[str, Any]] = []
        self.exports: list[Export] = []

    def __dlpack__(self, **keywords: Any) -> Any:
        self.asked.append(keywords)
        self.exports.append(Export(self.array, **self.options))
        return self.exports[-1].capsule()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CPU, 0)

    @property
    def deleted(self) -> list[int]:
        """How often the deleter of each export ran."""
        return [export.deleted for export in self.exports]


def name_of(capsule: Any) -> str:
    """The capsule's name."""
    return _get_name(capsule).decode()


def struct_of(capsule: Any) -> Any:
    """The struct in a capsule that nobody consumed."""
    name = _get_name(capsule)
    kind = ManagedVersioned if name == NAMES[True] else Managed
    return ctypes.cast(_get_pointer(id(capsule), name), ctypes.POINTER(kind)).contents


def resident() -> int:
    """VmRSS in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


@contextmanager
def flat_memory(slack: int = 2048) -> Iterator[None]:
    """Fails if the process has grown by more than `slack` KiB."""
    before = resident()
    yield
    grown = resident() - before
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):  # which keeps what was freed
        assert grown < slack, f"grew by {grown} KiB"
