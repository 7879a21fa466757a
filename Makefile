# make tour   run every kernel of the ladder on this machine and check each against float64
# make test   lint, the tests, and every notebook's stored output
# Everything runs in .venv, which is made when it is missing or its lists changed.

# The first Python on the PATH that is new enough; `make PYTHON=/path/to/python tour` names another.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; \
	done; true)
WORKERS ?= 2
BIN := .venv/bin
# Workers, notebooks and the next run share what one has compiled; `make clean` removes it. So they
# do with Python's own compiled files, even where the environment asks for none.
KEPT := KERNELSCOPE_COMPILED=$(CURDIR)/.compiled_cache PYTHONDONTWRITEBYTECODE=
# PIP_USER=1 in the environment would send packages past .venv.
PIP := PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet
NBVAL := $(KEPT) $(BIN)/pytest --nbval --nbval-sanitize-with tests/notebooks/sanitize.cfg \
	-p no:cacheprovider --nbval-cell-timeout 120

# What keeps the environment from being made, as one line with the way out; empty when nothing does.
hurdle = $(shell \
	if [ -z "$(PYTHON)" ] && ! command -v python3 >/dev/null 2>&1; then \
	echo "no python3 on the PATH: install Python 3.11 or newer (Debian, Ubuntu: apt-get install python3 python3-venv) or run: make PYTHON=/path/to/python"; \
	elif [ -z "$(PYTHON)" ]; then \
	echo "python3 is too old (`python3 -V 2>&1`): install Python 3.11 or newer, or run: make PYTHON=/path/to/python"; \
	elif ! command -v "$(PYTHON)" >/dev/null 2>&1; then \
	echo "PYTHON=$(PYTHON) is not a program: name a Python 3.11 or newer"; \
	elif ! "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	echo "$(PYTHON) is too old (`"$(PYTHON)" -V 2>&1`): name Python 3.11 or newer"; \
	elif ! "$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null; then \
	echo "$(PYTHON) has no venv module: install it (Debian, Ubuntu: apt-get install python3-venv) or run: make PYTHON=/path/to/python"; \
	fi)

.PHONY: help venv tour test unit system-test lab site notebooks notebook-test class lint bench bench-gpu hooks \
	readme lock dist clean
help:
	@echo "make tour       every kernel on this machine, each checked against float64, with figures in tour/"
	@echo "make test       lint, tests and notebooks, as CI runs them"
	@echo "make unit       the quick tests alone, for those who work on the course"
	@echo "make site       the course as a static site in site/, every link checked"
	@echo "make lab        JupyterLab on the first lesson, in your own copies under work/"
	@echo "make notebooks  run every notebook and store its outputs"
	@echo "make class      the problem sets as a class gets them, in class/release"
	@echo "make lint       ruff and the file-format checks"
	@echo "make bench      how fast the simulator runs on this machine"
	@echo "make bench-gpu  every suite of kernels against PyTorch, one record each (needs a GPU)"
	@echo "make readme     write the README's tables again"
	@echo "make lock       requirements.lock from pyproject.toml (needs uv)"
	@echo "make dist       wheels and sdists of both packages, in dist/"
	@echo "make venv       only make .venv        make clean  remove it and all that was built"

venv: .venv/.stamp

.venv/.stamp: pyproject.toml requirements.lock
	@$(if $(strip $(hurdle)),$(error $(strip $(hurdle))))
	@echo "making .venv (about 1 GB; some minutes the first time)"
	@"$(PYTHON)" -m venv .venv
	@$(PIP) --require-hashes -r requirements.lock
	@$(PIP) --no-deps --no-build-isolation -e kernelscope -e .
	@touch $@

tour: venv
	@$(BIN)/attn-course tour

test: lint unit system-test notebook-test

# A worker that has nothing left takes tests from the end of another's list.
PYTEST := $(KEPT) $(BIN)/pytest -n $(WORKERS) --dist worksteal -p no:nbval -p no:anyio
unit: venv
	$(PYTEST) -m "not system" tests kernelscope/tests

system-test: venv
	$(PYTEST) -m system tests kernelscope/tests

# The longest notebook starts first, so that no worker waits for it at the end.
notebook-test: venv
	$(NBVAL) -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
	notebooks/13_reading_the_profiler.ipynb notebooks

lab: venv
	@$(BIN)/attn-course lessons --open

# Fails where a link leads nowhere.
site: venv
	@$(KEPT) $(BIN)/attn-course site --folder site

notebooks: venv
	$(BIN)/jupyter nbconvert --to notebook --inplace --execute \
	--ExecutePreprocessor.record_timing=False notebooks/*.ipynb \
	notebooks/assignments/source/*/*.ipynb

# A course folder of nbgrader: what learners handed in and the gradebook stay when it is made again.
CLASS ?= class
class: venv
	$(BIN)/python tools/problem_sets.py --check
	$(BIN)/python tools/release_class.py $(CLASS)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/check_format.py

bench: venv
	@$(BIN)/attn-course bench

bench-gpu: venv
	@$(BIN)/attn-course bench all

readme: venv
	$(BIN)/python tools/readme_tables.py

hooks: venv
	$(BIN)/pre-commit install

# The newest versions with LOCK_OPTIONS=--upgrade; uv: https://docs.astral.sh/uv
lock:
	uv pip compile --quiet pyproject.toml --extra test --generate-hashes --no-annotate \
	--python-version 3.11 --python-platform linux --custom-compile-command "make lock" \
	--no-emit-package kernelscope --output-file requirements.lock $(LOCK_OPTIONS)

# A build folder of before would bring back modules that are gone.
dist: venv
	rm -rf build dist kernelscope/build
	for project in . kernelscope; do (cd $$project && $(CURDIR)/$(BIN)/python -c "from setuptools \
	import build_meta as b; b.build_sdist('$(CURDIR)/dist'); b.build_wheel('$(CURDIR)/dist')") || exit 1; done

clean:
	rm -rf .venv .compiled_cache tour site book build dist *.egg-info kernelscope/build kernelscope/src/*.egg-info
