# Every target creates the environment it needs: Python 3.11 to 3.13 and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOWEST := .venv-lowest
INSTALL := -m pip install --quiet --disable-pip-version-check

.PHONY: test test-slow test-lowest lint docs reproduce benchmark clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) -c constraints.txt -e '.[dev,docs]'
	touch $@

$(LOWEST)/.ready: pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python $(INSTALL) -c constraints-lowest.txt -e '.[dev,docs]'
	touch $@

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Most of the time of the default tests is compilation: with these options of XLA it takes half as long, and programs are
# correct but slower. `make test-slow` and the benchmarks compile as users do.
QUICK_COMPILATION := --xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0

test: lint
	XLA_FLAGS="$(QUICK_COMPILATION)" OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# Statistical and full-scale tests, many minutes.
test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

# The default tests with the lowest versions that pyproject.toml allows, in an environment of their own. Old releases use
# what newer ones deprecate: such warnings are no errors here.
test-lowest: $(LOWEST)/.ready
	XLA_FLAGS="$(QUICK_COMPILATION)" OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n 2 --dist worksteal -W ignore::DeprecationWarning -W ignore::FutureWarning

# The documentation, into site/index.html; the tests build it too, and run every block of it.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open site/index.html; its search box works where the site is served: $(PYTHON) -m http.server -d site"

# All studies at reduced scale, on all cores; writes results/index.html. If interrupted, run it again to resume.
reproduce: $(READY)
	$(BIN)/ridgewalk reproduce all --preset quick --out results

# Ridgewalk beside other libraries, meant to take at most an hour on two cores (installs PyTorch and the peers). Writes
# docs/results/benchmarks and docs/benchmarks.md. If interrupted, run it again to resume.
benchmark: $(READY)
	$(BIN)/python $(INSTALL) -c constraints.txt -e '.[dev,docs,peers]'
	$(BIN)/python -m pip uninstall --quiet --yes torchvision  # of no use here, and broken if built for another PyTorch
	$(BIN)/python benchmarks/peers/study.py

clean:
	rm -rf $(VENV) $(LOWEST) results site build dist
