"""The error tree, the reasons that the runtime logs, and where its log goes."""

from __future__ import annotations

import logging
import pickle
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from conftest import DATA

import pteron
from pteron import errors

SOURCE = Path(__file__).parents[1] / "native" / "core" / "error.h"


def test_every_native_kind_has_its_class() -> None:
    """The table in the core and the tree in Python are the same set."""
    native = set(re.findall(r'_\(\w+, "(\w+)"\)', SOURCE.read_text()))
    assert native <= set(errors.__all__)
    assert set(errors.__all__) - native == set()


@pytest.mark.parametrize("name", errors.__all__)
def test_tree(name: str) -> None:
    """M80: every class is a RuntimeError, has the facts, shows its text plainly, and pickles."""
    kind = getattr(errors, name)
    error = kind("what 'happened'", 0x12, "InvalidArgument", ("because",))
    assert isinstance(error, errors.ExecuTorchError) and isinstance(error, RuntimeError)
    assert str(error) == "what 'happened'"
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), copy.code, copy.code_name, copy.reasons) == (
        "what 'happened'",
        0x12,
        "InvalidArgument",
        ("because",),
    )


def test_dtype_error_says_what_the_runtime_would(add: pteron.Method, ones: np.ndarray) -> None:
    """M79: the number and the runtime's own sentence."""
    with pytest.raises(errors.InputTypeError) as caught:
        add.execute([ones.astype(np.int32), ones])
    text = str(caught.value)
    assert "0x12" in text and "Input 0 of method 'forward' is int32, expected float32" in text
    assert "Input 0 has unexpected scalar type: expected Float but was Int" in text
    assert caught.value.code == 0x12 and caught.value.code_name == "InvalidArgument"
    assert isinstance(caught.value, TypeError) and isinstance(caught.value, ValueError)


def failing_method() -> pteron.Method:
    """A method that loads, and fails in a kernel: float8 has no cast."""
    return pteron.load(DATA / "to_float8.pte").load_method()


def test_execution_error_has_the_reasons() -> None:
    """M79, M84: the error lines of the runtime, in the text and as `reasons`."""
    method = failing_method()
    (info,) = method.metadata.inputs
    with pytest.raises(errors.ExecutionError, match="Unhandled dtype Float8_e4m3fn") as caught:
        method.execute([np.ones(info.sizes(), np.float32)])
    assert caught.value.reasons[0].startswith("Unhandled dtype")
    assert len("\n".join(caught.value.reasons)) <= 1024  # M88
    assert caught.value.reasons[-1].startswith("KernelCall failed at instruction 0:0 in operator")


def test_reasons_do_not_linger(add: pteron.Method, ones: np.ndarray) -> None:
    """M86, M90: what an earlier call logged is in no later error, of a result's methods either."""
    method = failing_method()
    (info,) = method.metadata.inputs
    with pytest.raises(errors.ExecutionError):
        method.execute([np.ones(info.sizes(), np.float32)])
    with pytest.raises(errors.InputError) as caught:
        add.execute([ones])
    assert caught.value.reasons == () and "Float8" not in str(caught.value)
    with pytest.raises(errors.ExportError) as exported:
        add(ones, ones).__dlpack__(dl_device=(99, 0))
    assert exported.value.reasons == ()


def test_reasons_of_another_thread_stay_there(ones: np.ndarray) -> None:
    """M85: two threads that fail at once each get their own lines."""
    method = failing_method()
    (info,) = method.metadata.inputs
    x = np.ones(info.sizes(), np.float32)
    seen: list[tuple[str, ...]] = []

    def fail() -> None:
        for _ in range(50):
            with pytest.raises(errors.ExecutionError) as caught:
                method.execute([x])
            seen.append(caught.value.reasons)

    threads = [threading.Thread(target=fail) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 200 and len(set(seen)) == 1


def test_nested_call_keeps_the_outer_lines(add: pteron.Method, ones: np.ndarray) -> None:
    """M87: a producer that calls back and fails; M13: its error is chained."""

    class Producer:
        def __dlpack__(self, **_: object) -> object:
            add.execute([ones])
            raise AssertionError("not reached")

    with pytest.raises(errors.InputError, match=r"Input 0 .*could not be read.*2 inputs") as caught:
        add.execute([Producer(), ones])
    assert isinstance(caught.value.__cause__, errors.InputError)


def test_log_goes_to_logging(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """The runtime's lines are records of pteron.native, with the place; nothing on stderr."""
    method = failing_method()
    (info,) = method.metadata.inputs
    with caplog.at_level(logging.DEBUG, "pteron.native"), pytest.raises(errors.ExecutionError):
        method.execute([np.ones(info.sizes(), np.float32)])
    record = next(r for r in caplog.records if "Unhandled dtype" in r.message)
    assert record.levelno == logging.ERROR and record.name == "pteron.native"
    assert record.filename.endswith(".cpp") and record.lineno > 0
    assert capfd.readouterr() == ("", "")


def test_failing_program_leaves_the_method_usable(add: pteron.Method, ones: np.ndarray) -> None:
    """Bad calls of every kind, then a good one."""
    for bad in (
        [],
        [ones],
        [ones, ones, ones],
        [ones, "x"],
        [ones, ones.astype("f8")],
        [ones, None],
    ):
        with pytest.raises(errors.InputError):
            add.execute(bad)
    assert np.asarray(add(ones, ones)).tolist() == [[2, 2], [2, 2]]
