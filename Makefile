# Two commands do all the set-up, each for itself: `make attack` and `make test`. With TORCH=cpu they
# install PyTorch's build for CPUs, which is far smaller.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
STAMP   = $(VENV)/.installed
TESTS   = $(VENV)/.installed-test

TORCH       ?=
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
ifneq ($(filter-out cpu,$(TORCH)),)
$(error TORCH=$(TORCH): the only choice is TORCH=cpu; leave it out for the usual build)
endif

# Tests start hundreds of processes, and each would compile the package anew.
test test-slow test-flower test-extras test-ray: export PYTHONDONTWRITEBYTECODE =

.PHONY: attack test test-slow test-flower test-extras test-ray bench gpu docs format lint dist clean

attack: $(STAMP)
	$(BIN)/fedre-attack --protocol fedre --target prototypes

test: $(TESTS)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: $(TESTS)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m slow

# Clients and server as real processes on Flower, and NVFLARE's simulator; both are installed.
test-flower: $(TESTS)
	$(BIN)/python -m pip install --quiet --editable '.[flower,nvflare]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "slow or not slow" \
		tests/flower/test_processes.py tests/flower/test_capture.py tests/flower/test_refusals.py \
		tests/flower/test_failures.py tests/flower/test_posts.py tests/nvflare/test_capture.py \
		tests/notebooks/test_notebooks.py::test_flower_app \
		tests/notebooks/test_notebooks.py::test_nvflare_job \
		tests/notebooks/test_how_to_pages.py::test_a_flower_app_is_attacked_as_shown

# Trackers, data sets of `datasets` and backbones with the real libraries; they are installed.
test-extras: $(TESTS)
	$(BIN)/python -m pip install --quiet --editable '.[tensorboard,mlflow,wandb,hf,backbones]' timm
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "slow or not slow" \
		tests/loggers tests/data/test_huggingface.py tests/models/test_adapters.py \
		tests/models/test_frozen_backbone.py tests/experiments/test_public_backbones.py

# Benchmarks on Ray clusters of two nodes, and Flower's simulation, which runs on Ray; both are installed.
# A process joins one cluster.
RAY_TESTS = tests/experiments/test_machines.py::test_jobs_take_parts_of_gpus_that_the_head_has_not \
	tests/experiments/test_machines.py::test_what_cannot_be_had_is_refused_before_anything_is_written \
	tests/experiments/test_sweep.py::test_ray_does_the_same_jobs \
	tests/experiments/test_cluster.py tests/flower/test_simulation.py

test-ray: $(TESTS)
	$(BIN)/python -m pip install --quiet --editable '.[flower,ray]'
	for tests in $(RAY_TESTS); do \
		OMP_NUM_THREADS=1 RAY_AUTH_MODE=disabled $(BIN)/python -m pytest -p no:xdist \
			-m "slow or not slow" $$tests || exit 1; \
	done

# Ratios against plain versions, and what bounds them; DATA=FILE.npz adds gradient matching.
bench: $(STAMP)
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/rounds.py
	$(BIN)/python benchmarks/rounds.py --clients 100 --repeats 2 --protocols fedre,fedavg
	$(BIN)/python benchmarks/captured.py --architectures cnn4,resnet18,het10
	$(BIN)/python benchmarks/waits.py
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
docs: $(TESTS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

# Imports sorted, code laid out as ruff does; `make lint` checks the same.
format: $(TESTS)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# mypy cannot follow `package_dir`: it gets links laid out as the package is imported.
lint: $(TESTS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build/types && mkdir -p build/types/fedre_privacy
	ln -s $(CURDIR)/fedre_privacy/* $(CURDIR)/attacks $(CURDIR)/defenses $(CURDIR)/eval build/types/fedre_privacy/
	cd build/types && $(CURDIR)/$(BIN)/python -m mypy --config-file=$(CURDIR)/pyproject.toml --cache-dir=$(CURDIR)/.mypy_cache

# Installed once, and again when the requirements change: what an attack needs, and what tests need.
$(STAMP): setup.cfg pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; set PYTHON=python3.12 or similar")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(if $(TORCH),$(BIN)/python -m pip install --quiet torch torchvision --index-url $(TORCH_INDEX))
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(TESTS): $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

# Wheel and sdist of the commit, the same bytes whoever builds them.
dist: $(TESTS)
	$(BIN)/python make_dist.py

clean:
	rm -rf build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache
