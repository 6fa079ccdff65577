# One Python from 3.11 on makes the environment; Go, where it is found, the real backends.
PYTHON ?= python3
# How many test processes run side by side.
# One more than the cores of a machine with two: many tests wait for another process.
WORKERS ?= 3
# The groups of tests/kit/matrix.py that `make test` also runs: none, all, or names with commas.
MATRIX ?= none
# TORCH=no: PyTorch is not installed, and what needs it is left out.
TORCH ?= yes

BIN := .venv/bin
STAMP := .venv/.installed
TORCH_STAMP := .venv/.torch
TORCH_VERSION = $(shell sed -n 's/^torch==//p' constraints.txt)

ifeq ($(TORCH),no)
ENVIRONMENT := $(STAMP)
else
ENVIRONMENT := $(TORCH_STAMP)
endif

.DEFAULT_GOAL := help
.PHONY: help venv torch torch-oldest pythons sick changes compare backends frameworks check test test-matrix test-times demo bench engines scale scale-chain fuzz soak faults kafka otlp-json docs screens lint format clean

help:
	@echo "make venv      the environment with everything that development needs but PyTorch: .venv"
	@echo "make torch     PyTorch and what trains with it, added to .venv (demo, test and bench do it)"
	@echo "make torch-oldest  the oldest PyTorch that is supported, in an environment of its own"
	@echo "make pythons   the wheel, in each supported Python of this machine"
	@echo "make frameworks  the frameworks that .venv does not hold, each in an environment of its own"
	@echo "make sick      score the findings about simulated runs with planted causes, minutes on one core;"
	@echo "               SICK='--family NAME --seeds N' for fewer, SICK=--write-docs updates docs/verdicts.md;"
	@echo "               SICK='--real --name NAME --repeat N' runs real programs and their healthy twins"
	@echo "make changes   score \`diff\` on pairs of real runs with a planted change, minutes; CHANGES='--name NAME'"
	@echo "make compare BASE=COMMIT  every output of this tree beside that of an earlier commit"
	@echo "make demo      train a small network with the hooks on; show its tree, and where the time went"
	@echo "make check     linters, types, layers, and the tests that are fast and need no real backend:"
	@echo "               under four minutes on two cores, for the edit loop"
	@echo "make test      linters, types, layers, and all tests but the matrix; with MATRIX=all or names of groups,"
	@echo "               also these. CI runs it with the groups whose inputs changed within 48 hours"
	@echo "make test-matrix  the matrix: the same programs with the oldest and other versions, Spark, other Pythons"
	@echo "make test-times  choose anew what make check leaves out, by the times of the last make test"
	@echo "make scale     ten minutes of 10,000 simulated ranks through an agent, Kafka, collectors and PostgreSQL;"
	@echo "               SCALE='--ranks 64' for less, SCALE='--keep DIR' to continue after an interruption"
	@echo "make scale-chain  simulated ranks through Kafka and 1, 2 and 3 collectors; the cost of each stage"
	@echo "make bench     the cost of tracing, beside other tools; spans a second; peak memory"
	@echo "make engines   the report of ENGINE_SPANS=5000000 spans by Python, DuckDB, PostgreSQL and Spark: equality, CPU time"
	@echo "make backends  the OpenTelemetry Collector, Jaeger, Tempo and S3 server that the tests run (needs Go),"
	@echo "               and Kafka (needs Java and Maven)"
	@echo "make fuzz      look for inputs that break the decoders, for SECONDS=60 (needs atheris), then"
	@echo "               convert 20,000 generated batches and messages both ways (6 minutes on two cores),"
	@echo "               and repeat the property tests with new examples"
	@echo "make soak      a collector under load: kills, refused batches, memory, 40,000 batches; half an hour"
	@echo "make faults    SEEDS=50 collectors whose endpoint mixes its answers; MEMBERS=2 collectors on one PostgreSQL"
	@echo "make kafka     SPANS=1000000 spans through agents, Kafka and collectors while each part is killed"
	@echo "make otlp-json  run the conformance corpus of OTLP/JSON over our reader, the Collector, Jaeger and Tempo;"
	@echo "               writes the tables of docs/otlp-json.md (a minute)"
	@echo "make docs      the documentation as a site: build/docs/index.html"
	@echo "make screens   the pictures of docs/images anew, by a real browser (needs Chromium)"
	@echo "make lint      the checks that 'make test' runs before the tests"
	@echo "make format    format the code, and apply the fixes of ruff"
	@echo "make clean     remove .venv and the files of tools (the built backends are kept)"
	@echo "With TORCH=no, demo, check, test and bench do without PyTorch."

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make venv: Python 3.11 or newer is needed and $(PYTHON) is not: make venv PYTHON=python3.11" >&2; \
	  exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade -c constraints.txt pip
	$(BIN)/python -m tests.kit.install --quiet --build-constraint constraints.txt -c constraints.txt \
	  -e '.[otlp,collector,postgres,s3,columns,iceberg,sql]' --group dev --group docs
	@touch $@

