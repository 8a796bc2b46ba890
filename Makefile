# On a fresh machine with Python, pip and make:
#   make demo       install feedline and run it on generated images: resized cache, progressive
#                   training, bottleneck, HTML report
#   make test       install the test packages and run the tests
#   make test-frameworks
#                   run those of Lightning, Ray, S3, a browser and the documentation
#   make lint       ruff and mypy
#   make test-all   all of these, also the tests marked slow
#   make docs       build the documentation site
#   make wheels     build the wheel of this machine and check it in an empty environment
#   make test-sanitized, make fuzz TIME=60, make test-arm
#                   test the native code with sanitizers, with random arguments, on aarch64

PYTHON ?= python3
VENV ?= .venv
PEERS ?= .venv-peers
BIN := $(VENV)/bin
DEMO := $(VENV)/.demo
READY := $(VENV)/.ready

DEMO_RUN := runs/demo-$(shell date +%Y%m%d-%H%M%S)
DEMO_SIZES := 64,96,160
DEMO_TRAINING := --model resnet18 --schedule "64x2,96x2,160x2" --batch-size 16

.PHONY: demo test test-frameworks test-all test-sanitized test-arm fuzz lint docs bench-peers wheels clean

# Each demo starts a new run. `feedline report` exits with 1 if it has a recommendation, which is not
# an error here.
demo: $(DEMO)
	@echo; echo "1 of 4: generate images"
	@$(BIN)/feedline demo-data demo-data
	@echo; echo "2 of 4: build a cache of resized copies"
	@$(BIN)/feedline cache build demo-data/train demo-cache --sizes $(DEMO_SIZES)
	@echo; echo "3 of 4: train with progressive image sizes; each phase reads the smallest sufficient copies"
	@$(BIN)/feedline train demo-data --cache demo-cache --out $(DEMO_RUN) $(DEMO_TRAINING)
	@echo; echo "4 of 4: report the bottleneck"
	@$(BIN)/feedline report $(DEMO_RUN) --html $(DEMO_RUN)/report.html > $(DEMO_RUN)/report.txt \
		|| [ $$? -ne 2 ]
	@sed '/^Phases$$/,$$d' $(DEMO_RUN)/report.txt
	@echo "HTML report: $(DEMO_RUN)/report.html"

# More test processes than cores: many tests wait for worker processes. tests/conftest.py orders them.
# Bytecode is cached, because the tests start several hundred processes.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder
QUICK := -m "not slow"
# Of other libraries on feedline, servers, clusters, a browser, and the documentation's programs.
FRAMEWORK_TESTS := tests/frameworks tests/remote tests/cache/test_ray.py tests/profiling/test_page_in_chromium.py \
	tests/test_docs_examples.py tests/test_docs_site.py tests/test_examples.py

test: $(READY)
	$(PYTEST) $(QUICK) $(FRAMEWORK_TESTS:%=--ignore=%)

test-frameworks: $(READY)
	$(PYTEST) $(QUICK) $(FRAMEWORK_TESTS)

test-all: lint
	@$(MAKE) --no-print-directory test test-frameworks QUICK=

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks conformance docs examples laboratory
	$(BIN)/ruff format --check src tests benchmarks conformance docs examples laboratory
	$(BIN)/mypy
	$(BIN)/python conformance/faults.py --check

# Native code with AddressSanitizer and UndefinedBehaviorSanitizer: needs clang (with its runtime
# libraries: libclang-rt-dev in Debian).
TIME ?= 60
NATIVE_TESTS := tests/images/test_raw_rows.py tests/images/test_resample.py tests/images/test_resize.py \
	tests/images/test_lut.py tests/images/test_photometric.py tests/images/test_jpeg.py \
	tests/images/test_entropy.py tests/images/test_png.py
SANITIZED := build/sanitized
SANITIZE := -g -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all -shared-libasan
WITH_SANITIZERS = PYTHONPATH=$(SANITIZED)/lib PYTHONMALLOC=malloc \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
	LD_PRELOAD=$(shell clang -print-file-name=libclang_rt.asan-$(shell uname -m).so)

test-sanitized: $(SANITIZED)
	$(WITH_SANITIZERS) $(BIN)/python -m pytest --timeout=1800 $(NATIVE_TESTS)

fuzz: $(SANITIZED)
	$(WITH_SANITIZERS) $(BIN)/python tests/native/fuzz.py $(TIME)

$(SANITIZED): $(READY) setup.py $(wildcard src/feedline/images/c/*.[ch])
	CC=clang LDSHARED="clang -shared" CFLAGS="$(SANITIZE)" LDFLAGS="$(SANITIZE)" \
		$(BIN)/python setup.py -q build --build-base $@ --build-lib $@/lib
	cd $@/lib/feedline/images && ls _resample.*so _lut.*so _photometric.*so _jpeg.*so _png.*so
	touch $@

# tests/native/arm.sh lists the packages of Debian that it needs.
test-arm: $(READY)
	PYTHON=$(BIN)/python tests/native/arm.sh -m "not slow" $(NATIVE_TESTS)

# tools/wheels.sh lists what it needs.
wheels:
	PYTHON=$(PYTHON) tools/wheels.sh

# Build the documentation as a site, in build/site.
docs: $(READY)
	$(BIN)/python -m mkdocs build --strict

# Create a second environment with the data loaders that feedline is compared with.
bench-peers:
	$(PYTHON) -m venv $(PEERS)
	benchmarks/install_peers.sh $(PEERS)/bin/python

# torch comes first: pip unpacks nothing before it has downloaded everything, and so the archives of
# torch, 3 GB, are deleted before the rest is installed. The rest keeps that version of torch. Modules
# are compiled when they are first imported, which is a sixth of all; torch's at once, so that test
# processes do not each compile them.
$(DEMO): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --editable ".[train]" torchvision
	$(BIN)/python -m pip freeze | grep ^torch > $(VENV)/torch.txt
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -c "import torch, torchvision"
	touch $(DEMO)

$(READY): $(DEMO)
	$(BIN)/python -m pip install --quiet --no-compile --constraint $(VENV)/torch.txt --editable ".[dev]"
	touch $(READY)

clean:
	rm -rf $(VENV) $(PEERS) demo-data demo-cache runs build/site
