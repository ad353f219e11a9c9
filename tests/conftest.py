"""What every test shares: the exported programs in ``tests/data`` and their expected values.

``tests/data/export_fixtures.py`` exports them with the official exporter and says what each is.
Its ``.npz`` files hold inputs and outputs as ``in0``, ``out0`` ...; a suffix says what a plain
array cannot: ``__bfloat16`` bits, ``__scalar`` a Python number, ``__none`` None.
"""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cuda_fakes
import numpy as np
import pytest

import pteron
from pteron import _core

DATA = Path(__file__).parent / "data"
# XNNPACK quantizes what comes in with a rounding of its own.
ROUNDED = ("mlp_qd8_xnnpack", "linear_qb4_xnnpack")


@dataclass(frozen=True)
class Fixture:
    """A program of ``tests/data`` with one set of inputs and the outputs of eager torch."""

    name: str
    inputs: list[Any]
    outputs: list[Any]

    @property
    def path(self) -> Path:
        """The program file."""
        return DATA / f"{self.name}.pte"

    def load(self, **options: Any) -> pteron.Program:
        """Load the program, with its data file if it has one."""
        data_file = self.path.with_suffix(".ptd")
        if data_file.exists():
            options.setdefault("data_path", data_file)
        return pteron.load(self.path, **options)

    def check(self, outputs: list[Any]) -> None:
        """Compare with the expected outputs: to the bit where NumPy lacks the type."""
        assert len(outputs) == len(self.outputs)
        for got, want in zip(outputs, self.outputs, strict=True):
            if isinstance(want, pteron.ExecuTorchResult):
                assert (got.dtype, got.shape) == (want.dtype, want.shape)
                assert got.tobytes() == want.tobytes()
            elif isinstance(want, np.ndarray):
                assert (got.dtype, got.shape) == (want.dtype.name, want.shape)
                atol = 5e-3 if self.name in ROUNDED else 1e-6
                np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=atol)
            else:
                assert (type(got), got) == (type(want), want)


def load_fixture(name: str, method: str = "") -> Fixture:
    """The fixture of that name; `method` for the values of another method than forward."""
    prefix = f"{method}." if method else ""
    with np.load(DATA / f"{name}.npz") as data:
        arrays = {key: data[key] for key in data.files}
    return Fixture(name, _values(arrays, f"{prefix}in"), _values(arrays, f"{prefix}out"))


def _values(arrays: dict[str, Any], prefix: str) -> list[Any]:
    found: dict[int, Any] = {}
    for key, array in arrays.items():
        base, _, suffix = key.partition("__")
        index = base.removeprefix(prefix)
        if base.startswith(prefix) and index.isdigit():
            found[int(index)] = _value(array, suffix)
    return [found[i] for i in range(len(found))]


def _value(array: Any, suffix: str) -> Any:
    if suffix == "none":
        return None
    if suffix == "scalar":
        return array.item()
    if suffix:
        return _core.result_from_bytes(suffix, array.shape, array.tobytes())
    return array


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what cannot run under the sanitizer in use."""
    for mark in item.iter_markers("not_under"):
        if os.environ.get("PTERON_SANITIZER") in mark.args:
            pytest.skip(mark.kwargs["reason"])


def pytest_unconfigure() -> None:
    """Python drops these after its last collection, and Hypothesis's holds an enum of ours."""
    gc.callbacks.clear()


@pytest.fixture
def add() -> pteron.Method:
    """``forward(x, y) = x + y``, float32 (2, 2), all memory planned."""
    return pteron.load(DATA / "add.pte").load_method()


@pytest.fixture
def ones() -> Any:
    """An input of `add`."""
    return np.ones((2, 2), np.float32)


@pytest.fixture(scope="session")
def driver_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake CUDA driver, beside it models and programs."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++ for the fake CUDA driver")
    return cuda_fakes.build(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(scope="session")
def opened(driver_path: Path) -> Iterator[cuda_fakes.FakeDriver]:
    """The fake driver, used by this process from now on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PTERON_CUDA_DRIVER", str(driver_path))
        patch.setenv("FAKE_CUDA_DEVICES", "2")
        text = pteron._core.cuda_driver()
    assert str(driver_path) in text
    yield cuda_fakes.FakeDriver(driver_path)


@pytest.fixture
def driver(opened: cuda_fakes.FakeDriver) -> Iterator[cuda_fakes.FakeDriver]:
    """The fake driver; the test must not have confused the sides of the bus."""
    before = opened.counters()
    yield opened
    opened.fail(None)
    opened.defer(False)
    opened.set_memory(16 << 30)
    wrong = {"bad_pointers", "bad_contexts"} & opened.since(before).keys()
    assert not wrong


@pytest.fixture
def golden(driver: cuda_fakes.FakeDriver) -> cuda_fakes.Goldens:
    """A program by its name."""
    return lambda name: cuda_fakes.read_golden(driver.path.parent / "programs" / name)
