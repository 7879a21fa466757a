# make tour QUICK=1   every kernel of the course, small, on this machine, checked against float64
# make lab            JupyterLab on the first lesson
# make test           lint, the tests, and every notebook's stored output
# Everything runs in .venv, which is made when it is missing or its lists changed.

# The first Python on the PATH that suits; `make PYTHON=/path/to/python tour` names another.
SUITS := -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))'
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" $(SUITS) 2>/dev/null && echo "$$p" && break; done; true)
WORKERS ?= 2
BIN := .venv/bin
# Workers, notebooks and the next run share what one has compiled; `make clean` removes it. So they
# do with Python's own compiled files, even where the environment asks for none.
KEPT := KERNELSCOPE_COMPILED="$$PWD/.compiled_cache" PYTHONDONTWRITEBYTECODE=
# NumPy's threads would wait, busily, for the cores on which the other worker runs.
KEPT += OPENBLAS_NUM_THREADS=$(or $(OPENBLAS_NUM_THREADS),1)
# Outputs were stored with the BLAS kernels of their author's processor. They are compared with those
# of the oldest that NumPy runs on, so a digit that depends on the processor fails on every machine.
CORE ?= Nehalem
NBVAL := $(KEPT) OPENBLAS_CORETYPE=$(CORE) PYTHONSTARTUP="$$PWD/tests/notebooks/startup.py"
NBVAL += $(BIN)/pytest -p attn_devtools.without_grammar -p no:anyio -p no:hypothesispytest \
	-p no:cacheprovider --nbval \
	--nbval-sanitize-with tests/notebooks/sanitize.cfg --nbval-cell-timeout 120

# Packages of another Python would hide those of .venv, and IPython warns of another environment.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV
# Python reads this folder's path in the locale's encoding: one without its letters stops Python.
ifneq ($(shell LC_ALL=C sh -c 'case "$$PWD" in (*[!\ -~]*) echo other;; esac'),)
ifneq ($(shell locale charmap 2>/dev/null),UTF-8)
export LC_ALL := C.UTF-8
endif
endif
# CuPy, matplotlib and JupyterLab write under HOME: one that they cannot write to stops them.
ifneq ($(shell test -w "$$HOME" || echo no),)
export HOME := $(CURDIR)/.home
endif

# What keeps the environment from being made, as one line with the way out; empty when nothing does.
# No shell can ask a Python that is missing or too old; tools/environment.py knows the rest.
NAMED = $(or $(PYTHON),python3)
hurdle = $(strip $(shell \
	if ! command -v "$(NAMED)" >/dev/null 2>&1; then \
	echo "$(NAMED) is not a program here: install Python 3.11 to 3.14 (Debian, Ubuntu: apt-get install python3 python3-venv) or run: make PYTHON=/path/to/python"; \
	elif ! "$(NAMED)" $(SUITS) 2>/dev/null; then \
	echo "$(NAMED) is `"$(NAMED)" -V 2>&1`, and the course needs Python 3.11 to 3.14: install one, or run: make PYTHON=/path/to/python"; \
	else "$(NAMED)" tools/environment.py $* --hurdle; fi))

.PHONY: help venv tour test tests unit system-test lab site notebooks notebook-test class lint bench bench-gpu hooks \
	anywhere proof readme lock dist clean
help:
	@echo "make tour       every kernel on this machine, each checked against float64, with figures in tour/"
	@echo "                (QUICK=1: the same with small inputs)"
	@echo "make test       lint, tests and notebooks, as CI runs them"
	@echo "make unit       the quick tests alone, for those who work on the course"
	@echo "make proof      every solution and mutant of every exercise, every pair of the tests that"
	@echo "                cross kernels with cases, every slow test (make test: a share)"
	@echo "make anywhere   make tour and make test as on other machines: users, locales, processors ..."
	@echo "make site       the course as a static site in site/, every link checked"
	@echo "make lab        JupyterLab on the first lesson, in your own copies under work/"
	@echo "make notebooks  run every notebook and store its outputs"
	@echo "make class      the problem sets as a class gets them, in class/release"
	@echo "make lint       ruff and the file-format checks"
	@echo "make bench      how fast the simulator runs on this machine"
	@echo "make bench-gpu  every suite of kernels against PyTorch, one record each (needs a GPU)"
	@echo "make readme     write the README's tables again"
	@echo "make lock       the exact versions in requirements/, from pyproject.toml (needs uv)"
	@echo "make dist       wheels and sdists of both packages, in dist/"
	@echo "make venv       only make .venv, with all packages"
	@echo "make clean      remove .venv and all that was built"

