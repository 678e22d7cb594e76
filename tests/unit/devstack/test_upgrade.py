# SPDX-License-Identifier: Apache-2.0
"""From nova-compute to an agent, by the Grenade plugins of Ironic and us."""

import pytest


def test_agent_takes_the_place_of_nova_compute(upgraded):
    """nova-compute is stopped for good before the agent starts."""
    agent = upgraded.first('start devstack@ironic-compute-1')
    assert upgraded.last('stop devstack@n-cpu') < agent
    assert upgraded.last('start devstack@n-cpu') < agent
    assert 'n-cpu' not in upgraded.running | upgraded.enabled
    assert 'ironic-compute-1' in upgraded.running & upgraded.enabled


def test_agent_has_the_host_of_nova_compute(upgraded):
    """The agent finds the nodes and servers under the old name."""
    (before, *_) = upgraded.starts('n-cpu')
    (after,) = upgraded.starts('ironic-compute-1')
    assert after['DEFAULT']['host'] == 'ctl'
    for section in ('ironic', 'placement', 'service_user'):
        assert dict(after[section]) == dict(before[section])
    assert upgraded.mapped == {'ctl'}


@pytest.mark.parametrize('service', ['ir-api', 'ir-cond'])
def test_ironic_reads_its_new_options(upgraded, service):
    """Ironic starts again with notifications, before the agent does."""
    options = upgraded.etc('ironic/ironic.conf')['DEFAULT']
    assert options['notification_level'] == 'info'
    restart = upgraded.last(f'restart devstack@{service}')
    assert restart < upgraded.first('start devstack@ironic-compute-1')


def test_grenade_sees_nova_compute_running(upgraded):
    """Ironic's upgrade wants a process with nova-compute in its command."""
    script = upgraded.path / 'ensure'
    script.write_text(
        'source $GRENADE_DIR/grenaderc\nsource $GRENADE_DIR/functions\n'
        'ensure_services_started ironic-conductor nova-compute\n'
    )
    upgraded.run_well(str(script))


def test_next_upgrade_stops_the_agents(upgraded):
    """The old side's agents are stopped before Nova is checked for them."""
    folder = upgraded.stack_dir / 'ironic-compute/devstack/upgrade'
    upgraded.run_well(str(folder / 'shutdown.sh'))
    assert 'ironic-compute-1' not in upgraded.running
