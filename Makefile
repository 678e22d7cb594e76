# SPDX-License-Identifier: Apache-2.0
# A thin face over tox and devstack/cloud; both do their own set-up.

PYTHON ?= python3
TOX = .venv/bin/tox

.PHONY: help demo test lint bench simulation chaos tempest

help:
	@echo 'make demo   see it work: a real bare metal cloud on this machine'
	@echo 'make test   all tests, under Nova 34 and 33, threads and eventlet'
	@echo 'make simulation   2,000 new lives of an invented cloud, on two cores'
	@echo 'make lint   form, types, layers'
	@echo 'make chaos  faults on that cloud under load: an hour or two'
	@echo 'make tempest   the tests of OpenStack itself, in a real cloud'
	@echo 'make bench  what it costs beside stock nova-compute: hours'

demo:
	devstack/cloud demo $(DEMO_ARGS)

test: $(TOX)
	$(TOX) run -q

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

$(TOX):
	devstack/tools/ensure-venv $(PYTHON) .venv
	.venv/bin/python -m pip install -q 'tox>=4'
