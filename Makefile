# Every target installs what it needs. Python 3.11 or newer and make are enough.
#   make test ARGS="-k lanes"   passes arguments to pytest
#   make test SKIP=redis,nginx  skips the tests that need Redis or nginx; SKIP=postgres skips those that need PostgreSQL,
#                               SKIP=browser those of the page
#   make test JOBS=8            runs the tests in eight processes
#   make test ORDER=7           runs the tests in another order and with other generated values, the same for each number
#   make run ARGS="--port 9000" passes arguments to `magent2 serve`

.DEFAULT_GOAL := help
.SUFFIXES:
MAKEFLAGS += --no-print-directory

# More test processes than cores: they wait for leases, servers and browsers during a third of their time.
JOBS ?= 4
ARGS ?=
SKIP ?=
ORDER ?=
export SKIP ORDER
export HYPOTHESIS_STORAGE_DIRECTORY := $(CURDIR)/.cache/hypothesis
# Bytecode is kept in one folder, even if the environment turns it off. Otherwise each process would compile again.
export PYTHONPYCACHEPREFIX := $(CURDIR)/.cache/pycache
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
READY := .venv/.ready

# The page. Node and npm come with the environment.
PAGE := magent2/web/index.html
PAGE_TOOLS := web/node_modules/.ready
PAGE_SOURCES := $(shell find web/src web/public -type f 2>/dev/null) web/index.html web/vite.config.ts
TESTED_PAGE = $(if $(findstring browser,$(SKIP)),,$(PAGE))
# Clients of other authors, for tests of `/v1`. They need the Node of the page.
CLIENT_TOOLS := tests/clients/node_modules/.ready
TESTED_CLIENTS = $(if $(findstring browser,$(SKIP)),,$(CLIENT_TOOLS))
# A proxy may sign with its own certificate. The system's list has that certificate, Node's built-in list does not.
CERTIFICATES := $(firstword $(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem))
IN_WEB := cd web && NODE_EXTRA_CA_CERTS="$${NODE_EXTRA_CA_CERTS:-$(CERTIFICATES)}" PATH="$(CURDIR)/$(BIN):$$PATH"

# Thousands of small logs wait for the disk at every commit. They are put into memory if it has room for them.
MEMORY := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 2000000 { print $$6 }')
# Idle processes take single tests from busy ones. With whole files, a few long files at the end leave a core idle.
PYTEST = $(if $(MEMORY),TMPDIR=$(MEMORY)) $(BIN)/pytest -n $(JOBS) --dist worksteal $(SEED)
# Hypothesis generates the same values in every run without ORDER.
SEED = $(if $(ORDER),--hypothesis-seed=$(ORDER))
# The coverage of a part of the tests means nothing, so the minimum is off with SKIP or ARGS.
COVERAGE = --cov --cov-report=term $(if $(strip $(SKIP)$(ARGS)),--cov-fail-under=0)

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: run
run: $(READY) ## start gateway, worker and page in one process
	@$(MAKE) web || echo "setup: the page was not built; the gateway serves a plain page instead" >&2
	@$(BIN)/magent2 serve $(ARGS)

.PHONY: web
web: $(PAGE) ## build the page into the package
	@:

.PHONY: dist
dist: $(READY) $(PAGE) ## build a wheel and a source distribution, both with the page, into dist/
	@rm -rf dist
	@scripts/uv build --quiet --out-dir dist
	@ls dist/*.whl

.PHONY: page-types
page-types: $(PAGE_TOOLS) ## generate the page's types from the OpenAPI document
	@scripts/page-types

.PHONY: test
test: redis postgres nginx browser $(READY) $(TESTED_PAGE) $(TESTED_CLIENTS) ## run the tests
	@$(PYTEST) $(ARGS)

.PHONY: cover
cover: redis postgres nginx browser $(READY) $(TESTED_PAGE) $(TESTED_CLIENTS) ## run the tests with coverage; takes about 1.5 times as long
	@rm -rf .cache/coverage && mkdir -p .cache/coverage
	@$(PYTEST) $(COVERAGE) $(ARGS)

.PHONY: soak
soak: redis postgres nginx browser $(READY) $(TESTED_PAGE) $(TESTED_CLIENTS) ## run the long tests, including those with a small local model
	@scripts/uv sync --frozen --quiet --extra local
	@ORDER=$(or $(ORDER),$(shell date +%s)) $(BIN)/pytest -m soak -o faulthandler_timeout=7200 $(SEED) $(ARGS)

.PHONY: check
check: $(READY) ## check format, lint, types, layers, complexity and secrets, then run the tests
	scripts/uv lock --check --offline --quiet
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --cache-dir .cache/import-linter
	$(BIN)/complexipy --quiet
	scripts/check-secrets
	$(MAKE) test

.PHONY: fmt
fmt: $(READY) ## format the code and fix what can be fixed automatically
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

.PHONY: bench
bench: bench-bus bench-worker bench-fairness bench-history bench-run bench-api bench-steer bench-block bench-page ## run all benchmarks

.PHONY: bench-bus
bench-bus: redis postgres $(READY) ## measure the log; the last line is one JSON object
	@$(BIN)/python -m bench.bus $(ARGS)

.PHONY: bench-worker
bench-worker: redis postgres $(READY) ## measure the worker; the last line is one JSON object
	@$(BIN)/python -m bench.worker $(ARGS)

.PHONY: bench-fairness
bench-fairness: redis postgres $(READY) ## measure answers beside a flood of slow runs; the last line is one JSON object
	@$(BIN)/python -m bench.fairness $(ARGS)

.PHONY: bench-history
bench-history: redis postgres $(READY) ## measure long histories and the memory of a worker; the last line is one JSON object
	@$(BIN)/python -m bench.history $(ARGS)

.PHONY: bench-growth
bench-growth: redis postgres $(READY) ## measure what grows with the log; takes eight minutes, not part of `make bench`
	@$(BIN)/python -m bench.growth $(ARGS)

.PHONY: bench-scaling
bench-scaling: redis postgres $(READY) ## measure what a message and a token cost each process; not part of `make bench`
	@$(BIN)/python -m bench.scaling $(ARGS)

.PHONY: bench-run
bench-run: redis postgres $(READY) ## measure the service over HTTP; the last line is one JSON object
	@$(BIN)/python -m bench.run $(ARGS)

.PHONY: bench-api
bench-api: redis postgres $(READY) ## measure the session API and its access checks; the last line is one JSON object
	@$(BIN)/python -m bench.api $(ARGS)

.PHONY: bench-steer
bench-steer: redis postgres $(READY) ## measure steering; the last line is one JSON object
	@$(BIN)/python -m bench.steer $(ARGS)

.PHONY: bench-page
bench-page: browser $(READY) $(PAGE) ## measure the page in a browser; the last line is one JSON object
	@$(BIN)/python -m bench.page $(ARGS)

.PHONY: bench-peers
bench-peers: redis $(READY) ## compare with other frameworks, which it installs into .cache/peers; not part of `make bench`
	@$(BIN)/python -m bench.peers $(ARGS)

.PHONY: screenshots
screenshots: browser $(READY) $(PAGE) ## take the screenshots in docs/images
	@$(BIN)/python -m tests.support.screenshots docs/images

.PHONY: bench-block
bench-block: $(READY) ## measure Python blocks; the last line is one JSON object
	@$(BIN)/python -m bench.block $(ARGS)

.PHONY: stats
stats: $(READY) ## print the size of the package and the files on four code paths
	@$(BIN)/python scripts/stats --paths $(ARGS)

.PHONY: sync-client
sync-client: $(READY) ## generate the synchronous client from the asynchronous one
	@$(BIN)/python scripts/sync-client

.PHONY: schemas
schemas: $(READY) ## generate the contract's JSON Schemas in docs/schemas
	$(BIN)/python -m magent2.models.schemas docs/schemas

.PHONY: hooks
hooks: $(READY) ## install a pre-commit hook that runs the quick checks
	$(BIN)/pre-commit install

.PHONY: lock
lock: ## update uv.lock from pyproject.toml
	scripts/uv lock

.PHONY: clean
clean: ## remove everything that these commands created
	rm -rf .venv .tools .cache .coverage .coverage.* .hypothesis build dist web/node_modules magent2/web
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: redis postgres nginx browser
redis postgres nginx browser:
	@scripts/ensure $@

$(PAGE_TOOLS): web/package.json web/package-lock.json | $(READY)
	@echo "setup: web/node_modules from package-lock.json" >&2
	@$(IN_WEB) npm ci --loglevel=error --no-audit --no-fund
	@touch $@

$(CLIENT_TOOLS): tests/clients/package.json tests/clients/package-lock.json | $(READY)
	@echo "setup: tests/clients/node_modules from package-lock.json" >&2
	@$(subst cd web,cd tests/clients,$(IN_WEB)) npm ci --loglevel=error --no-audit --no-fund
	@touch $@

$(PAGE): $(PAGE_SOURCES) $(PAGE_TOOLS)
	@echo "setup: the page" >&2
	@$(IN_WEB) node_modules/.bin/vite build --logLevel error

$(READY): pyproject.toml uv.lock
	@echo "setup: .venv from uv.lock" >&2
	@scripts/uv sync --frozen --quiet
	@touch $@
