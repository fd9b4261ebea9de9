# Needs python3 >= 3.11 and Java >= 17. The first target that needs anything else installs it into .venv.
PYTHON ?= python3
BIN := .venv/bin
UV_VERSION := 0.13.8
CODE := schemas connectors pipeline stilltide/*.py tests
JOBS ?= 3
EXAMPLES ?= 30
SEED ?= 1
ROUNDS ?= 2
TOUR_S ?= 0
VERSIONS ?= 3.9 4.0 4.3 4.4
NEIGHBOURS := tests/integration/versions
ANY := -m "slow or not slow"
AUDIT_RUN := tests/integration/audits/test_audit_run.py
SPARK_VERSIONS ?= 4.0 4.1 4.2
TESTS_OF_SPARK := tests/unit/spark tests/integration/spark/test_streams.py tests/integration/spark/test_tables.py \
	tests/integration/tables/test_lakehouses.py tests/integration/tables/test_follow.py \
	tests/integration/snapshots/test_snapshot_readers.py
PYTHONS ?= 3.14
TESTS_OF_PYTHON := tests/unit --ignore=tests/unit/spark --ignore=tests/unit/site tests/integration/worker/test_worker.py \
	tests/integration/worker/test_consume_transform_produce.py tests/integration/subscription/test_subscription.py \
	tests/integration/links/test_publish.py
TESTS_OF_VERSIONS := tests/contract tests/integration/test_demo.py tests/integration/subscription/test_subscription.py \
	tests/integration/groups tests/integration/local/test_several_brokers.py \
	$(AUDIT_RUN)::test_sound_topics_raise_nothing \
	$(AUDIT_RUN)::test_the_command_says_valid_then_unknown_then_invalid

LINKS := connectors pipeline schemas
MISSING_LINKS := $(filter-out $(patsubst stilltide/%/__init__.py,%,$(wildcard stilltide/*/__init__.py)),$(LINKS))
ifneq ($(filter-out clean help links,$(or $(MAKECMDGOALS),help)),)
ifneq ($(MISSING_LINKS),)
$(error this checkout of Stilltide lacks the link stilltide/$(firstword $(MISSING_LINKS)): run `make links`)
endif
endif

.DELETE_ON_ERROR:
.PHONY: help setup links demo test test-slow test-versions test-spark test-python images pin-images test-containers check format bench chaos simulate lock licences sbom audit figures lines screenshots metrics helps docs dist protos clean

help: ## Show these targets.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: .venv/.installed ## Create .venv with the locked dependencies.

.venv/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Stilltide needs Python >= 3.11, but $(PYTHON) is %s; run make PYTHON=python3.12" % sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

links: ## Make the links of the checkout, which archives and Git without symbolic links lose.
	@ln -sfn $(LINKS:%=../%) stilltide/

demo: setup ## Run transactions end to end on a real broker and check the result (ARGS="--file events.ndjson").
	@$(BIN)/stilltide demo $(ARGS)

test: check ## Run every check and test but the slow ones, also those with a real broker and Spark (JOBS=3 EXAMPLES=100 ARGS="-k marker").
	EXAMPLES=$(EXAMPLES) $(BIN)/pytest --numprocesses=$(JOBS) --ignore=tests/tidy $(ARGS)
	@if [ -n "$(ARGS)" ]; then :; \
	elif timeout 10 docker version >/dev/null 2>&1; then $(MAKE) --no-print-directory test-containers; \
	else echo "no Docker engine answers: tests/containers did not run"; fi

test-slow: setup ## Run the tests that are marked slow, which `make test` leaves out (JOBS=3 ARGS="-k runbook").
	EXAMPLES=$(EXAMPLES) $(BIN)/pytest --numprocesses=$(JOBS) -m slow $(ARGS)

test-versions: setup ## Test on each supported version of Kafka, and beside an earlier version of Stilltide (VERSIONS="3.9 4.0" ARGS="-k audit").
	$(BIN)/pytest --numprocesses=1 $(ANY) $(NEIGHBOURS)
	@for version in $(VERSIONS); do \
	  echo "Kafka $$version:" && \
	  STILLTIDE_KAFKA_VERSION=$$version $(BIN)/pytest --numprocesses=$(JOBS) $(ANY) $(TESTS_OF_VERSIONS) $(ARGS) || exit 1; \
	done

test-spark: setup ## Test on each supported version of Spark (VERSION=4.1 or VERSION=4.1.1 ARGS="-k outcomes").
	@for version in $(or $(VERSION),$(SPARK_VERSIONS)); do \
	  line=$$(echo $$version | cut -d. -f1,2) && \
	  locked=$$(sed -n 's/.*:spark-sql-kafka-0-10_2.13://p' connectors/local/jars-spark-$$line.lock) && \
	  exact=$$(test $$version = $$line && echo $$locked || echo $$version) && \
	  echo "PySpark $$exact:" && packages=build/spark/$$exact && \
	  { test -d $$packages || $(BIN)/uv pip install --quiet --python $(BIN)/python --target $$packages pyspark==$$exact; } && \
	  PYTHONPATH=$$packages $(BIN)/pytest --numprocesses=1 $(ANY) $(TESTS_OF_SPARK) $(ARGS) || exit 1; \
	done

