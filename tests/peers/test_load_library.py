"""Custom operators built against the official SDK, loaded into pteron's own runtime."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

DATA = Path(__file__).parents[1] / "data"

SOURCE = """
#include <executorch/runtime/kernel/kernel_includes.h>
#include <executorch/runtime/kernel/operator_registry.h>

namespace rt = executorch::runtime;
using executorch::aten::Tensor;

// out = sign * x, resized to x. 42 makes it complain at length, also in bytes that are no text.
template <int sign>
void scale(rt::KernelRuntimeContext& context, rt::Span<rt::EValue*> args) {
  const Tensor& x = args[0]->toTensor();
  Tensor& out = args[1]->toTensor();
  if (x.const_data_ptr<float>()[0] == 42) {
    for (int i = 0; i < 30; ++i) {
      ET_LOG(Info, "no reason");
      ET_LOG(Error, "line %d of \\xc3\\xa9\\xc3\\xa9\\xc3\\xa9 and \\xff\\xfe, no text", i);
    }
    context.fail(rt::Error::InvalidState);
    return;
  }
  (void)rt::resize_tensor(out, x.sizes());
  for (ssize_t i = 0; i < x.numel(); ++i) {
    out.mutable_data_ptr<float>()[i] = sign * x.const_data_ptr<float>()[i];
  }
}

static const rt::Kernel kernels[] = {
    rt::Kernel("pteron_test::twist.out", scale<-1>),
    rt::Kernel("pteron_test::bend.out", scale<2>),
};
static const auto registered = rt::register_kernels({kernels, 2});
"""

COMPLAIN = """
import numpy as np, pteron
pteron.load_library({library!r})
method = pteron.load({program!r}).load_method()
try:
    method(np.full((2, 2), 42, np.float32))
except pteron.errors.ExecutionError as error:
    reasons = error.reasons
    text = chr(10).join(reasons)
    assert len(text.encode()) <= 1024, len(text)
    assert text.startswith("[...] ") and "line 0 " not in text
    assert "line 29 of \u00e9\u00e9\u00e9 and \ufffd\ufffd, no text" in reasons
    assert "no reason" not in text and "[...]" in str(error)
    print("complained")
print(np.asarray(method(np.ones((2, 2), np.float32))).tolist())
"""

USE = """
import sys
if {official_first}:
    import torch
    from executorch.extension.pybindings import portable_lib
import numpy as np, pteron
pteron.load_library({library!r})
program = pteron.load({program!r})
names = pteron.Runtime.get().operator_registry.operator_names
assert "pteron_test::twist.out" in names
x = np.ones((2, 2), np.float32)
print(np.asarray(program(x)).tolist())
if not {official_first}:
    import torch
    from executorch.extension.pybindings import portable_lib
assert "pteron_test::twist.out" not in portable_lib._get_operator_names()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared library of two operators, linked to the official runtime."""
    spec = importlib.util.find_spec("executorch")
    assert spec is not None and spec.submodule_search_locations
    sdk = Path(next(iter(spec.submodule_search_locations)))
    folder = tmp_path_factory.mktemp("operators")
    (folder / "operators.cpp").write_text(SOURCE)
    include = sdk / "include"
    command = ["g++", "-std=c++17", "-shared", "-fPIC", "-O1", "-o", "liboperators.so"]
    command += [f"-I{include}", f"-I{include}/executorch/runtime/core/portable_type/c10"]
    command += ["-DC10_USING_CUSTOM_GENERATED_MACROS", "operators.cpp"]
    command += [f"-L{sdk}/lib", "-lexecutorch"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "liboperators.so"


@pytest.mark.parametrize("official_first", [True, False], ids=["official first", "pteron first"])
def test_operators_are_registered_here_and_only_here(library: Path, official_first: bool) -> None:
    """The program that lacked two operators runs, whichever package came first."""
    code = USE.format(
        library=str(library), program=str(DATA / "missing_op.pte"), official_first=official_first
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[[")


def test_reasons_are_capped_text(library: Path) -> None:
    """M84, M88, M89, X9: the last lines, at most 1024 bytes, cut between characters, marked."""
    code = COMPLAIN.format(library=str(library), program=str(DATA / "missing_op.pte"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("complained\n[[")
