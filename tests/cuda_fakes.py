"""A CUDA driver without a GPU: built once a session from ``native/tests/cuda``, and its controls.

The fake driver keeps device memory on the host, checks on which side each pointer is, counts what
it is asked, and can put work off for as long as CUDA's rules allow. Programs are the goldens of
``tests/data/cuda`` whose libraries are replaced by small models.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import pteron

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "native" / "tests" / "cuda"
GOLDENS = ROOT / "tests" / "data" / "cuda" / "goldens.tar.xz"
MODELS = {name: name for name in ("add", "muladd", "state", "mlp")} | {
    "undefined": "add",
    "absent": "add",
}
_NAMES = (
    "live_blocks live_bytes live_streams live_events live_modules live_pools "
    "allocations launches "
    "device_waits stream_waits event_waits event_records stream_wait_events "
    "uploads downloads device_copies bad_pointers bad_contexts"
)
COUNTERS = _NAMES.split()
_PROGRAMS = (
    "add add_big add_big_devio add_devin add_devio add_devio_planned add_hostplan add_noio "
    "add_noout mlp_dyn mlp_fp32 muladd_devio muladd_dyn muladd_noout state two_methods"
)
PROGRAMS = _PROGRAMS.split()
OUT_OF_MEMORY = 2


class Counters(ctypes.Structure):
    """``FakeCudaCounters``."""

    _fields_ = [(name, ctypes.c_uint64) for name in COUNTERS]


class FakeDriver:
    """The controls of the fake driver that this process has opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle = ctypes.CDLL(str(path))
        self.handle.fake_cuda_fail.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
        self.handle.fake_cuda_set_memory.argtypes = [ctypes.c_uint64]

    def counters(self) -> dict[str, int]:
        """What it has counted."""
        counters = Counters()
        self.handle.fake_cuda_counters(ctypes.byref(counters))
        return {name: getattr(counters, name) for name in COUNTERS}

    def since(self, before: dict[str, int]) -> dict[str, int]:
        """What was counted since; only what is not 0."""
        now = self.counters()
        return {name: now[name] - before[name] for name in COUNTERS if now[name] != before[name]}

    def fail(self, symbol: str | None, result: int = OUT_OF_MEMORY, after: int = 0) -> None:
        """Let a driver call fail after so many good ones; None: no more failures."""
        self.handle.fake_cuda_fail(symbol.encode() if symbol else None, result, after)

    def defer(self, on: bool) -> None:
        """Do the work of streams as late as is allowed."""
        self.handle.fake_cuda_defer(on)

    def set_memory(self, nbytes: int) -> None:
        """Bytes that a device has."""
        self.handle.fake_cuda_set_memory(nbytes)

    def new_stream(self, blocking: bool) -> int:
        """The handle of a new stream; non-blocking ones are not ordered with the default one."""
        stream = ctypes.c_void_p()
        flags = 0 if blocking else 1
        assert self.handle.cuStreamCreate(ctypes.byref(stream), flags) == 0
        assert stream.value is not None
        return stream.value


@dataclass(frozen=True)
class Golden:
    """A CUDA program with inputs and the outputs of each step."""

    folder: Path
    inputs: list[Any]
    steps: list[list[Any]]

    @property
    def name(self) -> str:
        """The program's name."""
        return self.folder.name

    @property
    def data(self) -> bytes:
        """The program's bytes."""
        return (self.folder / "model.pte").read_bytes()

    def load(self, program: Any = None, **options: Any) -> pteron.Program:
        """Load it, or changed bytes of it, with its weights."""
        options.setdefault("data_path", self.folder / "aoti_cuda_blob.ptd")
        return pteron.load(self.folder / "model.pte" if program is None else program, **options)

    def place(self, method: pteron.Method, arrays: list[Any] | None = None) -> list[Any]:
        """The inputs, or others, each where the method takes it."""
        infos: tuple[Any, ...] = method.metadata.inputs
        arrays = self.inputs if arrays is None else arrays
        return [
            x
            if info.device() == "cpu"
            else pteron.ExecuTorchResult.from_host(x, device=info.device())
            for x, info in zip(arrays, infos, strict=True)
        ]

    def check(self, outputs: list[Any], step: int = 0, tolerance: float | None = None) -> None:
        """Compare outputs with those of a step."""
        assert len(outputs) == len(self.steps[step])
        for got, (dtype, want) in zip(outputs, self.steps[step], strict=True):
            assert (got.dtype, got.shape) == (dtype, want.shape)
            near(got, as_float(dtype, want), tolerance or self.tolerance(dtype))

    def tolerance(self, dtype: str) -> float:
        """How far from the largest value an output may be."""
        if dtype in ("float16", "bfloat16"):
            return 2e-2
        if not dtype.startswith("float"):
            return 0.0
        tf32 = self.name.startswith(("mlp", "conv", "two_methods"))
        return 2e-3 if tf32 else 1e-4


