# SPDX-License-Identifier: Apache-2.0
"""Building servers: what ends well, and what every failure leaves behind."""

import pytest
from nova import exception as nova_exception
from nova import objects

from ironic_compute import errors

from . import fake


def _is_free(bench: fake.Bench) -> bool:
    """Say whether nothing of the server is left on the node."""
    ironic = bench.ironic
    return (
        ironic.nodes[fake.NODE].instance_uuid is None
        and not ironic.infos[fake.NODE]
        and not ironic.attached[fake.NODE]
    )


def test_build_ends_active():
    """A build reserves, describes, attaches, deploys and waits."""
    bench = fake.bench()
    bench.spawn(fake.server())
    assert bench.ironic.nodes[fake.NODE].provision_state == 'active'
    assert bench.ironic.attached[fake.NODE] == [fake.VIF]
    assert bench.ironic.names() == [
        'reserve',
        'patch',
        'vif_attach',
        'active',
    ]


def test_node_that_is_gone_is_read_by_the_feed():
    """Or the next build comes to it as well."""
    bench = fake.bench()
    poked = []

    class _Feed(fake.FakeFeed):
        def poke(self, node):
            poked.append(node)

    feed = _Feed(bench.ironic, bench.node_cache)
    bench.driver.set_up(bench.ironic, bench.node_cache, feed, bench.clock)
    bench.ironic.nodes.clear()
    with pytest.raises(nova_exception.ComputeResourcesUnavailable):
        bench.spawn(fake.server())
    assert set(poked) == {fake.NODE}


def test_instance_info_says_what_was_ordered():
    """Ironic learns image, sizes, people, capabilities and traits."""
    bench = fake.bench(properties={'local_gb': 100})
    bench.spawn(fake.server())
    info = bench.ironic.infos[fake.NODE]
    assert info['image_source'] == 'img'
    assert info['root_gb'] == '20'
    assert info['local_gb'] == '100'
    assert info['nova_host_id'] == 'bm-1'
    assert info['traits'] == ['CUSTOM_FAST']
    assert info['capabilities'] == '{"boot_mode": "uefi"}'


def test_failed_deploy_says_why_and_frees_the_node():
    """A deploy that fails is tried elsewhere, with Ironic's own words."""
    bench = fake.bench()
    bench.ironic.fails['active'] = 'deploy failed'
    with pytest.raises(
        nova_exception.InstanceDeployFailure, match='it is broken'
    ):
        bench.spawn(fake.server())
    assert _is_free(bench)
    assert bench.ironic.nodes[fake.NODE].provision_state == 'cleaning'


@pytest.mark.parametrize('request_name', ['patch', 'vif_attach', 'active'])
def test_refused_step_frees_the_node(request_name):
    """Whatever Ironic refuses, what was done before is undone."""
    bench = fake.bench()
    bench.ironic.refused[request_name] = 'no'
    with pytest.raises(nova_exception.InstanceDeployFailure):
        bench.spawn(fake.server())
    bench.ironic.refused.clear()
    if request_name == 'patch':  # which clearing needs as well
        bench.driver.destroy(None, fake.server(), None)
    assert _is_free(bench)


def test_invalid_image_is_tried_nowhere_else():
    """It is as bad on any other node, and the build ends."""
    bench = fake.bench()
    bench.ironic.invalid['deploy'] = 'no such image'
    with pytest.raises(nova_exception.BuildAbortException, match='no such'):
        bench.spawn(fake.server())
    assert _is_free(bench)


@pytest.mark.parametrize(
    ('interface', 'reason'),
    [
        ('power', 'no BMC address'),
        ('deploy', 'Node n does not have any port associated with it.'),
        ('deploy', "Missing are: ['deploy_kernel', 'deploy_ramdisk']"),
        ('storage', 'no volume connector'),
    ],
)
def test_invalid_node_is_left_for_another(interface, reason):
    """One that is enrolled badly does not end each build it gets."""
    bench = fake.bench()
    bench.ironic.invalid[interface] = reason
    with pytest.raises(nova_exception.InstanceDeployFailure):
        bench.spawn(fake.server())
    assert _is_free(bench)


def test_bad_image_at_the_deploy_is_tried_nowhere_else():
    """An image that Ironic refuses ends the build."""
    bench = fake.bench()
    bench.ironic.refused['active'] = 'InvalidImage: unsafe'
    with pytest.raises(nova_exception.BuildAbortException):
        bench.spawn(fake.server())