test-python: setup ## Test the client and the worker on further versions of Python (PYTHONS="3.12 3.14" ARGS="-k oauth").
	@for version in $(PYTHONS); do \
	  echo "Python $$version:" && python=build/python/$$version/bin/python && \
	  { test -x $$python || $(BIN)/uv venv --quiet --python $$version build/python/$$version; } && \
	  $(BIN)/uv pip sync --quiet --python $$python --require-hashes requirements.lock && \
	  $(BIN)/uv pip install --quiet --python $$python --no-deps --editable . && \
	  $$python -m pytest --numprocesses=$(JOBS) $(TESTS_OF_PYTHON) $(ARGS) || exit 1; \
	done

images: ## Build the images stilltide (worker) and stilltide:spark.
	docker build --quiet --tag stilltide .
	docker build --quiet --tag stilltide:spark --target spark .

pin-images: setup ## Write deploy/images.env: the images of others by digest; asks their registry.
	$(BIN)/python -m tests.supply.images

test-containers: setup images ## Test the images and the compose file; needs a Docker engine (TOUR_S=600 ARGS="-k killed").
	TOUR_S=$(TOUR_S) $(BIN)/pytest tests/containers --session-timeout=$$((3600 + 2 * $(TOUR_S))) $(ARGS)

check: setup ## Lint, format, types, import contracts, and the rules of tests/tidy.
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/pytest --quiet -p no:xdist tests/tidy

format: setup ## Rewrite the sources in the project's format.
	-$(BIN)/ruff check --fix --quiet $(CODE)
	$(BIN)/ruff format $(CODE)

bench: setup ## Measure (all cases, or CASE=writer|transactions|two_phase|brokers|acknowledgements|recovery|consume_transform_produce|snapshots|markers|reader|spark_filter|spark_outcomes|spark_stream|audit|batch_filter|replication|in_flight|failover|disaster|sync_latency|translate|startup|startup_markers|publish|exact|compacted|retention|console|rest|scale|compose|way|tracing); writes build/bench/<case>.json. The sizes of a case are variables, too: RECORDS=100000.
	$(BIN)/python -m tests.bench $(CASE)

chaos: setup ## Kill and freeze processes at named points (SEED=1 ROUNDS=2 CHAOS_S=600 ARGS="-k broker").
	SEED=$(SEED) ROUNDS=$(ROUNDS) $(BIN)/pytest tests/chaos $(ARGS)

simulate: setup ## Run worlds of virtual time (SEEDS=1000 SEED=1 JOBS=2 CLUSTERS=2); SEED=7 TRACE=1 prints one, TRACE=world.html draws it, SEEDS=20 REPEAT=100 runs each again, DISASTERS=1 loses clusters with groups on them, ROUNDS=10000 runs resolvers alone, ABLATE=list|all|B2,C4 switches rules off, TABLE=1 writes the table.
	$(BIN)/python -m tests.simulation SEEDS=$(or $(SEEDS),1) SEED=$(SEED) JOBS=$(if $(filter file,$(origin JOBS)),2,$(JOBS)) CLUSTERS=$(CLUSTERS) TRACE=$(TRACE) REPEAT=$(REPEAT) DISASTERS=$(DISASTERS) ROUNDS=$(if $(filter file,$(origin ROUNDS)),,$(ROUNDS)) ABLATE=$(ABLATE) TABLE=$(TABLE)

COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header pyproject.toml
CUT = $(COMPILE) --no-annotate --constraint requirements.lock

lock: setup ## Compile requirements.lock with the newest versions, and from it the locks of the client and the images.
	$(COMPILE) --upgrade --group dev --all-extras -o requirements.lock
	$(CUT) -o requirements.client.lock
	$(CUT) --extra worker --extra console --extra databases --group images -o requirements.worker.lock
	$(CUT) --extra worker --extra console --extra databases --extra spark --group images -o requirements.spark.lock

licences: setup ## Write docs/licences.md from the locks and the metadata of the packages.
	$(BIN)/python -m tests.supply.licences

sbom: setup ## Write bills of materials of the wheel and the images: build/sbom/*.json (CycloneDX).
	$(BIN)/python -m tests.supply.sbom

audit: setup ## Ask a database for known vulnerabilities of the locked packages (Error 3: found, Error 4: no answer).
	@$(BIN)/python -m tests.supply.audit

figures: setup ## Draw the figures of the documentation: docs/img/*.svg.
	$(BIN)/python -m tests.figures

lines: setup ## Count lines of code, files and imports by layer.
	@$(BIN)/python -m tests.figures.lines

screenshots: setup ## Draw the pictures of the console: docs/img/console-*.png, and every page in build/screenshots; needs Chromium.
	$(BIN)/python -m tests.support.console.pictures

metrics: setup ## Write docs/metrics.md from the tables of pipeline/metrics.
	$(BIN)/python -m stilltide.pipeline.metrics.page

helps: setup ## Write the help of every command to pipeline/cli/common/helps.json.
	$(BIN)/python -m stilltide.pipeline.cli.common.helps

docs: setup ## Build the documentation site: build/site/index.html.
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --clean
	@echo build/site/index.html

dist: setup ## Build the wheel and the source archive: build/dist, with SHA256SUMS; equal for each build.
	@rm -rf build/dist
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} \
	  $(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python --sdist --wheel --out-dir build/dist .
	@cd build/dist && rm -f .gitignore && sha256sum stilltide-* | tee SHA256SUMS

protos: setup ## Generate schemas/v1/*_pb2.py(i) from the .proto sources.
	$(BIN)/python -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. stilltide/schemas/v1/*.proto

clean: ## Remove the files that other targets made, except downloads in the user cache.
	rm -rf .venv build .pytest_cache .hypothesis .ruff_cache
