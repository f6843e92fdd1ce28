# Two commands do all the set-up: `make attack` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
STAMP   = $(VENV)/.installed

.PHONY: attack test test-slow test-flower bench gpu docs format lint dist clean

attack: $(STAMP)
	$(BIN)/fedre-attack --protocol fedre --target prototypes

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

test-slow: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m slow

# Clients and server as real processes on Flower, and NVFLARE's simulator; both are installed.
test-flower: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[flower,nvflare]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "slow or not slow" \
		tests/flower/test_processes.py tests/flower/test_capture.py tests/flower/test_refusals.py \
		tests/flower/test_failures.py tests/flower/test_posts.py tests/nvflare/test_capture.py \
		tests/notebooks/test_notebooks.py::test_flower_app \
		tests/notebooks/test_notebooks.py::test_nvflare_job

# Ratios against plain versions, and what bounds them; DATA=FILE.npz adds gradient matching.
bench: $(STAMP)
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/rounds.py
	$(BIN)/python benchmarks/rounds.py --clients 100 --repeats 2 --protocols fedre,fedavg
	$(BIN)/python benchmarks/together.py --architectures cnn4,resnet8,resnet18
	$(BIN)/python benchmarks/inversion.py ratio --targets 1,8,16,64,256
	$(BIN)/python benchmarks/inversion.py ratio --targets 8,64 --sizes 64
	$(BIN)/python benchmarks/inversion.py ratio --targets 8,64 --sizes 32,64 --architectures resnet18
	$(BIN)/python benchmarks/inversion.py ratio --targets 8 --sizes 32,64 --architectures vit-b-16
	$(BIN)/python benchmarks/inversion.py limits profile --sizes 32,64 --architectures cnn4,resnet18,vit-b-16
	$(BIN)/python benchmarks/inversion.py stacking memory
	$(BIN)/python benchmarks/inversion.py decoder --sizes 32,64
	$(if $(DATA),$(BIN)/python benchmarks/gradients.py speed --models cnn4,resnet18 --data $(DATA))

# Every number that needs a GPU, in nine minutes, with the machine's own Python; nothing is installed.
gpu:
	$(PYTHON) benchmarks/gpu.py --minutes 9

# The documentation as a site that works offline: site/index.html.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

# Imports sorted, code laid out as ruff does; `make lint` checks the same.
format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# mypy cannot follow `package_dir`: it gets links laid out as the package is imported.
lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build/types && mkdir -p build/types/fedre_privacy
	ln -s $(CURDIR)/fedre_privacy/* $(CURDIR)/attacks $(CURDIR)/defenses $(CURDIR)/eval build/types/fedre_privacy/
	cd build/types && $(CURDIR)/$(BIN)/python -m mypy --config-file=$(CURDIR)/pyproject.toml --cache-dir=$(CURDIR)/.mypy_cache

# Installed once, and again when the requirements change.
$(STAMP): setup.cfg pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; set PYTHON=python3.12 or similar")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

# Wheel and sdist of the commit, the same bytes whoever builds them.
dist: $(STAMP)
	$(BIN)/python make_dist.py

clean:
	rm -rf build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache
