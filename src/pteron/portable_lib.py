"""``executorch.extension.pybindings.portable_lib`` of ExecuTorch 1.5.1 on pteron.

The names, signatures and defaults of the official module, as amended by its pull requests 24016
and 24146, so that code written for it runs by changing an import. What differs is what went wrong
there: files are checked before they are used, and damaged ones raise; inputs are read again at
every run; methods share no memory; results and data keep what they need alive; errors say why.

Outputs are torch tensors when torch tensors were passed. A method that takes no tensors gives torch
tensors if torch is imported. Otherwise outputs are results, `ExecuTorchResult`. The environment
variable ``EXECUTORCH_PYBINDINGS_TENSOR_OUTPUT``, "torch" or "executorch", fixes it.

`ExecuTorchModule` is lenient as the official one is: a damaged program or data file is reported
when it is first used, a missing one at once. `pteron.load` reports all when loading.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from pteron import _core
from pteron._core import ExecuTorchResult, Method, MethodMeta, TensorInfo, Verification
from pteron.bundled import BundledProgram, load_bundled
from pteron.errors import ExecuTorchError, InvalidDataError, InvalidProgramError, MetadataIndexError
from pteron.module import Module
from pteron.program import Program, load

__all__ = [
    "BundledModule",
    "ExecuTorchMethod",
    "ExecuTorchModule",
    "ExecuTorchProgram",
    "ExecuTorchResult",
    "MethodMeta",
    "TensorInfo",
    "Verification",
    "_create_profile_block",
    "_dump_profile_results",
    "_get_operator_names",
    "_get_registered_backend_names",
    "_is_available",
    "_load_bundled_program_from_buffer",
    "_load_for_executorch",
    "_load_for_executorch_from_buffer",
    "_load_for_executorch_from_bundled_program",
    "_load_for_executorch_from_data_loader",
    "_load_program",
    "_load_program_from_buffer",
    "_reset_profile_results",
    "_threadpool_get_thread_count",
    "_unsafe_reset_threadpool",
]


def _torch_is_wanted() -> bool:
    """Whether a tensor that no input decides about comes out as a torch tensor."""
    mode = _core.output_mode()
    return mode == 2 or (mode == 0 and "torch" in sys.modules)


def _official(method: Method, outputs: list[Any]) -> list[Any]:
    """The outputs of a run: torch tensors also if no input could ask for them."""
    if "torch" not in sys.modules or not any(type(v) is ExecuTorchResult for v in outputs):
        return outputs
    if not _torch_is_wanted():
        return outputs
    takes_tensors = any(isinstance(value, TensorInfo) for value in method.metadata.inputs)
    return outputs if takes_tensors else _as_torch(outputs)


def _as_torch(outputs: list[Any]) -> list[Any]:
    return [value.torch() if isinstance(value, ExecuTorchResult) else value for value in outputs]


class ExecuTorchModule(Module):
    """A program whose methods are run by name. Made by the ``_load_for_executorch`` functions.

    Inputs left out of a call are those of earlier calls: see `pteron.Module`.
    """

    def __init__(self, program: Program | ExecuTorchError, has_etdump: bool = False) -> None:
        self._error = program if isinstance(program, ExecuTorchError) else None
        self._loaded = program if isinstance(program, Program) else None
        self._methods = {}
        self._has_etdump = has_etdump

    @property
    def _program(self) -> Program:
        if self._error is not None:
            raise self._error.with_traceback(None)
        return super()._program

    def run_method(
        self,
        method_name: str,
        inputs: Any = (),
        clone_outputs: bool = True,
        *,
        stream: Any = None,
    ) -> list[Any]:
        """Run a method on a sequence of inputs or one tensor: see `pteron.Module.run_method`."""
        outputs = super().run_method(method_name, inputs, clone_outputs, stream=stream)
        return _official(self._methods[method_name], outputs)

    def has_etdump(self) -> bool:
        """Whether it was loaded with ``enable_etdump=True``."""
        return self._has_etdump


class ExecuTorchProgram:
    """A loaded program. Made by `_load_program` and `_load_program_from_buffer`."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def num_methods(self) -> int:
        """The number of methods."""
        return len(self._program)

    def get_method_name(self, method_index: int) -> str:
        """The name of a method, by its place in the file.

        Raises:
            MetadataIndexError: There is none (also RuntimeError and IndexError).
        """
        names = self._program.method_names
        if not 0 <= method_index < len(names):
            raise MetadataIndexError(
                f"There is no method {method_index}: the program has {len(names)}"
            )
        return names[method_index]

    def load_method(self, method_name: str) -> ExecuTorchMethod:
        """A new method with memory of its own. Errors: see `pteron.Program.load_method`."""
        return ExecuTorchMethod(self._program.load_method(method_name))

    def method_meta(self, method_name: str) -> MethodMeta:
        """What the program says of a method, without loading it.

        Raises:
            MethodNotFoundError: There is no such method (also RuntimeError and KeyError).
        """
        return self._program.metadata(method_name)

    def has_etdump(self) -> bool:
        """Whether it was loaded with ``enable_etdump=True``."""
        return self._program.has_etdump

    def write_etdump_result_to_file(self, path: str, debug_buffer_path: str | None = None) -> None:
        """Write the record of the runs: see `pteron.Program.write_etdump_result_to_file`."""
        self._program.write_etdump_result_to_file(path, debug_buffer_path)


