.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)
SECONDS_EACH ?= 60
PYTHONS ?= 3.11 3.12 3.13 3.14
SEEDS ?= 0..20000
ROUNDS ?= 30
TESTS ?= tests
# With 1, as in CI, what failed is tried once more, alone: so one late answer of another program on a
# busy machine does not hide what the rest has to say. Who works on the code wants to see it fail.
# A second argument of `tests` is for that second run alone: what it covers comes on top, not anew.
RERUN ?= 0
# Names of what failed or was skipped come last.
PYTEST := $(BIN)/pytest -q -rfEs
again = $(if $(filter 1,$(RERUN)),|| { echo "=== RERUN of what failed"; $(PYTEST) --last-failed --last-failed-no-failures=none $(1) $(2); })
tests = $(PYTEST) $(1) $(again)
# On all cores, a file on one of them: what a module sets up is set up once.
WORKERS ?= auto
tests-on-all-cores = $(PYTEST) -n $(WORKERS) --maxprocesses=4 --max-worker-restart=1 --dist=loadfile $(1) $(again)

# A clear word before a long traceback: the interpreter is the one thing that make cannot install.
define PYTHON_CHECK
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
  { echo "CometMQ needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
endef

.PHONY: help
help: ## Show this list.
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(VENV)/.stamp: pyproject.toml requirements/dev.txt
	@$(PYTHON_CHECK)
	@echo "Installing into $(VENV), once: a minute or two ..."
ifdef UV
	@test -x $(BIN)/python || $(UV) venv -q --python $(PYTHON) $(VENV)
	$(UV) pip install -q --python $(BIN)/python --require-hashes -r requirements/dev.txt
	$(UV) pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .
else
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
endif
	@$(BIN)/python -m compileall -q proto nameserver broker client pipeline  # Starts are quicker.
	@touch $@

$(VENV)/.stamp-spark: $(VENV)/.stamp requirements/spark.txt
	@echo "Installing Spark into $(VENV), once: some 800 MB, a few minutes ..."
ifdef UV
	$(UV) pip install -q --python $(BIN)/python --require-hashes -r requirements/spark.txt
else
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/spark.txt
endif
	@touch $@

.PHONY: install
install: $(VENV)/.stamp ## Make .venv with everything but Spark.

.PHONY: install-spark
install-spark: $(VENV)/.stamp-spark ## Add Spark and what the pipeline needs.

.PHONY: run
run: install ## Start a name server and a broker on an embedded store.
	@$(BIN)/cometmq up

.PHONY: format
format: install ## Rewrite the source in the house format.
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

.PHONY: lint
lint: install ## Check format, lint rules and layering.
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports

.PHONY: types
types: install ## Check types with mypy and pyright, both strict.
	@$(MAKE) --no-print-directory -j2 -O types-mypy types-pyright

.PHONY: types-mypy
types-mypy: install
	$(BIN)/mypy

.PHONY: types-pyright
types-pyright: install
	$(BIN)/pyright --pythonpath $(BIN)/python

.PHONY: test
test: install ## Run the fast tests (TESTS=tests).
	$(call tests-on-all-cores,-m 'not slow and not spark' --durations=10 $(TESTS))

# The files that have such tests, as collecting all takes each worker half a minute.
SLOW_TESTS = $(shell grep -rl --include='test_*.py' 'mark\.slow' tests | grep -vE '^tests/(interop|crash|pipeline)/')
.PHONY: test-slow
test-slow: install ## Run the tests that take longer: wheels per extra, long properties.
	$(call tests-on-all-cores,-m 'slow and not spark and not long' --durations=10 $(SLOW_TESTS))

.PHONY: test-slow-full
test-slow-full: install ## The same, with very many bad requests of each code, and each byte of a log flipped for verify.
	$(call tests-on-all-cores,-m 'slow and not spark' --durations=10 $(SLOW_TESTS))

.PHONY: test-pythons
test-pythons: install ## Run the fast tests on the other Pythons, 3.11 to 3.14 (PYTHONS=...), that are installed here.
	@set -e; for version in $(PYTHONS); do \
	  python=$$(ls -d $$HOME/.pyenv/versions/$$version.*/bin/python3 2>/dev/null | tail -1 || true); \
	  python=$${python:-$$(command -v python$$version || true)}; \
	  if $(BIN)/python --version | grep -q " $$version\."; then continue; fi; \
	  if [ -z "$$python" ] || ! $$python --version >/dev/null 2>&1; then echo "=== no Python $$version here"; continue; fi; \
	  echo "=== $$($$python --version)"; \
	  $(MAKE) --no-print-directory test PYTHON=$$python VENV=.venv-$$version; \
	done

# On 3.13 and newer, the oldest NumPy would have to be compiled.
LOWEST := .venv-lowest
.PHONY: test-lowest
test-lowest: ## Run the fast tests (TESTS=...) with the oldest versions that pyproject.toml allows; on Python 3.11 or 3.12.
	@$(MAKE) --no-print-directory install VENV=$(LOWEST)
ifdef UV
	$(UV) pip install -q --python $(LOWEST)/bin/python $$($(LOWEST)/bin/python -m tests.packaging.lowest)
else
	$(LOWEST)/bin/python -m pip install -q --disable-pip-version-check $$($(LOWEST)/bin/python -m tests.packaging.lowest)
endif
	@$(MAKE) --no-print-directory test VENV=$(LOWEST)

.PHONY: coverage
coverage: install ## Fail under 98 % branch coverage of proto.
	$(call tests-on-all-cores,-m 'not slow and not spark' tests/proto --cov=cometmq.proto --cov-fail-under=98,--cov-append)

.PHONY: check
check: lint types test ## Format, lint, layering, types, tidy and tests: what CI runs.

.PHONY: fuzz
fuzz: install ## Fuzz every decoder for a minute each (SECONDS_EACH=60).
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS_EACH)

