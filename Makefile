# Two commands on a fresh machine with Python, pip and make:
#   make demo   sets everything up and shows all of it on images it makes itself: a cache of smaller
#               copies, a training while the images grow, what bound it, and the report as a page
#   make test   sets everything up, lints, type-checks and runs the tests
# and   make test-all   runs those that are marked as slow, too
#       make docs       builds the documentation as a site

PYTHON ?= python3
VENV ?= .venv
PEERS ?= .venv-peers
BIN := $(VENV)/bin
READY := $(VENV)/.ready

DEMO_RUN := runs/demo-$(shell date +%Y%m%d-%H%M%S)
DEMO_SIZES := 64,96,160
DEMO_TRAINING := --model resnet18 --schedule "64x2,96x2,160x2" --batch-size 16

.PHONY: demo test test-all lint docs bench-peers clean

# Each demo is a run of its own; one that Ctrl-C has stopped says how it goes on. A report's status
# is 1 where it has something to mend, which is no failure here.
demo: $(READY)
	@echo; echo "1 of 4: photographs"
	@$(BIN)/feedline demo-data demo-data
	@echo; echo "2 of 4: a cache of smaller copies"
	@$(BIN)/feedline cache build demo-data/train demo-cache --sizes $(DEMO_SIZES)
	@echo; echo "3 of 4: a training whose images grow; each phase reads the smallest copies that serve it"
	@$(BIN)/feedline train demo-data --cache demo-cache --out $(DEMO_RUN) $(DEMO_TRAINING)
	@echo; echo "4 of 4: what bound it"
	@$(BIN)/feedline report $(DEMO_RUN) --html $(DEMO_RUN)/report.html > $(DEMO_RUN)/report.txt \
		|| [ $$? -ne 2 ]
	@sed '/^Phases$$/,$$d' $(DEMO_RUN)/report.txt
	@echo "the report as a page: $(DEMO_RUN)/report.html"

# Many tests wait for processes, so there are more at a time than cores.
test: lint
	$(BIN)/python -m pytest -n 3 --dist loadfile -m "not slow"

test-all: lint
	$(BIN)/python -m pytest -n 3 --dist loadfile

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks conformance docs examples laboratory
	$(BIN)/ruff format --check src tests benchmarks conformance docs examples laboratory
	$(BIN)/mypy

# The documentation as a site, in build/site; a test builds it, too.
docs: $(READY)
	$(BIN)/python -m mkdocs build --strict

# An environment with what feedline is compared with, apart from feedline's own.
bench-peers:
	$(PYTHON) -m venv $(PEERS)
	benchmarks/install_peers.sh $(PEERS)/bin/python

# In two steps: pip unpacks nothing before it has downloaded all, and so the archives of torch, 3 GB,
# are gone before the rest takes room. The rest takes torch as it is: where pip's first choice of
# versions does not fit together, it may go back to other versions of torch, too, and an installation
# has taken 38 GB for that. pip would compile on one core; some packages have templates that do not
# compile, which is no failure.
$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --editable ".[frameworks,train]" torchvision
	$(BIN)/python -m pip freeze | grep ^torch > $(VENV)/torch.txt
	$(BIN)/python -m pip install --quiet --no-compile --constraint $(VENV)/torch.txt --editable ".[dev]"
	$(BIN)/python -m compileall -qq -j 0 $(VENV) || true
	touch $(READY)

clean:
	rm -rf $(VENV) $(PEERS) demo-data demo-cache runs build/site
