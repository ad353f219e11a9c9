"""Run the tests that the executorch 1.5.1 wheel ships on pteron.

Usage, in an environment with torch 2.13, executorch 1.5.1 and pteron:

    python tests/conformance/run.py          # bindings, runtime, and a sample of the XNNPACK ops
    python tests/conformance/run.py --all    # all XNNPACK ops too: 264 tests, about half an hour

`pteron.portable_lib` takes the place of the official extension module before anything imports it,
so every program in these tests runs on pteron. The runtime's tests run a second time with
`pteron.runtime` in the place of `executorch.runtime`. Prints one line of JSON; exits with 1 if a
test failed that ALLOWED does not name, or one that it names passed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
import time
import types
import unittest
import warnings
from pathlib import Path

import executorch
from executorch.extension import pybindings

from pteron import portable_lib, runtime

_REPR = (
    "compares the repr of TensorInfo: pull requests 24016 and 24146 changed it (device, float32)"
)

# Failures that are meant, with the reason.
ALLOWED = {
    f"test_pybindings.PybindingsTest.{name}": _REPR
    for name in ("test_method_meta", "test_method_method_meta", "test_program_method_meta")
}

BINDINGS = ("extension/pybindings/test", "runtime/test")
RUNTIME = ("extension/pybindings/test/test_backend_pybinding.py", "runtime/test")
XNNPACK = "backends/xnnpack/test/ops"
SAMPLE = ("test_abs", "test_add", "test_lstm", "test_quantize_per_tensor", "test_sigmoid")

PACKAGE = Path(next(iter(executorch.__path__)))


class Result(unittest.TestResult):
    """Counts, with the outcome of each test under a name that does not depend on the machine."""

    def __init__(self, suite: str) -> None:
        super().__init__()
        self.suite = suite

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        print(f"{self.suite}: {test.id()}", file=sys.stderr, flush=True)

    def bad(self) -> dict[str, str]:
        """The tests that failed, and the last line of why."""
        rows = [*self.failures, *self.errors]
        return {test.id(): text.strip().splitlines()[-1][:300] for test, text in rows}


def inject() -> None:
    """Put pteron in the place of the official extension module."""
    name = "executorch.extension.pybindings._C"
    assert name not in sys.modules, "the official extension module is loaded already"
    module = types.ModuleType(name)
    for key in portable_lib.__all__:
        setattr(module, key, getattr(portable_lib, key))
    sys.modules[name] = module
    pybindings._C = module


def files_of(*places: str) -> list[Path]:
    found: list[Path] = []
    for place in places:
        path = PACKAGE / place
        found += [path] if path.is_file() else sorted(path.glob("test_*.py"))
    return found


def run(suite: str, files: list[Path]) -> Result:
    """Run the tests of the files, each loaded under its own name."""
    tests = unittest.TestSuite()
    for path in files:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        tests.addTests(unittest.defaultTestLoader.loadTestsFromModule(module))
    result = Result(suite)
    tests.run(result)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description="Run upstream's tests on pteron.")
    parser.add_argument("--all", action="store_true", help="run all tests of the XNNPACK ops")
    parser.add_argument("--only", default="", help="run only test files whose name has this in it")
    arguments = parser.parse_args()
    started = time.time()
    inject()
    ops = files_of(XNNPACK)
    if not arguments.all:
        ops = [path for path in ops if path.stem in SAMPLE]
    suites = {
        "bindings": files_of(*BINDINGS),
        "xnnpack": ops,
        "runtime": files_of(*RUNTIME),
    }
    results: dict[str, Result] = {}
    # The tests print, and one line of JSON is all that this may print.
    with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import executorch.kernels.quantized  # noqa: F401  (two tests export quantized operators)

        for name, files in suites.items():
            if name == "runtime":
                sys.modules["executorch.runtime"] = runtime
            results[name] = run(name, [path for path in files if arguments.only in path.stem])

    failed, allowed = {}, {}
    for name, result in results.items():
        for test, why in result.bad().items():
            if test in ALLOWED:
                allowed[test] = ALLOWED[test]
            else:
                failed[f"{name}: {test}"] = why
    ran = sum(result.testsRun for result in results.values())
    skipped = {test.id(): why for result in results.values() for test, why in result.skipped}
    passed = ran - len(failed) - len(allowed) - len(skipped)
    if not arguments.only:
        failed |= dict.fromkeys({*ALLOWED} - {*allowed}, "passes, and is no longer a difference")
    line = {
        "ran": ran,
        "passed": passed,
        "skipped": len(skipped),
        "failed": len(failed),
        "allowed": len(allowed),
        "suites": {name: result.testsRun for name, result in results.items()},
        "skips": skipped,
        "failures": failed,
        "allowed_differences": allowed,
        "seconds": round(time.time() - started),
    }
    print(json.dumps(line))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
