"""Small cases from public reports: reports.md has the threads. Others are where their topic is."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conftest import DATA, load_fixture

import pteron
from pteron import errors

X = np.arange(9, dtype=np.float32).reshape(3, 3)


def load(name: str) -> pteron.Method:
    return load_fixture(name).load().load_method()


@pytest.mark.parametrize("name", ["idontexist", "", b"forward"])
def test_method_that_does_not_exist(name: Any) -> None:
    """I15: a KeyError that lists the real names, an AttributeError, a TypeError; never the end."""
    program = pteron.load(DATA / "two_methods.pte")
    calls: list[Callable[[], object]] = [
        lambda: program[name],
        lambda: program.load_method(name),
        lambda: program.metadata(name),
    ]
    for call in calls:
        with pytest.raises(TypeError if isinstance(name, bytes) else KeyError) as caught:
            call()
        if isinstance(name, str):
            assert isinstance(caught.value, errors.MethodNotFoundError)
            assert "'forward'" in str(caught.value) and "'double'" in str(caught.value)
    with pytest.raises(AttributeError, match="has no attribute or method 'idontexist'"):
        _ = program.idontexist
    assert np.array_equal(program.forward(np.ones((2, 2), np.float32)), np.full((2, 2), 2))


@pytest.mark.parametrize(
    "keep",
    [lambda data: data, bytearray, lambda data: memoryview(b"..." + data)[3:]],
    ids=["bytes", "bytearray", "memoryview slice"],
)
def test_program_from_bytes(keep: Callable[[bytes], Any]) -> None:
    """I42: the bytes are collected, or resized; the program is as it was."""
    data = keep((DATA / "sub2.pte").read_bytes())
    method = pteron.load(data).load_method()
    if isinstance(data, bytearray):
        data.extend(b"x" * 4096)
        data[:64] = bytes(64)
    del data
    gc.collect()
    for _ in range(10):
        churn = [np.full(1 << 17, 255, np.uint8) for _ in range(100)]
        assert np.array_equal(method(X, X), -X)
        del churn


def test_returned_arrays_are_not_internal_memory() -> None:
    """I44: right after the next call, and after the end of the model."""
    method: Any = load("sub2")
    a, b = method(X, X * 0), method(X * 5, X * 0)
    views = [np.asarray(a), np.from_dlpack(a), memoryview(a)]
    assert np.array_equal(a, X) and np.array_equal(b, X * 5)
    del method, a
    gc.collect()
    for view in views:
        assert np.array_equal(view, X)


def test_too_few_and_too_many_inputs() -> None:
    """I14, I52: the counts and what is missing, before anything is set; then a good call."""
    method = load("sub2")
    for count in (0, 1, 3, 100):
        with pytest.raises(errors.InputError, match=f"takes 2 inputs, {count} (was|were) given"):
            method.execute([X] * count)
        assert np.array_equal(method(X, X), -X)


def test_key_value_cache_without_entries() -> None:
    """I64: (1, 8, 0, 128) has no elements and is a shape like any other."""
    empty = pteron.ExecuTorchResult.from_host(np.zeros((1, 8, 0, 128), np.float32))
    assert (empty.shape, empty.nbytes) == ((1, 8, 0, 128), 0)
    for back in (np.asarray(empty), np.from_dlpack(empty)):
        assert back.shape == (1, 8, 0, 128)
    with pytest.raises(errors.InputError, match=r"has shape \(1, 8, 0, 128\), expected \(0, 4\)"):
        load("empty")(empty)


def test_bfloat16() -> None:
    """I71: shape and item size in every view; ml_dtypes in; output fed back; no bit patterns."""
    method = load("bf16")
    x = np.array([[1, 2, 3], [-1, 0.5, 100]], ml_dtypes.bfloat16)
    out = method(x)
    view = memoryview(out)
    assert (view.shape, view.itemsize, view.format) == ((2, 3), 2, "H")
    assert (np.asarray(out).shape, np.asarray(out).dtype) == ((2, 3), np.uint16)
    assert out.numpy("float32").tolist() == [[2, 3, 4], [0, 1.5, 101]]
    assert out.numpy("bfloat16").dtype == ml_dtypes.bfloat16
    again = method(out)
    assert again.numpy("float32").tolist() == [[3, 4, 5], [1, 2.5, 102]]
    with pytest.raises(errors.InputTypeError, match="is uint16, expected bfloat16, .*ml_dtypes"):
        method(np.asarray(out))
    with pytest.raises(errors.InputTypeError, match="is float32, expected bfloat16"):
        method(x.astype(np.float32))


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_half_types_by_value(name: str) -> None:
    """P13: item(), float() and repr show the value."""
    method = load(name)
    x = np.zeros((2, 3), np.float16 if name == "f16" else ml_dtypes.bfloat16)
    out = method(x)
    assert out.numpy("float64").sum() == 6 and "1." in repr(out)


def test_embedding_rows() -> None:
    """P11: ids of another width are refused by name, never reinterpreted."""
    fixture = load_fixture("embedding")
    method = fixture.load().load_method()
    (ids,) = fixture.inputs
    with pytest.raises(errors.InputTypeError, match="is int32, expected int64"):
        method(ids.astype(np.int32))
    fixture.check(method.execute([ids]))
    fixture.check(method.execute([ids[::-1].copy()[::-1]]))
