# One command a chore. `make up` is the way in, `make test` is what CI runs.

VENV    ?= .venv
PYTHON  ?= python3
BIN     := $(VENV)/bin
READY   := $(VENV)/.ready
LOCAL   := examples/tandem-tiny/local.yaml
NATIVE  := hatch_build.py $(wildcard engine/tandem_engine/device/cpu/native/*.[hc]*) \
           engine/tandem_engine/device/cpu/native/build.py
UV      := $(shell sed -n 's/^uv==\([^ ]*\).*/uv==\1/p' constraints.txt)

.DEFAULT_GOAL := help
.PHONY: help up serve down test test-all test-changed test-areas check check-native check-arm format crds bench

help:  ## Say what there is
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

up: $(READY)  ## Start a Kubernetes with Tandem in it, serve tandem-tiny, ask it something
	@$(BIN)/python -m tools.up

serve: $(READY)  ## The same without Kubernetes: serve tandem-tiny on this machine, ask it something
	@$(BIN)/tandem serve -f $(LOCAL) --detach
	@echo
	@echo 'You ask: 47+38=?'
	@printf 'It answers: '
	@$(BIN)/tandem chat -m '47+38=?' --temperature 0
	@echo
	@echo 'What to try next:'
	@echo '  $(BIN)/tandem chat --temperature 0       talk to it'
	@echo '  $(BIN)/tandem status                     what runs, and where'
	@echo '  $(BIN)/tandem apply -f $(LOCAL)   change splitChunkTokens there first: live'
	@echo '  make bench                               throughput, TTFT and TPOT, with a plot'
	@echo '  make down                                end it'

down: $(READY)  ## End what `make up` and `make serve` started
	@$(BIN)/tandem stop --all
	@$(BIN)/python -m tools.cluster down

test: $(READY)  ## Run the checks and the tests, as CI does; says what it skips, and why
	@$(BIN)/python -m tools.suite

test-all: $(READY)  ## Run everything, area by area: `make test-operator` runs one of them
	@$(BIN)/python -m tools.suite --all

test-changed: $(READY)  ## Run the areas that what differs from main asks for
	@$(BIN)/python -m tools.suite --changed

test-areas: $(READY)  ## Show the areas, and what each holds
	@$(BIN)/python -m tools.suite --list

test-%: $(READY)
	@$(BIN)/python -m tools.suite $*

check: $(READY)  ## Lint, type-check, and hold the layers apart
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check-native: $(READY)  ## Run the native kernels' tests under ASan, UBSan and TSan; not part of CI
	$(BIN)/python -m tools.check_native

check-arm: $(READY)  ## Build the native kernels for aarch64, and run their tests under qemu
	$(BIN)/python -m tools.check_arm

format: $(READY)  ## Lay out the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

crds: $(READY)  ## Render the CRD again, after a change of the spec
	$(BIN)/python -m tandem_operator.crd

bench: $(READY)  ## Measure tandem-tiny through HTTP: a table, JSON and a plot
	$(BIN)/python -m benchmarks.serving --case 1x32x64 --case 16x32x64 --case 16x256x64 \
		--case 32x128x32 --out benchmarks/results/latest

# uv installs from its per-user cache, so that a fresh clone is ready in seconds.
$(READY): pyproject.toml constraints.txt $(NATIVE)
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info[:2] < (3, 14); \
	sys.exit(0 if ok else "Tandem needs Python 3.11 to 3.13, this is %d.%d; name another one: make PYTHON=python3.11" % sys.version_info[:2])'
	@echo 'Installing into $(VENV); the first time this takes some minutes, torch alone is 5 GB.'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '$(UV)'
	$(BIN)/uv pip install --python $(BIN)/python --compile-bytecode \
		--constraints constraints.txt --editable '.[dev]'
	@touch $@
