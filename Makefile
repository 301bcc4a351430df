# Everything here sets itself up: Python 3.11 or newer and make are enough.
#   make test ARGS="-k lanes"   hands arguments to pytest
#   make test SKIP=redis,nginx  leaves Redis and nginx out on purpose; SKIP=browser leaves out the page
#   make test JOBS=8            as many test processes as you like
#   make run ARGS="--port 9000" hands arguments to `magent2 serve`

.DEFAULT_GOAL := help
.SUFFIXES:
MAKEFLAGS += --no-print-directory

JOBS ?= 2
ARGS ?=
SKIP ?=
export SKIP
export HYPOTHESIS_STORAGE_DIRECTORY := $(CURDIR)/.cache/hypothesis
# All that is compiled is kept in one place, also where the environment would keep none: else each start compiles anew.
export PYTHONPYCACHEPREFIX := $(CURDIR)/.cache/pycache
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
READY := .venv/.ready

# The page. Node and npm come with the environment.
PAGE := magent2/web/index.html
PAGE_TOOLS := web/node_modules/.ready
PAGE_SOURCES := $(shell find web/src web/public -type f 2>/dev/null) web/index.html web/vite.config.ts
TESTED_PAGE = $(if $(findstring browser,$(SKIP)),,$(PAGE))
# Behind a proxy that signs with its own certificate, the system knows it and Node's built-in list does not.
CERTIFICATES := $(firstword $(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem))
IN_WEB := cd web && NODE_EXTRA_CA_CERTS="$${NODE_EXTRA_CA_CERTS:-$(CERTIFICATES)}" PATH="$(CURDIR)/$(BIN):$$PATH"

# Thousands of small logs wait for the disk at every commit: where memory has room for files, they lie there.
MEMORY := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 2000000 { print $$6 }')
# One test at a time to whoever is free: by whole files, a few long ones at the end leave a core idle.
PYTEST = $(if $(MEMORY),TMPDIR=$(MEMORY)) $(BIN)/pytest -n $(JOBS) --dist worksteal
# A part of the tests measures nothing: with SKIP or ARGS the bar is off.
COVERAGE = --cov --cov-report=term $(if $(strip $(SKIP)$(ARGS)),--cov-fail-under=0)

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: run
run: $(READY) ## serve an agent: gateway, worker and page in one process
	@$(MAKE) web || echo "setup: the page was not built; the gateway shows a plain one" >&2
	@$(BIN)/magent2 serve $(ARGS)

.PHONY: web
web: $(PAGE) ## build the page into the package
	@:

.PHONY: page-types
page-types: $(PAGE_TOOLS) ## write the page's types from the OpenAPI document
	@scripts/page-types

.PHONY: test
test: redis nginx browser $(READY) $(TESTED_PAGE) ## run the tests
	@$(PYTEST) $(ARGS)

.PHONY: cover
cover: redis nginx browser $(READY) $(TESTED_PAGE) ## run the tests, half as slow again, and measure how much of the code they reach
	@rm -rf .cache/coverage && mkdir -p .cache/coverage
	@$(PYTEST) $(COVERAGE) $(ARGS)

.PHONY: soak
soak: redis nginx browser $(READY) $(TESTED_PAGE) ## run the long form of the tests, a small local model included
	@scripts/uv sync --frozen --quiet --extra local
	@$(BIN)/pytest -m soak -o faulthandler_timeout=7200 $(ARGS)

.PHONY: check
check: $(READY) ## format, lint, types, layers, complexity, secrets, then the tests
	scripts/uv lock --check --offline --quiet
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --cache-dir .cache/import-linter
	$(BIN)/complexipy --quiet
	scripts/check-secrets
	$(MAKE) test

.PHONY: fmt
fmt: $(READY) ## format the code and mend what can be mended
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

.PHONY: bench
bench: bench-bus bench-worker bench-run bench-api bench-steer bench-block bench-page ## run all benchmarks

.PHONY: bench-bus
bench-bus: redis $(READY) ## measure the log; the last line is one JSON object
	@$(BIN)/python -m bench.bus $(ARGS)

.PHONY: bench-worker
bench-worker: redis $(READY) ## measure the worker; the last line is one JSON object
	@$(BIN)/python -m bench.worker $(ARGS)

.PHONY: bench-run
bench-run: redis $(READY) ## measure the service over HTTP; the last line is one JSON object
	@$(BIN)/python -m bench.run $(ARGS)

.PHONY: bench-api
bench-api: redis $(READY) ## measure the session API and its door; the last line is one JSON object
	@$(BIN)/python -m bench.api $(ARGS)

.PHONY: bench-steer
bench-steer: redis $(READY) ## measure steering; the last line is one JSON object
	@$(BIN)/python -m bench.steer $(ARGS)

.PHONY: bench-page
bench-page: browser $(READY) $(PAGE) ## measure the page in a browser; the last line is one JSON object
	@$(BIN)/python -m bench.page $(ARGS)

.PHONY: screenshots
screenshots: browser $(READY) $(PAGE) ## take the pictures of the page in docs/images
	@$(BIN)/python -m tests.support.screenshots docs/images

.PHONY: bench-block
bench-block: $(READY) ## measure Python blocks; the last line is one JSON object
	@$(BIN)/python -m bench.block $(ARGS)

.PHONY: stats
stats: $(READY) ## print the size of the package, and the files that a message passes on four paths
	@$(BIN)/python scripts/stats --paths $(ARGS)

.PHONY: sync-client
sync-client: $(READY) ## write the synchronous client from the asynchronous one
	@$(BIN)/python scripts/sync-client

.PHONY: schemas
schemas: $(READY) ## write the contract's JSON Schemas to docs/schemas
	$(BIN)/python -m magent2.models.schemas docs/schemas

.PHONY: hooks
hooks: $(READY) ## run the quick checks before every commit
	$(BIN)/pre-commit install

.PHONY: lock
lock: ## bring uv.lock up to date with pyproject.toml
	scripts/uv lock

.PHONY: clean
clean: ## remove all that these commands made
	rm -rf .venv .tools .cache .coverage .coverage.* .hypothesis build dist web/node_modules magent2/web
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: redis nginx browser
redis nginx browser:
	@scripts/ensure $@

$(PAGE_TOOLS): web/package.json web/package-lock.json | $(READY)
	@echo "setup: web/node_modules from package-lock.json" >&2
	@$(IN_WEB) npm ci --loglevel=error --no-audit --no-fund
	@touch $@

$(PAGE): $(PAGE_SOURCES) $(PAGE_TOOLS)
	@echo "setup: the page" >&2
	@$(IN_WEB) node_modules/.bin/vite build --logLevel error

$(READY): pyproject.toml uv.lock
	@echo "setup: .venv from uv.lock" >&2
	@scripts/uv sync --frozen --quiet
	@touch $@
