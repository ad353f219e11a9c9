"""
The native part of pteron: the ExecuTorch runtime, its values and its errors.
"""

from collections.abc import Sequence
import enum
from typing import Any

from numpy.typing import DTypeLike, NDArray
from typing_extensions import Buffer, CapsuleType

from pteron.state import State


class ExecuTorchResult:
    """
    A tensor that a method returned.

    It owns its memory, which outlives the method and the program, unless it was borrowed
    with clone_outputs=False. Read it with np.asarray(r), r.numpy(), memoryview(r),
    np.from_dlpack(r), torch.from_dlpack(r) or r.torch(), all without a copy.
    """

    def __bool__(self) -> bool:
        """True if self else False"""

    def __int__(self) -> int:
        """int(self)"""

    def __float__(self) -> float:
        """float(self)"""

    def numpy(self, dtype: DTypeLike | str | None = None) -> NDArray[Any]:
        """
        The result as a NumPy array.

        Without dtype it shares the result's memory (read-only for a constant). Types that NumPy
        lacks show as integers of the same width, their bits. With dtype the values are converted:
        'float32' from bfloat16 and float8, 'complex64' from complex32; 'bfloat16' and the float8
        names give the ml_dtypes type, without a copy, if ml_dtypes is installed.

        Raises:
            ExportError: the dtype cannot be converted by value (quantized and bits types).
            MethodStateError: a borrowed result whose method ran again.
        """

    def torch(self) -> Any:
        """
        The result as a torch tensor that shares its memory; a copy for a constant, since a torch
        tensor cannot be read-only. Imports torch (2.10 or later).
        """

    def tobytes(self) -> bytes:
        """A copy of the elements in C order, as bytes."""

    def item(self) -> bool | int | float | complex:
        """The only element, as a Python number, converted by value."""

    def to_host(self) -> ExecuTorchResult:
        """
        The result in host memory of its own: itself if it is that already, else a copy.
        """

    @staticmethod
    def from_host(array: object, device: str = "cpu") -> ExecuTorchResult:
        """
        A result that holds a packed copy of any host array, for a method that takes device memory.
        """

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """NumPy's conversion protocol: as numpy(), then NumPy's own cast."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """
        A DLPack capsule (Python array API standard). Shares the memory, which outlives the result,
        its method and its program; constants are copied unless copy=False and max_version >= (1, 0).

        Raises:
            ExportError: also a BufferError; the request cannot be met.
        """

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's device type and number, (1, 0) for the CPU."""

    def __jax_array__(self) -> Any:
        """
        JAX's conversion protocol, for jnp.asarray(r): the memory is shared, as by
        jnp.from_dlpack(r), unless the result is borrowed.
        """

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles a copy on the host."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each axis, a tuple of int."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Step of each axis in elements, a tuple of int."""

    @property
    def dtype(self) -> str:
        """Name of the element type, a str: "float32", "bfloat16"."""

    @property
    def device(self) -> str:
        """Where the data is, a str: "cpu", "cuda:0"."""

    @property
    def ndim(self) -> int:
        """Number of axes."""

    @property
    def size(self) -> int:
        """Number of elements."""

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""

    @property
    def readonly(self) -> bool:
        """Whether it is a constant of the program."""

    @property
    def borrowed(self) -> bool:
        """Whether it shares its method's memory, which the next run overwrites."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA array interface, version 3, of a result in device memory, a dict."""

