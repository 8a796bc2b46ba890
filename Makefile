# Two commands on a fresh machine with Python, pip and make:
#   make demo   sets everything up and trains with progressive resizing on images it makes itself
#   make test   sets everything up, lints, type-checks and runs the tests
# and   make test-all   runs those that are marked as slow, too
#       make docs       builds the documentation as a site

PYTHON ?= python3
VENV ?= .venv
PEERS ?= .venv-peers
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-all lint docs bench-peers clean

demo: $(READY)
	$(BIN)/feedline demo-data demo-data
	$(BIN)/feedline train demo-data --model resnet18 --schedule "112x2,160x2,224x2" --batch-size 16

# Many tests wait for processes, so there are more at a time than cores.
test: lint
	$(BIN)/python -m pytest -n 3 --dist loadfile -m "not slow"

test-all: lint
	$(BIN)/python -m pytest -n 3 --dist loadfile

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks conformance examples laboratory
	$(BIN)/ruff format --check src tests benchmarks conformance examples laboratory
	$(BIN)/mypy

# The documentation as a site, in build/site; a test builds it, too.
docs: $(READY)
	$(BIN)/python -m mkdocs build --strict

# An environment with what feedline is compared with, apart from feedline's own.
bench-peers:
	$(PYTHON) -m venv $(PEERS)
	benchmarks/install_peers.sh $(PEERS)/bin/python

# Python compiles what is imported; to compile all of torch beforehand takes a minute more.
$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --editable ".[dev]" torchvision
	touch $(READY)

clean:
	rm -rf $(VENV) $(PEERS) demo-data runs build/site
