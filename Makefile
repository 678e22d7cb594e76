# SPDX-License-Identifier: Apache-2.0
# A thin face over tox and devstack/cloud; both do their own set-up.

PYTHON ?= python3
TOX = .venv/bin/tox

# An environment that tox makes. With uv that takes seconds; where uv cannot
# install it, for instance behind a proxy that only pip knows, pip does.
define environment
$(TOX) run -q --notest -e $(1) || { \
	.venv/bin/python -m pip uninstall -q -y tox-uv tox-uv-bare && \
	$(TOX) run -q --notest -e $(1); }
endef

.PHONY: help demo test test-rest test-all lint bench simulation mutation chaos \
	tempest

help:
	@echo 'make demo   see it work: a real bare metal cloud on this machine'
	@echo 'make test   the tests that every change must pass: some minutes'
	@echo 'make test-all   all tests, on Nova 34 and 33, threads and eventlet'
	@echo 'make test-rest   the tests that make test leaves out'
	@echo 'make simulation   2,000 new lives of an invented cloud, on two cores'
	@echo 'make mutation   do the tests detect small mistakes? an hour or two'
	@echo 'make lint   form, types, layers'
	@echo 'make chaos  faults on that cloud under load: an hour or two'
	@echo 'make tempest   the tests of OpenStack itself, in a real cloud'
	@echo 'make bench  what it costs beside stock nova-compute: an hour'

demo:
	devstack/cloud demo $(DEMO_ARGS)

test: $(TOX)
	$(call environment,check)
	$(TOX) run -q -e check -- fast

test-all: test test-rest
	$(TOX) run -q -e check-nova33 -- nova33rest

# What `make test` leaves out, but for the functional tests of Nova 33 that
# hardly differ from those of Nova 34.
test-rest: $(TOX)
	$(call environment,check)
	$(TOX) run -q -e check -- rest
	$(call environment,check-nova33)
	$(TOX) run -q -e check-nova33

lint: $(TOX)
	$(TOX) run -q -e pep8

chaos:
	devstack/cloud chaos $(CHAOS_ARGS)

bench: $(TOX)
	$(TOX) run -e bench -- $(BENCH_ARGS)

tempest:
	devstack/cloud tempest $(TEMPEST_ARGS)

simulation: $(TOX)
	$(TOX) run -q -e simulation

mutation: $(TOX)
	$(TOX) run -q -e mutation -- $(MUTATION_ARGS)

$(TOX):
	devstack/tools/ensure-venv $(PYTHON) .venv
	.venv/bin/python -m pip install -q 'tox>=4' tox-uv
