# On a fresh machine: `make demo` or `make test`. Each first makes the virtual environment, once.

VENV      ?= .venv#   where the virtual environment is made
PYTHON    ?=#         the interpreter that makes it; by default the first Python 3.10 to 3.14 found
WORKERS   ?= auto#    test processes, by default one per core (at most 8); 0: no extra process
ARGUMENTS ?=#         passed on to the demo, to pytest, or to sphinx
SMOKE     ?=#         1: `make docs` and `make demo` train for a few epochs only, `make gpu` is tiny and needs no GPU
OUTPUT    ?= runs/gpu# where `make gpu` writes

COMMA     := ,

export PYTHON

RUN    := $(VENV)/bin/python
CORE   := relaxed_r2conv state_dict state_dict_beside_r2conv never_stale export_escnn export_network conversion steerable_basis \
          drop_in equivariance_of_layer softness_in_translation softness gradients compiled_bank lightning_callbacks
# Neighbouring tests in one process, since they build the same bases; one that has none left takes of another's.
SHARED := -n $(WORKERS) --maxprocesses 8 --dist worksteal
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(RUN) -m pytest

.DEFAULT_GOAL := help
.PHONY: help demo test test-all quick oldest newest lint format types doctest docs notebooks package gpu \
        environment docs-environment newest-environment clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

demo: environment ## train a strict and a soft network on MNIST6-180
	$(RUN) -W 'ignore:`py3nj` package not found' examples/mnist6_180.py $(if $(SMOKE),--seeds 2 --epochs 4) $(ARGUMENTS)

test: environment ## run the tests of the package but the slow ones, one process per core
	$(PYTEST) $(SHARED) -m "not slow and not tools" $(ARGUMENTS)

test-all: environment ## run all tests, with the slow ones and those of pages, scripts, benchmarks and experiments
	$(PYTEST) $(SHARED) $(ARGUMENTS)

quick: environment ## run one case of each test that `make test` runs
	$(PYTEST) $(SHARED) --quick $(ARGUMENTS)

oldest: ## run one case of each test of the core with the oldest versions that are supported, beside VENV
	OLDEST=1 scripts/environment.sh "$(VENV)-oldest"
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(VENV)-oldest/bin/python -m pytest $(SHARED) --quick \
		$(addsuffix .py,$(addprefix tests/test_,$(CORE))) $(ARGUMENTS)

newest: newest-environment ## run one case of each test with the newest versions, on NumPy 2, beside VENV
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(VENV)-newest/bin/python -m pytest $(SHARED) --quick $(ARGUMENTS)

lint: environment ## check style and formatting
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

format: environment ## put style and formatting right where a tool can
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

types: environment ## check the type annotations
	$(RUN) -m mypy

doctest: environment ## run the examples in the docstrings
	$(PYTEST) --doctest-modules escnn_relaxed experiments benchmarks/shared

docs: docs-environment ## build the site into docs/_build/html, tutorials run (SMOKE=1: for a few steps only)
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 ESCNN_RELAXED_SMOKE=$(SMOKE) \
		$(RUN) -m sphinx --fail-on-warning --keep-going -E -b html docs docs/_build/html $(ARGUMENTS)

notebooks: docs-environment ## bring examples/notebooks up to date with the tutorials (ARGUMENTS="2 7": run these anew)
	$(RUN) scripts/notebooks.py $(ARGUMENTS)

package: docs-environment ## build sdist and wheel, check them, run the demo from the wheel in an environment of its own
	scripts/package.sh "$(VENV)"

gpu: environment ## times beside strict layers, into OUTPUT, and the tests that need a GPU, in 8 minutes (SMOKE=1: tiny, on a CPU)
	mkdir -p "$(OUTPUT)"
	$(RUN) -m benchmarks.speed.performance --rows "$(if $(SMOKE),C4$(COMMA) 8 ,128 channels$(COMMA) 7)" \
		$(if $(SMOKE),--repetitions 1) $(ARGUMENTS) > "$(OUTPUT)/gpu.md"
	$(PYTEST) $(if $(SMOKE),--collect-only -q,-n 4) tests/test_devices.py tests/test_cuda_graphs.py

environment: ## make the virtual environment where it is missing or old
	@scripts/environment.sh "$(VENV)"

docs-environment: environment # what the site and the packages need, in the same environment
	@scripts/docs_environment.sh "$(VENV)"

newest-environment: # that of the newest versions, beside VENV
	@NEWEST=1 scripts/environment.sh "$(VENV)-newest"

clean: ## remove the virtual environment and all caches
	rm -rf "$(VENV)" "$(VENV)-oldest" "$(VENV)-newest" build dist docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
