# SPDX-License-Identifier: Apache-2.0
"""Rescue and unrescue of servers."""

import pytest
from nova import exception as nova_exception

from . import fake


def _bench(**fields):
    """Return a driver whose node is active and has the server."""
    fields = {
        'instance_uuid': fake.SERVER,
        'provision_state': 'active',
        **fields,
    }
    return fake.bench(**fields)


def test_rescue_and_unrescue():
    """A server enters the state rescue and then is active again."""
    bench = _bench()
    bench.driver.rescue(None, fake.server(), None, None, 'pw', None, None)
    assert bench.ironic.nodes[fake.NODE].provision_state == 'rescue'
    bench.driver.unrescue(None, fake.server())
    assert bench.ironic.nodes[fake.NODE].provision_state == 'active'


def test_failed_rescue_raises_the_error_of_ironic():
    """The user reads Ironic's error if a rescue fails."""
    bench = _bench()
    bench.ironic.fails['rescue'] = 'rescue failed'
    with pytest.raises(nova_exception.InstanceRescueFailure, match='broken'):
        bench.driver.rescue(None, fake.server(), None, None, 'pw', None, None)


@pytest.mark.parametrize(
    ('interface', 'can_rescue'),
    [('agent', True), ('no-rescue', False), (None, False)],
)
def test_rescue_needs_a_rescue_interface(interface, can_rescue):
    """A node without a rescue interface gives the reason for the refusal."""
    bench = _bench()
    bench.ironic.rescue_interface = interface
    reason = bench.driver.why_no_rescue(fake.server())
    assert (reason is None) == can_rescue
