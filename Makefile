# Two commands: `make run` and `make test`. Both set up all they need, once.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: run test check format bench bench-quick coverage release docs audit clean

run: $(VENV)/.train
	@$(BIN)/ballsbins demo

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist loadgroup --durations=20

check: $(VENV)/.test
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

format: $(VENV)/.test
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# all, with peers; writes benchmarks/results/ and docs/benchmarks.md
bench: $(VENV)/.test .venv-peers/.ready
	$(BIN)/python benchmarks/run.py

# a first look; writes nothing
bench-quick: $(VENV)/.test
	$(BIN)/python benchmarks/run.py --small

# the tests, and the lines that they miss; left out are those that coverage itself breaks: workers of a DataLoader do
# not survive its tracer, and one test asks which modules are loaded
UNTRACEABLE := tests/test_import.py::test_an_answer_loads_nothing_it_does_not_need \
  tests/training_huggingface/test_run.py::test_data_sets_tokenizers_and_workers \
  tests/training_torch/test_loader.py::test_workers_change_nothing \
  tests/training_torch/test_loader.py::test_it_works_inside_a_stateful_data_loader
coverage: $(VENV)/.test
	$(BIN)/coverage run -m pytest -n 2 --dist loadgroup $(UNTRACEABLE:%=--deselect=%)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered

# the wheel and the sdist, built twice, installed in clean environments, at the lowest versions too;
# PYTHONS="python3.12 python3.13" names interpreters, EXTRAS="jax web" or EXTRAS=every tries extras with them
release: $(VENV)/.test
	$(BIN)/python tests/release.py $(PYTHONS) --lowest $(EXTRAS:%=--extra %)

# the documentation as a site that opens from disk: site/index.html
docs: $(VENV)/.test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# the double-precision accountant against proved enclosures, at random mechanisms: docs/proof.md
audit: $(VENV)/.test
	$(BIN)/python -m ballsbins.proof.audit

clean:
	rm -rf $(VENV) .venv-peers build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@python=; for p in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	  if "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$p; break; fi; done; \
	if [ -z "$$python" ]; then echo "No Python 3.11 or later found. Install one, or say where: make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; exit 1; fi; \
	"$$python" -m venv $(VENV) || { echo "Python's venv module is missing. On Debian: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/.core: requirements/core.txt pyproject.toml | $(BIN)/python
	$(PIP) install -r requirements/core.txt
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.train: requirements/train.txt $(VENV)/.core
	$(PIP) install -r requirements/train.txt
	@touch $@

$(VENV)/.test: requirements/test.txt $(VENV)/.train
	$(PIP) install -r requirements/test.txt
	@touch $@

.venv-peers/.ready: requirements/peers.txt | $(BIN)/python
	$(BIN)/python -m venv .venv-peers
	.venv-peers/bin/python -m pip --disable-pip-version-check --quiet install -r requirements/peers.txt
	@touch $@
