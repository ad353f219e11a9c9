"""Programs made to keep the checks busy: their time grows with the file, not with its square."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from conftest import DATA
from formats import File

import pteron


def program(count: int, place: Callable[[int], int], **signature: Any) -> bytes:
    """`count` instructions that read a value each and write the last; `place` plans the values."""
    file = File.parse((DATA / "add.pte").read_bytes())
    tensor = {"dtype": 6, "sizes": [2, 2], "order": b"\0\1"}
    values: list[Any] = [
        {"val": [5, tensor | {"allocation": {"memory_id": 1, "low": place(i)}}]}
        for i in range(count + 1)
    ]
    number = count + 1
    code = [
        {"args": [1, {"args": [i, i, number, count, count]}]} for i in range(count)
    ]  # aten::add.out
    file.tree["plans"][0] |= {
        "values": [*values, {"val": [2, {"value": 1}]}],
        "inputs": [],
        "outputs": [count],
        "buffer_sizes": [0, 16 * count + 64],
        "chains": [{"inputs": [], "outputs": [], "instructions": code}],
    } | signature
    return file.write()


def seconds(data: bytes) -> float:
    """CPU seconds of a load, the best of some."""
    best = 1e9
    for _ in range(5):
        start = time.process_time()
        pteron.load(data, verification=pteron.Verification.Minimal)
        best = min(best, time.process_time() - start)
    return best


CASES: dict[str, Callable[[int], bytes]] = {
    "one place": lambda n: program(n, lambda i: 0),
    "one after another": lambda n: program(n, lambda i: 16 * i),
    "each beside the next": lambda n: program(n, lambda i: 8 * i),
    "all inputs": lambda n: program(n, lambda i: 0, inputs=[*range(n)]),
    "all outputs": lambda n: program(n, lambda i: 16 * i, outputs=[*range(n)]),
}


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_time_grows_with_the_file(make: Callable[[int], bytes]) -> None:
    """Eight times the file takes far less than 64 times as long."""
    assert seconds(make(16000)) < 24 * seconds(make(2000))