class ExecuTorchMethod:
    """A loaded method: `pteron.Method` with the names of the official one."""

    def __init__(self, method: Method) -> None:
        self._method = method

    def set_inputs(self, inputs: Any) -> None:
        """Keep the inputs, all of them, for `execute`: see `pteron.Method.set_inputs`."""
        self._method.set_inputs(inputs)

    def execute(self) -> None:
        """Run on the inputs of `set_inputs` as they are now; `get_outputs` has the outputs."""
        self._method.execute()

    def get_outputs(self, clone_outputs: bool = True) -> list[Any]:
        """The outputs of the last `execute` or call."""
        return _official(self._method, self._method.get_outputs(clone_outputs))

    def call(self, inputs: Any = (), clone_outputs: bool = True) -> list[Any]:
        """`set_inputs`, `execute` and `get_outputs` in one, also when threads call it at once.

        Takes a sequence of all inputs, or one tensor; they are kept for `execute`. Outputs without
        `clone_outputs`, and errors: see `pteron.Method.execute`.
        """
        outputs = self._method._call_keeping(inputs, bool(clone_outputs), True)
        return _official(self._method, outputs)

    __call__ = call

    def run(self, inputs: Any, clone_outputs: bool) -> list[Any]:
        """Run on inputs without keeping them: for `pteron.runtime`."""
        outputs = self._method.execute(inputs, clone_outputs)
        return _official(self._method, outputs)

    def get_attribute(self, name: str) -> Any:
        """A named tensor of the program: a live view of a mutable buffer, a constant read-only.

        As a torch tensor, if torch is in use, a constant is a copy: torch knows no read-only
        tensors. The view keeps the method's memory alive.

        Raises:
            AttributeNotFoundError: The program names no such tensor (also KeyError).
        """
        attribute = self._method.get_attribute(name)
        return attribute.torch() if _torch_is_wanted() else attribute

    def method_meta(self) -> MethodMeta:
        """What the program says of the method."""
        return self._method.metadata


class BundledModule:
    """A bundled program. Made by `_load_bundled_program_from_buffer`."""

    def __init__(self, bundle: BundledProgram) -> None:
        self._bundle = bundle

    def verify_result_with_bundled_expected_output(
        self, method_name: str, testset_idx: int, rtol: float = 1e-5, atol: float = 1e-8
    ) -> list[Any]:
        """Run a test case and compare: see `pteron.bundled.BundledProgram.verify`."""
        outputs = self._bundle.verify(method_name, testset_idx, rtol, atol)
        return _as_torch(outputs) if _torch_is_wanted() else outputs


def _require_buffer(data: Any, name: str, wanted: str = "bytes", hint: str = "") -> None:
    """A str is a path to `load`, and here a mistake."""
    try:
        memoryview(data).release()
    except TypeError:
        raise TypeError(f"{name} must be {wanted}, not {type(data).__name__}{hint}") from None


def _load(
    source: Any,
    data: Any,
    etdump: bool,
    buffer_size: int,
    mode: Verification = Verification.InternalConsistency,
) -> Program:
    return load(
        source,
        data_path=data,
        verification=mode,
        enable_etdump=etdump,
        debug_buffer_size=buffer_size,
    )


def _module(source: Any, data: Any, etdump: bool, *options: Any) -> ExecuTorchModule:
    """A module of what `_load` gives; damage is reported when it is used."""
    try:
        return ExecuTorchModule(_load(source, data, etdump, *options), etdump)
    except (InvalidProgramError, InvalidDataError) as error:
        return ExecuTorchModule(error, etdump)


def _load_for_executorch(
    program_path: str,
    data_path: str | None = None,
    enable_etdump: bool = False,
    debug_buffer_size: int = 0,
    program_verification: Verification = Verification.InternalConsistency,
) -> ExecuTorchModule:
    """A module from a file.

    Raises:
        ProgramNotFoundError, FileAccessError: A file is missing or cannot be read. Damage is
            reported when the module is used.
    """
    path = os.fspath(program_path)
    return _module(path, data_path, enable_etdump, debug_buffer_size, program_verification)


