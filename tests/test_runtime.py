"""pteron.runtime: the names and signatures of executorch.runtime."""

from __future__ import annotations

import inspect
import io
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DATA

import pteron
from pteron import errors, runtime

ADD = DATA / "add.pte"
ONES = np.ones((2, 2), np.float32)


# As the 1.5.1 wheel and pull request 24016 declare them; pteron adds only `mmap`.
SIGNATURES = [
    (runtime.Runtime.__init__, "self *legacy_module"),
    (
        runtime.Runtime.load_program,
        "self data *verification *enable_etdump=False *debug_buffer_size=0 *data_path=None "
        "*mmap=False",
    ),
    (runtime.Program.load_method, "self name"),
    (runtime.Program.metadata, "self method_name"),
    (runtime.Program.write_etdump_result_to_file, "self etdump_path debug_buffer_path"),
    (runtime.Method.execute, "self inputs clone_outputs=True"),
    (runtime.BackendRegistry.is_available, "self backend_name"),
]


def words(function: Any) -> str:
    """The parameters: ``*`` before keyword-only ones, plain defaults behind."""
    parts = []
    for parameter in inspect.signature(function).parameters.values():
        star = "*" if parameter.kind is parameter.KEYWORD_ONLY else ""
        default = parameter.default
        plain = default is None or isinstance(default, (bool, int, float))
        parts.append(f"{star}{parameter.name}" + (f"={default}" if plain else ""))
    return " ".join(parts)


@pytest.mark.parametrize(("function", "parameters"), SIGNATURES, ids=lambda x: str(x)[:40])
def test_signatures(function: Any, parameters: str) -> None:
    """Parameter names, kinds and defaults are the official ones."""
    assert words(function) == parameters


def test_names() -> None:
    """Everything that executorch.runtime has is here."""
    official = "BackendRegistry ExecuTorchMethod ExecuTorchProgram Method MethodMeta "
    official += "OperatorRegistry Program Runtime Verification"
    assert set(official.split()) <= set(runtime.__all__)


@pytest.mark.parametrize("kind", ["str", "Path", "bytes", "bytearray", "file"])
def test_load_program(kind: str) -> None:
    """Every kind of source that the official runtime takes."""
    data = ADD.read_bytes()
    sources = {
        "str": str(ADD),
        "Path": ADD,
        "bytes": data,
        "bytearray": bytearray(data),
        "file": io.BytesIO(data),
    }
    program = runtime.Runtime.get().load_program(
        sources[kind], verification=runtime.Verification.Minimal
    )
    assert program.method_names == {"forward"}
    (result,) = program.load_method("forward").execute([ONES, ONES])
    assert np.asarray(result).tolist() == [[2, 2], [2, 2]]


def test_one_runtime() -> None:
    """Runtime.get() is a singleton with both registries."""
    assert runtime.Runtime.get() is runtime.Runtime.get() is pteron.Runtime.get()
    assert "aten::add.out" in runtime.Runtime.get().operator_registry.operator_names
    backends = runtime.Runtime.get().backend_registry
    assert "XnnpackBackend" in backends.registered_backend_names
    assert backends.is_available("XnnpackBackend") and not backends.is_available("Nope")


def test_methods_are_kept() -> None:
    """load_method gives the same method again; its memory is its own (X2)."""
    program = runtime.Runtime.get().load_program(DATA / "two_methods.pte")
    forward = program.load_method("forward")
    assert program.load_method("forward") is forward
    (kept,) = forward.execute([ONES], clone_outputs=False)
    program.load_method("double").execute([np.ones(3, np.float32)])
    assert np.asarray(kept).tolist() == [[2, 2], [2, 2]]


def test_unknown_method() -> None:
    """X14: KeyError for loading and for metadata, a RuntimeError too."""
    program = runtime.Runtime.get().load_program(ADD)
    for ask in (program.load_method, program.metadata):
        with pytest.raises(KeyError, match="no method 'nope'") as caught:
            ask("nope")
        assert type(caught.value) is errors.MethodNotFoundError
        assert isinstance(caught.value, RuntimeError)


