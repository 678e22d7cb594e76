# SPDX-License-Identifier: Apache-2.0
"""Old bugs of servers on bare metal, by their numbers in Launchpad.

The bugs of ownership and of Placement are in the contract tests of Placement;
1679750, 1833581, 2127017 and 1815791 are in the functional tests.
"""

import pytest
from nova import exception as nova_exception

from ironic_compute import errors
from tests.fakes.ironic import FakeIronic

from . import fake


def test_bug_1766301_node_is_taken_before_its_networks():
    """A build reserves its node first, and sends no VIF to another's node."""
    bench = fake.bench()
    bench.spawn(fake.server())
    names = bench.ironic.names()
    assert names.index('reserve') < names.index('vif_attach')
    bench = fake.bench(instance_uuid=fake.OTHER)
    with pytest.raises(nova_exception.InstanceDeployFailure):
        bench.driver.spawn(
            None,
            fake.server(),
            fake.image(),
            None,
            None,
            {},
            network_info=fake.network(),
        )
    assert not bench.ironic.calls


@pytest.mark.parametrize('state', ['active', 'error', 'available'])
def test_bug_2019977_1815799_locked_node_is_deleted_later(state):
    """A lock delays the delete of a server, also after a failed build."""
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state=state)
    bench.ironic.locked_count = 5
    bench.driver.destroy(None, fake.server(), fake.network())
    assert bench.ironic.nodes[fake.NODE].instance_uuid is None


def test_bug_2127087_bad_image_is_tried_once():
    """Nova tries no other node, because a bad image fails on each."""
    bench = fake.bench()
    bench.ironic.refused['active'] = (
        'The requested image is not valid for use.'
    )
    with pytest.raises(nova_exception.BuildAbortException):
        bench.spawn(fake.server())
    assert bench.ironic.names().count('active') == 1


def test_bug_1777608_start_plugs_nothing():
    """``plug_vifs``, called for each server at a start, sends nothing."""
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state='active')
    bench.ironic.read_node = bench.ironic.list_vifs = (
        None  # A request would fail.
    )
    for _ in range(1000):
        bench.driver.plug_vifs(fake.server(), fake.network())
    assert not bench.ironic.calls


class _SilentIronic(FakeIronic):
    """An Ironic that answers no request."""

    def read_node(self, node):
        raise errors.IronicUnavailable('Ironic did not answer')

    def read_node_of_instance(self, instance_uuid):
        raise errors.IronicUnavailable('Ironic did not answer')


def _without_ironic():
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state='active')
    return fake.on(_SilentIronic(), bench)


def test_bug_1832720_1793556_power_sync_asks_ironic_nothing():
    """The power sync of a thousand servers reads only the node cache."""
    bench = _without_ironic()
    for _ in range(1000):
        assert bench.driver.get_info(fake.server()).state


def test_bug_1793768_1842081_questions_live_without_ironic():
    """During an outage periodic tasks get an answer or VirtDriverNotReady."""
    bench = _without_ironic()
    assert bench.driver.get_available_nodes() == [fake.NODE]
    assert bench.driver.list_instance_uuids() == [fake.SERVER]
    assert bench.driver.node_is_available(fake.NODE)
    for query in (
        lambda: bench.driver.get_info(fake.server(), use_cache=False),
        lambda: bench.driver.instance_exists(fake.server()),
        lambda: bench.driver.is_node_deleted(fake.NODE),
    ):
        with pytest.raises(nova_exception.VirtDriverNotReady):
            query()


def test_sap_965719c525_node_just_deleted_takes_no_build_yet():
    """A node in cleaning takes no build (found at SAP, commit 965719c525)."""
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state='active')
    bench.driver.destroy(None, fake.server(), fake.network())
    bench.ironic.calls.clear()
    other = fake.server(uuid=fake.OTHER)
    with pytest.raises(nova_exception.ComputeResourcesUnavailable):
        bench.driver.prepare_for_spawn(other)
    assert not bench.ironic.calls
    bench.ironic.change(fake.NODE, provision_state='available')
    bench.driver.prepare_for_spawn(other)
