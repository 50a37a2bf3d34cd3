# `make setup` makes a virtual environment with the package in it; `make test` checks everything, from a fresh clone.

PYTHON ?= $(shell scripts/find-python)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
NATIVE_SOURCES := native/Makefile $(shell find native -name '*.[ch]' -not -path 'native/build*')
FUZZ_SECONDS ?= 12

export NOT_RUN := $(CURDIR)/.build/not-run
_ := $(shell mkdir -p .build)
STEP := scripts/step
BESIDE := -n 3 --dist loadgroup -m 'not alone'
PYTEST := $(BIN)/python -m pytest

.PHONY: setup packages few-packages native engines lint sync sanitize fuzz unit conformance hosts rootless docs-test test suites compat compat-swe-rex bench bench-all bench-engines clean

setup: packages $(READY)

packages:
	@scripts/debian-packages

few-packages:
	@scripts/debian-packages few

$(READY): pyproject.toml hatch_build.py
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer found" >&2; exit 1; }
	@$(STEP) 'set-up: a virtual environment in $(VENV)' $(PYTHON) -m venv $(VENV)
	@$(STEP) 'set-up: compile Dutyfree; install it, and what tests and measuring need (one to three minutes)' \
		scripts/progress $(BIN)/python -m pip install --disable-pip-version-check -e '.[test,dev,fuzz,docker,cloud,measure,server]'
	@touch $@

# An editable install compiles once; this keeps what it installed current while native/ is being changed.
native: $(READY)
	@$(MAKE) --no-print-directory -C native all
	@mkdir -p src/dutyfree/_native
	@install -m 755 native/build/dutyfree-guest native/build/dutyfree-spawner native/build/dutyfree-init src/dutyfree/_native/

sync: $(READY)
	$(BIN)/python tools/generate_sync.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/generate_sync.py --check
	$(BIN)/python tools/check_user_code.py

# Cells have both programs in them: the spawner, and the guest that every other substrate has, too.
sanitize: SANITIZED := tests/conformance/test_substrates.py -k '[cell- and not guarded'
sanitize: $(READY)
	@$(MAKE) --no-print-directory -C native asan
	DUTYFREE_NATIVE_DIR=$(CURDIR)/native/build-asan $(PYTEST) -q $(SANITIZED) $(BESIDE)
	DUTYFREE_NATIVE_DIR=$(CURDIR)/native/build-asan $(PYTEST) -q $(SANITIZED) -m alone

fuzz: $(READY)
	@scripts/fuzz $(FUZZ_SECONDS)

# What the engines' tests and benchmarks need: installed, downloaded, built, started.
engines: native
	@scripts/engines start

# Many tests wait more than they compute, so that two cores serve three; what looks at the whole machine runs alone.
unit: native
	$(PYTEST) -q -raR --durations=20 $(BESIDE) tests --ignore tests/hosts
	$(PYTEST) -q -raR --durations=10 -m alone tests --ignore tests/hosts

# Every conformance check on every engine: `make test` makes those once that engines share. Most of an hour under emulation.
conformance: native
	EVERY_CHECK=1 scripts/engines during $(PYTEST) -q -raR $(BESIDE) tests/conformance/test_engines.py tests/isolation/test_engine_probes.py
	EVERY_CHECK=1 scripts/engines during $(PYTEST) -q -raR -m alone tests/conformance/test_engines.py

# Cells on hosts of every kind that this machine can make, by mounts and by Docker.
hosts: native
	$(PYTEST) -q -raR $(BESIDE) tests/hosts

rootless: CELL_TESTS := diagnosis holes inheritance netlink programs root shown snapshot standstill users watch
rootless: ROOTLESS := tests/unit/archive tests/unit/images tests/unit/substrates/cell tests/integration/images/recipes/test_build.py
rootless: ROOTLESS += $(CELL_TESTS:%=tests/integration/substrates/cell/test_%.py)
rootless: native
	@scripts/as-ordinary-user -q $(BESIDE) tests/isolation tests/integration/cli/test_run.py tests/integration/client/test_examples.py -k '[cell- or a_cell or program'
	@scripts/as-ordinary-user -q $(BESIDE) $(ROOTLESS)

# Every block of README, CONTRIBUTING and docs/, from a wheel in a fresh virtual environment. PAGES=docs/howto/pools.md chooses.
docs-test: $(READY)
	@if [ -e .build/engines/env ]; then . .build/engines/env; fi; PYTHONPATH=tools $(BIN)/python -m docs_test $(PAGES)

test:
	@: > $(NOT_RUN)
	@$(STEP) setup $(MAKE) --no-print-directory setup
	@$(STEP) lint $(MAKE) --no-print-directory lint
	@$(STEP) native $(MAKE) --no-print-directory native
	@$(STEP) tests scripts/engines during $(MAKE) --no-print-directory unit
	@$(STEP) docs scripts/engines during $(MAKE) --no-print-directory docs-test
	@$(STEP) hosts $(MAKE) --no-print-directory hosts
	@$(STEP) rootless $(MAKE) --no-print-directory rootless
	@$(STEP) sanitize $(MAKE) --no-print-directory sanitize
	@$(STEP) fuzz $(MAKE) --no-print-directory fuzz
	@scripts/summary

# Other projects' own tests on the bare host and in cells, compared: twenty minutes. SUITES=cpython:test_os chooses.
suites: native
	$(BIN)/python tests/suites $(SUITES)

# swe-rex's own tests, and mini-swe-agent on a bug of attrs, against the SWE-ReX face. Needs the package registries.
compat-swe-rex: native
	$(BIN)/python -W ignore::dutyfree.errors.UnenforcedWarning tests/compat/swe_rex/run.py

# Which versions of E2B's SDKs pass which checks against the E2B face: a table. Needs the package registries.
compat: native
	PYTHONPATH=tests $(BIN)/python -W ignore::dutyfree.errors.UnenforcedWarning -m compat

# What rollouts cost here, on every substrate that this machine has: within three minutes, with a page to look at.
bench: few-packages native
	$(BIN)/dutyfree bench --output .build/bench-$(shell date +%Y%m%d-%H%M%S)

# The benchmarks behind the numbers in SPECIFICATION.md: twenty minutes.
bench-all: native
	$(BIN)/python benchmarks/cells.py
	$(BIN)/python benchmarks/neighbours.py
	$(BIN)/python benchmarks/images.py
	$(BIN)/python benchmarks/instrument.py
	$(BIN)/python benchmarks/pools.py
	$(BIN)/python benchmarks/background.py
	$(BIN)/python benchmarks/e2b_face.py
	$(BIN)/python benchmarks/grpo.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/simulation.py
	$(MAKE) --no-print-directory bench-engines

bench-engines: native
	scripts/engines during bash -c '. .build/engines/env && $(BIN)/python benchmarks/substrates.py'

clean:
	rm -rf $(VENV) .build native/build native/build-* src/dutyfree/_native
