# One Python from 3.11 on makes the environment; Go, where it is found, the real backends.
PYTHON ?= python3
# How many test processes run side by side.
WORKERS ?= 2

BIN := .venv/bin
STAMP := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help venv backends test demo bench lint format clean

help:
	@echo "make venv      the environment with everything that development needs: .venv"
	@echo "make demo      convert a recorded spool, and show the tree and the numbers"
	@echo "make test      linters, types, layers and all tests"
	@echo "make bench     spans a second and peak memory"
	@echo "make backends  the OpenTelemetry Collector and Jaeger that the tests run (needs Go)"
	@echo "make lint      what 'make test' runs before the tests"
	@echo "make format    format the code, and repair what ruff can"
	@echo "make clean     remove .venv and what tools left here (the built backends are kept)"

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make venv: Python 3.11 or newer is needed and $(PYTHON) is not: make venv PYTHON=python3.11" >&2; \
	  exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade -c constraints.txt pip
	$(BIN)/python -m pip install --quiet --build-constraint constraints.txt -c constraints.txt \
	  -e '.[otlp]' --group dev
	@touch $@

backends:
	$(PYTHON) -m tests.backends.build

test: venv
	@$(BIN)/python -m tests.backends.build --optional
	@$(MAKE) --no-print-directory lint
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: venv
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

demo: venv
	@$(BIN)/cirron-otel demo

bench: venv
	@$(BIN)/python -m tests.bench

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
