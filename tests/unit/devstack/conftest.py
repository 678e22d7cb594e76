# SPDX-License-Identifier: Apache-2.0
"""Machines on which DevStack has run; several tests look at each of them."""

import pytest

from tests.unit.devstack import world as worlds


@pytest.fixture
def new_world(tmp_path):
    """A machine on which nothing has run."""
    return _world(tmp_path)


@pytest.fixture(scope='package')
def stacked(tmp_path_factory):
    """A controller with one agent, after stack.sh."""
    world = _world(tmp_path_factory.mktemp('one'))
    world.configure(
        rest='[[post-config|$NOVA_CPU_CONF]]\n[DEFAULT]\nsync_power = 7\n'
        '[[post-config|$IRONIC_COMPUTE_CONF]]\n[ironic_compute]\n'
        'settle_s = 9\n'
    )
    world.run_well('stack')
    return world


@pytest.fixture(scope='package')
def stacked_three(tmp_path_factory):
    """A controller with three agents, after stack.sh."""
    world = _world(tmp_path_factory.mktemp('three'))
    world.configure(
        {'IRONIC_COMPUTE_AGENTS': 3},
        lines=['SYSTEMD_ENV_VARS["n-cpu"]=OS_ANY=1'],
    )
    world.run_well('stack')
    return world


@pytest.fixture(scope='package')
def stock(tmp_path_factory):
    """A controller with nova-compute, after stack.sh with our plugin off."""
    world = _world(tmp_path_factory.mktemp('stock'))
    world.configure(
        # As the Grenade job of Ironic has it.
        {'CELLSV2_SETUP': 'singleconductor'},
        lines=[
            'enable_service ir-api ir-cond',
            'disable_service ironic-compute',
        ],
    )
    world.run_well('stack')
    return world


@pytest.fixture(scope='package')
def upgraded(stock):
    """The same controller after Grenade has upgraded Ironic and us."""
    for plugin in ('ironic', 'ironic-compute'):
        folder = stock.stack_dir / plugin / 'devstack/upgrade'
        stock.run_well(str(folder / 'shutdown.sh'))
    for plugin in ('ironic', 'ironic-compute'):
        folder = stock.stack_dir / plugin / 'devstack/upgrade'
        stock.run_well(str(folder / 'upgrade.sh'))
    return stock


def _world(path):
    if not worlds.HAS_REFERENCE:
        pytest.skip(worlds.WHY_SKIPPED)
    return worlds.World(path)
