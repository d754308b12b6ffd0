# The developer's whole interface. A fresh machine needs Python 3.11 or newer and make, nothing else:
# the first target creates $(VENV) from requirements.lock.
#
#   make demo     a first run on data that the package carries
#   make test     the tests                    PYTEST_FLAGS="-k windows -n 0" narrows them
#                 They want torch and lerobot: some gigabytes, once. TORCH=no leaves both out, and what needs them
#   make lint     ruff check, ruff format --check, mypy
#   make docs     write docs/reference anew from the code (a test fails where it is not current)
#   make bench    speed and memory (tests/benchmarks), never part of `make test`
#   make lock     write requirements.lock anew LOCK_FLAGS=--upgrade takes the newest versions
#   make clean    remove the environment and every cache

PYTHON ?= python3
VENV ?= .venv
PYTEST_FLAGS ?=
LOCK_FLAGS ?=
TORCH ?= yes

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH_STAMP := $(VENV)/.torch
LOCK_VENV := $(VENV)-lock

.DEFAULT_GOAL := test
.PHONY: demo test lint docs bench lock clean check-python
# Targets share one environment and few cores: one at a time.
.NOTPARALLEL:

demo: $(STAMP)
	@$(BIN)/prep demo

# Two workers: most tests wait for files and child processes, and a CI machine has two cores.
test: $(STAMP) $(if $(filter no,$(TORCH)),,$(TORCH_STAMP))
	@$(BIN)/python -m pytest -n 2 $(PYTEST_FLAGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)
	@$(BIN)/python docs/generate.py

bench: $(STAMP)
	$(BIN)/python -m pytest tests/benchmarks $(PYTEST_FLAGS)

# Versions already in the lock are kept where pyproject.toml still allows them.
lock: check-python
	$(PYTHON) -m venv $(LOCK_VENV)
	$(LOCK_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.8'
	UV_CUSTOM_COMPILE_COMMAND='make lock' $(LOCK_VENV)/bin/uv pip compile pyproject.toml --quiet \
	  --group dev --universal --python-version 3.11 --fork-strategy fewest \
	  --generate-hashes --no-emit-index-url --no-emit-find-links \
	  $(LOCK_FLAGS) --output-file requirements.lock

$(STAMP): requirements.lock pyproject.toml | check-python
	@echo "Installing the locked packages into $(VENV) (once; some 200 MB)" >&2
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# lerobot goes in without its dependencies: it caps packages below the versions that are locked here.
$(TORCH_STAMP): requirements-torch.lock $(STAMP)
	@echo "Installing torch and the references into $(VENV) (once; some gigabytes, TORCH=no leaves them out)" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-torch.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps lerobot==0.4.4
	@touch $@

check-python:
	@command -v '$(PYTHON)' >/dev/null || \
	  { echo "make: no '$(PYTHON)' here; name a Python 3.11 or newer: make PYTHON=python3.12" >&2; exit 1; }
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: '$(PYTHON)' is older than 3.11; name a newer one: make PYTHON=python3.12" >&2; exit 1; }
	@'$(PYTHON)' -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "make: '$(PYTHON)' cannot create environments (on Debian: apt-get install python3-venv)" >&2; exit 1; }

clean:
	@for folder in '$(VENV)' '$(LOCK_VENV)'; do \
	  if [ -f "$$folder/pyvenv.cfg" ]; then rm -rf "$$folder"; fi; done
	rm -rf build dist .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find prep tests -name __pycache__ -type d -prune -exec rm -rf {} +
