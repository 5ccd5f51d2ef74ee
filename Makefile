# Everything works in .venv, made on demand. `make demo` and `make test` need nothing but Python,
# pip, make and, as root, apt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.base
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test check test-all test-browser fuzz audit-deps bench format clean

demo: $(BASE) graphics
	@$(BIN)/python scripts/demo.py

test: $(STAMP) graphics
	$(BIN)/python -m pytest -m "not slow" tests

test-all: $(STAMP) graphics
	$(BIN)/python -m pytest --timeout=1800 tests

test-browser: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[browser]'
	$(BIN)/python -m pytest -m browser tests

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# Hostile input: 100,000 cases of every kind, in this process, without simulators.
fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz

# Needs the network; without it, says so and succeeds. No part of `check`, which works offline.
audit-deps: $(STAMP)
	$(PIP) -c constraints.txt pip-audit
	$(BIN)/python scripts/audit_deps.py

bench: $(STAMP) graphics
	$(BIN)/python benchmarks/engine.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: graphics
graphics: $(BASE)
	@sh scripts/graphics.sh $(BIN)/python

# What the demo needs; the tests need more (torch is large).
$(BASE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "proctor needs Python 3.11 or newer; run: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) -c constraints.txt -e '.[metaworld,video]'
	@touch $(BASE)

$(STAMP): $(BASE)
	$(PIP) -c constraints.txt -e '.[metaworld,torch,video,dev]'
	@touch $(STAMP)

clean:
	rm -rf $(VENV) outputs .mypy_cache .ruff_cache .pytest_cache .hypothesis
