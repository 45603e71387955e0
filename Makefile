# make demo, make test and make docs each work alone on a fresh clone; docs has a .venv-docs of its
# own, so that building pages never changes what is tested.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DOCS := .venv-docs

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
	$(BIN)/python -m pytest -n 2

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.installed-dev
	$(BIN)/pyright

$(DOCS)/.installed: pyproject.toml constraints.txt requirements-docs.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --constraint constraints.txt --requirement requirements-docs.txt --editable ".[demo,numpyro,sklearn,dask]"
	touch $@

docs: $(DOCS)/.installed
	$(DOCS)/bin/python -m sphinx --fresh-env --fail-on-warning --keep-going --quiet -b html docs docs/_build/html

benchmark: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.quality

clean:
	rm -rf $(VENV) $(DOCS) build dist decoct-demo docs/_build docs/jupyter_execute