def test_clone_outputs() -> None:
    """M60, M61: copies stay, borrowed results end with the next run."""
    method = runtime.Runtime.get().load_program(ADD).load_method("forward")
    (default,) = method.execute([ONES, ONES])
    (copied,) = method.execute([ONES, ONES], clone_outputs=True)
    method.execute([ONES * 5, ONES])
    assert np.asarray(default).tolist() == np.asarray(copied).tolist() == [[2, 2], [2, 2]]
    (borrowed,) = method.execute([ONES, ONES], False)
    assert borrowed.borrowed and np.asarray(borrowed).tolist() == [[2, 2], [2, 2]]
    method.execute([ONES, ONES])
    with pytest.raises(errors.MethodStateError, match="has run again since"):
        np.asarray(borrowed)


def test_plain_values() -> None:
    """M108: numbers, None and bools come back as Python's own."""
    method = runtime.Runtime.get().load_program(DATA / "mixed_out.pte").load_method("forward")
    assert method.metadata.num_outputs() == 5
    assert method.execute([ONES])[1:] == [7, True, None, 0.5]


def test_wrong_number_of_inputs() -> None:
    """M11: the method's name, how many it takes, how many were given."""
    method = runtime.Runtime.get().load_program(ADD).load_method("forward")
    with pytest.raises(RuntimeError, match=r"Method 'forward' takes 2 inputs, 1 was given"):
        method.execute([ONES])


def test_verification_is_honoured() -> None:
    """X7: what is damaged is refused when loading, in every mode."""
    data = bytearray(ADD.read_bytes())
    data[0:4] = b"\xff\xff\xff\x7f"
    for mode in runtime.Verification:
        with pytest.raises(errors.InvalidProgramError):
            runtime.Runtime.get().load_program(data, verification=mode)


