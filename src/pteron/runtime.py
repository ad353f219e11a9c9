"""``executorch.runtime`` of ExecuTorch 1.5.1 on pteron: the same names and signatures.

Torch tensors in, torch tensors out:

.. code-block:: python

    import torch
    from pteron.runtime import Runtime

    program = Runtime.get().load_program("add.pte")
    method = program.load_method("forward")
    print(method.execute([torch.ones(2, 2), torch.ones(2, 2)]))

.. code-block:: text

    [tensor([[2., 2.],
            [2., 2.]])]

Without PyTorch
---------------

Arrays go in and `ExecuTorchResult` values come out. They are read with NumPy, or by DLPack without
a copy (``cupy.from_dlpack`` for a result on a GPU):

.. code-block:: python

    import numpy as np
    from pteron.runtime import Runtime

    method = Runtime.get().load_program("add.pte").load_method("forward")
    (result,) = method.execute([np.ones((2, 2), np.float32), np.ones((2, 2), np.float32)])
    print(np.from_dlpack(result))

.. code-block:: text

    [[2. 2.]
     [2. 2.]]
"""

from __future__ import annotations

import operator
import sys
from typing import TYPE_CHECKING, Any

from pteron import _core, portable_lib
from pteron.portable_lib import ExecuTorchMethod, ExecuTorchProgram, MethodMeta, Verification
from pteron.program import Source, load

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

__all__ = [
    "BackendRegistry",
    "ExecuTorchMethod",
    "ExecuTorchProgram",
    "Method",
    "MethodMeta",
    "OperatorRegistry",
    "Program",
    "Runtime",
    "Verification",
]


class Method:
    """A method of a program, ready to run."""

    def __init__(self, method: ExecuTorchMethod) -> None:
        self._method = method

    def execute(self, inputs: Any, clone_outputs: bool = True) -> list[Any]:
        """Run on a list or tuple of inputs, or one bare tensor.

        Args:
            inputs: Torch tensors; or without PyTorch, NumPy arrays, buffers, DLPack producers and
                results. Python numbers for inputs that are no tensors.
            clone_outputs: Outputs own their memory. False: they may share the method's, and change
                with its next run.

        Returns:
            Torch tensors if torch tensors were passed, else `ExecuTorchResult` objects. Numbers,
            strings and None come back as plain Python values.

        Raises:
            InputError: An input does not fit, or their number; the text names it. Nothing ran.
            ExecutionError: The program failed; ``reasons`` has what the runtime said.
        """
        return self._method.run(inputs, clone_outputs)

    @property
    def metadata(self) -> MethodMeta:
        """What the program says of the method."""
        return self._method.method_meta()


class Program:
    """A loaded program, whose methods are kept once loaded. Made by `Runtime.load_program`."""

    def __init__(self, program: ExecuTorchProgram, data: object = None) -> None:
        self._program = program
        self._methods: dict[str, Method] = {}

    @property
    def method_names(self) -> set[str]:
        """The names of its methods."""
        return {self._program.get_method_name(i) for i in range(self._program.num_methods())}

    def load_method(self, name: str) -> Method:
        """The method of that name: loaded the first time, the same one after that.

        Each has memory of its own; methods disturb each other only where the program was exported
        with ``share_mutable_buffers=True``.

        Raises:
            MethodNotFoundError: There is no such method (also KeyError and RuntimeError).
            ExecuTorchError: It cannot be loaded: see `pteron.Program.load_method`.
        """
        method = self._methods.get(name)
        if method is None:
            method = self._methods.setdefault(name, Method(self._program.load_method(name)))
        return method

    def metadata(self, method_name: str) -> MethodMeta:
        """What the program says of a method, without loading it.

        Raises:
            MethodNotFoundError: There is no such method (also KeyError and RuntimeError).
        """
        return self._program.method_meta(method_name)

    def write_etdump_result_to_file(self, etdump_path: str, debug_buffer_path: str) -> None:
        """Write the record of the runs since the last write, and the debug buffer.

        Raises:
            MethodStateError: The program was loaded without ``enable_etdump``, or nothing ran.
            FileAccessError: A file cannot be written (also OSError). The record is not lost.
        """
        self._program.write_etdump_result_to_file(etdump_path, debug_buffer_path)


