# `make demo` and `make test` each set up a virtual environment in .venv, install gemmill into it, and do their job.
# PYTHON=... picks the interpreter, EXTRAS=... what the demo installs.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash

# The first interpreter that is new enough and can make virtual environments.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

# CUDA 13 and PyTorch beside a GPU whose driver runs them, CUDA 12 elsewhere.
DRIVER := $(shell nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 | cut -d . -f 1)
EXTRAS ?= $(shell [ "$(DRIVER)" -ge 580 ] 2>/dev/null && echo cu13,torch || echo cu12)

VENV := .venv
BIN := $(VENV)/bin

# Both cores of a small machine; halves of the list to each, so that what a module shares is made once.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: help demo test-fast test test-heavy test-browser test-torch test-jax test-lowest docs torture lint replay format clean

help:  ## List the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 20

demo: $(VENV)/.demo  ## Show what gemmill does, in under a minute after installation
	$(BIN)/gemmill demo

# Three tiers, and the pages in a browser. Each test is in one tier; property tests run in all, with more examples in the last.
test-fast: lint  ## Run lint and the fast tests: 90 seconds
	$(PYTEST) -m "not slow and not heavy and not browser" --hypothesis-profile brief

test: lint  ## Run lint and all but the heavy and browser tests: 4 minutes on two cores
	$(PYTEST) -m "not heavy and not browser" --hypothesis-profile brief

test-heavy: $(VENV)/.dev  ## Run the heavy tests, with more kernels and examples than `make test`
	$(PYTEST) -m "heavy or hypothesis" --hypothesis-profile gemmill

test-browser: $(VENV)/.dev  ## Test the pages of reports and of the service; needs Chromium
	TESTS_NEED_CHROMIUM=1 $(PYTEST) -m browser -n 0

test-torch: $(VENV)-torch/.installed  ## Test the PyTorch integration on the CPU, in its own environment
	$(VENV)-torch/bin/python -m pytest -n 2 --dist worksteal -m "not heavy" tests/torch tests/integrations

test-jax: $(VENV)-jax/.installed  ## Test the JAX integration on the CPU, in its own environment
	$(VENV)-jax/bin/python -m pytest -n 2 --dist worksteal tests/jax

test-lowest:  ## Run the fast tests with the lowest versions that pyproject.toml allows
	$(PYTHON) -m venv --clear $(VENV)-lowest
	$(VENV)-lowest/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(VENV)-lowest/bin/uv pip install --quiet --python $(VENV)-lowest/bin/python --resolution lowest-direct \
		--editable '.[$(EXTRAS),dev]'
	$(VENV)-lowest/bin/python -m pytest -n 2 -m "not slow and not heavy and not browser" --hypothesis-profile brief

docs: $(VENV)/.dev  ## Build the site of docs/ in build/site; a broken link is an error
	$(BIN)/python -m sphinx --builder html --fresh-env --quiet --fail-on-warning --keep-going docs build/site

torture: $(VENV)/.dev  ## Inject faults, kill processes and race, for MINUTES=20; needs a C compiler
	$(BIN)/python -m tests.torture --minutes $(or $(MINUTES),20)

replay: $(VENV)/.dev  ## Compare kernels and selections with BASE=commit
	tests/replay/compare.sh '$(BASE)' $(BIN)/python

lint: $(VENV)/.dev  ## Check style, types and prose
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m tests.prose

format: $(VENV)/.dev  ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:  ## Remove the virtual environment and everything built
	rm -rf $(VENV) $(VENV)-lowest $(VENV)-torch $(VENV)-jax build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

# The stamps are newer than pyproject.toml once its dependencies are installed.
$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS),dev]'
	@touch $@

# PyTorch's newest release that was tried; the GPU tests say whether an older one serves.
$(VENV)-torch/.installed: pyproject.toml Makefile
	@$(or $(PYTHON),false) -c '' || { echo "No Python 3.11 or newer found: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)-torch
	$(VENV)-torch/bin/python -m pip install --quiet --disable-pip-version-check --editable . torch==2.13.0 \
		pytest pytest-randomly pytest-xdist hypothesis transformers kernels
	@touch $@

# JAX's newest release that runs on Python 3.11; flatbuffers, which jax.export wants.
$(VENV)-jax/.installed: pyproject.toml Makefile
	@$(or $(PYTHON),false) -c '' || { echo "No Python 3.11 or newer found: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)-jax
	$(VENV)-jax/bin/python -m pip install --quiet --disable-pip-version-check --editable . jax==0.10.2 flatbuffers \
		pytest pytest-randomly pytest-xdist hypothesis
	@touch $@

$(BIN)/python:
	@$(or $(PYTHON),false) -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "gemmill needs Python 3.11 or newer with its venv module (Debian, Ubuntu: apt install python3-venv)." >&2; \
		echo "$(or $(PYTHON),No python3 found here) is not that; name another: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