class TestETDump:
    """What ran, written to files."""

    def test_program_may_go(self, tmp_path: Path) -> None:
        """M48, M49: methods keep the tracer and its debug buffer alive."""
        program = pteron.load(ADD, enable_etdump=True, debug_buffer_size=10_000)
        method = program.load_method()
        del program
        for i in range(20):
            churn = [np.full(1000, i) for _ in range(50)]
            (result,) = method.execute([ONES * i, ONES])
            assert np.asarray(result).tolist() == [[i + 1, i + 1]] * 2
            del churn

    def test_debug_buffer_holds_the_values(self, tmp_path: Path) -> None:
        """M49: the outputs of the runs are in the buffer, for each record anew."""
        program = runtime.Runtime.get().load_program(ADD, enable_etdump=True, debug_buffer_size=200)
        method = program.load_method("forward")
        dump, values = tmp_path / "a.etdp", tmp_path / "a.bin"
        for i in range(5):
            method.execute([ONES * i, ONES * 100])
            program.write_etdump_result_to_file(str(dump), str(values))
            assert dump.stat().st_size > 100 and values.stat().st_size == 200
            assert (ONES * (i + 100)).tobytes() in values.read_bytes()

    def test_written_twice_or_too_early(self, tmp_path: Path) -> None:
        """X8: an error that says to run first; an earlier record stays as it is."""
        program = pteron.load(ADD, enable_etdump=True)
        file = tmp_path / "a.etdp"
        with pytest.raises(errors.MethodStateError, match="run a method first"):
            program.write_etdump_result_to_file(file)
        assert not file.exists()
        program(ONES, ONES)
        program.write_etdump_result_to_file(file)
        record = file.read_bytes()
        with pytest.raises(errors.MethodStateError, match="run a method first"):
            program.write_etdump_result_to_file(file)
        assert file.read_bytes() == record
        program(ONES, ONES)
        program.write_etdump_result_to_file(file)

    def test_buffer_too_small(self, tmp_path: Path) -> None:
        """X8: the runs are right; writing says how many bytes they needed."""
        program = pteron.load(ADD, enable_etdump=True, debug_buffer_size=8)
        for _ in range(3):
            assert np.asarray(program(ONES, ONES)).tolist() == [[2, 2], [2, 2]]
        with pytest.raises(errors.MethodStateError, match=r"of 8 bytes is too small for the \d+"):
            program.write_etdump_result_to_file(tmp_path / "a.etdp", tmp_path / "a.bin")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.not_under("asan", "tsan", reason="they end the process where memory is short")
    @pytest.mark.parametrize("size", [2**50, 2**63, 2**80])
    def test_buffer_absurdly_large(self, size: int) -> None:
        """X8: no memory is an error of its own."""
        with pytest.raises(errors.OutOfMemoryError, match="debug_buffer_size is too large"):
            pteron.load(ADD, enable_etdump=True, debug_buffer_size=size)

    def test_negative_buffer(self) -> None:
        """X8: a size that is none."""
        with pytest.raises(errors.ArgumentError, match="not -1"):
            pteron.load(ADD, debug_buffer_size=-1)

    def test_place_that_cannot_be_written(self, tmp_path: Path) -> None:
        """X8: the record is still there to be written elsewhere."""
        program = pteron.load(ADD, enable_etdump=True, debug_buffer_size=1000)
        program(ONES, ONES)
        file = tmp_path / "a.etdp"
        for paths in ((tmp_path / "no" / "a.etdp", None), (file, tmp_path)):
            with pytest.raises(errors.FileAccessError, match="cannot be written") as caught:
                program.write_etdump_result_to_file(*paths)
            assert isinstance(caught.value, OSError) and not file.exists()
        program.write_etdump_result_to_file(file, tmp_path / "a.bin")
        assert file.stat().st_size > 100

    def test_devices_and_pipes(self, tmp_path: Path) -> None:
        """They cannot be emptied and just get the bytes; one that is full is an error."""
        program = pteron.load(ADD, enable_etdump=True)
        program(ONES, ONES)
        program.write_etdump_result_to_file("/dev/null")
        program(ONES, ONES)
        with pytest.raises(errors.FileAccessError, match="/dev/full cannot be written: No space"):
            program.write_etdump_result_to_file("/dev/full", "/dev/null")
        program(ONES, ONES)
        os.mkfifo(tmp_path / "pipe")
        with ThreadPoolExecutor(1) as pool:
            read = pool.submit((tmp_path / "pipe").read_bytes)
            program.write_etdump_result_to_file(tmp_path / "pipe")
            assert b"ED00" in read.result(20)[:16]

    def test_values_without_a_record(self, tmp_path: Path) -> None:
        """None and strings have no place in an ETDump: they are left out."""
        program = pteron.load(DATA / "mixed_out.pte", enable_etdump=True, debug_buffer_size=1000)
        assert program(ONES)[1:] == (7, True, None, 0.5)
        program.write_etdump_result_to_file(tmp_path / "a.etdp")

    def test_not_asked_for(self, tmp_path: Path) -> None:
        """Without enable_etdump there is nothing to write."""
        program = runtime.Runtime.get().load_program(ADD)
        with pytest.raises(errors.MethodStateError, match="enable_etdump=True"):
            program.write_etdump_result_to_file(str(tmp_path / "a"), str(tmp_path / "b"))


def output_of(code: str) -> str:
    """What a program prints when run in the folder of the fixtures."""
    env = os.environ | {"PYTHONPATH": str(Path(pteron.__file__).parents[1])}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=DATA, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def blocks() -> list[tuple[str, str]]:
    """The examples of the module's docstring, each with what it prints."""
    text = inspect.getdoc(runtime) or ""
    found = []
    for part in text.split(".. code-block:: python")[1:]:
        code, _, rest = part.partition(".. code-block:: text")
        lines = [line for line in rest.splitlines() if line.startswith("    ")]
        body = "\n".join(line[4:] for line in code.splitlines())
        found.append((body, "\n".join(line[4:] for line in lines)))
    return found


def test_example_without_torch() -> None:
    """M100: the section "Without PyTorch" prints what it says, with torch blocked."""
    code, output = blocks()[1]
    assert output_of("import sys; sys.modules['torch'] = None\n" + code) == output.strip()


def test_example_with_torch() -> None:
    """M100: the main example has torch tensors in and out."""
    pytest.importorskip("torch")
    code, output = blocks()[0]
    assert output_of(code) == output.strip()
