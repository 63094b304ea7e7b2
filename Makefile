# `make run` and `make test` set up .venv by themselves; without make see README.md.
PYTHON ?= python3
VENV_PYTHON := .venv/bin/python
ARGS ?=
SCRIPTS := $(sort $(wildcard lecture01/[0-9]*.py)) $(sort $(wildcard prereq3/[0-9]*.py)) $(sort $(wildcard lecture11/[0-9]*.py))

.PHONY: run lab test bench check doctor kernels gpu help setup setup-dev

help:
	@echo "make run    set up .venv, then run lecture 11's first script (ARGS=\"--demo 1 --block 64\")"
	@echo "make lab    run every script, in the order of the course (ARGS=\"--lang zh\")"
	@echo "make test   set up the test tools, then run the tests (ARGS=\"-k merge\")"
	@echo "make bench  time the lab against NumPy and ml_dtypes, as ratios"
	@echo "make kernels run the CUDA kernels, on this CPU or a GPU, beside the NumPy reference"
	@echo "make gpu    all kernels on an NVIDIA GPU: right, repeatable, how fast"
	@echo "make doctor say what is there and what is missing, before class"
	@echo "make check  ruff, the type checker and every script's --check"

run: setup
	@$(VENV_PYTHON) lecture11/01_online_softmax.py $(ARGS)

lab: setup
	@for script in $(SCRIPTS); do \
		printf '\n# %s\n' "$$script"; $(VENV_PYTHON) "$$script" $(ARGS) || exit; done

test: setup-dev
	@$(VENV_PYTHON) -m pytest $(ARGS)

bench: setup
	@$(VENV_PYTHON) bench/bench.py $(ARGS)

kernels: setup
	@$(VENV_PYTHON) kernels/compare.py $(ARGS)

gpu: setup
	@$(VENV_PYTHON) kernels/gpu.py

doctor:
	@$(PYTHON) lecture01/doctor.py

check: setup-dev
	@$(VENV_PYTHON) -m ruff check .
	@$(VENV_PYTHON) -m ruff format --check .
	@$(VENV_PYTHON) -m mypy
	@$(VENV_PYTHON) locale/gate.py
	@for script in $(SCRIPTS); do \
		$(VENV_PYTHON) "$$script" --check >/dev/null || { echo "$$script --check failed"; exit 1; }; done

setup:
	@$(PYTHON) lecture01/setup_venv.py

setup-dev:
	@$(PYTHON) lecture01/setup_venv.py dev
