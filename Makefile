# Two commands: `make compare` and `make test`. Both set everything up first, once.
PYTHON ?= python3
# A version of torch, or "newest", for `make test TORCH=...`; not set, it is the one of constraints.txt.
TORCH ?=
VENV := .venv$(if $(TORCH),-torch-$(TORCH))
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadgroup --durations 10
ALL_TESTS := tests/unit tests/contract tests/multiprocess
FAST_TESTS := tests/unit tests/contract/test_collectives.py tests/contract/test_exchanges.py

.PHONY: help compare test test-fast check format docs clean
.DEFAULT_GOAL := help

help:
	@echo "make compare            train the built-in recipe every way that runs here, side by side"
	@echo "make test               all tests, with the checks (ruff, mypy, import direction)"
	@echo "make test-fast          unit tests, collectives and exchanges, in under two minutes: no launcher, no command line, no"
	@echo "                        strategies against each other, no failures of ranks, no services, no checks"
	@echo "make test TORCH=2.8.0   unit, contract and multiprocess tests on that torch, in an environment of its own;"
	@echo "                        TORCH=newest takes the newest of the registry (remove .venv-torch-newest to look again)"
	@echo "make test TESTS=...     only these files or folders; ARGS=... goes to pytest as it is"
	@echo "make check              only the checks"
	@echo "make docs               build the documentation site into site/"
	@echo "make clean              remove what the others made"

$(BIN)/python:
	@scripts/check-python "$(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

# A stamp is newer than what it was made from, so a second run installs nothing. What installs more has installed the base.
ifeq ($(TORCH),)
$(VENV)/base: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(VENV)/dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[dev,peers]'
	@touch $(VENV)/base $@
else
$(VENV)/dev: pyproject.toml constraints.txt scripts/install-with-torch | $(BIN)/python
	$(BIN)/python scripts/install-with-torch $(TORCH)
	@touch $(VENV)/base $@

$(VENV)/base: $(VENV)/dev
endif

$(VENV)/docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[docs]'
	@touch $(VENV)/base $@

# One lane per worker: the stock strategies then have no accumulation to do, and every strategy pays for itself alone.
compare: $(VENV)/base
	$(BIN)/lockstep compare $(or $(ARGS),--lanes 2)

# Types and style do not depend on torch's version: they are checked on the one of constraints.txt.
test: $(if $(TORCH),$(VENV)/dev,check)
	$(PYTEST) $(or $(TESTS),$(if $(TORCH),$(ALL_TESTS))) $(ARGS)

test-fast: $(VENV)/dev
	$(PYTEST) $(FAST_TESTS) $(ARGS)

check: $(VENV)/dev
	scripts/check

format: $(VENV)/dev
	$(BIN)/ruff check --fix src tests scripts examples
	$(BIN)/ruff format src tests scripts examples

docs: $(VENV)/docs
	$(BIN)/mkdocs build --strict

clean:
	rm -rf .venv .venv-torch-* site dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
