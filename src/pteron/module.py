"""Modules: the methods of a program by name, with inputs that stay from call to call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os

    from pteron._core import Method, MethodMeta
    from pteron.program import Program

__all__ = ["Module"]


class Module:
    """The methods of a program, each loaded when first run, with inputs kept between calls.

    A call may leave out the last inputs: those of earlier calls of that method stay, and are read
    again as they are now, like the inputs of `Method.set_inputs`. They are kept alive until others
    take their place or the module goes. Every method has memory of its own, but for state that the
    program was exported to share. To run a method on all
    its inputs each time, `Program.load_method` is the simpler way.
    """

    def __init__(self, program: Program) -> None:
        if not hasattr(program, "load_method"):
            raise TypeError(
                f"a module is made of a program, not of {type(program).__name__}: "
                "pteron.Module(pteron.load(path))"
            )
        self._loaded: Program | None = program
        self._methods: dict[str, Method] = {}

    @property
    def _program(self) -> Program:
        assert self._loaded is not None
        return self._loaded

    def __repr__(self) -> str:
        """Its program's name, and each method with inputs and outputs."""
        program = "<Program>" if self._loaded is None else repr(self._loaded)
        return program.replace("<Program", f"<{type(self).__name__}", 1)

    def _method(self, name: str) -> Method:
        """The method of that name; its inputs and state are the module's own."""
        method = self._methods.get(name)
        if method is None:
            method = self._methods.setdefault(name, self._program.load_method(name))
        return method

    def run_method(
        self,
        method_name: str,
        inputs: Any = (),
        clone_outputs: bool = True,
        *,
        stream: Any = None,
    ) -> list[Any]:
        """Run a method.

        Args:
            method_name: Its name.
            inputs: A list or tuple of inputs, from the first; or one bare array. Those left out
                are the ones of earlier calls.
            clone_outputs: Outputs own their memory. False: they may share the method's until its
                next run, and reading one after that raises.
            stream: A CUDA stream to run on: see `Method.execute`.

        Returns:
            The flat list of outputs: results, torch tensors if the inputs are torch tensors, and
            plain Python values.

        Raises:
            MethodNotFoundError: There is no such method (also KeyError).
            InputError: An input does not fit, there are too many, or one was never passed; the
                text names it. Nothing ran, and the inputs of earlier calls stay.
            MethodStateError: A kept input is no longer what was passed: pass it again.
            ExecutionError: The program failed.
        """
        return self._method(method_name)._call_keeping(inputs, bool(clone_outputs), False, stream)

    def forward(
        self, inputs: Any = (), clone_outputs: bool = True, *, stream: Any = None
    ) -> list[Any]:
        """`run_method` of ``forward``."""
        return self.run_method("forward", inputs, clone_outputs, stream=stream)

    def __call__(
        self, inputs: Any = (), clone_outputs: bool = True, *, stream: Any = None
    ) -> list[Any]:
        """`run_method` of ``forward``."""
        return self.run_method("forward", inputs, clone_outputs, stream=stream)

    def plan_execute(
        self, method_name: str, clone_outputs: bool = True, *, stream: Any = None
    ) -> list[Any]:
        """Run a method again on the inputs of earlier calls. Errors: see `run_method`."""
        return self.run_method(method_name, (), clone_outputs, stream=stream)

    def method_meta(self, method_name: str) -> MethodMeta:
        """What the program says of a method, without loading it.

        Raises:
            MethodNotFoundError: There is no such method (also KeyError).
        """
        return self._program.metadata(method_name)

    def method_names(self) -> list[str]:
        """The names of the methods, in the order of the file."""
        return self._program.method_names

    def has_etdump(self) -> bool:
        """Whether the program was loaded with ``enable_etdump=True``."""
        return self._program.has_etdump

    def write_etdump_result_to_file(
        self,
        path: str | os.PathLike[str],
        debug_buffer_path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Write the record of the runs: see `Program.write_etdump_result_to_file`."""
        self._program.write_etdump_result_to_file(path, debug_buffer_path)
