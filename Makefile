# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test quick lint types check speed clean

demo: $(READY)
	$(BIN)/daedl demo --out demo

test: lint types check

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# A worker runs whole modules or classes, so that expensive fixtures are computed once.
check: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadscope

# Between edits: lint, and the unit tests that take no more than a moment.
quick: lint
	$(BIN)/python -m pytest -n auto -m "not slow" tests/unit

speed: $(READY)
	$(BIN)/python -m daedl_bench study speed

# The constraints pin every version. torch comes first and by its exact version, so that no other
# package's looser requirement can choose it.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet torch==2.13.0
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv demo
