# make demo, make test and make docs each work alone on a fresh clone; they share .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint format types docs benchmark clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[demo]"
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --requirement requirements-dev.txt
	touch $@

demo: $(VENV)/.installed
	$(BIN)/decoct demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 --durations=15

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.installed-dev
	$(BIN)/pyright

$(VENV)/.installed-docs: $(VENV)/.installed requirements-docs.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --requirement requirements-docs.txt --editable ".[demo,numpyro,sklearn,dask]"
	touch $@

docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx --fresh-env --fail-on-warning --keep-going --quiet -b html docs docs/_build/html

benchmark: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.quality

clean:
	rm -rf $(VENV) build dist decoct-demo docs/_build docs/jupyter_execute
