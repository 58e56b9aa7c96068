# Every target sets up what it needs: a machine with Python 3.11+ and make is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: test test-slow lint docs reproduce benchmark clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	touch $@

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# Statistical and full-scale runs that do not fit the ten minutes of the default suite.
test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

# The documentation, into site/index.html; the tests build it too, and run every block of it.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open site/index.html; its search box works where the site is served: $(PYTHON) -m http.server -d site"

# The main job: from nothing to a page, results/index.html. Stopped, it goes on where it was.
reproduce: $(READY)
	$(BIN)/ridgewalk reproduce all --preset quick --out results
	$(BIN)/ridgewalk report results

# Ratios against peers, printed side by side in one run (installs PyTorch and the peers).
benchmark: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs,peers]'
	$(BIN)/python benchmarks/steps.py
	$(BIN)/python benchmarks/darcy.py
	$(BIN)/python benchmarks/networks.py
	$(BIN)/python benchmarks/pruning.py
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf $(VENV) results site build dist
