"""The library inside a CUDA program, run without pteron: what a call cannot be faster than.

pteron has the library open already, under a name whose file is gone; opening that name again gives
the same library. Needs a C++ compiler.
"""

from __future__ import annotations

import ctypes
import math
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Shape = tuple[int, ...]
_SOURCE = Path(__file__).parent / "bare_container.cpp"


class _View(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("ndim", ctypes.c_int64),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
    ]


class _Container(ctypes.Structure):
    _fields_ = [
        ("container", ctypes.c_void_p),
        ("view", ctypes.c_void_p),
        ("run", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("inputs", ctypes.POINTER(_View)),
        ("num_inputs", ctypes.c_uint64),
        ("num_outputs", ctypes.c_uint64),
    ]


class _Binding(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("tensor", ctypes.c_void_p)]


def model_libraries() -> set[str]:
    """Names under which this process has model libraries."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    names = (line.split(maxsplit=5)[-1].removesuffix(" (deleted)") for line in lines)
    return {name for name in names if "/pteron-" in name and name.endswith("/model.so")}


class BareContainer:
    """A container of one model library; its context must be current where it is used."""

    def __init__(self, library: str, weights: dict[str, tuple[int, Shape]]) -> None:
        """`weights`: address and shape of each in device memory, which must stay."""
        mode = ctypes.RTLD_LOCAL | 4  # RTLD_NOLOAD
        self._model = ctypes.CDLL(library, mode=mode)
        maps = Path("/proc/self/maps").read_text().split()
        shims = next(name for name in maps if name.endswith("/libpteron_cuda.so"))
        self._shims = ctypes.CDLL(shims, mode=mode)
        self._container = ctypes.c_void_p()
        self._do(
            "CreateWithDevice", ctypes.byref(self._container), ctypes.c_size_t(1), b"cuda:0", None
        )
        count = ctypes.c_size_t()
        self._do("GetNumConstants", self._container, ctypes.byref(count))
        bindings = []
        for i in range(count.value):
            name, fqn = ctypes.c_char_p(), ctypes.c_char_p()
            index = ctypes.c_size_t(i)
            self._do("GetConstantName", self._container, index, ctypes.byref(name))
            self._do("GetConstantOriginalFQN", self._container, index, ctypes.byref(fqn))
            assert fqn.value is not None
            bindings.append(_Binding(name.value, self._tensor(*weights[fqn.value.decode()])))
        if bindings:
            table = (_Binding * len(bindings))(*bindings)
            size = ctypes.c_size_t(len(bindings))
            self._do(
                "UpdateUserManagedConstantBufferPairs", self._container, table, size, False, True
            )
        with tempfile.TemporaryDirectory() as folder:
            built = Path(folder) / "bare.so"
            subprocess.run(["g++", "-O2", "-fPIC", "-shared", _SOURCE, "-o", built], check=True)
            self._run = ctypes.CDLL(str(built)).bare_run
        self._run.argtypes = [ctypes.c_void_p, ctypes.c_void_p]

    def _do(self, name: str, *arguments: Any) -> None:
        code = getattr(self._model, "AOTInductorModelContainer" + name)(*arguments)
        assert code == 0, name

    def _tensor(self, data: int, shape: Shape) -> int:
        tensor = ctypes.c_void_p()
        view = _view(data, shape)
        code = self._shims.aoti_torch_create_tensor_from_blob(
            ctypes.c_void_p(data),
            ctypes.c_int64(view.ndim),
            view.sizes,
            view.strides,
            ctypes.c_int64(0),
            6,
            1,
            0,
            ctypes.byref(tensor),
        )
        assert code == 0 and tensor.value is not None
        return tensor.value

    def call(self, inputs: list[tuple[int, Shape]], stream: int = 0) -> Callable[[], None]:
        """A run with float32 tensors of these addresses and shapes; it does not wait."""
        views = (_View * len(inputs))(*(_view(*x) for x in inputs))
        outputs = ctypes.c_size_t()
        self._do("GetNumOutputs", self._container, ctypes.byref(outputs))

        def address(function: Any) -> int | None:
            return ctypes.cast(function, ctypes.c_void_p).value

        bare = _Container(
            self._container,
            address(self._shims.aoti_torch_create_tensor_from_blob),
            address(self._model.AOTInductorModelContainerRunSingleThreaded),
            address(self._shims.aoti_torch_delete_tensor_object),
            views,
            len(inputs),
            outputs.value,
        )
        pointer, run = ctypes.addressof(bare), self._run

        def work(keep: Any = (bare, views)) -> None:
            assert run(pointer, stream) == 0

        return work


def _view(data: int, shape: Shape) -> _View:
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    numbers = ctypes.c_int64 * len(shape)
    return _View(data, len(shape), numbers(*shape), numbers(*strides))
