# Every target sets up what it needs: Python >= 3.11 and make are enough.
SHELL := /bin/bash -euo pipefail
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BOOK := _build/html
# Chapters to run: all, or those that CHAPTER=02 (or "02 05") names.
CHAPTER ?=
PORT ?= 8000
# For make bench: one thread for each core, unless THREADS=1 says otherwise.
THREADS ?=
# What make mutate looks at: all modules or some, and how many mutants of each.
MODULE ?=
SAMPLE ?= 60
# A chapter trains small models: one thread each, files side by side.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup book pdf epub test serve lab export execute bench \
  mutate requirements clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' \
	  $(MAKEFILE_LIST)

setup: $(READY) ## create .venv from requirements.txt

$(READY): requirements.txt
	@echo "Setting up $(VENV) (once; some minutes) …"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python >= 3.11 is needed: make PYTHON=/path/to/python3.11"; \
	    exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check \
	  --requirement requirements.txt
	@touch $@

book: $(READY) ## build the book into _build/html
	@echo "Building the book …"
	$(BIN)/python tools/build.py
	@echo "Open $(BOOK)/index.html, or run: make serve"

pdf: $(READY) ## set the book as a PDF, in _build/print (installs TeX)
	$(BIN)/python tools/tex.py pdf
	$(BIN)/python tools/print_book.py pdf

epub: $(READY) ## make the book an EPUB, in _build/print
	$(BIN)/python tools/tex.py epub
	$(BIN)/python tools/print_book.py epub

serve: book ## build the book and show it at http://localhost:8000
	$(BIN)/python -m http.server --directory $(BOOK) $(PORT)

lab: $(READY) ## open the chapters in JupyterLab
	$(BIN)/jupyter trust --log-level=ERROR chapters/*.ipynb >/dev/null
	PYTHONPATH=$(CURDIR) $(BIN)/jupyter lab --notebook-dir chapters

export: $(READY) ## write attention_lib from the chapters' exported cells
	$(BIN)/python tools/export.py
	$(BIN)/python tools/api.py
	$(BIN)/python tools/guide.py

execute: $(READY) ## run chapters in place (all, or CHAPTER=02)
	PYTHONPATH=$(CURDIR) $(BIN)/python tools/execute.py $(CHAPTER)

test: $(READY) ## check everything that the book promises
	@echo "[1/7] exported modules, style, types"
	$(BIN)/python tools/export.py --check
	$(BIN)/python tools/guide.py --check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@echo "[2/7] the library, shapes checked at run time"
	$(BIN)/python -m pytest -n 2 -m "not plain and not site and not print"
	@echo "[3/7] the library as its users import it"
	ATTENTION_LIB_SHAPES=off $(BIN)/python -m pytest -n 2 -m plain
	ATTENTION_LIB_SHAPES=off $(BIN)/python -m pytest --doctest-modules \
	  attention_lib
	@echo "[4/7] every chapter, alone, prints what it shows (some minutes)"
	$(BIN)/python tools/alone.py -n 2 --dist loadfile
	@echo "[5/7] the printed book, PDF and EPUB"
	$(BIN)/python tools/tex.py pdf epub
	$(BIN)/python tools/print_book.py pdf epub
	$(BIN)/python -m pytest -n 2 -m print
	@echo "[6/7] the book builds without a warning"
	$(BIN)/python tools/build.py --clean
	@echo "[7/7] every page in a browser, offline"
	$(BIN)/python tools/browser.py
	$(BIN)/python -m pytest -n 2 --dist worksteal -m site

bench: $(READY) ## measure speed and memory against PyTorch
	env -u OMP_NUM_THREADS $(BIN)/python benchmarks/run.py \
	  $(if $(THREADS),--threads $(THREADS))

mutate: $(READY) ## count small changes of the library that tests miss
	nice $(BIN)/python tools/mutate.py $(MODULE) --sample $(SAMPLE)

requirements: $(READY) ## pin requirements.txt from requirements.in
	$(BIN)/pip-compile --quiet --upgrade --allow-unsafe --strip-extras \
	  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
	  --no-emit-options --output-file requirements.txt requirements.in
	@# A build for one kind of processor is not a pin for everyone.
	sed -i 's/^\(torch==[0-9.]*\)+cpu/\1/' requirements.txt

clean: ## remove everything that was made, .venv included
	rm -rf _build $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis \
	  mutants build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
