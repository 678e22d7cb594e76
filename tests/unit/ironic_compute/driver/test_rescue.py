# SPDX-License-Identifier: Apache-2.0
"""Rescue and unrescue of servers."""

import pytest
from nova import exception as nova_exception

from ironic_compute import errors

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


def _bench_at_work(state, end):
    """Return a driver whose Ironic rescues or unrescues the node already."""
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state=state)
    bench.ironic.ends[fake.NODE] = end
    read = bench.ironic.read_node

    def read_and_end(node):
        facts = read(node)
        bench.ironic.settle(node)
        bench.node_cache.update_facts(bench.ironic.nodes[node])
        return facts

    bench.ironic.read_node = read_and_end
    return bench


@pytest.mark.parametrize('state', ['rescuing', 'rescue wait'])
def test_rescue_that_an_earlier_worker_has_requested_goes_on(state):
    """Ironic refuses a second request while it rescues a node."""
    bench = _bench_at_work(state, 'rescue')
    assert bench.driver.is_rescue_begun(fake.server())
    bench.driver.rescue(None, fake.server(), None, None, 'pw', None, None)
    assert bench.ironic.nodes[fake.NODE].provision_state == 'rescue'
    assert bench.ironic.names() == []


def test_unrescue_that_an_earlier_worker_has_requested_goes_on():
    """The server would end in ERROR although its system boots."""
    bench = _bench_at_work('unrescuing', 'active')
    bench.driver.unrescue(None, fake.server())
    assert bench.ironic.names() == []


@pytest.mark.parametrize('state', ['active', 'rescue'])
@pytest.mark.parametrize('is_done', [True, False])
def test_request_without_an_answer_is_sent_again_if_it_was_not_done(
    state, is_done
):
    """A load balancer in front of Ironic answers 502, for instance."""
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state=state)
    send, failures = bench.ironic.set_provision_state, [None]

    def fail_once(*args, **kwargs):
        if failures:
            failures.pop()
            if is_done:
                send(*args, **kwargs)
            raise errors.IronicUnavailable('bad gateway', 502)
        send(*args, **kwargs)

    bench.ironic.set_provision_state = fail_once
    if state == 'active':
        bench.driver.rescue(None, fake.server(), None, None, 'pw', None, None)
    else:
        bench.driver.unrescue(None, fake.server())
    assert len(bench.ironic.calls) == 1
