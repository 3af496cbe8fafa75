# make install: set up.  make demo: solve an example.  make docs: the documentation.
# make test: what guards behaviour, in five minutes.  make test-slow: baselines, trainings, tables of the paper, large shapes.
# All need only Python 3.11 or newer and make; everything else goes into .venv.

PYTHON ?= python3
BIN := .venv/bin
DEMO := demo-output

.PHONY: install demo test test-slow lint doctest docs viewer clean

install: .venv/.installed
	@echo "Installed: $(CURDIR)/$(BIN)/lamina"

demo: .venv/.installed
	$(BIN)/lamina solve heat spot --accuracy 1e-4 --frames 24 --gif --out $(DEMO)
	@echo
	@echo "The demo left in $(CURDIR)/$(DEMO):"
	@echo "  solution.html  the solution over time: open it in a browser; it needs no network"
	@echo "  solution.gif   the same as an animation"
	@echo "  solution.png   a picture of its end"
	@echo "  solution.ply   the surface with the solution, for MeshLab, Blender or ParaView"
	@echo "  report.json    what was solved, how, and how long it took"

# One thread a worker: the workers share the cores already. Memory once had is kept (glibc; others take no notice):
# handing it back to the system and asking for it again takes a tenth of the time.
TEST := OMP_NUM_THREADS=1 MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=1073741824 $(BIN)/pytest

test: lint doctest
	$(TEST) -n 2 --dist worksteal --durations=10 -m "not slow"

test-slow: .venv/.installed-dev
	$(TEST) -n 2 --dist worksteal --durations=10 -m slow

doctest: .venv/.installed-dev
	$(TEST) --doctest-modules src/lamina --ignore-glob='*_kernel.py'

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/pyright

docs: .venv/.installed-docs
	$(BIN)/sphinx-build -W --keep-going -q -b html docs build/docs
	@echo "The documentation is in $(CURDIR)/build/docs/index.html"

# The page that solutions are put into, from the sources beside it; needs Node.js. The result is part of the repository.
viewer:
	cd src/lamina/view/web && npm ci && npm run build

clean:
	rm -rf .venv $(DEMO) build dist .pytest_cache .ruff_cache .hypothesis src/*.egg-info

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("lamina needs Python 3.11 or newer, but \
	$(PYTHON) is " + sys.version.split()[0] + "; call make PYTHON=python3.12 or the like.")'
	$(PYTHON) -m venv .venv

# The stamps spare a second call the installation. Dates of .venv/bin/python say nothing: it is a link.
.venv/.installed: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install -c constraints.txt -e .
	@touch $@

.venv/.installed-dev: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	@touch $@ .venv/.installed

.venv/.installed-docs: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install -c constraints.txt -e '.[docs]'
	@touch $@ .venv/.installed
