# Each target does everything that it needs on a machine that has Python 3.11+, make and the package registries.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.installed-docs
# Tests wait for servers half of the time: twice as many workers as a small machine has cores. 0 runs them in one process.
WORKERS ?= 4

.PHONY: setup demo test test-all test-matrix packages lint crash chaos soak bench guard screenshots docs

# Where PYTHONDONTWRITEBYTECODE is set, each start of cdc would compile all of it anew and take half as long again.
setup: $(STAMP)
	@$(BIN)/python -m compileall -q cdc

$(STAMP): requirements.lock pyproject.toml cdc/devstack/jars.lock.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name it with: make PYTHON=python3.12")'
	@echo "Installing libraries and servers into $(VENV) and the cache: a minute or two, the first time"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/python -m cdc.devstack
	@touch $@

demo: setup
	@$(BIN)/cdc demo $(ARGS)

test: setup lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

# The same and those that need Debian packages, none of them left out.
test-all: packages lint
	TEST_PACKAGES=required $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

# Unpacked into the cache, not installed; see tests/packages.py.
packages: setup $(DOCS_STAMP)
	$(BIN)/python -m tests.packages

# Those that need servers, on each version of PostgreSQL that we promise; VERSIONS="14 18" takes some of them.
VERSIONS ?= 14 15 16 17 18

test-matrix: setup
	@failed=; for version in $(VERSIONS); do \
		echo "PostgreSQL $$version"; \
		TEST_POSTGRES_VERSION=$$version $(BIN)/python -m pytest -m "servers and not soak" -n $(WORKERS) --dist worksteal $(ARGS) \
			|| failed="$$failed $$version"; \
	done; test -z "$$failed" || { echo "failed on PostgreSQL$$failed"; exit 1; }

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

crash: setup
	@$(BIN)/python -m tests.crash $(ARGS)

chaos: setup
	@$(BIN)/python -m tests.crash chaos $(ARGS)

soak: setup
	$(BIN)/python -m pytest -m soak $(ARGS)

bench: setup
	$(BIN)/python -m benchmarks $(ARGS)

guard: setup
	@$(BIN)/python -m benchmarks.guard $(ARGS)

$(DOCS_STAMP): docs/requirements.txt $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r docs/requirements.txt
	@touch $@

# The manual as a site, in build/docs/site; a warning is an error.
docs: setup $(DOCS_STAMP)
	@$(BIN)/python -m tests.docs.site

# Pictures of the status page for the manual.
screenshots: packages
	@$(BIN)/python -m tests.screenshots