.PHONY: crash
crash: install ## End the store at random 2,000 times and more, and make mistakes that must be noticed.
	@$(MAKE) --no-print-directory -j2 -O crash-model crash-kills

.PHONY: crash-model
crash-model: install
	$(BIN)/python -m tests.crash --images 2500
	$(call tests,-m slow tests/crash/test_model.py)

.PHONY: crash-kills
crash-kills: install
	$(BIN)/python -m tests.crash.kills
	$(BIN)/python -m tests.crash.kinds
	$(BIN)/python -m tests.crash.broker_kills
	$(BIN)/python -m tests.crash.once_kills --sends 10000

.PHONY: crash-full
crash-full: install ## 50 kills of a broker, then many seeds (SEEDS=a..b); says where to go on when stopped.
	$(BIN)/python -m tests.crash.broker_kills --kills 50
	$(BIN)/python -m tests.crash --seeds $(SEEDS)

.PHONY: interop
# Most of these wait for other programs.
interop: WORKERS := 3
interop: install ## The official Java and Go clients and mqadmin, and a store passed to a live Apache RocketMQ and back; needs Java 17, Maven and Go.
	$(call tests-on-all-cores,-m 'not long' --durations=10 tests/interop)

.PHONY: interop-clients
interop-clients: install ## Of these, only the official clients and mqadmin, against ours.
	$(call tests,--durations=10 tests/interop/test_clients.py tests/interop/test_mqadmin.py tests/interop/test_kind_commands.py)

.PHONY: interop-apache
interop-apache: export COMETMQ_INTEROP := apache
interop-apache: install ## The same programs, and the SDK's suite, against a live Apache RocketMQ: proves the programs themselves.
	$(call tests,--durations=10 tests/interop/test_clients.py tests/interop/test_mqadmin.py tests/interop/test_mixed_group.py tests/interop/test_kind_commands.py tests/interop/test_client_apache.py tests/interop/test_client_rules_apache.py)

.PHONY: e2e
e2e: install ## Apache's black-box suite against Apache's broker and ours (E2E_DIR=a clone of apache/rocketmq-e2e); 10 minutes.
	@test -n "$(E2E_DIR)" || { echo "git clone https://github.com/apache/rocketmq-e2e somewhere, then: make e2e E2E_DIR=somewhere"; exit 1; }
	$(BIN)/python -m tests.interop.e2e $(E2E_DIR)

.PHONY: interop-full
interop-full: install ## All that is tested against Apache's own programs and classes.
	$(call tests,--durations=0 tests/interop)

.PHONY: spark
spark: install-spark ## Test the Spark pipeline.
	$(call tests-on-all-cores,-m 'spark and not slow' --durations=5 tests/pipeline)

.PHONY: spark-full
spark-full: export COMETMQ_SPARK_COMPILES := 1
spark-full: install-spark ## The same, and streams whose driver, workers and broker are killed (ROUNDS=30).
	$(call tests,-m spark tests/pipeline)
	$(BIN)/python -m tests.pipeline.kills --rounds $(ROUNDS)

SPARK_OLDEST := .venv-spark-oldest

.PHONY: spark-oldest
spark-oldest: ## The tests of `make spark` on PySpark 4.2, the oldest that works, in an environment of its own.
	@$(MAKE) --no-print-directory install VENV=$(SPARK_OLDEST)
	@sed '/^pyspark[=[]/,/^    # via/d' requirements/spark.txt | cat - requirements/pyspark-4.2.txt > $(SPARK_OLDEST)/spark.txt
ifdef UV
	$(UV) pip install -q --python $(SPARK_OLDEST)/bin/python --require-hashes -r $(SPARK_OLDEST)/spark.txt
else
	$(SPARK_OLDEST)/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r $(SPARK_OLDEST)/spark.txt
endif
	$(SPARK_OLDEST)/bin/python -m pytest -q -rfEs -m 'spark and not slow' tests/pipeline

.PHONY: bench
bench: install ## Measure the broker beside Apache's (half an hour, Java 17), and write docs/performance.md.
	$(BIN)/python -m bench path
	$(BIN)/python -m bench.broker --write
	$(BIN)/python -m bench.transactions --write
	$(BIN)/python -m bench.scale --write

.PHONY: bench-quick
bench-quick: install ## Measure the quick parts of docs/performance.md; says how to run the long ones.
	$(BIN)/python -m bench

.PHONY: api-pages
api-pages: install ## Make the pages of the Python API, in site/api, without a network.
	$(BIN)/sphinx-build -q -W -E -b html docs/api site/api

.PHONY: dist
dist: install ## Build the wheel and the sdist into dist/.
	$(BIN)/python -m build --no-isolation --outdir dist

.PHONY: lock
lock: ## Make requirements/*.txt anew from pyproject.toml (needs uv).
	uv pip compile -q --universal --no-strip-extras --python-version 3.11 --generate-hashes --no-header --extra dev pyproject.toml -o requirements/dev.txt
	uv pip compile -q --universal --no-strip-extras --python-version 3.11 --generate-hashes --no-header --extra spark-dev -c requirements/dev.txt pyproject.toml -o requirements/spark.txt

.PHONY: clean
clean: ## Remove what make made.
	rm -rf .venv .venv-* dist build site .coverage* .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
