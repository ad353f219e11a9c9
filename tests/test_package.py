"""What is shipped: the stub, the marker, the libraries and what they need."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pteron
from pteron import _core, _elf

PACKAGE = Path(pteron.__file__).parent
ROOT = Path(__file__).parents[1]


def is_installed() -> bool:
    """Whether this is an installed wheel rather than a source tree with a build beside it."""
    return (PACKAGE / "lib").is_dir()


def test_stub_and_marker_are_shipped() -> None:
    """M54: the stub under the extension's own name, and py.typed."""
    assert (PACKAGE / "_core.pyi").is_file() and (PACKAGE / "py.typed").is_file()


@pytest.mark.skipif(not is_installed(), reason="mypy finds only what is installed")
def test_mypy_reads_the_installed_package(tmp_path: Path) -> None:
    """M55, M56: types come from what is installed."""
    program = tmp_path / "user.py"
    program.write_text(
        "import pteron\n"
        "reveal_type(pteron.Verification.Minimal.value)\n"
        "reveal_type(pteron.load('m.pte').load_method().execute([1]))\n"
        "reveal_type(pteron.Runtime.get().load_program(b'').metadata('f').inputs)\n"
        "pteron.load('m.pte').forward.execute(clone=1)\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert 'Revealed type is "int"' in done.stdout or 'Literal[0]?"' in done.stdout, done.stdout
    assert 'Revealed type is "list[Any]"' in done.stdout
    assert "TensorInfo | pteron._core.ValueInfo" in done.stdout
    assert 'Unexpected keyword argument "clone"' in done.stdout


@pytest.mark.parametrize("cls", [_core.Method, _core.ExecuTorchResult])
def test_stub_has_the_runtime_signatures(cls: type) -> None:
    """M57: what is written by hand on the C API has the parameters that the stub says."""
    stub = (PACKAGE / "_core.pyi").read_text()
    body = re.search(rf"class {cls.__name__}:\n(.*?)(?=\nclass |\n@|\Z)", stub, re.S)
    assert body is not None
    for name, member in vars(cls).items():
        if name.startswith("_") and name not in {"__dlpack__", "__array__"}:
            continue
        declared = re.search(rf"def {name}\((.*?)\) ->", body[1], re.S)
        assert declared, f"{name} is not in the stub"
        if not callable(member) or isinstance(member, staticmethod):
            continue
        text = getattr(member, "__text_signature__", None)
        if text is None or "<" in text:
            continue
        runtime = list(inspect.signature(member).parameters)[1:]
        in_stub = re.findall(r"(\w+):", declared[1])
        assert in_stub == runtime, name


@pytest.mark.skipif(importlib.util.find_spec("nanobind") is None, reason="needs the generator")
def test_stub_is_what_the_generator_writes(tmp_path: Path) -> None:
    """The committed stub fits the binding: `make stub` writes it anew."""
    out = tmp_path / "_core.pyi"
    patterns = ROOT / "native" / "python" / "stub_patterns.txt"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "pteron._core"]
    subprocess.run([*command, "-p", str(patterns), "-o", str(out)], check=True)
    assert out.read_text() == (ROOT / "src" / "pteron" / "_core.pyi").read_text()


@pytest.mark.skipif(not is_installed(), reason="the source tree has no bundled libraries")
def test_libraries_need_nothing_of_torch_or_executorch() -> None:
    """Every shipped library resolves, from our own folder and the system alone."""
    libraries = [*PACKAGE.glob("*.so"), *(PACKAGE / "lib").glob("*.so")]
    assert len(libraries) >= 7
    for library in libraries:
        text = subprocess.run(["ldd", str(library)], capture_output=True, text=True).stdout
        text = re.sub(r"\(0x[0-9a-f]+\)", "", text)  # an address may spell c10
        assert "not found" not in text
        assert not re.search(r"torch|executorch|c10", text), text
        run_path = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True)
        for path in re.findall(r"runpath: \[(.*)\]", run_path.stdout):
            assert path in {"$ORIGIN", "$ORIGIN/lib"}  # the folder can be moved
    assert (PACKAGE / "lib" / "LICENSE.executorch").is_file()


@pytest.mark.skipif(not is_installed(), reason="not installed")
def test_needs_only_numpy() -> None:
    """No torch, no executorch among the requirements; under 60 MB installed, with NumPy."""
    requires = [r for r in importlib.metadata.requires("pteron") or [] if "extra" not in r]
    assert sorted(re.split(r"[<>=~]", r)[0] for r in requires) == ["numpy"]
    nbytes = sum(f.stat().st_size for f in PACKAGE.rglob("*") if f.is_file())
    assert nbytes < 25e6


def test_can_be_moved(tmp_path: Path) -> None:
    """Relative run paths: the installed folder works elsewhere."""
    if not is_installed():
        pytest.skip("not installed")
    subprocess.run(["cp", "-r", str(PACKAGE), str(tmp_path / "pteron")], check=True)
    code = "import pteron.runtime; print(pteron.__file__)"
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert str(tmp_path) in done.stdout, done.stderr


@pytest.mark.parametrize(
    "data", [b"", b"\x7fELF", b"MZ" * 50, b"\x7fELF\x02\x01" + b"\xff" * 100], ids=repr
)
def test_rename_refuses_what_is_no_library(data: bytes) -> None:
    """The ELF reader survives other files."""
    with pytest.raises(ValueError, match="ELF|cut short"):
        _elf.rename(data)


def test_rename_leaves_other_bytes_alone() -> None:
    """Nothing moves, and a library that names no runtime stays as it is."""
    data = Path(_core.__file__).read_bytes()
    assert _elf.rename(data) == _elf.rename(_elf.rename(data))
    assert len(_elf.rename(data)) == len(data)
    assert _elf.renamed("libexecutorch_etdump.so") == "libpteron_run_etdump.so"


def test_layers() -> None:
    """The core knows nothing of Python, and only the listed modules import the extension."""
    for path in (ROOT / "native" / "core").iterdir():
        assert not re.search(r"Python\.h|nanobind|\bpython/", path.read_text()), path
    allowed = {"__init__", "program", "runtime", "_structure", "_results", "module"}
    allowed |= {"portable_lib", "state"}
    for path in (ROOT / "src" / "pteron").glob("*.py"):
        if re.search(r"import _core|from pteron\._core", path.read_text()):
            assert path.stem in allowed, path