def _load_for_executorch_from_buffer(
    buffer: bytes,
    data_map_buffer: bytes | None = None,
    enable_etdump: bool = False,
    debug_buffer_size: int = 0,
    program_verification: Verification = Verification.InternalConsistency,
) -> ExecuTorchModule:
    """A module from bytes, which it keeps alive, with the bytes of a data file if it needs one."""
    _require_buffer(buffer, "buffer")
    if data_map_buffer is not None:
        _require_buffer(data_map_buffer, "data_map_buffer")
    return _module(buffer, data_map_buffer, enable_etdump, debug_buffer_size, program_verification)


def _load_for_executorch_from_bundled_program(
    ptr: BundledModule,
    data_map_buffer: bytes | str | None = None,
    enable_etdump: bool = False,
    debug_buffer_size: int = 0,
    *,
    data_path: str | None = None,
) -> ExecuTorchModule:
    """A module of the program inside a bundled program.

    Its data file is the second argument, bytes or a path; ``data_path`` is another name for it.
    """
    if data_path is not None and data_map_buffer is not None:
        raise TypeError("pass data_map_buffer or data_path, not both")
    data = data_map_buffer if data_path is None else data_path
    return _module(ptr._bundle.program_bytes, data, enable_etdump, debug_buffer_size)


def _load_for_executorch_from_data_loader(
    loader: Any,
    data_path: str | None = None,
    enable_etdump: bool = False,
    debug_buffer_size: int = 0,
) -> ExecuTorchModule:
    """A module of what a loader gives: any object with ``read()``, or a buffer.

    Raises:
        TypeError: `loader` is neither. The ``PyDataLoader`` of the official package is one: it
            belongs to another copy of the runtime.
    """
    if not hasattr(loader, "read"):
        hint = ": data loaders of the official package belong to its own copy of the runtime"
        _require_buffer(loader, "loader", "a buffer or an object with read()", hint)
    return _module(loader, data_path, enable_etdump, debug_buffer_size)


def _load_program(
    path: str,
    enable_etdump: bool = False,
    debug_buffer_size: int = 0,
    program_verification: Verification = Verification.Minimal,
    data_path: str | None = None,
) -> ExecuTorchProgram:
    """A program from a file. Errors: see `pteron.load`."""
    return ExecuTorchProgram(
        _load(os.fspath(path), data_path, enable_etdump, debug_buffer_size, program_verification)
    )


def _load_program_from_buffer(
    buffer: bytes,
    enable_etdump: bool = False,
    debug_buffer_size: int = 0,
    program_verification: Verification = Verification.Minimal,
    data_path: str | None = None,
) -> ExecuTorchProgram:
    """A program from bytes, which it keeps alive. Errors: see `pteron.load`."""
    _require_buffer(buffer, "buffer")
    return ExecuTorchProgram(
        _load(buffer, data_path, enable_etdump, debug_buffer_size, program_verification)
    )


def _load_bundled_program_from_buffer(
    buffer: bytes, non_const_pool_size: int = 16384
) -> BundledModule:
    """A bundled program from bytes, checked at once.

    `non_const_pool_size` has no effect: methods get the memory that they need.

    Raises:
        InvalidProgramError: It is none, or a damaged one.
    """
    _require_buffer(buffer, "buffer")
    return BundledModule(load_bundled(buffer))


def _get_operator_names() -> list[str]:
    """The operators that kernels are registered for, ``"aten::add.out"``."""
    return _core.operator_names()


def _get_registered_backend_names() -> list[str]:
    """The registered backends."""
    return _core.backend_names()


def _is_available(backend_name: str) -> bool:
    """Whether a backend is registered and can run here."""
    return _core.is_backend_available(backend_name)


def _create_profile_block(name: str) -> None:
    """Nothing: the runtime is built without its old profiler. `enable_etdump` is the new one."""


def _dump_profile_results() -> bytes:
    """Nothing, as bytes: see `_create_profile_block`."""
    return b""


def _reset_profile_results() -> None:
    """Nothing: see `_create_profile_block`."""


def _threadpool_get_thread_count() -> int:
    """Threads that kernels and XNNPACK share."""
    return _core.num_threads()


def _unsafe_reset_threadpool(num_threads: int) -> None:
    """Set the number of threads: see `pteron.runtime.Runtime.num_threads`.

    Raises:
        ArgumentError: It is less than 1 or absurdly many (also ValueError).
    """
    _core.set_num_threads(num_threads)