@pytest.mark.parametrize(
    'fields',
    [
        {'instance_uuid': fake.OTHER},
        {'maintenance': True},
        {'provision_state': 'cleaning'},
        {'power_state': None},
    ],
)
def test_unfit_node_is_rescheduled(fields):
    """A node that can take no build is not touched."""
    bench = fake.bench(**fields)
    with pytest.raises(nova_exception.ComputeResourcesUnavailable):
        bench.driver.prepare_for_spawn(fake.server())
    assert not bench.ironic.calls


def test_locked_node_is_waited_for():
    """A node that is locked for a moment is reserved after it."""
    bench = fake.bench()
    bench.ironic.locked_count = 2
    bench.spawn(fake.server())
    assert bench.ironic.nodes[fake.NODE].provision_state == 'active'


def test_node_locked_for_good_is_given_up():
    """Waiting for a lock has an end."""
    bench = fake.bench()
    bench.ironic.locked_count = 10_000
    with pytest.raises(nova_exception.ComputeResourcesUnavailable):
        bench.driver.prepare_for_spawn(fake.server())


def test_failed_spawn_cleanup_frees_the_node():
    """What was reserved before networks failed is free again."""
    bench = fake.bench()
    bench.driver.prepare_for_spawn(fake.server())
    bench.driver.failed_spawn_cleanup(fake.server())
    assert _is_free(bench)


def test_waiting_goes_on_after_a_restart():
    """A deploy that another process began is waited for."""
    bench = fake.bench(
        instance_uuid=fake.SERVER, provision_state='wait call-back'
    )
    bench.ironic.change(fake.NODE, provision_state='active')
    bench.node_cache.update(bench.ironic.nodes[fake.NODE])
    bench.driver.wait_for_deploy(fake.server(), fake.NODE)


def test_old_news_do_not_end_a_deploy():
    """The book's older state is not believed without asking Ironic."""
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state='active')
    bench.ironic.change(
        fake.NODE, provision_state='deploy failed', last_error='late'
    )
    with pytest.raises(errors.DeployFailed, match='late'):
        bench.driver.wait_for_deploy(fake.server(), fake.NODE)


def test_node_taken_by_another_fails_the_deploy():
    """A node that has another server is no success, and stays untouched."""
    bench = fake.bench(instance_uuid=fake.OTHER, provision_state='active')
    with pytest.raises(errors.DeployFailed, match='taken away'):
        bench.driver.wait_for_deploy(fake.server(), fake.NODE)
    assert not bench.ironic.calls


class _Volume(dict):
    """A volume as Nova hands it to a driver."""

    is_volume = True

    def __init__(self, boot_index=0):
        super().__init__(boot_index=boot_index)
        self._bdm_obj = objects.BlockDeviceMapping(
            boot_index=boot_index,
            volume_id=fake.OTHER,
            connection_info='{"driver_volume_type": "iscsi", "data": {}}',
        )


def _from_volume():
    return {'block_device_info': {'block_device_mapping': [_Volume()]}}


def test_root_volume_is_given_to_the_node_and_taken_away():
    """Ironic is told of no image; the target goes with the server."""
    bench = fake.bench()
    bench.spawn(fake.server(), **_from_volume())
    assert 'image_source' not in bench.ironic.infos[fake.NODE]
    (target,) = bench.ironic.targets.values()
    assert (target['volume_id'], target['boot_index']) == (fake.OTHER, 0)
    bench.driver.destroy(None, fake.server(), fake.network())
    assert not bench.ironic.targets


@pytest.mark.parametrize('request_name', ['vif_attach', 'active'])
def test_volume_of_a_build_that_failed_is_taken_away(request_name):
    """The machine is switched off for it: Ironic wants that."""
    bench = fake.bench()
    bench.ironic.refused[request_name] = 'no'
    with pytest.raises(nova_exception.InstanceDeployFailure):
        bench.spawn(fake.server(), **_from_volume())
    assert not bench.ironic.targets
    assert _is_free(bench)


def test_volume_left_by_another_is_taken_away_first():
    """A crash may have left a target; Ironic would boot from it."""
    bench = fake.bench()
    bench.ironic.create_volume_target(fake.NODE, volume_id='old', boot_index=0)
    bench.spawn(fake.server())
    assert not bench.ironic.targets


def test_machine_is_known_to_storage_by_its_connectors():
    """What the operator registered; an address of the server if nothing."""
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
