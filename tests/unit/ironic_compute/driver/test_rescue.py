# SPDX-License-Identifier: Apache-2.0
"""Rescue and unrescue of servers."""

import pytest
from nova import exception as nova_exception

from . import fake


def test_rescue_and_unrescue():
    """A server enters the state rescue and then is active again."""
    bench = fake.bench_with_server()
    bench.driver.rescue(None, fake.server(), None, None, 'pw', None, None)
    assert bench.ironic.nodes[fake.NODE].provision_state == 'rescue'
    bench.driver.unrescue(None, fake.server())
    assert bench.ironic.nodes[fake.NODE].provision_state == 'active'


def test_failed_rescue_raises_the_error_of_ironic():
    """The user reads Ironic's error if a rescue fails."""
    bench = fake.bench_with_server()
    bench.ironic.fails['rescue'] = 'rescue failed'
    with pytest.raises(nova_exception.InstanceRescueFailure, match='broken'):
        bench.driver.rescue(None, fake.server(), None, None, 'pw', None, None)


@pytest.mark.parametrize(
    ('interface', 'can_rescue'),
    [('agent', True), ('no-rescue', False), (None, False)],
)
def test_rescue_needs_a_rescue_interface(interface, can_rescue):
    """``why_no_rescue`` has a reason for a node without such an interface."""
    bench = fake.bench_with_server()
    bench.ironic.rescue_interface = interface
    reason = bench.driver.why_no_rescue(fake.server())
    assert (reason is None) == can_rescue
