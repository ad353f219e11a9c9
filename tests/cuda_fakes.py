"""A CUDA driver without a GPU: built once a session from ``native/tests/cuda``, and its controls.

The fake driver keeps device memory on the host, checks on which side each pointer is, counts what
it is asked, and can put work off for as long as CUDA's rules allow. Programs are the goldens of
``tests/data/cuda`` whose libraries are replaced by small models.
"""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import os
import shutil
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import pteron

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "native" / "tests" / "cuda"
GOLDENS = ROOT / "tests" / "data" / "cuda" / "goldens.tar.xz"
MODELS = {name: name for name in ("add", "muladd", "state", "mlp")} | {
    "reads": "reads",
    "throws": "throws",
    "keeps": "keeps",
    "uploads": "uploads",
    "undefined": "add",
    "absent": "add",
}
_NAMES = (
    "live_blocks live_bytes live_streams live_events live_modules live_pools live_graphs "
    "allocations launches graph_launches "
    "device_waits stream_waits event_waits event_records stream_wait_events "
    "uploads downloads device_copies bad_pointers bad_contexts"
)
COUNTERS = _NAMES.split()
_PROGRAMS = (
    "add add_big add_big_devio add_devin add_devio add_devio_planned add_hostplan add_noio "
    "add_noout mlp_devio mlp_dyn mlp_dyn_devio mlp_fp32 muladd_devio muladd_dyn muladd_noout state "
    "state_devio two_methods add_1.2.0 mlp_1.2.0 mlp_1.3.1 mlp_1.4.1 state_1.2.0"
)
PROGRAMS = _PROGRAMS.split()
OUT_OF_MEMORY = 2
KEY = "here"  # what `with_variants` calls the library; other keys lead nowhere
FALLBACK = 1  # a variant's flag


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
        self.handle.fake_cuda_device_waits.restype = ctypes.c_uint64
        self.handle.fake_cuda_device_of.argtypes = [ctypes.c_void_p]

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

    def device_waits(self, device: int) -> int:
        """How many of the waits for a device were for this one."""
        waits: int = self.handle.fake_cuda_device_waits(device)
        return waits

    def set_memory(self, nbytes: int) -> None:
        """Bytes that a device has."""
        self.handle.fake_cuda_set_memory(nbytes)

    def device_of(self, pointer: int) -> int:
        """The device that memory is on; -1 for the host."""
        device: int = self.handle.fake_cuda_device_of(pointer)
        return device

    @contextmanager
    def context(self, device: int) -> Iterator[None]:
        """Make a device's context current, as somebody else's code in this thread may."""
        context = ctypes.c_void_p()
        assert self.handle.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
        assert self.handle.cuCtxPushCurrent_v2(context) == 0
        yield
        popped = ctypes.c_void_p()
        assert self.handle.cuCtxPopCurrent_v2(ctypes.byref(popped)) == 0
        assert popped.value == context.value

    def new_stream(self, blocking: bool, device: int = 0) -> int:
        """The handle of a new stream; non-blocking ones are not ordered with the default one."""
        stream = ctypes.c_void_p()
        flags = 0 if blocking else 1
        with self.context(device):
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

    def with_model(self, driver: Path, model: str) -> bytes:
        """The program's bytes with another of the fake models inside."""
        library = (driver.parent / f"libfake_{model}.so").read_bytes()
        whole = (driver.parent / "goldens" / self.name / "model.pte").read_bytes()
        data: bytes = fakes().with_library(whole, library)
        return data

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


def with_variants(program: bytes, variants: list[tuple[int, int, int, str]]) -> bytes:
    """The program with an ETCUDAFQN0 payload of the same size, and its library renamed to fit.

    A variant is (sm, PTX, flags, key). Keys are padded to what leaves the payload's size as it is.
    """
    at = program.index(b"ETCUDAFQN3")
    (size,) = struct.unpack_from("<I", program, at + 10)
    old = program[at + 14 : at + 14 + size]
    length, rest = divmod(size, len(variants))
    assert rest == 0
    keys = [key.encode().ljust(length - 16, b"_") for *_, key in variants]
    table = struct.pack("<I", len(variants))
    for (sm, ptx, flags, _), key in zip(variants, keys, strict=True):
        table += struct.pack("<4I", sm, ptx, flags, len(key)) + key
    data = bytearray(program)
    data[at : at + 14 + size] = b"ETCUDAFQN0" + table
    name = program.index(old)  # the name of the entry, a string with its length in front
    data[name - 4 : name + size] = struct.pack("<I", len(keys[0])) + KEY.encode().ljust(
        length - 16, b"_"
    ).ljust(size, b"\0")
    return bytes(data)


def delete_in_every_order(programs: list[Golden]) -> None:
    """Two methods of each program, deleted in every order; those that are left run in between."""
    for order in itertools.permutations(programs):
        methods = [(p, p.load().load_method()) for p in programs for _ in range(2)]
        for gone in (*order, *order):
            for program, method in methods:
                program.check(method.execute(program.place(method)))
            methods.pop(next(i for i, (p, _) in enumerate(methods) if p is gone))


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


def golden_names() -> set[str]:
    """The names of all goldens."""
    with tarfile.open(GOLDENS) as archive:
        return {Path(name).parent.name for name in archive.getnames() if name.endswith(".npz")}


def build(folder: Path) -> Path:
    """Compile the fake driver and models and make the fake programs; returns the driver's path."""
    compiler = shutil.which("g++")
    assert compiler is not None
    shared = [compiler, "-std=c++20", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"]
    driver = folder / "libcuda.so.1"
    sources = sorted(SOURCES.glob("fake_driver*.cpp"))
    run([*shared, "-Wl,-soname,libcuda.so.1", *sources, "-o", driver])

    absent = folder / "away" / "libgomp-missing.so.1"  # where no loader looks
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
