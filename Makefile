# Each target alone sets up what it needs: python3 >= 3.11, make and a package index are enough.
#
#   make demo          an unmodified JAX script with and without Aerogel, and the table of what that did
#   make test          linters, types and the whole test suite
#   make test-all      every case of every test; `make test` takes a part of those with many, by turns
#   make lint          the first two of these;  make format  mends what a machine can
#   make bench         measure every claim of benchmarks/
#   make bench-ad      gradients beside plain JAX and PyTorch, on one core and on two: docs/reference/gradients.md
#   make docs          build the documentation into site/
#   make differential  50,000 random programs instead of the suite's 2,000
#   make soundness     100,000 programs around the rules' own patterns instead of the suite's 3,000
#   make exhaustive    elementary functions at all 2^32 numbers, and the worst error of each (an hour)
#   make jax-suite JAX=PATH   JAX's own tests with every jax.jit optimised; PATH is a checkout of JAX
#   make test-newest   the suite on the newest Python and JAX of this machine
#   make clean         remove the environments and everything built
#
# PYTHON=python3.12 picks the interpreter of a new .venv, TESTS="tests/test_errors.py -x" some tests,
# WORKERS=1 the number of processes.

PYTHON ?= python3
VENV ?= .venv
TESTS ?=
WORKERS ?= auto
SCRIPT ?= examples/ode_ensemble.py

# Tests start hundreds of interpreters: each would compile all of JAX again (4 s) where the shell says not to keep that.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
# Python compiles what it imports, and pip all of the packages, one file after the other.
INSTALL := $(PIP) install --no-compile
STAMP := $(VENV)/.installed

.PHONY: demo test test-all lint format bench bench-ad docs differential soundness exhaustive jax-suite test-newest changelog clean
.DELETE_ON_ERROR:

demo: $(STAMP)-demo
	@$(BIN)/aerogel run --compare $(SCRIPT)

# pytest comes last: its closing line is the last one printed.
test: $(STAMP)-test lint
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations=15 $(TESTS)

test-all: export AEROGEL_ALL = 1
test-all: test

lint: $(STAMP)-test
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/pyright --pythonpath $(BIN)/python --threads 2

format: $(STAMP)-test
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: $(STAMP)-bench
	@$(BIN)/python -m benchmarks

# Each exits with 1 where a row misses its target; the table says which.
bench-ad: $(STAMP)-bench-ad
	@$(BIN)/python -m benchmarks.ad --cores 1; one=$$?; $(BIN)/python -m benchmarks.ad --cores 2 && exit $$one

docs: $(STAMP)-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

differential: $(STAMP)-test
	@AEROGEL_DIFFERENTIAL=50000 AEROGEL_OPTIMISED_CODE=1 $(BIN)/python -m pytest -n $(WORKERS) -k differential

soundness: $(STAMP)-test
	@AEROGEL_SOUNDNESS=100000 AEROGEL_ALL=1 $(BIN)/python -m pytest -n $(WORKERS) tests/test_soundness.py

exhaustive: $(STAMP)-test
	@AEROGEL_EXHAUSTIVE=1 AEROGEL_OPTIMISED_CODE=1 $(BIN)/python -m pytest -n 0 --log-cli-level=INFO -k nearest_float32 tests/rules/test_elementary.py

jax-suite: $(STAMP)-test
	@test -n "$(JAX)" || { echo "make jax-suite JAX=PATH, where PATH is a checkout of JAX" >&2; exit 2; }
	@$(BIN)/python tests/jax_suite/run.py --jax "$(JAX)"

test-newest:
	@python=$$(.ci/newest-python) || { echo "no Python above 3.11 on this machine: nothing to test"; exit 0; }; \
	echo "testing on $$("$$python" --version)"; \
	$(MAKE) --no-print-directory VENV=.venv-newest PYTHON="$$python" .venv-newest/.installed-test && \
	.venv-newest/bin/python -m pip install -qq --upgrade jax && \
	.venv-newest/bin/python -m pytest -n $(WORKERS) --dist worksteal $(TESTS)

changelog: $(STAMP)-dev
	@test -n "$(VERSION)" || { echo "make changelog VERSION=1.2.3" >&2; exit 2; }
	@$(BIN)/towncrier build --yes --version "$(VERSION)"

clean:
	rm -rf .venv .venv-newest site dist build .pytest_cache .ruff_cache .hypothesis

# A stamp per dependency group: a second run installs nothing, a change of pyproject.toml installs again.
# `pip --group` needs pip 25.1; the one that comes with Python 3.11 is older.
$(STAMP)-pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Aerogel needs Python 3.11 or later; set PYTHON" >&2; exit 1; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

$(STAMP)-demo: pyproject.toml | $(STAMP)-pip
	@echo "installing Aerogel"
	@$(INSTALL) --editable '.[cli]'
	@touch $@

$(STAMP)-test $(STAMP)-bench $(STAMP)-bench-ad $(STAMP)-docs $(STAMP)-dev: $(STAMP)-%: pyproject.toml | $(STAMP)-pip
	@echo "installing Aerogel and its '$*' dependencies"
	@$(INSTALL) --editable '.[cli]' --group $*
	@touch $@
