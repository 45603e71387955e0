# make demo, make test and make docs each work alone on a fresh clone; they share .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Compiled here, on all cores: where no byte code may be written, as in many containers, every process
# would compile what it imports, some ten seconds each.
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib src
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt
DOCUMENTED := demo,numpyro,sklearn,dask

# two installations at once would spoil .venv
.NOTPARALLEL:
.PHONY: demo test test-all test-oldest test-newest lint format types docs release-check clean

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/.created
	$(INSTALL) --editable ".[demo]"
	-$(COMPILE)
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt requirements-dev.txt | $(VENV)/.created
	$(INSTALL) --editable ".[demo]" --requirement requirements-dev.txt
	-$(COMPILE)
	touch $(VENV)/.installed $@

$(VENV)/.installed-docs: pyproject.toml constraints.txt requirements-docs.txt | $(VENV)/.created
	$(INSTALL) --editable ".[$(DOCUMENTED)]" --requirement requirements-docs.txt
	-$(COMPILE)
	touch $(VENV)/.installed $@

# all of it in one go, for .ci/run
REQUIREMENTS := requirements-dev.txt requirements-docs.txt
$(VENV)/.installed-all: pyproject.toml constraints.txt $(REQUIREMENTS) | $(VENV)/.created
	$(INSTALL) --editable ".[$(DOCUMENTED)]" $(REQUIREMENTS:%=--requirement %)
	-$(COMPILE)
	touch $(VENV)/.installed $(VENV)/.installed-dev $(VENV)/.installed-docs $@

demo: $(VENV)/.installed
	$(BIN)/decoct demo

# a file's tests share what it builds and what has been traced: each file goes to one process, in the
# order of tests/conftest.py
BY_FILE := -n 2 --dist loadfile --no-loadscope-reorder

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest $(BY_FILE) -m "not slow" --durations=15

test-all: $(VENV)/.installed-dev
	$(BIN)/python -m pytest $(BY_FILE) --durations=15

# the oldest versions that pyproject.toml allows, and the newest there are: without constraints.txt
PYTHON311 ?= python3.11
PYTHON313 ?= python3.13
OLDEST := .venv-oldest
NEWEST := .venv-newest
$(OLDEST)/.installed-dev: ENDS = $(PYTHON311) lowest-direct
$(NEWEST)/.installed-dev: ENDS = $(PYTHON313) highest
$(OLDEST)/.installed-dev $(NEWEST)/.installed-dev: pyproject.toml requirements-dev.txt
	$(firstword $(ENDS)) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet uv
	$(@D)/bin/uv pip install --quiet --python $(@D)/bin/python --compile-bytecode \
	  --resolution $(lastword $(ENDS)) --editable ".[demo]" --requirement requirements-dev.txt
	touch $@

test-oldest: $(OLDEST)/.installed-dev
	$(OLDEST)/bin/python -m pytest $(BY_FILE) -m "not slow"

test-newest: $(NEWEST)/.installed-dev
	$(NEWEST)/bin/python -m pytest $(BY_FILE) -m "not slow"

PROSE := *.md docs/*.md docs/benchmarks docs/design docs/explanation docs/tutorials
lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/codespell --check-hidden *.md *.cff .github benchmarks docs examples experiments src
	$(BIN)/proselint --config .proselintrc.json check $(PROSE)

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.installed-dev
	$(BIN)/pyright

docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx --fresh-env --fail-on-warning --keep-going --quiet -b html docs docs/_build/html

release-check:
	PYTHON=$(PYTHON) .ci/release

clean:
	rm -rf $(VENV) $(OLDEST) $(NEWEST) build dist decoct-demo docs/_build docs/jupyter_execute