def as_float(dtype: str, array: Any) -> Any:
    """The values as float64; bfloat16 is stored as its bits."""
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return np.asarray(array, np.float64)


def near(result: Any, want: Any, tolerance: float) -> None:
    """Compare a result, wherever it is, relative to the largest value."""
    host = result.to_host()
    got = host.numpy("float32" if host.dtype == "bfloat16" else None)
    scale = np.abs(want).max(initial=0.0)
    assert np.abs(got.astype(np.float64) - want).max(initial=0.0) <= tolerance * max(scale, 1e-6)


def read_golden(folder: Path) -> Golden:
    """The golden in a folder."""
    with np.load(folder / "golden.npz") as data:
        arrays = {key: data[key] for key in data.files}
    inputs: list[Any] = []
    steps: dict[int, list[Any]] = {}
    for key, array in arrays.items():
        base, dtype = key.split("__")
        if base.startswith("in"):
            bits = dtype == "bfloat16"
            inputs.append(result_of_bits(dtype, array) if bits else array)
        else:
            step = int(base.split("_")[0].removeprefix("step"))
            steps.setdefault(step, []).append((dtype, array))
    return Golden(folder, inputs, [steps[k] for k in sorted(steps)])


def result_of_bits(dtype: str, array: Any) -> Any:
    """A host result of a type that NumPy lacks."""
    return pteron._core.result_from_bytes(dtype, array.shape, array.tobytes())


def unpack_goldens(folder: Path) -> Path:
    """Unpack all goldens into `folder`."""
    with tarfile.open(GOLDENS) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)
    return folder


def build(folder: Path) -> Path:
    """Compile the fake driver and models and make the fake programs; returns the driver's path."""
    compiler = shutil.which("g++")
    assert compiler is not None
    shared = [compiler, "-std=c++20", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"]
    driver = folder / "libcuda.so.1"
    sources = [SOURCES / "fake_driver.cpp", SOURCES / "fake_driver_calls.cpp"]
    run([*shared, "-Wl,-soname,libcuda.so.1", *sources, "-o", driver])

    absent = folder / "away" / "libpteron_absent.so"  # where no loader looks
    absent.parent.mkdir()
    run([*shared, "-x", "c++", os.devnull, f"-Wl,-soname,{absent.name}", "-o", absent])

    def build_model(item: tuple[str, str]) -> None:
        name, model = item
        define = [f'-DFAKE_MODEL="{model}"']
        if name == "undefined":
            define.append("-DFAKE_MODEL_UNDEFINED")
        # Shims are left open, as in exported libraries; small enough for the place of one.
        links = ["-Wl,--unresolved-symbols=ignore-all", "-Wl,--build-id=none", "-s"]
        links.append("-Wl,-z,noseparate-code")
        if name == "absent":
            links += ["-Wl,--no-as-needed", str(absent)]
        target = folder / f"libfake_{name}.so"
        run([*shared, *define, SOURCES / "fake_model.cpp", driver, *links, "-o", target])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(build_model, MODELS.items()))
    goldens = unpack_goldens(folder / "goldens")
    fakes().main(goldens, folder, folder / "programs")
    return driver


def run(command: list[Any]) -> None:
    """Run a compiler, without the sanitizer that these tests may run under."""
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run([str(x) for x in command], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr


def fakes() -> Any:
    """The module ``make_fake_programs``."""
    spec = importlib.util.spec_from_file_location("fakes", SOURCES / "make_fake_programs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_new_process(code: str, driver: Path | str, **environment: str) -> str:
    """What a new interpreter printed; `code` sees pteron, np and errors."""
    prelude = "import numpy as np, pteron\nfrom pteron import errors\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + code],
        capture_output=True,
        text=True,
        env={**os.environ, "PTERON_CUDA_DRIVER": str(driver), **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pointer(result: Any) -> int:
    """Address of a result's device memory."""
    address = result.__cuda_array_interface__["data"][0]
    assert isinstance(address, int)
    return address


Goldens = Callable[[str], Golden]