class BackendRegistry:
    """The backends that can run parts of a program."""

    def __init__(self, legacy_module: Any = portable_lib) -> None:
        self._legacy_module = legacy_module

    @property
    def registered_backend_names(self) -> list[str]:
        """Their names, in the order of registration."""
        names: list[str] = self._legacy_module._get_registered_backend_names()
        return names

    def is_available(self, backend_name: str) -> bool:
        """Whether the backend is registered and can run here."""
        return bool(self._legacy_module._is_available(backend_name))


class OperatorRegistry:
    """The operators that kernels are registered for."""

    def __init__(self, legacy_module: Any = portable_lib) -> None:
        self._legacy_module = legacy_module

    @property
    def operator_names(self) -> set[str]:
        """Their names with overload: ``"aten::add.out"``."""
        return set(self._legacy_module._get_operator_names())


class Runtime:
    """The runtime of this process. There is one: ``Runtime.get()``.

    Attributes:
        backend_registry: The backends that can run parts of a program.
        operator_registry: The operators that kernels are registered for.
    """

    _instance: Runtime | None = None

    def __init__(self, *, legacy_module: Any = portable_lib) -> None:
        self.backend_registry = BackendRegistry(legacy_module)
        self.operator_registry = OperatorRegistry(legacy_module)

    @staticmethod
    def get() -> Runtime:
        """The one runtime."""
        if Runtime._instance is None:
            Runtime._instance = Runtime()
        return Runtime._instance

    def load_program(
        self,
        data: Source,
        *,
        verification: Verification = Verification.InternalConsistency,
        enable_etdump: bool = False,
        debug_buffer_size: int = 0,
        data_path: str | os.PathLike[str] | Iterable[Source] | None = None,
        mmap: bool = False,
    ) -> Program:
        """Load a program.

        Args:
            data: A path, bytes, any other buffer, or a binary file object. What it points to is
                kept alive or copied.
            verification: How the runtime itself checks the program. pteron checks it in any case.
            enable_etdump: Record what runs, for `Program.write_etdump_result_to_file`.
            debug_buffer_size: Bytes for intermediate values in that record.
            data_path: The data file (.ptd) with the program's weights, or several.
            mmap: Map the files instead of reading them: see `pteron.load`.

        Raises:
            ExecuTorchError: It is no good program: see `pteron.load`.
            TypeError: `data` is of no such kind.
        """
        program = load(
            data,
            data_path=data_path,
            verification=verification,
            mmap=mmap,
            enable_etdump=enable_etdump,
            debug_buffer_size=debug_buffer_size,
        )
        return Program(ExecuTorchProgram(program))

    @property
    def num_threads(self) -> int:
        """Threads that kernels and XNNPACK share, for the whole process. Settable, 1 or more.

        At first the processors that the process may use, or ``PTERON_NUM_THREADS`` of the
        environment. Parts on XNNPACK keep the number that was set when their method was loaded.
        """
        return _core.num_threads()

    @num_threads.setter
    def num_threads(self, count: int) -> None:
        _core.set_num_threads(operator.index(count))

    @property
    def memory_limit(self) -> int:
        """Bytes that a program may ask for at a time, for the whole process.

        What a file asks for is held against it before it is allocated: the planned memory of a
        method that is loaded, shared state, an output without planned memory, the copy of an input,
        a value inside XNNPACK. More raises `OutOfMemoryError`. Memory on devices is not counted.

        At the start it is the environment variable ``PTERON_MEMORY_LIMIT`` or else the memory of
        the machine, or of the control group (container) if that has less; ``None`` sets it back to
        these.
        """
        return _core.memory_limit()

    @memory_limit.setter
    def memory_limit(self, nbytes: int | None) -> None:
        wanted = _core.default_memory_limit() if nbytes is None else nbytes
        _core.set_memory_limit(min(operator.index(wanted), sys.maxsize))
