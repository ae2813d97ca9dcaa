# Two commands: `make compare` and `make test`. Both set everything up first, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: compare test check format docs clean
.DEFAULT_GOAL := help

.PHONY: help
help:
	@echo "make compare   train the built-in recipe every way that runs here, side by side"
	@echo "make test      all tests, with the checks (ruff, mypy, import direction)"
	@echo "make check     only the checks"
	@echo "make docs      build the documentation site into site/"
	@echo "make clean     remove what the others made"

$(BIN)/python:
	@scripts/check-python "$(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

# A stamp is newer than what it was made from, so a second run installs nothing. What installs more has installed the base.
$(VENV)/base: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(VENV)/dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[dev,peers]'
	@touch $(VENV)/base $@

$(VENV)/docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[docs]'
	@touch $(VENV)/base $@

compare: $(VENV)/base
	$(BIN)/lockstep compare $(ARGS)

test: check
	$(BIN)/python -m pytest --numprocesses 2 --dist loadgroup $(ARGS)

check: $(VENV)/dev
	scripts/check

format: $(VENV)/dev
	$(BIN)/ruff check --fix src tests scripts examples
	$(BIN)/ruff format src tests scripts examples

docs: $(VENV)/docs
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
