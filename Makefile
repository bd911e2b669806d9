# Every habit is one command. `make help` lists them.
PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3,$(shell command -v $(p) 2>/dev/null)))
VENV := .venv
ENGINE_VERSION ?= 0.32.0
ENGINE_VENV ?= $(CURDIR)/.engine/$(ENGINE_VERSION)
export ENGINE_VENV ENGINE_VERSION PYTHON
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test check bench engine format lock

help: ## list the commands
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-8s %s\n", $$1, $$2}'

demo: $(STAMP) ## a streamed answer through real vLLM (MODEL=tiny: 2 MB model, SIM=1: no vLLM, KEEP=1: leave it running)
	@scripts/demo.sh

test: ENGINE_PARTS := --with-nixl
test: $(STAMP) engine ## everything: lint, types, contracts, unit, scenario, system and real-vLLM tests
	@$(MAKE) --no-print-directory lint
	$(BIN)/pytest tests

check: $(STAMP) ## the fast part: lint, types, contracts, unit and scenario tests
	@$(MAKE) --no-print-directory lint
	$(BIN)/pytest $(wildcard tests/unit tests/scenarios)

.PHONY: lint
lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(STAMP) engine ## benchmarks (ONLY=group[,group]); figures in build/bench/figures.json
	$(BIN)/python -m bench.run $(if $(ONLY),--only $(ONLY))

engine: ## the engines' own environment (vLLM for CPU), about 3 minutes and 2.5 GB the first time
	@scripts/install-engine.sh $(ENGINE_PARTS) $(ENGINE_VENV) $(ENGINE_VERSION)

format: $(STAMP) ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: $(STAMP) ## resolve requirements.lock anew
	$(BIN)/pip install -q uv
	$(BIN)/uv pip compile pyproject.toml --group dev --extra engine --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-header -q -o requirements.lock

$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is too old, Python 3.11 or newer is needed: set PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
