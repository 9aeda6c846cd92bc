# Python 3.11 or newer and make are enough; everything else is installed into .venv, at the
# versions of constraints.txt. `make` alone lists the targets.

PYTHON ?= python3
ARGS ?=
WORKERS ?= auto
# Tests run one worker per core, each with one thread: more would stand in each other's way.

VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := -m pip install --disable-pip-version-check -c constraints.txt
INSTALL := $(BIN)/python $(PIP_INSTALL)
TORCH := $(shell grep '^torch==' constraints.txt)

MANIFESTS := pyproject.toml $(sort $(wildcard plugins/*/pyproject.toml)) playground/pyproject.toml
PLUGINS := $(foreach manifest,$(wildcard plugins/*/pyproject.toml),-e $(dir $(manifest)))
PROJECTS := $(PLUGINS) -e 'playground[models]'
# Only the weights inside these are used: what they ask for is left out, and any Python will do.
WEIGHTS := --no-deps --ignore-requires-python rxnmapper rapidocr-onnxruntime

# Other libraries and what they bring stay out of .venv.
PEERS_VENV := .venv-peers
PEERS := $(shell grep '==' tests/benchmarks/peers.txt)

SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.DEFAULT_GOAL := help
.PHONY: help install playground test lint mutants bench peers chromium clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 20

playground: $(VENV)/.playground ## open the playground in the browser (ARGS="--port 8000")
	$(BIN)/attnreg playground $(ARGS)

install: $(VENV)/.dev ## install everything, tools included, editable

test: $(VENV)/.dev ## run every test (ARGS="-k linear"); browser tests need `make chromium` first
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) $(ARGS)

lint: $(VENV)/.dev ## check format, style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

mutants: $(VENV)/.dev ## list which checks of the conformance suite kill which mutants
	$(BIN)/python -m tests.mutants

bench: $(VENV)/.dev ## time every variant (ARGS="--benchmark-autosave", then "--benchmark-compare")
	$(BIN)/pytest tests/benchmarks --benchmark-enable --benchmark-only \
		--benchmark-columns=median,iqr,rounds $(ARGS)

peers: $(PEERS_VENV)/.installed ## compare speed and memory with other libraries (ARGS="--variant linear")
	$(PEERS_VENV)/bin/python -m tests.benchmarks.peers $(ARGS)

chromium: ## install the browser and the Chinese fonts that the browser tests use (Debian)
	$(SUDO) apt-get update
	$(SUDO) apt-get install --yes --no-install-recommends chromium fonts-noto-cjk

clean: ## remove .venv, .venv-peers, caches and built files
	rm -rf $(VENV) $(PEERS_VENV) build dist .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find attnreg plugins playground tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is newer than what it was installed from, so a second call installs nothing.

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	@touch $@

# Torch first, exactly: a range asked for by another package may bring another build of it.
$(VENV)/.torch: constraints.txt | $(VENV)/.created
	$(INSTALL) $(TORCH)
	@touch $@

$(VENV)/.playground: $(MANIFESTS) attnreg/_version.py $(VENV)/.torch
	$(INSTALL) -e . $(PROJECTS)
	$(INSTALL) $(WEIGHTS)
	@touch $@

$(VENV)/.dev: $(MANIFESTS) attnreg/_version.py $(VENV)/.torch
	$(INSTALL) -e '.[dev]' $(PROJECTS)
	$(INSTALL) $(WEIGHTS)
	@touch $(VENV)/.playground $@

$(PEERS_VENV)/.installed: tests/benchmarks/peers.txt pyproject.toml attnreg/_version.py constraints.txt
	$(PYTHON) -m venv $(PEERS_VENV)
	$(PEERS_VENV)/bin/python $(PIP_INSTALL) $(TORCH)
	$(PEERS_VENV)/bin/python $(PIP_INSTALL) -e . $(PLUGINS) $(filter-out fla-core==%,$(PEERS))
	$(PEERS_VENV)/bin/python $(PIP_INSTALL) --no-deps $(filter fla-core==%,$(PEERS))
	@touch $@
