# Two commands: `make compare` and `make test`. Both set everything up first, once.
PYTHON ?= python3
# A version of torch, or "newest", for `make test TORCH=...`; not set, it is the one of constraints.txt.
TORCH ?=
VENV := .venv$(if $(TORCH),-torch-$(TORCH))
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# One more than the cores of the machine that CI has: for a quarter of its time a test waits for processes that it has started.
PROCESSES ?= 3
PYTEST := $(BIN)/python -m pytest --numprocesses $(PROCESSES) --durations 40
ALL_TESTS := tests/unit tests/contract tests/multiprocess
FAST_TESTS := tests/unit tests/contract/test_collectives.py tests/contract/test_exchanges.py

.PHONY: help compare test test-fast check format docs tensorflow figures figures-here clean
.DEFAULT_GOAL := help

help:
	@echo "make compare            train the built-in recipe every way that runs here, side by side"
	@echo "make test               all tests, with the checks (ruff, mypy, import direction)"
	@echo "make test-fast          unit tests, collectives and exchanges, in under two minutes: no launcher, no command line, no"
	@echo "                        strategies against each other, no failures of ranks, no services, no checks"
	@echo "make test TORCH=2.8.0   unit, contract and multiprocess tests on that torch, in an environment of its own;"
	@echo "                        TORCH=newest takes the newest of the registry (remove .venv-torch-newest to look again)"
	@echo "make test TESTS=...     only these files or folders; ARGS=... goes to pytest as it is"
	@echo "make test-pretend       the suites that know of devices, on pretend accelerators (built once, by a C++ compiler)"
	@echo "make check              only the checks"
	@echo "make tensorflow         an environment of its own, .venv-tensorflow, for the peer tensorflow and scripts of TensorFlow"
	@echo "make docs               build the documentation site into site/"
	@echo "make figures            run every benchmark and comparison of docs/figures/plan.toml, save them there, write the tables and"
	@echo "                        pictures of README and docs from them (hours; FIGURES='start syncbn' for some)"
	@echo "make figures-here       run them (FIGURES=... for some), save nothing, and tell how this machine compares"
	@echo "make clean              remove what the others made"

# --upgrade-deps: a newer pip installs the same in two thirds of the time.
$(BIN)/python:
	@scripts/check-python "$(PYTHON)"
	@$(PYTHON) -m venv --upgrade-deps $(VENV)

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

# Ranks of TensorFlow run in it, without torch; commands find it in this folder.
TENSORFLOW := .venv-tensorflow
$(TENSORFLOW)/base: pyproject.toml constraints.txt scripts/install-without-torch
	@scripts/check-python "$(PYTHON)"
	@test -x $(TENSORFLOW)/bin/python || $(PYTHON) -m venv --upgrade-deps $(TENSORFLOW)
	$(TENSORFLOW)/bin/python scripts/install-without-torch
	@touch $@

tensorflow: $(TENSORFLOW)/base

# One lane per worker: the stock strategies then have no accumulation to do, and every strategy pays for itself alone.
compare: $(VENV)/base
	$(BIN)/lockstep compare $(or $(ARGS),--lanes 2)

# Types and style do not depend on torch's version: they are checked on the one of constraints.txt. CHECKED=yes: they were.
test: $(if $(TORCH)$(CHECKED),$(VENV)/dev,check)
	$(PYTEST) $(or $(TESTS),$(if $(TORCH),$(ALL_TESTS))) $(ARGS)

# The suites that know of devices, on accelerators that are none, see tests/pretend. The first time they are built, in a minute.
PRETEND_TESTS := tests/pretend tests/contract/test_bits.py tests/contract/test_checkpoints.py tests/contract/test_stages.py \
  tests/contract/test_sharded.py tests/contract/test_stock.py tests/multiprocess/test_sync_batchnorm.py \
  tests/multiprocess/test_ddp.py tests/multiprocess/test_selftest.py tests/multiprocess/test_measure.py
# Of suites whose other tests say nothing about devices: evaluations, a resumed run, ranks and commands that are ended.
MULTI := tests/multiprocess
PRETEND_TESTS += $(MULTI)/test_evaluation.py::test_evaluations_change_no_bit \
  '$(MULTI)/test_evaluation.py::test_a_cut_model_is_evaluated_and_followed_alike[pipeline]' \
  $(MULTI)/test_resume.py::test_a_worker_is_killed_and_half_of_them_go_on \
  $(MULTI)/test_resume.py::test_twice_between_epochs_and_strategies \
  $(MULTI)/test_ends.py::test_uneven_last_batch_and_a_worker_that_runs_dry \
  '$(MULTI)/test_ends.py::test_ended_from_outside[spawn-SIGINT]' \
  '$(MULTI)/test_deaths.py::test_a_rank_is_killed[spawn-step]'
test-pretend: $(VENV)/dev
	PYTHONPATH=$$($(BIN)/python -m tests.pretend.build) LOCKSTEP_TEST_DEVICE=pretend $(PYTEST) $(or $(TESTS),$(PRETEND_TESTS)) $(ARGS)

test-fast: $(VENV)/dev
	$(PYTEST) $(FAST_TESTS) $(ARGS)

check: $(VENV)/dev
	scripts/check

format: $(VENV)/dev
	$(BIN)/ruff check --fix src tests scripts examples
	$(BIN)/ruff format src tests scripts examples

docs: $(VENV)/docs
	$(BIN)/mkdocs build --strict

figures: $(VENV)/dev
	$(BIN)/python scripts/figures $(FIGURES)

figures-here: $(VENV)/dev
	$(BIN)/python scripts/figures --here $(FIGURES)

clean:
	rm -rf .venv .venv-torch-* .venv-tensorflow .pretend site dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
