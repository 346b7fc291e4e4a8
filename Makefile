# The commands of the README. Each creates .venv with the pinned versions first; PYTHON chooses the interpreter,
# TORCH_INDEX an extra package index (https://download.pytorch.org/whl/cpu for torch without CUDA).
PYTHON ?= python3
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.PHONY: compat demo test test-gpu soak soak-modules bench check audit format build clean

# torch first and exactly: a looser request may choose a build that is gigabytes larger.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip setuptools wheel # dependency groups need pip 25.1
	$(PIP) $(INDEX) torch
	$(PIP) $(INDEX) --editable '.[cli,fitting,planning,tensorboard]' --group dev --group docs
	touch $@

demo: $(VENV)/installed
	$(BIN)/python examples/quickstart.py

# Files keep their order, in which the short ones come last, so that no processor waits for another's. Coverage is
# measured where that costs next to nothing: by sys.monitoring, from Python 3.12 on.
COVERAGE = $(shell $(BIN)/python -c "import sys; print('--cov --cov-report=term:skip-covered --cov-fail-under=90' * \
	(sys.version_info >= (3, 12)))")
test: $(VENV)/installed
	COVERAGE_CORE=sysmon $(BIN)/python -m pytest -n logical --dist loadfile --no-loadscope-reorder $(COVERAGE)

test-gpu: $(VENV)/installed
	$(BIN)/python -m pytest -m gpu tests/gpu

# Hours: INPUTS mutated files of each kind, every fault in every function, all ranks. Tables for docs/reliability.md.
INPUTS ?= 100000
soak: $(VENV)/installed
	$(BIN)/python -m tests.soak.ranks
	$(BIN)/python -m tests.soak.faults
	$(BIN)/python -m tests.soak.hostile --inputs $(INPUTS)
	$(BIN)/python -m tests.soak.mutations --sample 200

# Projects of others, beside this torch: none of them brings another one.
soak-modules: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --upgrade --no-deps --target build/soak --requirement tests/soak/requirements.txt
	PYTHONPATH=build/soak $(BIN)/python -m tests.soak.modules

# Recording, workloads and callbacks on the oldest and on the newest torch and Lightning: gigabytes, weekly.
compat:
	.ci/compat low $(PYTHON)
	.ci/compat newest $(PYTHON)

bench: $(VENV)/installed
	$(BIN)/python -m benchmarks.speed.callback_overhead
	$(BIN)/python -m benchmarks.speed.recording_speed
	$(BIN)/python -m benchmarks.speed.recording_speed --large
	$(BIN)/python -m benchmarks.speed.prediction_speed
	$(BIN)/python -m benchmarks.speed.import_time

check: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/docs

# Known vulnerabilities of the pinned versions; says so where nobody can be asked.
audit:
	PYTHON=$(PYTHON) bash .ci/audit

format: $(VENV)/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

build: $(VENV)/installed
	rm -rf build dist
	$(BIN)/python -m build --no-isolation --wheel --outdir dist .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .coverage
