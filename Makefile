# Everything runs in .venv, which `make setup` creates and refreshes when pyproject.toml changes.
PYTHON ?= python3
PY := .venv/bin/python
# Tests wait for sockets and disks more than they compute: one worker more than the two cores of CI.
# Those with Spark come last and share one session: a JVM for each worker would be too much.
WORKERS ?= 3
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test lint format bench bench-cluster bench-spark fuzz crash chaos simulate clean

help: ## Show this list
	@echo "Penstock: make <target> [ARGS='…']"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  \033[1m%-13s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.ready ## Create .venv with everything needed to run, test and develop

.venv/.ready: pyproject.toml scripts/setup_venv.py
	@$(PYTHON) scripts/setup_venv.py .venv
	@touch $@

demo: setup ## Stream orders through a broker and Spark into a table, and watch (a minute)
	@$(PY) -m penstock demo $(ARGS)

serve: setup ## Run a broker on 127.0.0.1:9092 with its data in ./data
	@$(PY) -m penstock serve $(ARGS)

test: lint ## Check format, lint and types, then run all tests in parallel
	$(PY) -m pytest -n $(WORKERS) --dist worksteal -m "not spark" $(ARGS)
	$(PY) -m pytest -m spark $(ARGS) || [ $$? -eq 5 ]  # 5: ARGS named no test of these

lint: setup ## Check format, lint and types
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy

format: setup ## Format the code and mend what the linter can
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

bench: setup ## Measure Penstock and Apache Kafka side by side (long)
	$(PY) -m bench $(ARGS)

bench-cluster: setup ## Measure three brokers of Penstock and three of Apache Kafka (long)
	$(PY) -m bench.cluster $(ARGS)

bench-spark: setup ## Measure Spark over Penstock and over Apache Kafka (long)
	$(PY) -m bench.spark $(ARGS)

fuzz: setup ## Send a million random and mutated frames to a broker (long)
	$(PY) -m tests.fuzz $(ARGS)

crash: setup ## Kill a broker under load, again and again, and count records (long)
	$(PY) -m tests.crash $(ARGS)

chaos: setup ## Kill, pause and cut off brokers of a cluster at random for minutes, and check everything (long)
	$(PY) -m tests.chaos $(ARGS)

simulate: setup ## Run thousands of simulated clusters through every fault (minutes)
	$(PY) -m penstock.testing.simulation $(ARGS)

clean: ## Remove .venv, caches and build output; ./data stays
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