# The environment grows by what a command needs. A stamp says which group of packages is there; it
# is older than its lock when that has changed. A .venv whose Python is gone is made again.
GROUPS := .venv/.tour .venv/.lab .venv/.test
venv: .venv/.test
$(GROUPS): .venv/.%: requirements/%.lock pyproject.toml kernelscope/pyproject.toml \
		tools/environment.py .venv/bin/python
	@$(if $(hurdle),$(error $(hurdle)))
	@"$(PYTHON)" tools/environment.py $*
.venv/bin/python:

tour: .venv/.tour
	@$(BIN)/attn-course tour $(if $(QUICK),--quick)

test: lint tests notebook-test

# A worker that has nothing left takes tests from the end of another's list.
PYTEST := $(KEPT) $(BIN)/pytest -n $(WORKERS) --dist worksteal -p no:nbval -p no:anyio
tests: venv
	$(PYTEST) tests kernelscope/tests

unit: venv
	$(PYTEST) -m "not system" tests kernelscope/tests

system-test: venv
	$(PYTEST) -m system tests kernelscope/tests

# Every solution and every mutant of every exercise and problem, every pair of the tests that cross
# kernels with cases, every opcode on one lane, and every slow test; `make test` takes a share.
proof: venv
	PROOF=whole $(PYTEST) --timeout=1800 \
	$$(grep -lrE "attn_devtools.shares|mark\.turns" tests kernelscope/tests --include='test_*.py')

# The short notebooks, those of the first lessons, come last: no worker waits long for the other.
NOTEBOOKS = $(shell find notebooks -name '*.ipynb' -not -path '*/.*' | LC_ALL=C sort -r)
notebook-test: venv
	$(NBVAL) -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(NOTEBOOKS)

# ANYWHERE="--alone" is one run for each setting; "--list" names the settings of this machine.
anywhere: venv
	@$(BIN)/python tools/anywhere.py $(ANYWHERE)

lab: .venv/.lab
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

bench: .venv/.tour
	@$(BIN)/attn-course bench

bench-gpu: .venv/.tour
	@$(BIN)/attn-course bench all

readme: .venv/.lab
	$(BIN)/python tools/readme_tables.py

hooks: venv
	$(BIN)/pre-commit install

# The newest versions with LOCK_OPTIONS=--upgrade; uv: https://docs.astral.sh/uv
# One resolution of everything, from which the two smaller locks take their versions. The engine is
# of this checkout.
LOCK := uv pip compile --quiet --generate-hashes --no-annotate --python-version 3.11 \
	--python-platform linux --custom-compile-command "make lock" --no-emit-package kernelscope
lock:
	$(LOCK) pyproject.toml --extra test -o requirements/test.lock $(LOCK_OPTIONS)
	$(LOCK) pyproject.toml --group tour -c requirements/test.lock -o requirements/lab.lock
	$(LOCK) --group tour -c requirements/test.lock -o requirements/tour.lock

# A build folder of before would bring back modules that are gone.
dist: venv
	rm -rf build dist kernelscope/build
	for project in . kernelscope; do (cd $$project && $(CURDIR)/$(BIN)/python -c "from setuptools \
	import build_meta as b; b.build_sdist('$(CURDIR)/dist'); b.build_wheel('$(CURDIR)/dist')") || exit 1; done

clean:
	rm -rf .venv .home .compiled_cache tour site book build dist *.egg-info kernelscope/build \
	kernelscope/src/*.egg-info