class Method:
    """
    A method of a program, ready to run, with memory of its own.

    m(x, y, mask=k) takes what the exported function took and returns what it returned: one
    result, a tuple, a dict. execute([x, y, k]) takes and returns flat lists. m(x, y, stream=s)
    runs on a CUDA stream: see execute().
    """

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call self as a function."""

    def execute(
        self, inputs: Any = ..., clone_outputs: bool = True, stream: Any = None
    ) -> list[Any]:
        """
        Run on a list of inputs and return the list of outputs.

        Without inputs, runs on those that set_inputs was given, read again as they are now. A bare
        array counts as one input. Outputs are results that own their memory, torch tensors if torch
        tensors were passed, and plain Python values for outputs that are no tensors. With
        clone_outputs=False they may share the method's memory until the next run; reading one
        after that raises. The GIL is released meanwhile; a second thread waits for the first.

        Where inputs or outputs are on a CUDA device, a run waits for the whole device before and
        after, so that it is safe whatever stream the caller used. With stream, the handle of a CUDA
        stream or a stream of torch or CuPy, the program runs on it and nothing waits on the host:
        results and torch tensors are ordered by events, and other DLPack producers asked to order
        themselves; their memory must stay until the stream is done.

        Raises:
            InputError: an input does not fit; the text names it. Nothing ran.
            ExecutionError: the program failed; reasons has what the runtime said.
            MethodStateError: a step is missing or was too early.
        """

    def set_inputs(self, inputs: Any) -> None:
        """
        Keep inputs for execute(). They are kept alive until others are set, and read at each run.
        """

    def get_outputs(self, clone_outputs: bool = True) -> list[Any]:
        """The outputs of the last execute() without inputs, once more."""

    def _call_keeping(self, inputs: Any, clone_outputs: bool, complete: bool, stream: Any = None, /) -> list[Any]:
        """
        Run on inputs and keep them. With complete, the same as set_inputs(), execute() and
        get_outputs(). Without, there may be fewer inputs than the method takes: the others are those
        of earlier calls.
        """

    def get_attribute(self, name: str, /) -> ExecuTorchResult:
        """
        A view of a tensor of the program by its fully qualified name: live and writable for a
        mutable buffer, read-only for a constant. It keeps the method's memory alive.

        Raises:
            AttributeNotFoundError: also a KeyError; the program names no such tensor.
        """

    def _state_view(self, index: int, /) -> ExecuTorchResult:
        """A live view."""

    def _copy_state(self) -> list[ExecuTorchResult]:
        """Copies of all state, on the host."""

    def _write_state(self, values: dict[int, Any], /) -> None:
        """Write a dict of indices and values; all or nothing."""

    def _reset_state(self, indices: Sequence[int], /) -> None:
        """Reset some state."""

    def close(self) -> None:
        """Free the method now. Results that own their memory stay valid."""

    def __enter__(self) -> Method:
        """The method itself."""

    def __exit__(self, *args: object) -> None:
        """Closes the method."""

    @property
    def name(self) -> str:
        """The method's name, a str."""

    @property
    def metadata(self) -> MethodMeta:
        """What the program says of the method, a MethodMeta."""

    @property
    def state(self) -> State:
        """
        Its mutable buffers, which keep their values from run to run: a pteron.state.State.
        """

    @property
    def _state_names(self) -> tuple[str, ...]:
        """The names of its mutable buffers."""

    @property
    def copied(self) -> tuple[bool, ...]:
        """
        For each input, whether the last run copied it; False: it was read where it is.
        """

    @property
    def cuda_graph(self) -> bool:
        """
        Whether it was loaded with cuda_graph=True: its device work is launched as a whole.
        """

    @property
    def always_copy(self) -> bool:
        """
        Copy every input and output even where the program could use the caller's memory.
        """

    @always_copy.setter
    def always_copy(self, value: bool) -> None: ...

class TensorInfo:
    """What the program says of a tensor."""

    def sizes(self) -> tuple[int, ...]:
        """Size of each axis; the largest possible where the shape is dynamic."""

    def dtype(self) -> int:
        """Number of the element type: torch's ScalarType, 6 for float32."""

    def dtype_name(self) -> str:
        """Name of the element type, "float32"."""

    def is_memory_planned(self) -> bool:
        """Whether its memory is part of the method's own."""

    def nbytes(self) -> int:
        """Bytes of its elements at the largest size."""

    def device(self) -> str:
        """Where its memory is, "cpu" or "cuda:0"."""

    @property
    def name(self) -> str:
        """
        Fully qualified name of a constant or mutable buffer; empty for others.
        """

    @property
    def is_dynamic(self) -> bool:
        """Whether the shape may be smaller than sizes()."""

    @property
    def dim_order(self) -> tuple[int, ...]:
        """The axes from the outermost in memory to the innermost."""

    def __repr__(self) -> str: ...

class ValueInfo:
    """What the program says of a value that is no tensor."""

    @property
    def type(self) -> str:
        """"int", "float", "bool", "str" or "None"."""

    @property
    def value(self) -> int | float | bool | str | None:
        """
        The value that the program was exported with: the only one an input can have.
        """

    def __repr__(self) -> str: ...

class OperatorInfo:
    """An operator that a method uses."""

    @property
    def name(self) -> str:
        """Name with overload, "aten::add.out"."""

    @property
    def calls(self) -> int:
        """Instructions that use it."""

    def __repr__(self) -> str: ...

class DelegateInfo:
    """A part of a method that a backend runs."""

    @property
    def backend(self) -> str:
        """Name of the backend, "XnnpackBackend"."""

    @property
    def nbytes(self) -> int:
        """Bytes of its payload in the file."""

    @property
    def calls(self) -> int:
        """Instructions that call it."""

    def __repr__(self) -> str: ...

class PlannedBuffer:
    """A piece of memory that a method has of its own."""

    @property
    def nbytes(self) -> int:
        """Bytes that its tensors use."""

    @property
    def device(self) -> str:
        """Where it is, "cpu" or "cuda:0"."""

    def __repr__(self) -> str: ...

