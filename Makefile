# Linux and macOS. For Windows, conda and the CPU-only PyTorch see README.md.
PYTHON ?= python3
BIN := .venv/bin
# The test environment holds all that the lab needs, so the lab uses it where it is there.
LAB_READY := $(or $(wildcard .venv/ready-test),.venv/ready-lab)
OLD_PYTHON := This needs Python 3.11 or newer. With a newer one beside it, name it, as in: make lab PYTHON=python3.12
# Large memory pages (Linux; unknown elsewhere, and ignored): a training step of a small model is a quarter faster.
export GLIBC_TUNABLES := glibc.malloc.hugetlb=1

.PHONY: help lab test test-browser notebooks html clean
.NOTPARALLEL:

help:
	@echo "make lab        open the lessons in JupyterLab, as copies in my_notebooks/ that are yours to change"
	@echo "make test       test the package and run every notebook; one file: make test ARGS=tests/test_vit.py"
	@echo "make test-browser  open every lesson in JupyterLab in a browser; one: make test-browser ARGS='-k 08_'"
	@echo "make notebooks  build notebooks/*.ipynb from notebooks/src/*.py; one: make notebooks ARGS=00_start_here"
	@echo "make html       write the lessons as web pages into build/html/, for reading without Python"
	@echo "make clean      remove the environment (.venv); your notebooks stay"
	@echo "Each makes the environment that it needs, once."

lab: $(LAB_READY)
	$(BIN)/python tools/open_lab.py $(ARGS)

test: .venv/ready-test
	$(BIN)/python -m pytest $(ARGS)

test-browser: .venv/ready-browser
	$(BIN)/python -m pytest -m browser -rs tests/browser $(ARGS)

notebooks: .venv/ready-test
	$(BIN)/python tools/build_notebooks.py $(ARGS)

html: .venv/ready-test
	$(BIN)/python tools/build_html.py $(ARGS)

clean:
	rm -rf .venv

# A ready- file is newer than pyproject.toml when .venv holds what pyproject.toml asks for. An environment that works
# is kept, whoever made it; one that was interrupted, or whose Python is gone, is made again.
.venv/ready-test: EXTRA := [test]
.venv/ready-browser: EXTRA := [test,browser]
.venv/ready-lab .venv/ready-test .venv/ready-browser: pyproject.toml
	@$(BIN)/python -m pip show --quiet pip 2>/dev/null || { \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "$(OLD_PYTHON)")' && \
	  echo "Making the environment: several minutes and several GB, once." && \
	  $(PYTHON) -m venv --clear .venv; }
	$(BIN)/python -m pip install --editable '.$(EXTRA)'
	@touch $@
