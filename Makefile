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

.PHONY: help demo test lint format clean

help:  ## List the commands
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## */  make \1\t/'

demo: $(VENV)/.demo  ## Show gemmill at work, in under a minute after installation
	$(BIN)/gemmill demo

test: lint  ## Check style, types and tests
	$(BIN)/python -m pytest -n 2

lint: $(VENV)/.dev  ## Check style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.dev  ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:  ## Remove the virtual environment and everything built
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

# The stamps are newer than pyproject.toml once its dependencies are installed.
$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS),dev]'
	@touch $@

$(BIN)/python:
	@$(or $(PYTHON),false) -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "gemmill needs Python 3.11 or newer with its venv module (Debian, Ubuntu: apt install python3-venv)." >&2; \
		echo "$(or $(PYTHON),No python3 found here) is not that; name another: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
