# The commands of the README. Each creates .venv with the pinned versions that it needs first; PYTHON chooses the
# interpreter, TORCH_INDEX an extra package index (https://download.pytorch.org/whl/cpu for torch without CUDA).
PYTHON ?= python3
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.PHONY: test-newest test-numbers compat demo docs renew prices configurations pictures results test test-all test-random test-gpu soak soak-modules soak-models bench check audit lock format build clean

# The versions of constraints.txt, each file checked by its hash. Torch is not among them: its CPU builds come from an
# index of its own, which serves other files under the same version. It is asked for exactly, as a looser request may
# choose a build that is gigabytes larger; what it needs beside the lock, the libraries of CUDA, has no hash here.
$(VENV)/installed: pyproject.toml constraints.txt requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes --no-deps --requirement requirements.lock
	$(PIP) --constraint constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	$(PIP) --no-deps --no-build-isolation --editable .
	$(BIN)/python -m pip check
	touch $@

# What runs the examples, and no more: a third of what the checks need.
$(VENV)/runs: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	test -e $(VENV)/installed || { \
		$(PIP) --constraint constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch && \
		$(PIP) --constraint constraints.txt --editable '.[fitting,tensorboard]' scikit-learn; }
	touch $@

# What the quick tests need: a third of what the checks need. Without the other packages, four files of tests are left
# out (tests/conftest.py). CI has all, as it runs `check` first.
$(VENV)/tests: pyproject.toml constraints.txt $(VENV)/runs
	test -e $(VENV)/installed || $(PIP) --constraint constraints.txt \
		--editable '.[cli,planning]' hypothesis pandas pytest pytest-xdist
	touch $@

demo: $(VENV)/runs
	$(BIN)/python examples/quickstart.py

# Files keep their order, in which the short ones come last, so that no processor waits for another's. Bytecode is kept,
# as tests start processes that would compile the package again. `test` leaves out what tests/slow_tests.txt lists, and the checks
# of structure and sentences in tests/house, which belong to `check`.
PYTEST := env -u PYTHONDONTWRITEBYTECODE COVERAGE_CORE=sysmon $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder
test: $(VENV)/tests
	$(PYTEST) -n logical -m "not gpu and not slow" --ignore=tests/house

# Coverage is measured where that costs next to nothing: by sys.monitoring, from Python 3.12 on.
COVERAGE = $(shell $(BIN)/python -c "import sys; print('--cov --cov-report=term:skip-covered --cov-fail-under=90' * \
	(sys.version_info >= (3, 12)))")
test-all: $(VENV)/installed
	$(PYTEST) -n logical $(COVERAGE)

# Files in an order that SEED draws, with PROCESSES of them at a time; TESTS="not gpu and not slow" as `test` chooses.
SEED ?= $(shell date +%G%V)
PROCESSES ?= logical
TESTS ?= not gpu
test-random: $(VENV)/installed
	$(PYTEST) -n $(PROCESSES) --random-files $(SEED) -m "$(TESTS)"

# Installs nothing, so that it runs without a network: the environment if it exists, else the machine's Python with torch.
test-gpu:
	PYTHONPATH=.$${PYTHONPATH:+:$$PYTHONPATH} $(or $(wildcard $(BIN)/python),$(PYTHON)) -m pytest -W default -m gpu tests/gpu

# Hours: INPUTS mutated files of each kind, every fault in every function, all ranks. Tables for docs/reliability.md.
INPUTS ?= 100000
soak: $(VENV)/installed
	$(BIN)/python -m pytest -n logical --hypothesis-profile search
	$(BIN)/python -m tests.soak.ranks
	$(BIN)/python -m tests.soak.faults --sample 5000
	$(BIN)/python -m tests.soak.combined
	$(BIN)/python -m tests.soak.hostile --inputs $(INPUTS)
	$(BIN)/python -m tests.soak.mutations --sample 200
	$(BIN)/python -m tests.soak.surroundings

# Projects of others, beside this torch: none of them brings another one.
soak-modules: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --upgrade --no-deps --target build/soak --requirement tests/soak/requirements.txt
	PYTHONPATH=build/soak $(BIN)/python -m tests.soak.modules

