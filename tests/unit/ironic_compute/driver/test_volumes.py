# SPDX-License-Identifier: Apache-2.0
"""Volume targets and volume connectors of nodes."""

import pytest
from nova import exception as nova_exception

from . import fake


def _from_volume():
    """Return the arguments of a spawn from a root volume."""
    return {'block_device_info': {'block_device_mapping': [fake.Volume()]}}


def test_root_volume_becomes_a_target_until_the_destroy():
    """A server with a root volume has a target and no image."""
    bench = fake.bench()
    bench.spawn(fake.server(), **_from_volume())
    assert 'image_source' not in bench.ironic.infos[fake.NODE]
    (target,) = bench.ironic.targets.values()
    assert (target['volume_id'], target['boot_index']) == (fake.OTHER, 0)
    bench.driver.destroy(None, fake.server(), fake.network())
    assert not bench.ironic.targets


@pytest.mark.parametrize('request_name', ['vif_attach', 'active'])
def test_target_of_a_failed_build_is_deleted(request_name):
    """A build that fails deletes its volume target and frees the node."""
    bench = fake.bench()
    bench.ironic.refused[request_name] = 'no'
    with pytest.raises(nova_exception.InstanceDeployFailure):
        bench.spawn(fake.server(), **_from_volume())
    assert not bench.ironic.targets
    assert bench.is_free()


def test_target_left_on_the_node_is_deleted_by_the_next_build():
    """A build deletes the target of an earlier server.

    A crash may have left it, and Ironic would boot from it.
    """
    bench = fake.bench()
    bench.ironic.create_volume_target(fake.NODE, volume_id='old', boot_index=0)
    bench.spawn(fake.server())
    assert not bench.ironic.targets


def test_connector_has_the_properties_of_the_node():
    """The connector properties are those of the node's volume connectors."""
    bench = fake.bench(properties={'cpu_arch': 'x86_64'})
    bench.ironic.connectors = [
        {'type': 'iqn', 'connector_id': 'iqn.one'},
        {'type': 'ip', 'connector_id': '192.0.2.7'},
        {'type': 'wwpn', 'connector_id': 'w1'},
    ]
    assert bench.driver.get_volume_connector(fake.server()) == {
        'host': '192.0.2.7',
        'ip': '192.0.2.7',
        'initiator': 'iqn.one',
        'wwpns': ['w1'],
        'platform': 'x86_64',
        'os_type': 'baremetal',
        'multipath': False,
    }
