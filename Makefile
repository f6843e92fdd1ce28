# Two commands do all the set-up: `make attack` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
STAMP   = $(VENV)/.installed

.PHONY: attack test test-slow bench lint clean

attack: $(STAMP)
	$(BIN)/fedre-attack --protocol fedre --target prototypes

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

test-slow: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m slow

# Ratios against plain versions, and what bounds them; DATA=FILE.npz adds gradient matching.
bench: $(STAMP)
	$(BIN)/python benchmarks/rounds.py
	$(BIN)/python benchmarks/together.py --architectures cnn4,resnet8
	$(BIN)/python benchmarks/inversion.py ratio limits profile memory --targets 1,8,16,64
	$(BIN)/python benchmarks/inversion.py ratio limits profile --targets 8 --sizes 32,64 --architectures resnet18,vit-b-16
	$(if $(DATA),$(BIN)/python benchmarks/gradients.py speed --models cnn4 --data $(DATA))

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Installed once, and again when the requirements change.
$(STAMP): setup.cfg pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; set PYTHON=python3.12 or similar")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
