"""Every fixture on pteron and on the official bindings in one process, imported in either order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import DATA

import pteron

pytest.importorskip("executorch")
SKIPPED = {  # why the official runtime is not asked
    "missing_op": "its kernels do not exist",
    "missing_backend": "its backend does not exist",
    "empty": "it aborts on an empty input",
    "from_float8": "its kernels refuse float8",
    "to_float8": "its kernels refuse float8",
    "cond_overlap": "the exporter plans it wrongly",
    "state_shared": "it gives each method state of its own",
    "state_shared_unnamed": "it gives each method state of its own",
}
NAMES = sorted(
    path.stem
    for path in DATA.glob("*.pte")
    if path.stem not in SKIPPED and not path.stem.startswith("device")
)
ORDERS = {
    "pteron first": "import pteron\n{official}",
    "official first": "{official}\nimport pteron",
    "quantized kernels first": "import executorch.kernels.quantized\nimport pteron\n{official}",
}
OFFICIAL = "from executorch.extension.pybindings import portable_lib"

# In a process of its own: prints, for each fixture, the largest difference and how many outputs
# were equal to the bit.
CODE = """
import json, sys, warnings
warnings.simplefilter("ignore")
sys.path[:0] = {paths!r}
{imports}
import numpy as np, torch
import executorch.kernels.quantized
from conftest import DATA, load_fixture
report = {{}}
for name in {names!r}:
    data = DATA / (name + ".ptd")
    worst, exact, count = 0.0, 0, 0
    for always_copy in (True, False):  # with state of their own
        official = portable_lib._load_for_executorch(
            str(DATA / (name + ".pte")), str(data) if data.exists() else None)
        program = pteron.load(DATA / (name + ".pte"), data_path=data if data.exists() else None)
        assert sorted(official.method_names()) == sorted(program.method_names)
        for method_name in program.method_names:
            if name == "big_add":
                inputs = [torch.rand(1024, 1024)] * 2
            else:
                fixture = load_fixture(name, "" if method_name == "forward" else method_name)
                inputs = [pteron.ExecuTorchResult.from_host(x).torch()
                          if isinstance(x, (np.ndarray, pteron.ExecuTorchResult)) else x
                          for x in fixture.inputs]
            if name == "chan_last":
                inputs = [x.to(memory_format=torch.channels_last) for x in inputs]
            copies = [[x.clone() if hasattr(x, "clone") else x for x in inputs] for _ in range(2)]
            theirs = official.run_method(method_name, tuple(copies[0]))
            method = program.load_method(method_name)
            method.always_copy = always_copy
            ours = method.execute(copies[1])
            assert len(ours) == len(theirs), name
            for a, b in zip(ours, theirs):
                count += 1
                assert type(a) is type(b), (name, type(a), type(b))
                if not isinstance(a, torch.Tensor):
                    assert a == b, (name, a, b)
                    exact += 1
                    continue
                assert (a.dtype, a.shape) == (b.dtype, b.shape), name
                exact += torch.equal(a.contiguous().reshape(-1).view(torch.uint8),
                                     b.contiguous().reshape(-1).view(torch.uint8))
                a, b = (t.to(torch.complex128 if t.is_complex() else torch.float64)
                        for t in (a, b))
                if a.numel():
                    worst = max(worst, float((a - b).abs().max() / (1 + b.abs().max())))
    report[name] = [worst, exact, count]
print(json.dumps(report))
"""


@pytest.fixture(scope="module", params=ORDERS)
def report(request: Any) -> dict[str, tuple[float, int, int]]:
    """What one process found."""
    paths = [str(Path(__file__).parents[1]), str(Path(pteron.__file__).parents[1]), *sys.path]
    imports = ORDERS[request.param].format(official=OFFICIAL)
    code = CODE.format(paths=paths, imports=imports, names=NAMES)
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "EXECUTORCH_PYBINDINGS_TENSOR_OUTPUT": "torch"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


def test_same_numbers(report: dict[str, tuple[float, int, int]]) -> None:
    """To the bit, but for the delegate, whose work the threads share: within 1e-6."""
    assert set(report) == set(NAMES)
    wrong = {name: worst for name, (worst, _, _) in report.items() if worst > 1e-6}
    assert not wrong
    inexact = {name for name, (_, exact, count) in report.items() if exact != count}
    assert not inexact - {"conv_xnnpack", "mlp_xnnpack"}
