# Every target sets up what it needs: Python >= 3.11 and make are enough.
SHELL := /bin/bash -euo pipefail
PYTHON ?= python3
PY := .venv/bin/python
READY := .venv/.ready
# Chapters to run: all, or those that CHAPTER=02 (or "02 05") names.
CHAPTER ?=
PORT ?= 8000
# What make mutate changes: a module of the package.
MODULE ?= attention
# A chapter trains small models: one thread each, files side by side.
export OMP_NUM_THREADS ?= 1
# Two stages of make test at once, where that many chapters fit the memory.
LANES := $(shell awk '/^MemTotal/ { if ($$2 > 6e6) n = 2 } \
  END { print n ? n : 1 }' /proc/meminfo 2>/dev/null || echo 1)
SYNC := $(if $(filter output-sync,$(.FEATURES)),--output-sync=line)
TEST := $(PY) -m pytest -n 2

.DEFAULT_GOAL := help
.PHONY: help setup lab execute export format check book serve pdf epub test \
  test-chapters test-rest bench mutate requirements clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' \
	  $(MAKEFILE_LIST)

setup: $(READY) ## create .venv from requirements.txt

$(READY): requirements.txt
	@echo "Setting up .venv (once; some minutes) …"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python >= 3.11 is needed: make PYTHON=/path/to/python3.11"; \
	    exit 1; }
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --disable-pip-version-check \
	  --requirement requirements.txt
	$(PY) -m pip install --disable-pip-version-check --no-deps \
	  --no-build-isolation --editable .
	@touch $@

lab: $(READY) ## open the chapters in JupyterLab
	$(PY) -m nbformat.sign --log-level=ERROR chapters/*.ipynb >/dev/null
	$(PY) -m jupyterlab --notebook-dir chapters

execute: $(READY) ## run chapters in place (all, or CHAPTER=02)
	$(PY) tools/execute.py $(CHAPTER)

export: $(READY) ## write attention_lib from the chapters' exported cells
	$(PY) tools/export.py

format: $(READY) ## bring code, that of the chapters too, into one style
	$(PY) -m ruff check --fix --exit-zero --quiet .
	$(PY) -m ruff format --quiet .

check: $(READY) ## check what has changed, in a minute
	$(PY) tools/export.py --check
	$(PY) -m ruff check --quiet .
	$(PY) -m ruff format --check --quiet .
	$(PY) -m mypy
	@tests="$$($(PY) tools/changed.py)"; \
	if [ -z "$$tests" ]; then echo "no module has changed"; exit; fi; \
	set -x; $(TEST) --quiet $$tests || [ $$? = 5 ]; \
	ATTENTION_LIB_SHAPES=off $(TEST) --quiet -m plain $$tests || [ $$? = 5 ]

book: $(READY) ## build the book into _build/html
	$(PY) tools/build.py
	@echo "Open _build/html/index.html, or run: make serve"

serve: book ## build the book and show it at http://localhost:8000
	$(PY) -m http.server --directory _build/html $(PORT)

pdf: $(READY) ## set the book as a PDF, in _build/print
	$(PY) tools/need.py --must pdf
	$(PY) tools/print_book.py pdf

epub: $(READY) ## make the book an EPUB, in _build/print
	$(PY) tools/need.py --must epub
	$(PY) tools/print_book.py epub

test: $(READY) ## check everything that the book promises
	$(PY) tools/need.py browser pdf
	@$(MAKE) --no-print-directory -j $(LANES) $(SYNC) test-chapters test-rest
	@echo "Everything holds."

test-chapters: $(READY)
	@echo "Every chapter, alone, prints what it shows (some minutes)"
	$(PY) tools/alone.py -n 2 --dist loadfile

test-rest: $(READY)
	@echo "Exported modules, style, types"
	$(PY) tools/export.py --check
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	@echo "The library, its shapes checked at run time, and the book's sources"
	$(TEST) -m "not plain and not site and not print"
	@echo "The library as its users import it"
	ATTENTION_LIB_SHAPES=off $(TEST) -m plain
	@echo "The printed book"
	@if $(PY) tools/need.py --must pdf >/dev/null; then \
	  set -x; $(PY) tools/print_book.py pdf epub; $(TEST) tests/book -m print; \
	else echo "SKIPPED: no TeX"; fi
	@echo "The book, without a warning, and every page in a browser, offline"
	$(PY) tools/build.py --clean
	$(TEST) tests/book --dist worksteal -m site

bench: $(READY) ## measure speed and memory against PyTorch
	$(PY) tools/benchmarks/run.py

mutate: $(READY) ## count small changes of MODULE=masks that tests miss
	ATTENTION_LIB_SHAPES=any $(PY) -m mutmut run "attention_lib.$(MODULE).*"
	@$(PY) -m mutmut results | grep -v 'not checked' || echo "all found"

requirements: $(READY) ## pin requirements.txt from tools/requirements.in
	$(PY) -m piptools compile --quiet --upgrade --allow-unsafe \
	  --strip-extras --no-emit-index-url --no-emit-find-links \
	  --no-emit-trusted-host --no-emit-options \
	  --output-file requirements.txt tools/requirements.in
	@# A build for one kind of processor is not a pin for everyone.
	sed -i 's/^\(torch==[0-9.]*\)+cpu/\1/' requirements.txt

clean: ## remove everything that was made, .venv included
	rm -rf _build .venv .pytest_cache .ruff_cache .mypy_cache .hypothesis \
	  mutants build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
