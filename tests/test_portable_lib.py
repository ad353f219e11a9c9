"""pteron.portable_lib: the official names, signatures and habits, without its crashes."""

from __future__ import annotations

import gc
import inspect
import io
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DATA, load_fixture

from pteron import errors, portable_lib

X = np.full((2, 2), 2, np.float32)
Y = np.full((2, 2), 3, np.float32)

# As the 1.5.1 wheel declares them (pybind11's signatures), with the defaults of the stub that pull
# request 24016 corrected. `()` stands for its `[]`.
LOAD = "enable_etdump=False debug_buffer_size=0 program_verification={} "
SIGNATURES = {
    "_load_program": "path " + LOAD.format("Minimal") + "data_path=None",
    "_load_program_from_buffer": "buffer " + LOAD.format("Minimal") + "data_path=None",
    "_load_for_executorch": "program_path data_path=None " + LOAD.format("InternalConsistency"),
    "_load_for_executorch_from_buffer": "buffer data_map_buffer=None "
    + LOAD.format("InternalConsistency"),
    "_load_for_executorch_from_bundled_program": "ptr data_map_buffer=None enable_etdump=False "
    "debug_buffer_size=0 *data_path=None",
    "_load_for_executorch_from_data_loader": "loader data_path=None enable_etdump=False "
    "debug_buffer_size=0",
    "_load_bundled_program_from_buffer": "buffer non_const_pool_size=16384",
    "_get_operator_names": "",
    "_get_registered_backend_names": "",
    "_is_available": "backend_name",
    "_create_profile_block": "name",
    "_dump_profile_results": "",
    "_reset_profile_results": "",
    "_threadpool_get_thread_count": "",
    "_unsafe_reset_threadpool": "num_threads",
    "ExecuTorchModule.plan_execute": "self method_name clone_outputs=True *stream=None",
    "ExecuTorchModule.run_method": "self method_name inputs=() clone_outputs=True *stream=None",
    "ExecuTorchModule.forward": "self inputs=() clone_outputs=True *stream=None",
    "ExecuTorchModule.__call__": "self inputs=() clone_outputs=True *stream=None",
    "ExecuTorchModule.method_meta": "self method_name",
    "ExecuTorchModule.method_names": "self",
    "ExecuTorchModule.has_etdump": "self",
    "ExecuTorchModule.write_etdump_result_to_file": "self path debug_buffer_path=None",
    "ExecuTorchProgram.num_methods": "self",
    "ExecuTorchProgram.get_method_name": "self method_index",
    "ExecuTorchProgram.load_method": "self method_name",
    "ExecuTorchProgram.method_meta": "self method_name",
    "ExecuTorchProgram.has_etdump": "self",
    "ExecuTorchProgram.write_etdump_result_to_file": "self path debug_buffer_path=None",
    "ExecuTorchMethod.set_inputs": "self inputs",
    "ExecuTorchMethod.execute": "self",
    "ExecuTorchMethod.get_outputs": "self clone_outputs=True",
    "ExecuTorchMethod.call": "self inputs=() clone_outputs=True",
    "ExecuTorchMethod.__call__": "self inputs=() clone_outputs=True",
    "ExecuTorchMethod.get_attribute": "self name",
    "ExecuTorchMethod.method_meta": "self",
    "BundledModule.verify_result_with_bundled_expected_output": "self method_name testset_idx "
    "rtol=1e-05 atol=1e-08",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    """M56: names, order and defaults of all parameters."""
    function: Any = portable_lib
    for part in name.split("."):
        function = getattr(function, part)
    parts = []
    for parameter in inspect.signature(function).parameters.values():
        star = "*" if parameter.kind is parameter.KEYWORD_ONLY else ""
        default = getattr(parameter.default, "name", parameter.default)
        shown = "" if parameter.default is parameter.empty else f"={default}"
        parts.append(f"{star}{parameter.name}{shown}")
    assert parts == SIGNATURES[name].split()


def test_names() -> None:
    """M56: the 22 official names; Verification has values; no load_bundled_input."""
    official = {name for name in SIGNATURES if "." not in name}
    official |= {name.split(".")[0] for name in SIGNATURES if "." in name}
    official |= {"MethodMeta", "TensorInfo", "Verification"}
    assert len(official) == 22 and official <= set(portable_lib.__all__)
    assert [mode.value for mode in portable_lib.Verification] == [0, 1]
    assert not hasattr(portable_lib.ExecuTorchModule, "load_bundled_input")


def method(name: str = "mul_add") -> portable_lib.ExecuTorchMethod:
    """A method of a fixture; the default computes (x + y) * y."""
    return portable_lib._load_program(str(DATA / f"{name}.pte")).load_method("forward")


def test_method_by_parts() -> None:
    """M62: set_inputs once, execute three times; edits in place are seen (M65)."""
    m = method()
    x = X.copy()
    m.set_inputs([x, Y])
    for _ in range(3):
        assert m.execute() is None
        assert np.asarray(m.get_outputs()[0]).tolist() == [[15, 15], [15, 15]]
    x[:] = 0
    m.execute()
    assert np.asarray(m.get_outputs(clone_outputs=False)[0]).tolist() == [[9, 9], [9, 9]]


def test_call_is_all_the_parts() -> None:
    """A call keeps its inputs and leaves its outputs."""
    m = method()
    (first,) = m.call([X, Y])
    (again,) = m.get_outputs()
    assert np.asarray(first).tolist() == np.asarray(again).tolist() == [[15, 15], [15, 15]]
    m.execute()
    (third,) = m([X * 0, Y])
    assert np.asarray(third).tolist() == [[9, 9], [9, 9]]
    assert np.asarray(first).tolist() == [[15, 15], [15, 15]]  # it owns its memory


def test_steps_in_the_wrong_order() -> None:
    """M72, M11: each error names the step to take."""
    m = method()
    with pytest.raises(errors.MethodStateError, match=r"no inputs yet: call set_inputs\(\) first"):
        m.execute()
    with pytest.raises(errors.MethodStateError, match=r"call execute\(\) first"):
        m.get_outputs()
    with pytest.raises(errors.InputError, match="takes 2 inputs, 1 was given"):
        m.set_inputs([X])
    for fail in (m.set_inputs, m.call):
        m.set_inputs([X, Y])
        with pytest.raises(errors.InputTypeError):
            fail([X, Y.astype(np.int32)])
        with pytest.raises(errors.MethodStateError, match=r"the last set_inputs\(\) failed"):
            m.execute()


def test_threads_share_a_method() -> None:
    """M109: a call returns the outputs of its own inputs."""
    m = method()
    wrong: list[Any] = []

    def work(start: float) -> None:
        for step in range(300):
            (result,) = m.call([np.full((2, 2), start + step, np.float32), Y])
            if np.asarray(result)[0, 0] != (start + step + 3) * 3:
                wrong.append(result)

    threads = [threading.Thread(target=work, args=(1000.0 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_loads_are_independent() -> None:
    """X2: two methods, and two loads of one method, share nothing."""
    program = portable_lib._load_program(str(DATA / "two_methods.pte"))
    a, b, other = (program.load_method(name) for name in ("forward", "forward", "double"))
    a.set_inputs([X])
    b.set_inputs([X * 50])
    b.execute()
    other.call([np.ones(3, np.float32)])
    a.execute()
    b.execute()
    other.call([np.ones(3, np.float32)])
    assert np.asarray(a.get_outputs()[0]).tolist() == [[3, 3], [3, 3]]
    assert np.asarray(b.get_outputs()[0]).tolist() == [[101, 101], [101, 101]]


def test_buffers_are_kept_alive() -> None:
    """X4: a temporary program and data file outlive their names."""
    fixture = load_fixture("ptd")
    module = portable_lib._load_for_executorch_from_buffer(
        bytes(fixture.path.read_bytes()), bytes((DATA / "ptd.ptd").read_bytes())
    )
    program = portable_lib._load_program_from_buffer(bytes((DATA / "mul_add.pte").read_bytes()))
    gc.collect()
    churn = [bytes(50_000) for _ in range(100)]
    fixture.check(module.forward(fixture.inputs))
    assert np.asarray(program.load_method("forward")([X, Y])[0])[0, 0] == 15
    del churn


def test_program_facts() -> None:
    """Names by index and metadata, also with scalar inputs (X11)."""
    program = portable_lib._load_program(str(DATA / "two_methods.pte"))
    assert program.num_methods() == 2
    assert {program.get_method_name(i) for i in range(2)} == {"forward", "double"}
    for index in (2, -1):
        with pytest.raises(RuntimeError, match="the program has 2"):
            program.get_method_name(index)
    for ask in (program.load_method, program.method_meta):
        with pytest.raises(errors.MethodNotFoundError, match="'nope'"):  # X14
            ask("nope")
    meta = portable_lib._load_program(str(DATA / "alpha.pte")).method_meta("forward")
    assert repr(meta).startswith("MethodMeta(name='forward', num_inputs=4")


def test_attributes() -> None:
    """M46, M47: a live view; an unknown name says what there is."""
    m = method("state")
    m.call([X])
    view = np.asarray(m.get_attribute("acc"))
    assert view.tolist() == [[3, 3], [3, 3]]
    view[:] = 10
    m.call([X])
    assert view.tolist() == [[12, 12], [12, 12]]
    with pytest.raises(
        errors.AttributeNotFoundError, match=r"'nope' of method 'forward', which has 'acc'.*0x20"
    ):
        m.get_attribute("nope")


def test_damage_is_reported_at_use() -> None:
    """A module is lenient when loaded; the error comes each time that it is used."""
    module = portable_lib._load_for_executorch_from_buffer(b"no program")
    for use in (module.forward, module.method_names, lambda: module.method_meta("forward")):
        for _ in range(2):
            with pytest.raises(errors.InvalidProgramError):
                use()
    program = (DATA / "ptd.pte").read_bytes()
    damaged = portable_lib._load_for_executorch_from_buffer(program, b"no data file")
    without = portable_lib._load_for_executorch_from_buffer(program)
    inputs = load_fixture("ptd").inputs
    with pytest.raises(errors.InvalidDataError):
        damaged.forward(inputs)
    with pytest.raises(errors.DataNotFoundError, match="data_path"):
        without.forward(inputs)


def test_damage_of_a_program_is_reported_at_once() -> None:
    """X7: programs are checked when loaded, in both modes."""
    for mode in portable_lib.Verification:
        with pytest.raises(errors.InvalidProgramError):
            portable_lib._load_program_from_buffer(b"no program", program_verification=mode)


def test_missing_files(tmp_path: Path) -> None:
    """Reported at once by every loader."""
    nothing = str(tmp_path / "none.pte")
    with pytest.raises(errors.ProgramNotFoundError, match=r"none\.pte"):
        portable_lib._load_program(nothing)
    with pytest.raises(errors.ProgramNotFoundError, match=r"none\.pte"):
        portable_lib._load_for_executorch(nothing)
    with pytest.raises(errors.ProgramNotFoundError, match=r"none\.pte"):
        portable_lib._load_for_executorch(str(DATA / "ptd.pte"), nothing)


@pytest.mark.parametrize(
    "load",
    [
        portable_lib._load_program_from_buffer,
        portable_lib._load_for_executorch_from_buffer,
        portable_lib._load_bundled_program_from_buffer,
    ],
)
def test_buffers_are_no_paths(load: Any) -> None:
    """A str is not taken for a path where bytes are wanted."""
    with pytest.raises(TypeError, match="buffer must be bytes, not str"):
        load(str(DATA / "add.pte"))


def test_data_loader() -> None:
    """Anything that reads is a loader; a foreign one is told what is wanted."""
    with (DATA / "mul_add.pte").open("rb") as file:
        module = portable_lib._load_for_executorch_from_data_loader(file)
    assert np.asarray(module.forward([X, Y])[0])[0, 0] == 15
    data = io.BytesIO((DATA / "mul_add.pte").read_bytes())
    assert portable_lib._load_for_executorch_from_data_loader(data).method_names() == ["forward"]
    with pytest.raises(TypeError, match=r"an object with read\(\), not object"):
        portable_lib._load_for_executorch_from_data_loader(object())


def test_bundled() -> None:
    """X10: checked first; verified; loaded as a module; data by buffer or path."""
    data = (DATA / "bundled.bpte").read_bytes()
    bundle = portable_lib._load_bundled_program_from_buffer(data, non_const_pool_size=1)
    fixture = load_fixture("bundled")
    fixture.check(bundle.verify_result_with_bundled_expected_output("forward", 0))
    module = portable_lib._load_for_executorch_from_bundled_program(bundle)
    fixture.check(module.forward(fixture.inputs))
    for bad in (b"", b"garbage", data[:200]):
        with pytest.raises(errors.InvalidProgramError, match="bundled program"):
            portable_lib._load_bundled_program_from_buffer(bad)
    with pytest.raises(RuntimeError, match="no test case 7"):
        bundle.verify_result_with_bundled_expected_output("forward", 7)
    with pytest.raises(errors.ProgramNotFoundError):
        portable_lib._load_for_executorch_from_bundled_program(bundle, data_path="none.ptd")


def test_etdump(tmp_path: Path) -> None:
    """A module's runs are recorded; without runs there is nothing to write (X8)."""
    module = portable_lib._load_for_executorch(
        str(DATA / "mul_add.pte"), enable_etdump=True, debug_buffer_size=1000
    )
    assert module.has_etdump() is True
    file = str(tmp_path / "a.etdp")
    with pytest.raises(RuntimeError, match="run a method first"):
        module.write_etdump_result_to_file(file)
    module.forward([X, Y])
    module.write_etdump_result_to_file(path=file, debug_buffer_path=str(tmp_path / "a.bin"))
    assert (tmp_path / "a.bin").stat().st_size == 1000
    broken = portable_lib._load_for_executorch_from_buffer(b"no program", enable_etdump=True)
    assert broken.has_etdump() is True


@pytest.mark.parametrize("count", [0, -2, 5000, 2**40])
def test_thread_counts_that_make_no_sense(count: int) -> None:
    """X12: refused, and the pool stays as it is."""
    before = portable_lib._threadpool_get_thread_count()
    with pytest.raises(errors.ArgumentError, match=f"not {count}"):
        portable_lib._unsafe_reset_threadpool(count)
    assert portable_lib._threadpool_get_thread_count() == before


def test_threadpool_and_registries() -> None:
    """The process-wide functions."""
    before = portable_lib._threadpool_get_thread_count()
    portable_lib._unsafe_reset_threadpool(num_threads=1)
    assert portable_lib._threadpool_get_thread_count() == 1
    portable_lib._unsafe_reset_threadpool(before)
    assert "aten::add.out" in portable_lib._get_operator_names()
    assert "XnnpackBackend" in portable_lib._get_registered_backend_names()
    assert portable_lib._is_available("XnnpackBackend") is True
    assert portable_lib._is_available(backend_name="Nope") is False


def test_profiling_stubs() -> None:
    """The old profiler is not compiled in, here as in the official wheel."""
    portable_lib._create_profile_block("name")
    portable_lib._reset_profile_results()
    assert portable_lib._dump_profile_results() == b""


def test_inputs_of_a_wrong_kind() -> None:
    """M10: a list for a tensor is refused as a RuntimeError that names the input."""
    m = method()
    with pytest.raises(RuntimeError, match=r"Input 0 of method 'forward' is a list"):
        m.call([[1.0, 2.0], Y])
    with pytest.raises(TypeError, match="inputs must be a list or tuple of inputs"):
        m.call({"x": X})
    assert errors.InputTypeError.__mro__.index(RuntimeError) > 0
