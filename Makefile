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
	$(BIN)/python -m pytest -n auto --dist loadscope -m "not slow" tests/unit

speed: $(READY)
	$(BIN)/python -m daedl_bench study speed

# The lock has every version with its hashes, setuptools included; torch is pinned here, because its wheels
# differ per accelerator. `pip check` verifies that nothing is missing.
$(READY): pyproject.toml requirements.lock
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-deps --require-hashes --requirement requirements.lock
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable '.[dev]'
	$(BIN)/pip check
	touch $@

clean:
	rm -rf .venv demo
