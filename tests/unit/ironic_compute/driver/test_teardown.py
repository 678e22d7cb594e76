# SPDX-License-Identifier: Apache-2.0
"""Destroying servers from every provision state there is."""

import pytest
from nova import exception as nova_exception

from . import fake


def test_destroy_of_nothing_succeeds():
    """A server that Ironic does not know is destroyed."""
    bench = fake.bench(instance_uuid=fake.OTHER, provision_state='active')
    bench.driver.destroy(None, fake.server(), None)
    assert not bench.ironic.calls


def test_destroy_twice_succeeds():
    """Destroying is safe to repeat."""
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state='active')
    bench.driver.destroy(None, fake.server(), None)
    bench.driver.destroy(None, fake.server(), None)
    assert bench.ironic.names() == ['deleted']


def test_locked_node_is_destroyed_later():
    """A lock that goes away delays and does not fail."""
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state='active')
    bench.ironic.locked_count = 3
    bench.driver.destroy(None, fake.server(), None)
    assert bench.ironic.nodes[fake.NODE].instance_uuid is None


def test_node_locked_for_good_fails_the_destroy():
    """A lock that stays ends in an error within the operator's bound."""
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state='active')
    bench.ironic.locked_count = 10_000
    started_s = bench.clock.now_s()
    with pytest.raises(nova_exception.NovaException, match='locked'):
        bench.driver.destroy(None, fake.server(), None)
    assert bench.clock.now_s() - started_s < 600


def test_failed_teardown_says_why():
    """Ironic's words reach the user when the teardown fails."""
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state='active')
    bench.ironic.fails['cleaning'] = 'error'
    with pytest.raises(nova_exception.NovaException, match='it is broken'):
        bench.driver.destroy(None, fake.server(), None)


def test_abandon_leaves_the_node_of_another_alone():
    """Only a node with this server's mark is touched."""
    bench = fake.bench(instance_uuid=fake.OTHER)
    bench.driver.free_node_of(fake.server())
    assert bench.ironic.nodes[fake.NODE].instance_uuid == fake.OTHER
    assert not bench.ironic.calls


def test_abandon_frees_a_reserved_node():
    """VIFs, description and mark of a build that never began go."""
    bench = fake.bench(instance_uuid=fake.SERVER)
    bench.ironic.attached[fake.NODE] = [fake.VIF]
    bench.ironic.infos[fake.NODE] = {'root_gb': '1'}
    bench.driver.free_node_of(fake.server())
    assert bench.ironic.nodes[fake.NODE].instance_uuid is None
    assert bench.ironic.attached[fake.NODE] == []
    assert bench.ironic.infos[fake.NODE] == {}