torch: $(TORCH_STAMP)

# A build of the same version that is there already, e.g. one for the CPU, is left alone.
$(TORCH_STAMP): $(STAMP)
	@found=$$($(BIN)/python -c 'from importlib.metadata import version; print(version("torch"))' \
	  2>/dev/null); quiet=--quiet; \
	if [ "$${found%%+*}" != "$(TORCH_VERSION)" ]; then \
	  quiet=; \
	  echo "make torch: PyTorch $(TORCH_VERSION), and what trains with it, is added to .venv: on Linux, with"; \
	  echo "CUDA's libraries, about 3 GB to fetch and 5.6 GB on disk. To go without: TORCH=no behind make."; \
	fi; \
	$(BIN)/python -m tests.kit.install $$quiet -c constraints.txt --group torch
	@touch $@

torch-oldest: $(STAMP)
	@$(BIN)/python -m tests.sdk.instrumentation.torch.environments

frameworks: $(ENVIRONMENT)
	@$(BIN)/python -m tests.system.frameworks.environments

pythons: $(STAMP)
	@$(BIN)/python -m tests.system.pythons

sick: $(STAMP)
	@$(BIN)/python -m tests.system.sick_runs $(SICK)

changes: $(ENVIRONMENT)
	@$(BIN)/python -m tests.system.changes $(CHANGES)

compare: $(STAMP)
	@test -n "$(BASE)" || { echo "make compare: name the commit to compare with: BASE=COMMIT" >&2; exit 2; }
	@$(BIN)/python -m tests.kit.compare $(BASE)

backends:
	$(PYTHON) -m tests.kit.backends.build

test: $(ENVIRONMENT)
	@$(BIN)/python -m tests.kit.backends.build --optional
	@$(MAKE) --no-print-directory lint
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup -p tests.kit.times --matrix $(MATRIX)

test-matrix: $(ENVIRONMENT) torch-oldest frameworks pythons
	CIRRON_OTEL_REQUIRE_BACKENDS=1 $(BIN)/pytest -n $(WORKERS) --dist loadgroup -m matrix

check: $(ENVIRONMENT)
	@$(MAKE) --no-print-directory lint
	$(BIN)/pytest -q -n $(WORKERS) --dist loadgroup --matrix none \
	  -m "not backends and not postgres and not slow"

test-times:
	$(BIN)/python -m tests.kit.times

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: venv
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

demo: $(ENVIRONMENT)
	@$(BIN)/cirron-otel demo

bench: $(ENVIRONMENT)
	@$(BIN)/python -m tests.perf.bench

engines: venv
	@$(BIN)/python -m tests.system.engines $(or $(ENGINE_SPANS),5000000)

scale: venv
	@$(PYTHON) -m tests.kit.backends.build otelcol kafka
	@$(BIN)/python -m tests.perf.scale $(SCALE)

scale-chain: venv
	@$(PYTHON) -m tests.kit.backends.build otelcol kafka
	@$(BIN)/python -m tests.perf.scale.chain $(SCALE)

# How long each target is fuzzed; all run at the same time. The generated cases come after them.
SECONDS ?= 60

fuzz: $(STAMP)
	@$(BIN)/python -m tests.system.fuzz.run all --seconds $(SECONDS)
	$(BIN)/pytest -q -n $(WORKERS) --dist loadgroup -m hypothesis --hypothesis-profile drawn

# One section alone: make soak SECTION=kills (or isolation, memory, files).
SECTION ?=

soak: $(STAMP)
	@$(BIN)/python -m tests.perf.load $(SECTION)

# How many seeds; FIRST is the first of them, and MEMBERS the collectors on one database.
SEEDS ?= 50
FIRST ?= 0
MEMBERS ?= 1

faults: $(STAMP)
	@$(BIN)/python -m tests.system.faults --seeds $(SEEDS) --first $(FIRST) --members $(MEMBERS)

# How many spans are sent. With TABLES=s3 the columnar tables are in a bucket, not in a directory.
SPANS ?= 1000000

kafka: $(STAMP)
	@$(BIN)/python -m tests.system.kafka $(SPANS) $(if $(filter s3,$(TABLES)),--s3)

otlp-json: venv
	@$(PYTHON) -m tests.kit.backends.build otelcol jaeger tempo
	@$(BIN)/python -m tests.kit.otlp_json

screens: $(TORCH_STAMP)
	@$(BIN)/python -m tests.project.screens

# Warnings are errors: a dead link, an anchor that is none, a page that is not in the navigation.
docs: $(STAMP)
	@$(BIN)/sphinx-build -q -W --keep-going -n -c docs -d build/doctrees -b html . build/docs
	@echo build/docs/index.html

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
