# demo, test, gates and bench build .venv when it is missing. PYTHON chooses the interpreter (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TEST_SECONDS := 480

.PHONY: demo test gates check check-npu-schema bench clean

demo: $(VENV)/.installed-demo
	scripts/demo

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest --session-timeout=$(TEST_SECONDS)

gates: $(VENV)/.installed-dev
	$(BIN)/python scripts/gates

check: $(VENV)/.installed-dev
	scripts/check

check-npu-schema: $(VENV)/.installed-test
	scripts/check-npu-schema

check-ascend: $(VENV)/.installed-dev
	scripts/check-ascend

bench: $(VENV)/.installed-test
	$(BIN)/python benchmarks/peers.py

clean:
	rm -rf build dist demo-out .typecheck .mypy_cache .pytest_cache .ruff_cache .hypothesis isoinfer.egg-info

# Stamps: each is older than what it was made from only if that has changed since.
$(VENV)/.installed-%: pyproject.toml core/version.py scripts/install
	PYTHON="$(PYTHON)" scripts/install $*
	@touch $@
