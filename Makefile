# `make demo` and `make test` do everything on a fresh machine with Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TRITON := triton==3.6.0
HAS_TRITON := $(BIN)/python -c 'import triton' 2>/dev/null

.PHONY: setup demo test triton lint bench clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: setup
	$(BIN)/fastswa demo

test: lint triton
	$(BIN)/pytest -n 2
	@if $(HAS_TRITON); then echo 'Kernels without a GPU:' && TRITON_INTERPRET=1 $(BIN)/pytest -n 2 tests/interpreted; \
	else echo 'Kernels were not tested: Triton, whose interpreter runs them without a GPU, could not be installed.'; fi

# For tests alone. A torch for GPUs brings its own; any other gets one where there is one.
triton: setup
	@$(HAS_TRITON) || test "$$(uname -sm)" != 'Linux x86_64' || $(BIN)/pip install --quiet $(TRITON) || true

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/fastswa bench --device cpu

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
