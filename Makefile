# Everything from a fresh checkout: `make quickstart`, `make test`. PYTHON=python3.12 chooses another interpreter.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help quickstart test slow lint types lock clean

help:
	@echo "make quickstart   five algorithms on digits: a table and a picture under runs/"
	@echo "make test         the tests; make slow: those that take longer"
	@echo "make lint types   what continuous integration checks beside them"
	@echo "make lock         requirements/dev.lock anew: every package of .venv's kind, with hashes"
	@echo "make clean        remove caches and build products (not .venv, not runs/)"

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	touch $@

.venv: $(READY)

quickstart: $(READY)
	$(BIN)/fedloom run quickstart

test: $(READY)
	$(BIN)/python -m pytest -n auto -m "not slow"

slow: $(READY)
	$(BIN)/python -m pytest -n auto -m slow

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

lock: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	mkdir -p requirements
	$(BIN)/python -m uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --no-annotate \
		--universal --python-version 3.11 --extra dev --constraint constraints.txt pyproject.toml --output-file requirements/dev.lock

clean:
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
