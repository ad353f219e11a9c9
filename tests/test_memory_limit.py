"""The limit for what a program may ask for: where it comes from and what is held against it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DATA
from formats import File

import pteron
from pteron import _core, errors

ONES = np.ones((2, 2), np.float32)


@pytest.fixture(autouse=True)
def limit() -> Iterator[pteron.Runtime]:
    """The runtime, whose limit is set back."""
    runtime = pteron.Runtime.get()
    yield runtime
    runtime.memory_limit = None


def large(size: int) -> bytes:
    """A small file with a tensor of `size` squared float32."""
    file = File.parse((DATA / "add.pte").read_bytes())
    file.edit("plans.0.values.2.val.1.sizes", [size, size])
    file.edit("plans.0.buffer_sizes.1", 1 << 60)
    return file.write()


def test_file_that_asks_for_much() -> None:
    """Refused before it is allocated, with both sizes and what to change; the file can be read."""
    program = pteron.load(large(1 << 22))
    assert program.metadata().output_tensor_meta(0).nbytes() == 1 << 46
    words = rf"memory of method 'forward' needs {1 << 46} bytes, .*limit is \d+ bytes, error: 0x21"
    with pytest.raises(errors.OutOfMemoryError, match=words) as caught:
        program.load_method()
    assert isinstance(caught.value, MemoryError)
    assert "Runtime.get().memory_limit or the environment variable PTERON_MEM" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "needs", "what"),
    [
        ("add", 48, "The planned memory of method 'forward'"),
        ("mlp_xnnpack", 128, "An XNNPACK delegate's value 3"),
    ],
)
def test_what_counts_at_load(limit: pteron.Runtime, name: str, needs: int, what: str) -> None:
    """One byte less than it needs is refused."""
    program = pteron.load(DATA / f"{name}.pte")
    limit.memory_limit = needs - 1
    words = f"({what}) needs {needs} bytes, and the memory limit is {needs - 1} bytes"
    with pytest.raises(errors.OutOfMemoryError, match=words):
        program.load_method()
    limit.memory_limit = needs
    program.load_method()


@pytest.mark.parametrize(
    ("name", "inputs", "what"),
    [
        ("unplanned", (ONES, ONES), "An output of method 'forward'"),
        ("unplanned_state", (ONES, np.ones((4, 4), np.float32)[::2, ::2]), "Input 1 of .*'"),
    ],
)
def test_what_counts_in_a_run(limit: pteron.Runtime, name: str, inputs: Any, what: str) -> None:
    """The same for what a run allocates."""
    method = pteron.load(DATA / f"{name}.pte").load_method()
    limit.memory_limit = 15
    with pytest.raises(errors.OutOfMemoryError, match=f"{what} needs 16 bytes, and .* 15 bytes"):
        method.execute([*inputs])
    limit.memory_limit = 16
    method.execute([*inputs])


def test_shared_state(limit: pteron.Runtime) -> None:
    """Counted by itself: it is there once for all methods."""
    file = File.parse((DATA / "state_two_methods.pte").read_bytes())
    for plan in file.tree["plans"]:
        (state,) = (v["val"][1] for v in plan["values"] if "extra" in v["val"][1])
        state["sizes"] = [20, 20]
        plan["buffer_sizes"][-1] = 1600
    program = pteron.load(file.write())
    limit.memory_limit = 1599
    with pytest.raises(errors.OutOfMemoryError, match="shared state of .* needs 1600 bytes, and"):
        program.load_method()
    limit.memory_limit = 1600
    program.load_method()


@pytest.mark.parametrize("nbytes", [0, -1])
def test_no_limit(limit: pteron.Runtime, nbytes: int) -> None:
    """A limit that is none."""
    with pytest.raises(errors.ArgumentError, match=f"must be 1 byte or more, not {nbytes}"):
        limit.memory_limit = nbytes
    limit.memory_limit = 2**80  # as good as none
    assert limit.memory_limit == sys.maxsize


@pytest.mark.parametrize(
    ("value", "says"),
    [("1234", "1234\n"), ("", "True\n"), ("1 GB", "'1 GB'; it must be a number"), ("0", "'0'")],
)
def test_environment(value: str, says: str) -> None:
    """Read at import."""
    env = {"PYTHONPATH": str(Path(pteron.__file__).parents[1]), "PTERON_MEMORY_LIMIT": value}
    shown = "limit" if value == "1234" else "limit == pteron._core.default_memory_limit()"
    code = f"import pteron; limit = pteron.Runtime.get().memory_limit; print({shown})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=os.environ | env, capture_output=True, text=True)
    assert says in done.stdout + done.stderr


GROUPS = {
    "none": ("", {}, None),
    "no limit": ("0::/\n", {"memory.max": "max\n"}, None),
    "in its own namespace": ("0::/\n", {"memory.max": "1000\n"}, 1000),
    "of a parent": ("0::/a/b\n", {"a/memory.max": "1000", "a/b/memory.max": "max"}, 1000),
    "lowest": ("0::/a/b\n", {"a/memory.max": "2000", "a/b/memory.max": "1000"}, 1000),
    "version 1": ("5:cpu,memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": "1000"}, 1000),
    "another kind": ("5:cpu:/a\n", {"memory/a/memory.limit_in_bytes": "1000"}, None),
    "damaged": ("no colons\n::\n", {"memory.max": "none"}, None),
}


@pytest.mark.parametrize(("groups", "files", "nbytes"), GROUPS.values(), ids=GROUPS)
def test_control_groups(
    tmp_path: Path, groups: str, files: dict[str, str], nbytes: int | None
) -> None:
    """The lowest limit of the groups that the process is in, else the machine's memory."""
    places = {"proc/self/cgroup": groups} | {f"sys/fs/cgroup/{k}": v for k, v in files.items()}
    for place, text in places.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert _core.default_memory_limit(str(tmp_path)) == (nbytes or machine)