# Models of transformers, timm, torchvision, diffusers and peft on the meta device, beside the newest torch.
soak-models:
	$(PYTHON) -m venv build/soak-models
	build/soak-models/bin/python -m pip install --quiet --upgrade --editable . torch torchvision lightning transformers \
	  peft diffusers timm accelerate torchmetrics sentence-transformers trl bitsandbytes datasets monai kornia einops \
	  torch_geometric open_clip_torch pytorch-metric-learning segmentation-models-pytorch
	build/soak-models/bin/python -m tests.soak.models_on_meta
	build/soak-models/bin/python -m tests.soak.imports_before_recording

# Recording, workloads and callbacks on the oldest and on the newest torch and Lightning: gigabytes, weekly.
compat:
	.ci/compat low $(PYTHON)
	.ci/compat newest $(PYTHON)

# All quick tests with the newest torch, torchvision, transformers, peft, diffusers, timm and Lightning: gigabytes, weekly.
test-newest:
	.ci/compat everything $(PYTHON)

# What depends on numbers, under the BLAS kernels of processors with and without AVX-512.
test-numbers: $(VENV)/installed
	.ci/blas $(BIN)/python

bench: $(VENV)/installed
	$(BIN)/python -m benchmarks.speed.callback_overhead
	$(BIN)/python -m benchmarks.speed.recording_speed
	$(BIN)/python -m benchmarks.speed.recording_speed --deep
	$(BIN)/python -m benchmarks.speed.recording_speed --large
	$(BIN)/python -m benchmarks.speed.prediction_speed
	$(BIN)/python -m benchmarks.speed.import_time

check: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(PYTEST) -n logical -q tests/house
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/docs
	.ci/commits
	.ci/lines

# Known vulnerabilities of the pinned versions; says so where nobody can be asked.
audit:
	PYTHON=$(PYTHON) bash .ci/audit

# After a wanted change of predictions or output, all that shows them: sentinels, golden texts, outputs in the README and
# the pages, pages made of templates, and, where Chromium is, pictures.
renew: $(VENV)/installed
	rm -f tests/*/golden/kept.json
	$(BIN)/python -m pytest -q -n 0 --overwrite-golden tests
	$(BIN)/python -m benchmarks.render_docs
	if command -v "$${CHROMIUM:-chromium}" >/dev/null; then $(BIN)/python -m tests.pictures; \
	else echo "renew: no Chromium, so docs/pictures.json and the pictures are as before"; fi

# Scores the accuracy tables whose data DATA holds, and writes benchmarks/results/*.json: at most 40 minutes on two cores.
# Recorded steps are kept by commit in build/recordings. ONLY="lin,guide" chooses some, also of those that take longer.
DATA ?= ../shared
ONLY ?=
results: $(VENV)/installed
	$(BIN)/python -m benchmarks.runs --data $(DATA) --only "$(ONLY)" --cache "build/recordings/$$(git rev-parse --short HEAD)"

# The pages of docs/templates with the figures of benchmarks/results, and the published cases that the wheel holds.
docs: $(VENV)/installed
	$(BIN)/python -m benchmarks.render_docs

# Before a release: the current prices of all providers, which the package then ships beside offers.toml.
prices: $(VENV)/installed
	LIGHTNING_PREDICT_PRICES=lightning_predict/cost/current.json $(BIN)/lightning-predict offers --refresh

# Before a release: the configurations of the models that ship, from the Hugging Face Hub (HF_TOKEN for gated ones).
configurations: $(VENV)/installed
	$(BIN)/python -m benchmarks.configurations

# The pictures of the documentation, from the examples; needs Chromium.
pictures: $(VENV)/installed
	$(BIN)/python -m tests.pictures

# After a change of constraints.txt: the hashes of all files of these versions, for every platform.
lock:
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip --disable-pip-version-check install --quiet uv
	grep --invert-match '^torch==' constraints.txt | build/lock/bin/uv pip compile - --quiet --no-deps --universal \
		--python-version 3.11.2 --generate-hashes --no-header --no-annotate --output-file requirements.lock

format: $(VENV)/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The files of a release in dist/, built and tested; a tag runs `.ci/release --full`.
build: $(VENV)/installed
	.ci/release

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .coverage
