"""JAX, MLX, tvm-ffi and array-api-strict: their arrays in, results to them. Each where it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import load_fixture

import pteron
from pteron import errors

os.environ.setdefault("JAX_PLATFORMS", "cpu")
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"
)
ONES = np.ones((2, 2), np.float32)
LIBRARIES: dict[str, str] = {
    "jax": "jax.numpy",
    "mlx": "mlx.core",
    "tvm-ffi": "tvm_ffi",
    "array-api-strict": "array_api_strict",
}


def load(name: str) -> pteron.Method:
    return load_fixture(name).load().load_method()


@pytest.fixture(params=LIBRARIES)
def library(request: Any) -> tuple[str, Any]:
    """Its name and module."""
    return request.param, pytest.importorskip(LIBRARIES[request.param])


def give(library: tuple[str, Any], x: Any) -> Any:
    """An array of the library from one of NumPy."""
    name, module = library
    return module.from_dlpack(x) if name == "tvm-ffi" else module.asarray(x)


def take(library: tuple[str, Any], r: Any) -> Any:
    """A result as an array of the library."""
    name, module = library
    return module.array(r) if name == "mlx" else module.from_dlpack(r)


def test_in_and_out(library: tuple[str, Any], add: pteron.Method) -> None:
    """Positional, in lists, kept; the output goes to the library and comes back."""
    x = give(library, np.arange(4, dtype=np.float32).reshape(2, 2))
    want = np.arange(4).reshape(2, 2) + 1
    for out in (add(x, ONES), add.execute([x, ONES])[0]):
        assert type(out) is pteron.ExecuTorchResult
        assert np.array_equal(out, want)
        assert np.array_equal(add(take(library, out), ONES), want + 1)
    add.set_inputs([x, ONES])
    for _ in range(2):
        assert np.array_equal(add.execute()[0], want)


def test_errors_name_the_input(library: tuple[str, Any], add: pteron.Method) -> None:
    """M10."""
    with pytest.raises(errors.InputTypeError, match="Input 1 .* is int32, expected float32"):
        add(ONES, give(library, np.ones((2, 2), np.int32)))
    with pytest.raises(errors.InputError, match=r"Input 1 .* has shape \(3,\), expected \(2, 2\)"):
        add(ONES, give(library, np.ones(3, np.float32)))


@pytest.mark.parametrize(
    "name", ["add_int8", "add_uint8", "add_int16", "add_int32", "same_uint16", "f16", "bool_not",
             "add_complex64"],
)  # fmt: skip
def test_types(library: tuple[str, Any], name: str) -> None:
    """Whole numbers, halves, bools and complex numbers, to the bit."""
    if (library[0], name) == ("array-api-strict", "f16"):
        pytest.skip("the standard has no float16")
    fixture = load_fixture(name)
    outputs = fixture.load().load_method().execute([give(library, x) for x in fixture.inputs])
    fixture.check(outputs)
    again = pteron.ExecuTorchResult.from_host(take(library, outputs[0]))
    assert (again.dtype, again.tobytes()) == (outputs[0].dtype, outputs[0].tobytes())


def jax_array(name: str) -> Any:
    return pytest.importorskip("jax.numpy").ones((2, 3), name)


def mlx_array(name: str) -> Any:
    mx = pytest.importorskip("mlx.core")
    return mx.ones((2, 3), getattr(mx, name))


def tvm_array(name: str) -> Any:
    module = pytest.importorskip("tvm_ffi")
    size = 2 if name == "bfloat16" else 1
    bits = (np.full(6, 0x3F80, "<u2") if size == 2 else np.full(6, 0x38, "u1")).tobytes()
    return module.from_dlpack(pteron._core.result_from_bytes(name, (2, 3), bits))


@pytest.mark.parametrize(
    ("make", "fixture", "name"),
    [
        (jax_array, "bf16", "bfloat16"),
        (jax_array, "same_float8_e4m3fn", "float8_e4m3fn"),
        (mlx_array, "bf16", "bfloat16"),
        (tvm_array, "bf16", "bfloat16"),
        (tvm_array, "same_float8_e4m3fn", "float8_e4m3fn"),
    ],
)
def test_types_that_numpy_lacks(make: Callable[[str], Any], fixture: str, name: str) -> None:
    """I71: although their buffers cannot be had."""
    out = load(fixture)(make(name))
    want = 2.0 if fixture == "bf16" else 1.0
    assert out.dtype == name and out.numpy("float32").tolist() == [[want] * 3] * 2
    assert load(fixture)(out).dtype == name


def test_jax_takes_results_without_a_copy() -> None:
    """64-byte alignment is what it asks for."""
    jax = pytest.importorskip("jax")
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float32", "complex64"):
        size = pteron._core.result_from_bytes(name, (0,), b"").itemsize
        r = pteron._core.result_from_bytes(name, (2, 3), bytes(6 * size))
        x = jax.dlpack.from_dlpack(r)
        assert (x.dtype.name, x.shape) == (name, (2, 3))
        assert x.unsafe_buffer_pointer() == np.asarray(r).ctypes.data


def test_jax_asarray() -> None:
    """`jnp.asarray` and what calls it; a borrowed result is copied, for JAX arrays never change."""
    jnp = pytest.importorskip("jax.numpy")
    method = load("add")
    a = np.full((2, 2), 1.5, np.float32)
    (r,) = method.execute([a, a])
    x = jnp.asarray(r)
    assert (x.dtype.name, x.tolist()) == ("float32", [[3.0] * 2] * 2)
    assert x.unsafe_buffer_pointer() == np.asarray(r).ctypes.data
    assert jnp.array(r).unsafe_buffer_pointer() != x.unsafe_buffer_pointer()
    assert (x + r).tolist() == jnp.asarray([r, r]).sum(0).tolist() == [[6.0] * 2] * 2
    (borrowed,) = method.execute([a, a], clone_outputs=False)
    kept = jnp.asarray(borrowed)
    method.execute([a, a * 3])
    assert kept.tolist() == x.tolist()
    bf16 = pteron._core.result_from_bytes("bfloat16", (1,), bytes([0x80, 0x3F]))
    assert (jnp.asarray(bf16).dtype.name, float(jnp.asarray(bf16)[0])) == ("bfloat16", 1.0)
