# make demo: install and run the main job.  make test: install and run the checks and tests.  Both start from nothing
# but Python 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
# What was tested together; another file, or /dev/null, may be given.
CONSTRAINTS ?= constraints.txt
# Further words for every pip install, such as an index of CPU builds.
PIP_FLAGS ?=
PYTEST_FLAGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install $(PIP_FLAGS) -c $(CONSTRAINTS)
SOURCES := ooco_gym baselines agents experiments conf tests

.PHONY: demo test lint bench wheel install clean distclean

demo: $(VENV)/.demo
	$(BIN)/ooco-gym demo out=demo

test: lint
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

lint: $(VENV)/.all
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(VENV)/.demo
	$(BIN)/ooco-gym bench out=bench

wheel: $(VENV)/.all
	$(BIN)/python -m build --wheel --outdir dist

install: $(VENV)/.all

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# PyTorch first and by itself: where another package asks for it without a version, pip may take gigabytes.
$(VENV)/.torch: $(CONSTRAINTS) | $(BIN)/python
	$(PIP) torch
	touch $@

$(VENV)/.demo: pyproject.toml $(VENV)/.torch
	$(PIP) -e '.[train,export]'
	touch $@

$(VENV)/.all: pyproject.toml $(VENV)/.torch
	$(PIP) -e '.[all]'
	touch $@ $(VENV)/.demo

clean:
	rm -rf build dist demo bench outputs .pytest_cache .ruff_cache .hypothesis
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
