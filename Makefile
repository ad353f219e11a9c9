# Everything that CI runs, by name. `make help` lists the targets.
#
# Environments: .venv has pteron and what tests and lint need, and neither torch nor executorch;
# .venv-peers has those too, to compare with.

PYTHON ?= python3
SOURCES := $(shell git ls-files -co --exclude-standard native src cmake CMakeLists.txt pyproject.toml)
VENV := .venv/bin
PEERS := .venv-peers/bin
CXX_FILES := $(shell git ls-files -co --exclude-standard 'native/*.h' 'native/*.cpp' 'benchmarks/*.cpp')
PY_FOLDERS := src cmake tests benchmarks examples

.PHONY: help demo test test-native asan ubsan tsan test-peers test-numpy1 \
	test-gpu bench-gpu fuzz stress conformance lint format stub bench clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 14

.venv/pip:
	$(PYTHON) -m venv .venv
	$(VENV)/pip install --quiet --upgrade 'pip>=25.1'
	@touch $@

.venv/pteron: .venv/pip $(SOURCES)
	$(VENV)/pip install --quiet .
	@touch $@

.venv/tools: .venv/pteron pyproject.toml
	$(VENV)/pip install --quiet --group test --group lint
	@touch $@

.venv/native: .venv/tools
	$(VENV)/pip install --quiet --group native
	@touch $@

.venv-peers/tools: pyproject.toml
	$(PYTHON) -m venv .venv-peers
	$(PEERS)/pip install --quiet --upgrade 'pip>=25.1'
	$(PEERS)/pip install --quiet --group peers --group test
	@touch $@

.venv-peers/pteron: .venv-peers/tools $(SOURCES)
	$(PEERS)/pip install --quiet .
	@touch $@

demo: .venv/pteron  ## Classify handwritten digits with pteron
	$(VENV)/python examples/digits/classify.py

# Python's development mode, for which the extension tells at the end what outlived it: words on
# stderr fail the run.
test: .venv/tools  ## Run the tests that need neither torch nor executorch
	@mkdir -p build
	$(VENV)/python -X dev -m pytest --ignore tests/peers --ignore tests/gpu 2> build/test.err; \
		status=$$?; cat build/test.err >&2; [ $$status = 0 ] && [ ! -s build/test.err ]

# Configures and builds the native code and its tests in build/<target>.
define build-native
$(VENV)/cmake -G Ninja -S . -B build/$@ -DPTERON_TESTS=ON -DPTERON_WERROR=ON $(1) \
	-DPython_EXECUTABLE=$(CURDIR)/$(VENV)/python -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(VENV)/ninja \
	-DPTERON_EXECUTORCH_SDK="$$($(VENV)/python cmake/fetch_sdk.py build/sdk | sed -n 1p)"
$(VENV)/cmake --build build/$@
endef

test-native: .venv/native  ## Build and run the C++ tests
	$(call build-native)
	$(VENV)/ctest --test-dir build/$@ --output-on-failure

asan: .venv/native  ## Run the C++ and the Python tests with AddressSanitizer
	$(call build-native,-DPTERON_SANITIZE=address)
	.ci/sanitize $@ $(VENV)

ubsan: .venv/native  ## Run them with UndefinedBehaviorSanitizer
	$(call build-native,-DPTERON_SANITIZE=undefined)
	.ci/sanitize $@ $(VENV)

tsan: .venv/native  ## Run them with ThreadSanitizer
	$(call build-native,-DPTERON_SANITIZE=thread)
	.ci/sanitize $@ $(VENV)

test-peers: .venv-peers/pteron conformance  ## Compare with torch, JAX and the official bindings
	$(PEERS)/python -m pytest tests/peers

.venv-numpy1/pteron: $(SOURCES)
	$(PYTHON) -m venv .venv-numpy1
	$(VENV:.venv/%=.venv-numpy1/%)/pip install --quiet . 'numpy<2' ml_dtypes pytest hypothesis
	@touch $@

test-numpy1: .venv-numpy1/pteron  ## Run the tests of values with NumPy 1.26 (Python up to 3.12)
	$(VENV:.venv/%=.venv-numpy1/%)/python -m pytest tests/test_inputs.py tests/test_dlpack.py \
		tests/test_results.py tests/test_layouts.py tests/test_attributes.py tests/test_reruns.py

test-gpu:  ## Test CUDA programs on this GPU; PYTHON has torch, CuPy, pytest and the build tools
	$(PYTHON) -m pip install --quiet --no-build-isolation --no-deps .
	$(PYTHON) -m pytest tests/gpu

bench-gpu:  ## Measure CUDA programs beside torch on this GPU
	$(PYTHON) benchmarks/bench_gpu.py

N ?= 2000
SEED ?= 0
fuzz: .venv/tools  ## Run N mutated files in processes of their own: make fuzz N=20000
	$(VENV)/python tests/fuzz/fuzz.py --mutants $(N) --seed $(SEED)

MINUTES ?= 30
stress: .venv/tools  ## Compare parallel runs with serial ones for 30 minutes of CPU: MINUTES, SEED
	$(VENV)/python tests/stress/parallel.py --cpu-minutes $(MINUTES) --seed $(SEED)

conformance: .venv-peers/pteron  ## Run upstream's own suites on pteron
	$(PEERS)/python tests/conformance/run.py

lint: .venv/tools  ## Check formats, styles and types
	$(VENV)/ruff format --check $(PY_FOLDERS)
	$(VENV)/ruff check $(PY_FOLDERS)
	$(VENV)/clang-format --dry-run --Werror $(CXX_FILES)
	$(VENV)/mypy

format: .venv/tools  ## Format all files
	$(VENV)/ruff format $(PY_FOLDERS)
	$(VENV)/clang-format -i $(CXX_FILES)

stub: .venv/native  ## Write src/pteron/_core.pyi anew, after a change of the binding
	$(VENV)/python -m nanobind.stubgen -q -m pteron._core -p native/python/stub_patterns.txt \
		-o src/pteron/_core.pyi

bench: .venv-peers/pteron  ## Compare speed, start and memory with the official bindings
	$(PEERS)/python benchmarks/bench.py

clean:  ## Remove builds and environments
	rm -rf build dist .venv .venv-peers .venv-numpy1 benchmarks/models benchmarks/results*.json
