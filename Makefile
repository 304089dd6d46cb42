# Everything runs from .venv, which every target builds first. Day to day: make lint, make test.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-stamp
UV := uv==0.13.7
PIP_AUDIT := pip-audit==2.10.1

empty :=
space := $(empty) $(empty)
comma := ,

# uv reads none of pip's settings: hand them on, so that a machine set up for pip needs no second setup.
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
ifdef PIP_EXTRA_INDEX_URL
export UV_INDEX ?= $(PIP_EXTRA_INDEX_URL)
# pip looks in every index; so must uv.
export UV_INDEX_STRATEGY ?= unsafe-best-match
endif
ifdef PIP_FIND_LINKS
export UV_FIND_LINKS ?= $(subst $(space),$(comma),$(strip $(PIP_FIND_LINKS)))
endif
ifdef PIP_CERT
export SSL_CERT_FILE ?= $(PIP_CERT)
endif
ifdef PIP_DEFAULT_TIMEOUT
export UV_HTTP_TIMEOUT ?= $(PIP_DEFAULT_TIMEOUT)
endif

# Python keeps what it has compiled: a process that compiles pyspark, pandas and Duly anew takes seconds to start, and the
# tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo serve test test-all lint audit bench lock clean strace sslscan postgresql-15 redis

setup: $(STAMP)

# The lock holds the core and the server, postgres, spark, bridge and dev extras.
$(STAMP): requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet '$(UV)'
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --compile-bytecode -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	touch $@

demo: setup
	$(BIN)/python examples/demo.py

# A broker on app.duly here. Another store, other ports: make serve SERVE_ARGS='--store shop.duly --http-port 0 --flight-port 0'
serve: setup
	exec $(BIN)/duly serve $(SERVE_ARGS)

# Tests wait for disks and servers about as long as they compute: one process more than there are cores.
WORKERS ?= $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)

# Narrow a run with PYTEST_ARGS: make test PYTEST_ARGS='tests/unit -k lease'
test: setup strace sslscan postgresql-15 redis
	$(BIN)/pytest -q -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS)

test-all: export DULY_TEST_SCALE := full
test-all: test

# The crash tests watch fsync with strace. Where it cannot be had they skip, and say so.
strace:
	@command -v strace >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    timeout 180 sh -c 'apt-get -qq update && apt-get -qq install -y strace' >/dev/null; \
	  else false; fi; \
	} || echo 'strace is missing and cannot be installed here: the tests that need it will skip'

# Looks at both ports of a broker with TLS as a stranger would. Where it is missing its test skips, and says so.
sslscan:
	@command -v sslscan >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    timeout 180 sh -c 'apt-get -qq update && apt-get -qq install -y sslscan' >/dev/null; \
	  else false; fi; \
	} || echo 'sslscan is missing and cannot be installed here: the test that needs it will skip'

# The oldest PostgreSQL that Duly runs on; 16 and 18 are in the dev extra. Debian would set up a server of its own and start
# it: the file left behind says no, before the package asks. Where it cannot be had its tests skip, and say so.
postgresql-15:
	@test -x /usr/lib/postgresql/15/bin/postgres || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    timeout 300 sh -c 'mkdir -p /etc/postgresql-common/createcluster.d && \
	      echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.d/duly.conf && \
	      apt-get -qq update && \
	      DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends postgresql-15' >/dev/null; \
	  else false; fi; \
	} || echo 'PostgreSQL 15 is missing and cannot be installed here: the tests on it will skip'

# What the bridge's tests bridge to; NATS comes with the dev extra. RUNLEVEL=1: Debian does not start a server of its own.
redis:
	@command -v redis-server >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    timeout 180 sh -c 'apt-get -qq update && \
	      RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends redis-server' >/dev/null; \
	  else false; fi; \
	} || echo 'Redis is missing and cannot be installed here: the tests of its bridge will skip'

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# Known vulnerabilities in what the lock holds; asks PyPI, or with AUDIT_ARGS='-s osv' another service. What could not be
# asked about fails, too: an answer that nobody gave is no good news.
audit: setup
	$(BIN)/uv tool run --quiet --from '$(PIP_AUDIT)' pip-audit --strict --require-hashes --disable-pip --progress-spinner off \
	  --requirement requirements.lock $(AUDIT_ARGS)

bench: setup
	$(BIN)/duly bench all

# Keeps the pins that still fit. To move them all: make lock LOCK_ARGS=--upgrade
lock: setup
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' \
	  --extra server --extra postgres --extra spark --extra bridge --extra dev $(LOCK_ARGS) --output-file requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
