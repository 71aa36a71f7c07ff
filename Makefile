# Two commands matter: make demo, make test. Each works from a bare checkout.
.PHONY: help demo test test-pythons venv lint format docs bench gpu-wheels null-gpu campaign campaign-gpu campaign-faults campaign-hangs campaign-causes audit lab-tools clean always

py := .venv/bin/python
tests ?= tests
long ?= none# of the tests marked long; all, or K/N
workers ?= 4# most tests wait for processes and networks; four share two cores without minding
export OMP_NUM_THREADS ?= 1

help:
	@echo "make demo      two loopback nodes, a real training run, its videos and their score"
	@echo "make test      lint and tests (long=all: also those over a fifth of a CPU second)"
	@echo "make test-pythons  all tests on one other Python, part of them on the rest"
	@echo "make venv      only .venv (PYTHON=python3.12, LOCK=cpu|cuda|cuda12)"
	@echo "make lint      ruff, mypy, import-linter, tests/lint.py"
	@echo "make docs      the documents as a static site in site/"
	@echo "make bench     benchmarks against the named peers"
	@echo "make campaign  slow tests: fault and Ctrl-C campaigns"
	@echo "make campaign-faults  faults in real runs on lab nodes, as a table (root)"
	@echo "make campaign-hangs  hangs of standard training programs, and what dump-stacks says (root)"
	@echo "make campaign-causes  crashes and hangs with known causes, and healthy jobs: what is said of them (root)"
	@echo "make campaign-gpu  training on a GPU that computes nothing: launches, memory, waits (6 GB of CUDA torch)"
	@echo "make gpu-wheels  build/wheels: what tests.gpu needs on a machine without a network"
	@echo "make audit     known vulnerabilities of the locked versions"
	@echo "make lab-tools Debian packages for tests that make real nodes (root)"

# Asked for by name, the interpreter of .venv is looked at even where nothing is new.
.venv/.complete: requirements/lock-cpu.txt requirements/lock-cuda.txt requirements/lock-cuda12.txt requirements/lock-sources.txt setup.cfg $(if $(PYTHON)$(LOCK),always)
	@requirements/venv.sh

venv: .venv/.complete

demo: venv
	@.venv/bin/clusterctl demo $(args)

lint: venv
	$(py) -m ruff check .
	$(py) -m ruff format --check .
	$(py) -m mypy -n 2
	.venv/bin/lint-imports
	$(py) -m tests.lint

format: venv
	$(py) -m ruff check --fix .
	$(py) -m ruff format .

# Real processes on a busy machine can miss a deadline: what failed beside other tests runs once more,
# alone, and both results stand in the output. Wrong code fails twice.
# No worker is replaced: behind one that has crashed pytest-xdist waits for ever in this order of tests.
# Bytecode is kept whatever the environment says: each worker loads all tests, in 9 CPU s instead of 17.
test: export PYTHONDONTWRITEBYTECODE =
test: lint
	$(py) -m pytest -n $(workers) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 --long $(long) $(tests) || { [ $$? = 1 ] && \
	  echo "failed beside other tests; once more, alone:" && \
	  $(py) -m pytest --last-failed --last-failed-no-failures none --maxfail 6 $(tests); }

docs: venv
	NO_MKDOCS_2_WARNING=1 $(py) -m mkdocs build --strict --quiet
	@echo "site/index.html; with its search: python3 -m http.server -d site 8000"

test-pythons: venv
	@$(py) -m tests.pythons $(args)

audit: venv
	@requirements/audit.sh

lab-tools:
	@tests/lab/install.sh

# Each also alone: make bench-save. Exit code 3: something is missing here, and the program names it.
# save and followed come last: where a limit is not met they fail, and what follows would not run.
benches := fanout supervise why payloads preflight ras sampler tables decoder features model top demo serve save followed
.PHONY: $(benches:%=bench-%)
bench: $(benches:%=bench-%)
$(benches:%=bench-%): bench-%: venv
	$(py) -m tests.bench.$* $(args) || [ $$? = 3 ]

gpu-wheels: venv
	@requirements/wheels.sh build/wheels

campaign: venv
	$(py) -m pytest $(tests) -m slow --timeout 3600 --hypothesis-profile campaign

# args="--faults F1,F7 --rounds 5", args="--faults none --random 50 --seed 7"
campaign-faults: venv
	$(py) -m tests.faults $(args)

# args="--programs ddp,fsdp2 --rounds 3"; frameworks that no other test needs are in .venv-hangs
campaign-hangs: venv
	test -x .venv-hangs/bin/python || $(py) -m venv .venv-hangs
	$(py) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$(echo .venv-hangs/lib/python*/site-packages)/base.pth
	.venv-hangs/bin/pip install -q lightning deepspeed
	PATH="$(CURDIR)/.venv-hangs/bin:$(CURDIR)/.venv/bin:$$PATH" .venv-hangs/bin/python -m tests.hangs $(args)

# args="--groups crashes,hangs,well --seed 7"
campaign-causes: venv
	PATH="$(CURDIR)/.venv/bin:$$PATH" $(py) -m tests.causes $(args)

null-gpu: venv
	@PYTHON=$(or $(PYTHON),.venv/bin/python) LOCK=cuda VENV=build/null-gpu/venv requirements/venv.sh
	@$(py) -m tests.gpu.null.build --python build/null-gpu/venv/bin/python --into build/null-gpu

campaign-gpu: null-gpu
	$(py) -m pytest -m slow -n 2 --dist worksteal --durations 20 tests/gpu/null

clean:
	rm -rf .venv .venv-hangs .pythons build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
