# Everything sets itself up: `make demo` and `make test` need Python 3.11+ and make, nothing else.
# `make demo` installs fedmm alone, `make test` adds what the tests need to the same .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
AUDIT := .venv-audit
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: help setup demo test test-slow test-distributed check format bench docs wheel audit clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

setup: $(VENV)/.installed  ## build .venv with everything the tests need

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; name one with make PYTHON=..."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.fedmm: $(VENV)/.python pyproject.toml constraints.txt
	@echo "installing into $(VENV) (PyTorch is large: a few minutes the first time)"
	$(PIP) -e .
	@touch $@

$(VENV)/.installed: $(VENV)/.fedmm
	@echo "installing what the tests need into $(VENV)"
	$(PIP) -e '.[dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(PIP) -e '.[docs]'
	@touch $@

demo: $(VENV)/.fedmm  ## the main job: compare four methods on scanned digits, under runs/demo/
	$(BIN)/fedmm demo

check: setup  ## lint, format, types, and which room may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

test: check  ## all checks, and the tests that are neither long nor start processes
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: setup  ## the longest tests, which tests/slow.txt lists
	FEDMM_SLOW=1 $(BIN)/python -m pytest -n 2 --dist loadfile -r s -m "slow and not processes"

test-distributed: setup  ## tests that start real processes (Flower, NVFlare, Ray, ours), kill them, and type what the pages say; minutes
	FEDMM_SLOW=1 $(BIN)/python -m pytest -r s -m processes

format: setup  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup  ## seconds a round beside a plain PyTorch loop, to benchmarks/results/
	$(BIN)/python benchmarks/in_process.py
	$(BIN)/python benchmarks/batched.py --device cpu
	$(BIN)/python benchmarks/algorithms.py
	$(BIN)/python benchmarks/report.py

docs: $(VENV)/.docs  ## build the site in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: $(VENV)/.python  ## dist/fedmm-VERSION-py3-none-any.whl, to be installed by pip anywhere
	$(PIP) build setuptools
	$(BIN)/python -m build --wheel --no-isolation --outdir dist

audit:  ## known vulnerabilities of the versions in constraints.txt, where the advisories can be reached
	@test -x $(AUDIT)/bin/pip-audit || { $(PYTHON) -m venv $(AUDIT) && $(AUDIT)/bin/python -m pip install --quiet pip-audit; }
	@echo pillow==10.0.0 | $(AUDIT)/bin/pip-audit --no-deps --disable-pip --requirement /dev/stdin 2>/dev/null | grep -qE 'PYSEC|GHSA|CVE' \
		|| { echo "nothing was audited: the advisories on pillow 10.0.0, which are known, cannot be read from here"; exit 2; }
	$(AUDIT)/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

clean:  ## remove everything that was built
	rm -rf $(VENV) $(AUDIT) site build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
