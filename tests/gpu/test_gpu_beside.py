"""CUDA programs on a GPU beside others: torch's compiled packages, a checker, a second GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import cuda_docs
import numpy as np
import pytest
from cuda_fakes import delete_in_every_order, read_golden

import pteron
from pteron import ExecuTorchResult

torch = pytest.importorskip("torch")
cupy = pytest.importorskip("cupy")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

TESTS = Path(__file__).parent.parent
sys.path.insert(0, str(TESTS / "data" / "cuda"))

from export_goldens import driver_stub  # noqa: E402

# Programs of pteron in a process of their own, and what else is in it.
OURS = """
import sys
import numpy as np, pteron
from pathlib import Path
from cuda_fakes import read_golden
def ours(times=1):
    for name in ("add_devio", "mlp_fp32"):
        program = read_golden(Path({folder!r}) / name)
        method = program.load().load_method()
        for _ in range(times):
            program.check(method.execute(program.place(method)))
"""
EAGER = """
def eager():
    import torch
    x = torch.ones(64, 64, device="cuda")
    assert float((x @ x).sum()) == 64 ** 3
"""
PACKAGE = """
def package():
    import torch
    import torch._inductor
    data = torch.load({package!r} + ".pt")
    y = torch._inductor.aoti_load_package({package!r})(data["x"].cuda())
    torch.testing.assert_close(y.cpu(), data["y"], rtol=1e-2, atol=1e-2)
"""
COMPILE = """
import sys, torch, torch._inductor
torch.manual_seed(0)
layers = torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 16)
model = torch.nn.Sequential(*layers).cuda().eval()
x = torch.randn(2, 64, device="cuda")
with torch.no_grad():
    exported = torch.export.export(model, (x,))
    torch._inductor.aoti_compile_and_package(exported, package_path=sys.argv[1])
    torch.save({"x": x.cpu(), "y": model(x).cpu()}, sys.argv[1] + ".pt")
"""


def run(code: str, *words: str, before: tuple[str, ...] = (), **environment: str) -> str:
    """What a new interpreter printed."""
    done = subprocess.run(
        [*before, sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        cwd=TESTS,
        env={**os.environ, **environment},
        timeout=400,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.mark.parametrize(
    ("order", "text"),
    [
        ("ours()", "False ok"),
        ("ours(); eager(); ours()", "True ok"),
        ("eager(); ours(); eager()", "True ok"),
    ],
)
def test_beside_torch(folder: Path, order: str, text: str) -> None:
    """Without torch, before it and after it."""
    code = OURS.format(folder=str(folder)) + EAGER + order
    assert run(code + '\nprint("torch" in sys.modules, "ok")').strip() == text


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that torch has compiled into a package."""
    if shutil.which("g++") is None:
        pytest.skip("torch compiles packages with g++")
    folder = tmp_path_factory.mktemp("package")
    path = folder / "model.pt2"
    run(
        COMPILE,
        str(path),
        CUDA_HOME=os.environ.get("CUDA_HOME", "/usr/local/cuda"),
        LIBRARY_PATH=f"{driver_stub(folder)}:{os.environ.get('LIBRARY_PATH', '')}",
        TORCHINDUCTOR_CACHE_DIR=str(folder / "cache"),
    )
    return str(path)


@pytest.mark.parametrize(
    "order",
    ["ours(); package(); ours(); package()", "package(); ours(); package(); ours()"],
    ids=["ours first", "torch's first"],
)
def test_beside_packages_of_torch(folder: Path, package: str, order: str) -> None:
    """Packages that torch compiled bind to its shims and programs to ours, whoever is first."""
    code = OURS.format(folder=str(folder)) + PACKAGE.format(package=package)
    # What g++ links into a package may be a libstdc++ of its own, which crashes beside none.
    printed = run(code + order + '\nprint("ok")', LD_PRELOAD="libstdc++.so.6")
    assert printed.strip() == "ok"


def test_memory_checker(folder: Path) -> None:
    """Two programs do nothing wrong with memory on the device."""
    checker = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(checker).exists():
        pytest.skip("compute-sanitizer is not installed")
    command = (checker, "--tool", "memcheck", "--error-exitcode", "99")
    try:
        text = run(OURS.format(folder=str(folder)) + "ours(2)\nprint('ok')", before=command)
    except AssertionError as error:
        if "Device not supported" in str(error):
            pytest.skip("compute-sanitizer does not support this device")
        raise
    assert "ok" in text


def test_documentation(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of docs/cuda.md, but for that of the exporter."""
    monkeypatch.chdir(folder / "add_devio")
    names = {"np": np, "pteron": pteron, "cupy": cupy, "torch": torch}
    assert cuda_docs.run(r"lowered", names) >= 4


def test_deletions(folder: Path) -> None:
    """Containers of three programs, two of each, go in every order."""
    delete_in_every_order(
        [read_golden(folder / name) for name in ("add_devio", "mlp_fp32", "conv")]
    )


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("name", ["add1_devio", "sums_devio", "sums"])
def test_two_devices(folder: Path, name: str) -> None:
    """Programs for cuda:1, and for both devices; copies go from one to the other."""
    if not (folder / name).is_dir():
        pytest.skip("not exported")
    program = read_golden(folder / name)
    method = program.load().load_method()
    for _ in range(50):
        outputs = method.execute(program.place(method))
        program.check(outputs)
        for out in outputs:
            moved = torch.from_dlpack(out.__dlpack__(dl_device=(2, 0), max_version=(1, 0)))
            np.testing.assert_array_equal(moved.cpu(), out.to_host())
    with pytest.raises(pteron.errors.DeviceError, match="is on device cuda:0, expected on device"):
        method.execute([ExecuTorchResult.from_host(x, "cuda:0") for x in program.inputs])
