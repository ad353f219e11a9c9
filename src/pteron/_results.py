"""What results do that is not hot: conversion by value, text, pickling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pteron.errors import ExportError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike, NDArray

    from pteron._core import ExecuTorchResult

# Exponent and mantissa bits, exponent bias, and whether the top exponent means infinity (IEEE), or
# all ones NaN ("fn"), or only minus zero NaN ("fnuz"). OCP 8-bit floating point (OFP8) and
# https://arxiv.org/abs/2206.02915 for the "fnuz" forms.
_FLOAT8 = {
    "float8_e5m2": (5, 2, 15, "ieee"),
    "float8_e4m3fn": (4, 3, 7, "fn"),
    "float8_e5m2fnuz": (5, 2, 16, "fnuz"),
    "float8_e4m3fnuz": (4, 3, 8, "fnuz"),
}


def to_numpy(result: ExecuTorchResult, dtype: DTypeLike) -> NDArray[Any]:
    """`result.numpy(dtype)`: the values as `dtype`."""
    import numpy as np

    wanted = _numpy_dtype(dtype)
    if not _is_bits(result.dtype):
        return result.numpy().astype(wanted, copy=False)
    if wanted.name == result.dtype:
        return result.numpy().view(wanted)
    with np.errstate(invalid="ignore"):  # NaNs of other formats come out as signaling ones
        return by_value(result).astype(wanted, copy=False)


def _numpy_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """NumPy's dtype, or that of ml_dtypes by its name."""
    import numpy as np

    if not isinstance(dtype, str):
        return np.dtype(dtype)
    if dtype in {"bfloat16", "complex32"} or dtype.startswith("float8"):
        known: np.dtype[Any] = np.dtype(_ml_dtype(dtype))
        return known
    try:
        return np.dtype(dtype)
    except TypeError:
        raise ExportError(f"NumPy has no type {dtype!r}") from None


def to_array(array: NDArray[Any], dtype: DTypeLike, copy: bool | None) -> NDArray[Any]:
    """`result.__array__(dtype, copy)` from the array that shares the result's memory."""
    if dtype is not None and array.dtype != dtype:
        if copy is False:
            raise ValueError(f"a {array.dtype} result cannot be seen as {dtype} without a copy")
        return array.astype(dtype)
    return array.copy() if copy else array


def item(result: ExecuTorchResult) -> Any:
    """`result.item()`."""
    if result.size != 1:
        raise ValueError(f"only a result with one element is a number, this has {result.size}")
    return by_value(result.to_host()).item()


def describe(result: ExecuTorchResult) -> str:
    """`repr(result)`: the values, shortened where there are many, and where they are."""
    facts = f"shape={result.shape}, dtype={result.dtype}, device={result.device}"
    if result.device != "cpu":
        return f"ExecuTorchResult({facts})"
    try:
        import numpy as np

        values = np.array2string(by_value(result), separator=", ", threshold=100, prefix=" " * 17)
    except ImportError:
        return f"ExecuTorchResult({facts})"
    except (ExportError, ValueError):  # NumPy has sizes that it refuses, even of no elements
        values = "..."
    except RuntimeError:  # a borrowed result that was overwritten
        return f"ExecuTorchResult(overwritten by a later run, {facts})"
    if _is_bits(result.dtype):
        facts += ", np.asarray() shows bits"
    return f"ExecuTorchResult({values}, {facts})"


def to_jax(result: ExecuTorchResult) -> Any:
    """`result.__jax_array__()`: without it, JAX would take `dtype`, a str, for a dtype of NumPy."""
    import importlib

    jnp = importlib.import_module("jax.numpy")
    return jnp.from_dlpack(result.to_host() if result.borrowed else result)


def reduce(result: ExecuTorchResult) -> tuple[Any, ...]:
    """`result.__reduce__()`: bytes and shape, restored by `restore`."""
    return restore, (result.dtype, result.shape, result.to_host().tobytes())


def restore(dtype: str, shape: tuple[int, ...], data: bytes) -> ExecuTorchResult:
    """The result that `reduce` took apart."""
    from pteron import _core

    return _core.result_from_bytes(dtype, shape, data)


def dtypes() -> list[tuple[str, int]]:
    """Name and bytes of each element type, at the index of its number in program files."""
    from pteron import _core

    return _core.dtypes()


def _is_bits(dtype: str) -> bool:
    """Whether NumPy lacks the type, so that an array shows the bits of the elements."""
    return dtype in {"bfloat16", "complex32"} or dtype.startswith(("float8", "q", "bits"))


def by_value(result: ExecuTorchResult) -> NDArray[Any]:
    """The values in the smallest NumPy type that holds them all."""
    import numpy as np

    bits = result.numpy()
    if not _is_bits(result.dtype):
        return bits
    if result.dtype == "bfloat16":
        wide = np.left_shift(bits, 16, dtype=np.uint32)
        return np.asarray(wide).view(np.float32)  # of no dimensions, NumPy made it a scalar
    if result.dtype == "complex32":
        parts = np.ascontiguousarray(bits).reshape(*bits.shape, 1).view(np.float16)
        pairs = parts.astype(np.float32)
        values: NDArray[np.complex64] = pairs.view(np.complex64).reshape(bits.shape)
        return values
    if result.dtype in _FLOAT8:
        decoded: NDArray[np.float32] = np.asarray(_float8_values(result.dtype)[bits])
        return decoded
    raise ExportError(
        f"A {result.dtype} result holds codes whose scale and zero point only the program knows: "
        "read its bits with np.asarray()"
    )


def _float8_values(dtype: str) -> NDArray[np.float32]:
    """The value of each of the 256 codes."""
    import numpy as np

    exponent_bits, mantissa_bits, bias, special = _FLOAT8[dtype]
    codes = np.arange(256)
    exponents = codes >> mantissa_bits & (1 << exponent_bits) - 1
    mantissas = codes & (1 << mantissa_bits) - 1
    normal = exponents > 0
    fractions = mantissas / (1 << mantissa_bits) + normal
    values = fractions * 2.0 ** (np.maximum(exponents, 1) - bias)
    values[codes >= 128] *= -1
    top = exponents == (1 << exponent_bits) - 1
    if special == "ieee":
        values[top] = np.where(mantissas[top] == 0, np.copysign(np.inf, values[top]), np.nan)
    elif special == "fn":
        values[top & (mantissas == (1 << mantissa_bits) - 1)] = np.nan
    else:
        values[128] = np.nan
    as_float32: NDArray[np.float32] = values.astype(np.float32)
    return as_float32


def _ml_dtype(name: str) -> Any:
    """The ml_dtypes scalar type of that name."""
    try:
        import ml_dtypes
    except ImportError:
        raise ExportError(
            f"NumPy has no {name}: pip install ml_dtypes for it, or ask for numpy('float32')"
        ) from None
    scalar = getattr(ml_dtypes, name, None)
    if scalar is None:
        raise ExportError(f"ml_dtypes has no {name}: ask for numpy('float32')")
    return scalar
