# Everything from a fresh checkout: `make quickstart`, `make test`. PYTHON=python3.12 chooses another interpreter.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help quickstart test slow lint types docs wheel lock clean

help:
	@echo "make quickstart   five algorithms on digits: a table and a picture under runs/"
	@echo "make test         the tests; make slow: those that take longer"
	@echo "make lint types   what continuous integration checks beside them"
	@echo "make lock         requirements/dev.lock anew: every package of .venv's kind, with hashes"
	@echo "make docs         the documentation as a site, in site/index.html"
	@echo "make wheel        the wheel, installed in an empty environment and tried there"
	@echo "make clean        remove caches and build products (not .venv, not runs/)"

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	touch $@

.venv: $(READY)

quickstart: $(READY)
	$(BIN)/fedloom run quickstart

test: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

slow: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow

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

docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]' -c constraints.txt
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: $(READY)
	rm -rf dist build/wheel
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl -c constraints.txt
	cd build && rm -rf tried && wheel/bin/fedloom run quickstart --set rounds=3 --set 'seeds=[0]' --out tried

clean:
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
