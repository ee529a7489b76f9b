# Everything starts from a fresh clone with nothing but Python 3.11+ (and its venv module):
#   make train         set up, train the default agent, evaluate it, write the report
#   make test          set up, then ruff, mypy, import-linter and pytest
#   make test-docker   the attacks against Docker's sandbox, where an engine runs or root can start one
#   make test-models   two real small language models from PyPI, through Transformers
#   make test-vllm     vLLM on the processor, as a server and in process, in an environment of its own
#   make test-libero   LIBERO-Long in MuJoCo, in an environment of its own
#   make train-check   train the default agent and check what it came to
#   make docs          the documentation as a site, in site/
#   make clean         remove what the above made, except runs/

PYTHON ?= python3
# Flags of `wmrl train`, as in  make train ARGS="--seed 1 --run-dir runs/mine"
ARGS ?= --preset default

VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet install --constraint constraints.txt
REQUIREMENTS := setup.cfg pyproject.toml constraints.txt

.PHONY: train test test-docker test-models test-vllm test-libero train-check docs clean system
.DELETE_ON_ERROR:

train: system $(VENV)/installed
	$(BIN)/wmrl train $(ARGS)

test: system $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest

# DOCKER=--required makes it fail where Docker cannot be had, instead of saying why and going on.
test-docker: system $(VENV)/installed-dev
	PIP="$(BIN)/python -m pip" WMRL_TEST_DOCKER=1 .ci/docker $(DOCKER) $(BIN)/python -m pytest tests/wmrl_envs/test_docker.py

# REAL=--required makes these two fail where models or vLLM cannot be had, instead of saying why and going on.
test-models test-vllm: $(VENV)/installed-dev
	.ci/real-models $(REAL) $(@:test-%=%) $(BIN)/python

# LIBERO=--required makes it fail where the simulator cannot be had, instead of saying why and going on.
test-libero:
	.ci/libero $(LIBERO) $(PYTHON)

train-check: system $(VENV)/installed
	rm -rf runs/check
	$(BIN)/wmrl train --preset default --evaluation-repeats 32 --run-dir runs/check
	$(BIN)/python benchmarks/check_training.py runs/check

docs: $(VENV)/installed-dev
	$(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) .venv-vllm .venv-libero build dist site *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache

system:
	@.ci/bubblewrap

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "WMRL needs Python 3.11 or newer: name one, as in  make train PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "$(PYTHON) lacks its venv module: install it (on Debian and Ubuntu the package python3-venv)." >&2; exit 2; }
	@echo "Creating the environment $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(REQUIREMENTS) | $(BIN)/pip
	@echo "Installing WMRL and what it needs into $(VENV); most of it is torch ..."
	@$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/installed-dev: $(REQUIREMENTS) | $(BIN)/pip
	@echo "Installing WMRL, what it needs and the tools for development into $(VENV); most of it is torch ..."
	@$(PIP_INSTALL) --editable '.[dev]'
	@touch $(VENV)/installed $@
