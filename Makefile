# Needs Python 3.11 or newer and nothing else: everything is installed into .venv from wheels.
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
# More than the cores of a small machine: much of the time a test waits for its servers.
WORKERS ?= 3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test docs bench lint format types coverage pins clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  PYTHON=python3.12 picks the interpreter, WORKERS=0 runs the tests in one process,"
	@echo "  ARGS='-k sqlite' goes to pytest, the demo or the benchmarks."

demo: $(VENV)/.demo ## show the system at work
	@$(BIN)/python -m remuda.demo $(ARGS)

test: $(VENV)/.dev ## everything that must pass: lint, types, tests
	@scripts/install-mariadb
	@scripts/install-redis
	@scripts/install-jq
	@$(MAKE) --no-print-directory lint types
	$(BIN)/pytest -n $(WORKERS) --dist load $(ARGS)

docs: $(VENV)/.dev ## the documentation as a site, in build/docs; a warning is an error
	$(BIN)/mkdocs build --strict

bench: $(VENV)/.dev ## run the benchmarks
	$(BIN)/python -m bench $(ARGS)

lint: $(VENV)/.dev ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.dev ## ruff: mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.dev ## mypy, strict
	$(BIN)/mypy

coverage: $(VENV)/.dev ## the tests, and the lines that they miss
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n $(WORKERS) --dist load $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

pins: $(VENV)/.made ## resolve all dependencies anew and write constraints.txt
	$(BIN)/python scripts/pin-dependencies

clean: ## remove the environment, caches and builds
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Made anew when what it is made from changes, so that nothing stays behind in it.
$(VENV)/.made: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Remuda needs Python 3.11 or newer; '$(PYTHON) --version' says: $$($(PYTHON) --version 2>&1)" >&2; \
		echo "Name another one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "Making $(VENV) ..."
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.made
	@echo "Installing Remuda ..."
	@$(PIP_INSTALL) --editable '.[embedded,devices]'
	@touch $@

$(VENV)/.dev: $(VENV)/.made
	@echo "Installing Remuda and what its tests need ..."
	@$(PIP_INSTALL) --editable '.[dev]'
	@touch $@