class MethodMeta:
    """What the program says of a method."""

    def name(self) -> str:
        """Name of the method."""

    def num_inputs(self) -> int:
        """Number of inputs."""

    def num_outputs(self) -> int:
        """Number of outputs."""

    def num_attributes(self) -> int:
        """Number of named tensors: mutable buffers and external constants."""

    def input_tensor_meta(self, index: int) -> TensorInfo:
        """
        The tensor at input `index`; MetadataIndexError (an IndexError) if none is.
        """

    def output_tensor_meta(self, index: int) -> TensorInfo:
        """
        The tensor at output `index`; MetadataIndexError (an IndexError) if none is.
        """

    def attribute_tensor_meta(self, index: int) -> TensorInfo:
        """
        The named tensor `index`; MetadataIndexError (an IndexError) if none is.
        """

    @property
    def inputs(self) -> tuple[TensorInfo | ValueInfo, ...]:
        """Every input, in call order."""

    @property
    def outputs(self) -> tuple[TensorInfo | ValueInfo, ...]:
        """Every output, in order of return."""

    @property
    def operators(self) -> list[OperatorInfo]:
        """The operators it uses."""

    @property
    def delegates(self) -> list[DelegateInfo]:
        """The parts that backends run."""

    @property
    def planned_memory(self) -> list[PlannedBuffer]:
        """The memory it has of its own."""

    @property
    def instructions(self) -> int:
        """Number of instructions."""

    @property
    def input_tree(self) -> str:
        """The call's structure as the exporter wrote it: JSON, or empty."""

    @property
    def output_tree(self) -> str:
        """The return value's structure as the exporter wrote it: JSON, or empty."""

    def __repr__(self) -> str: ...

class Verification(enum.Enum):
    """How the runtime itself checks a program. pteron checks it in any case."""

    Minimal = 0
    """Only the header."""

    InternalConsistency = 1
    """The consistency of the whole file."""

def check_program(data: Buffer) -> None:
    """
    Only the check of a program's structure that a load begins with: to measure it.
    """

def frozen(data: Buffer) -> bytes:
    """A copy of a buffer, made without the GIL."""

class Program:
    """A loaded program file."""

    @staticmethod
    def load(
        data: str | Buffer,
        name: str,
        *,
        data_files: list[tuple[str, str | Buffer]],
        verification: Verification,
        mmap: bool,
        enable_etdump: bool,
        debug_buffer_size: int,
    ) -> Program:
        """Load from a path or from bytes; `name` is what messages call it."""

    @property
    def name(self) -> str: ...

    @property
    def method_names(self) -> list[str]:
        """The names of its methods, in file order."""

    def metadata(self, method: str) -> MethodMeta: ...

    def load_method(self, name: str, structure: object, *, cuda_graph: bool) -> Method:
        """A new method; `structure` shapes its calls and returns."""

    @property
    def has_etdump(self) -> bool: ...

    def take_etdump(self) -> tuple[bytes, bytes]:
        """
        The ETDump of the runs since the last call, and the debug buffer, empty without one.
        """

    @property
    def nbytes(self) -> int:
        """Bytes of the program without its segments."""

    @property
    def named_data(self) -> dict[str, int]:
        """Data that backends look up by name, with its bytes."""

def operator_names() -> list[str]:
    """The operators that kernels are registered for."""

def backend_names() -> list[str]:
    """The registered backends."""

def is_backend_available(backend: str) -> bool:
    """Whether a backend is registered and can run here."""

def cuda_driver() -> str:
    """
    Version and file of the CUDA driver; DeviceError says why there is none.
    """

def cuda_devices() -> list[str]:
    """Names of the CUDA devices; DeviceError says why there are none."""

def available_cpus(root: str = '') -> int:
    """
    The processors that this process may use: its CPU set, and the quota of its cgroup.
    """

def num_threads() -> int:
    """Threads of the pool that kernels and XNNPACK share."""

def set_num_threads(count: int) -> None:
    """Set the number of threads of the pool."""

def memory_limit() -> int:
    """Bytes that a program may ask for at a time."""

def set_memory_limit(nbytes: int) -> None: ...

def default_memory_limit(root: str = '') -> int:
    """
    Bytes of the machine or of the control group; `root` stands before the system's paths.
    """

def set_fork_patience(seconds: float) -> None:
    """How long fork() waits for runs of other threads to end."""

def result_from_bytes(dtype: str, shape: Sequence[int], data: bytes) -> ExecuTorchResult:
    """The result that was pickled."""

def set_output_mode(mode: int) -> None:
    """
    0: torch tensors out when torch tensors came in; 1: results; 2: torch tensors.
    """

def dtypes() -> list[tuple[str, int]]:
    """
    Name and bytes of each element type, at the index of its number in program files.
    """

def output_mode() -> int:
    """What set_output_mode was given."""
