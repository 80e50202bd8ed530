# `make run` and `make test` set everything up by themselves: Python >= 3.11 with pip is all they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
COMMA := ,
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# what starts many processes compiles our modules once
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-all lint benchmark fuzz docs pictures notebooks clean

run: $(VENV)/run.done
	$(BIN)/clustersim run zhores_resnet50_ddp
	$(BIN)/clustersim plot runs/zhores_resnet50_ddp links
	$(BIN)/clustersim plot runs/zhores_resnet50_ddp breakdown

# lint, types, notebooks, tests. $(1): options of pytest, $(2): notebooks, $(3): further targets. Tests that time real
# processes mostly wait: what only computes runs beside them and gives way. A target's output comes in one piece, but
# that of `computed` as it is written, since it takes longest.
define suite
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(MAKE) -j5 $(if $(filter output-sync,$(.FEATURES)),--output-sync) timed computed types executed $(3) OPTIONS="$(1)" EXECUTED="$(2)"
endef

.PHONY: timed types compiled executed computed

GIVING_WAY := nice -n 19

# modules with examples in docstrings; in the others pytest would look for some, and import them in every process
EXAMPLES = $$(grep -RlF ">>> " --include="*.py" clustersim)

timed:
	$(BIN)/pytest $(OPTIONS) -m "testbed or cluster" $$(grep -rlE "mark\.(testbed|cluster)\b" --include="test_*.py" tests)

computed: compiled
	+$(GIVING_WAY) $(BIN)/pytest $(OPTIONS) -n 2 --dist loadfile -m "not testbed and not cluster" tests $(EXAMPLES)

types:
	$(GIVING_WAY) $(BIN)/mypy

# what numba compiles is compiled once, and not by every process of the tests
compiled:
	$(GIVING_WAY) $(BIN)/clustersim run gpt_offload_one_a100 --json --set simulation.engine=compiled > /dev/null

executed: compiled
	PATH="$(CURDIR)/$(BIN):$$PATH" $(GIVING_WAY) $(BIN)/pytest -n 2 --nbmake $(EXECUTED)

# some minutes: a sample of the whole sweeps
test: $(VENV)/test.done
	$(call suite,--short,notebooks/01_first_timeline.ipynb notebooks/03_pipelines.ipynb)

# everything, and the site
test-all: $(VENV)/test.done $(VENV)/docs.done
	$(call suite,,notebooks,docs)

lint: $(VENV)/test.done
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/mypy

benchmark: $(VENV)/test.done
	$(BIN)/python -m tests.benchmarks

# generated scenarios and damaged files for a night; `make fuzz FUZZ="files --seed 7 --count 500"` some of them
FUZZ ?= --seed $(shell date +%Y%m%d) --count 10000
fuzz: $(VENV)/test.done
	$(BIN)/python -m tests.fuzz $(FUZZ)

# warnings are errors; nothing is fetched once the packages are there
docs: $(VENV)/docs.done
	$(GIVING_WAY) $(BIN)/sphinx-build -W --keep-going -q -b html docs build/docs
	@echo "wrote build/docs/index.html"

# all pictures in docs/, and ACCURACY.md: some minutes; `make pictures PICTURES="timeline links"` draws only these
pictures: $(VENV)/test.done
	$(BIN)/python docs/pictures.py $(PICTURES)

# executes all notebooks and stores them with their outputs; `make notebooks NOTEBOOKS="01 07"` only these
notebooks: $(VENV)/test.done
	$(BIN)/python docs/notebooks.py $(NOTEBOOKS)

# installs $(1) unless it was installed with these very files; a stamp has their checksums
define install
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	cksum $^ | cmp -s - $@ || $(PIP) install -c constraints.txt -e "$(1)"
	cksum $^ | tee $@ $(2) > /dev/null
endef

$(VENV)/run.done: pyproject.toml constraints.txt
	$(call install,.)

$(VENV)/test.done: pyproject.toml constraints.txt
	$(call install,.[test$(COMMA)torch],$(VENV)/run.done)

$(VENV)/docs.done: pyproject.toml constraints.txt
	$(call install,.[docs],$(VENV)/run.done)

clean:
	rm -rf $(VENV) runs build docs/generated .mypy_cache .pytest_cache .ruff_cache .hypothesis
