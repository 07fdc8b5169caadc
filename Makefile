# Every target is a thin call of the `artifact` program (see README.md). Paths may hold spaces.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.DEFAULT_GOAL := help

PROFILE ?= auto
ENGINE ?= auto
DEVICE ?= auto
NAME ?=
RESUME ?=
ISA ?=
PRECISION ?=
COMPLETE ?=
FROM ?= measured
MODEL ?= resnet18
INPUT ?= 1x3x224x224
FIRST ?= xla
SECOND ?= inductor-fold
REF ?=
OUT ?=
STRICT ?=
PROPOSE ?=
export DOCKER

here := $(CURDIR)
host := $(here)/.host
artifact := "$(host)/bin/python" -m artifact
protocol := $(if $(ISA),--isa "$(ISA)") $(if $(PRECISION),--precision "$(PRECISION)")
run_options := --profile "$(PROFILE)" --engine "$(ENGINE)" --device "$(DEVICE)" \
  $(if $(NAME),--name "$(NAME)") $(if $(RESUME),--resume) $(protocol)

figures := fig1 fig2 fig3 fig4 fig5 fig6 fig7
tables := tab1 tab2 tab3 tab4 tab5 tab6 tab7 tab9
draw_options := --from "$(FROM)" --profile "$(PROFILE)" --engine "$(ENGINE)" --device "$(DEVICE)" \
  $(if $(NAME),--name "$(NAME)") $(if $(REF),--reference "$(REF)") $(if $(OUT),--out "$(OUT)")

.PHONY: help setup setup-dev build reproduce smoke test test-fast lint bench lock doctor check \
  crossover clean drill $(figures) $(tables)

help: ## this text
	@grep -hE '^[a-z].*## ' "$(here)/Makefile" | sed -E 's/:.*## /\t/' | expand -t 14
	@echo "figures: $(figures)   tables: $(tables)"
	@echo "variables: PROFILE=smoke|cpu|folds|paper|cpu-paper ENGINE=docker|process NAME=... RESUME=1 ISA=avx2|native PRECISION=fp32|tf32 FROM=measured|reference|published"

setup: ## make the host environment (.host) from its hash-locked requirements
	@cd "$(here)" && ./docker/host/setup.sh run

setup-dev: ## the same with the test tools
	@cd "$(here)" && ./docker/host/setup.sh dev

build: setup ## build the images that are missing (or the venvs, ENGINE=process)
	@cd "$(here)" && $(artifact) build --engine "$(ENGINE)" --device "$(DEVICE)"

reproduce: setup ## measure the profile, then summarise and judge
	@cd "$(here)" && $(artifact) reproduce $(run_options)

smoke: setup ## kick the tires: every stack on small inputs, about ten minutes
	@cd "$(here)" && $(artifact) reproduce --profile smoke --engine "$(ENGINE)" --device cpu \
	  --name "$(or $(NAME),smoke)" $(if $(RESUME),--resume) $(protocol)

test: setup-dev ## every test this machine can run; says what it skipped and why (COMPLETE=1: that fails)
	@cd "$(here)" && "$(host)/bin/python" tests/run_everything.py $(if $(COMPLETE),--complete)

drill: setup-dev ## failure drills in real containers: kills, full disk, an engine that stops
	@cd "$(here)" && "$(host)/bin/python" -m pytest -q -m docker tests/docker/test_drills.py

test-fast: setup-dev ## host tests only: seconds, no Docker, no framework
	@cd "$(here)" && "$(host)/bin/python" -m pytest -q -m "not torch and not jax and not tvm and not docker"

lint: setup-dev ## ruff, format, mypy
	@cd "$(here)" && "$(host)/bin/ruff" check . && "$(host)/bin/ruff" format --check . && "$(host)/bin/mypy"

# One figure or table measures as its profile says: an ISA that was not heard would be a lie.
$(figures) $(tables): only_profile = $(if $(strip $(protocol)),$(error ISA and PRECISION are for \
  reproduce and smoke: measure there, then draw with NAME=))

$(figures): setup
	@$(only_profile)cd "$(here)" && $(artifact) figure $@ $(draw_options)

$(tables): setup
	@$(only_profile)cd "$(here)" && $(artifact) table $@ $(draw_options)

check: setup ## judge the claims on a campaign (NAME=..., STRICT=1, REF=folder, PROPOSE=1)
	@cd "$(here)" && $(artifact) check $(if $(NAME),--name "$(NAME)") $(if $(STRICT),--strict) \
	  $(if $(REF),--reference "$(REF)") $(if $(PROPOSE),--propose)

bench: setup ## the speed table of the documents
	@cd "$(here)" && $(artifact) bench

lock: setup-dev ## regenerate every hash-locked requirements file
	@cd "$(here)" && ./docker/lock.sh

crossover: setup ## look where two configurations cross (MODEL= INPUT= FIRST= SECOND=)
	@cd "$(here)" && $(artifact) crossover --model "$(MODEL)" --input "$(INPUT)" \
	  --first "$(FIRST)" --second "$(SECOND)" --profile "$(PROFILE)" --engine "$(ENGINE)" \
	  $(if $(NAME),--name "$(NAME)") $(if $(RESUME),--resume)

doctor: setup ## what this machine can do, and what to mend
	@cd "$(here)" && $(artifact) doctor

clean: setup ## remove our own stray containers and temporary files; results stay
	@cd "$(here)" && $(artifact) clean
