# SPDX-License-Identifier: Apache-2.0
"""Volume targets and volume connectors of nodes."""

import logging

import pytest
from nova import exception as nova_exception
from nova import objects
from nova.network import model as network_model

from ironic_compute import errors
from tests.fakes.ironic import FakeIronic

from . import fake

_STORAGE_VIF = '55555555-5555-5555-5555-555555555555'


class _SlowNetworks(network_model.NetworkInfo):
    """The networks of a server, which Neutron allocates when they are read.

    Nova's lazy list behaves so.
    """

    def __init__(self, server, error=None):
        super().__init__()
        self._server, self._error = server, error

    def __iter__(self):
        self._wait()
        return super().__iter__()

    def __len__(self):
        self._wait()
        return super().__len__()

    def _wait(self):
        if self._error is not None:
            raise self._error
        self[:] = [
            _vif(fake.VIF, '192.0.2.5'),
            _vif(_STORAGE_VIF, '198.51.100.5'),
        ]
        self._server.info_cache = objects.InstanceInfoCache(network_info=self)


def _vif(uuid, address):
    subnet = network_model.Subnet(ips=[network_model.FixedIP(address=address)])
    return network_model.VIF(
        id=uuid, network=network_model.Network(subnets=[subnet])
    )


def _storage_node():
    """Return a driver on a node whose second port is in a storage network."""
    bench = fake.bench()
    bench.ironic.ports = [{'address': 'aa:01'}, {'address': 'aa:02'}]
    bench.ironic.connectors = [
        {'type': 'iqn', 'connector_id': 'iqn.one'},
        {'type': 'mac', 'connector_id': 'AA:02'},
    ]
    return bench


def _server_with_volume():
    server = fake.server(info_cache=None)
    server.volumes = [fake.Volume()._bdm_obj]
    return server


def test_connector_has_the_address_of_the_network_on_its_mac():
    """Cinder gets the address in the storage network from a slow Neutron.

    Therefore the networks are allocated and the VIFs are attached before Nova
    asks Cinder. Without this the connector had no address, or the address in
    the other network.
    """
    bench, server = _storage_node(), _server_with_volume()
    bench.prepare(server, _SlowNetworks(server))
    connector = bench.driver.get_volume_connector(server)
    assert connector['ip'] == '198.51.100.5'
    assert connector['initiator'] == 'iqn.one'
    assert bench.ironic.attached[fake.NODE] == [fake.VIF, _STORAGE_VIF]


def test_build_without_volumes_does_not_wait_for_its_networks():
    """An image build waits for Neutron later, and attaches its VIFs then."""
    bench = _storage_node()
    server = fake.server(info_cache=None)
    bench.prepare(server, _SlowNetworks(server))
    assert server.info_cache is None
    assert not bench.ironic.attached[fake.NODE]


def test_vif_that_cannot_be_attached_sends_the_build_to_another_node():
    """A node without a free port fails the build before Cinder is asked."""
    bench, server = _storage_node(), _server_with_volume()
    bench.ironic.refused['vif_attach'] = 'no free port'
    with pytest.raises(
        nova_exception.ComputeResourcesUnavailable, match='no free port'
    ):
        bench.prepare(server, _SlowNetworks(server))
    assert bench.is_free()


@pytest.mark.parametrize(
    ('error', 'raised'),
    [
        (nova_exception.NoMoreFixedIps(net='n'), nova_exception.InvalidBDM),
        (OSError('reset'), nova_exception.ComputeResourcesUnavailable),
        (
            nova_exception.InstanceNotFound(instance_id='i'),
            nova_exception.InstanceNotFound,
        ),
    ],
)
def test_error_of_neutron_keeps_its_sentence(error, raised):
    """Nova shows the error of a failed network to the user.

    Nova hides all but a few classes behind "Failure prepping block device".
    """
    bench, server = _storage_node(), _server_with_volume()
    with pytest.raises(raised, match=str(error)):
        bench.prepare(server, _SlowNetworks(server, error))


def test_root_volume_becomes_a_target_until_the_destroy():
    """A server with a root volume has a target and no image."""
    bench = fake.bench()
    bench.spawn(fake.server(), [fake.Volume()])
    assert 'image_source' not in bench.ironic.infos[fake.NODE]
    (target,) = bench.ironic.targets.values()
    assert (target['volume_id'], target['boot_index']) == (fake.OTHER, 0)
    bench.driver.destroy(None, fake.server(), fake.network())
    assert not bench.ironic.targets


def test_node_without_storage_interface_takes_no_build_with_volumes():
    """Nova tries another node before it asks Cinder for the volumes.

    Ironic would accept the volume targets and ignore them.
    """
    bench, server = _storage_node(), _server_with_volume()
    bench.ironic.storage_interface = 'noop'
    with pytest.raises(
        nova_exception.ComputeResourcesUnavailable, match='noop'
    ):
        bench.prepare(server, fake.network())
    assert bench.is_free()
    bench.spawn(fake.server())
    assert bench.ironic.nodes[fake.NODE].provision_state == 'active'


def test_node_without_storage_interface_takes_no_unshelved_volumes():
    """An unshelving, which has no preparation, tries another node too."""
    bench = fake.bench()
    bench.ironic.storage_interface = 'noop'
    volumes = {'block_device_mapping': [fake.Volume(None)]}
    server = fake.server()
    bench.driver.prepare_for_spawn(server)
    with pytest.raises(nova_exception.InstanceDeployFailure, match='noop'):
        bench.driver.spawn(
            None,
            server,
            fake.image(),
            None,
            None,
            {},
            fake.network(),
            volumes,
        )
    assert not bench.ironic.targets
    assert bench.is_free()


def test_power_off_for_an_old_target_holds_no_build_slot():
    """A machine that does not switch off delays no build but its own.

    Old targets are deleted while the node is off, and this wait can take
    twenty minutes.
    """
    bench = fake.bench()
    bench.ironic.create_volume_target(fake.NODE, volume_id='old', boot_index=0)
    slots = bench.driver._deploy._build_slots
    free_counts = []
    set_power_state = bench.ironic.set_power_state

    def observe(*args, **kwargs):
        free_counts.append(slots._free_count)
        set_power_state(*args, **kwargs)

    bench.ironic.set_power_state = observe
    before_count = slots._free_count
    bench.spawn(fake.server())
    assert free_counts == [before_count]
    assert not bench.ironic.targets


def test_build_after_an_old_target_survives_one_read_without_an_answer():
    """The build left its node, and was scheduled anew."""
    bench = fake.bench()
    ironic = bench.ironic
    ironic.create_volume_target(fake.NODE, volume_id='old', boot_index=0)
    read, list_targets = ironic.read_node, ironic.list_volume_targets

    def list_before_an_outage(node):
        ironic.list_volume_targets, found = list_targets, list_targets(node)
        ironic.read_node = fail_once
        return found

    def fail_once(node):
        ironic.read_node = read
        raise errors.IronicUnavailable('no answer')

    ironic.list_volume_targets = list_before_an_outage
    bench.spawn(fake.unsaved_server())
    assert ironic.nodes[fake.NODE].provision_state == 'active'
    assert not ironic.targets


class _Cleaning(FakeIronic):
    """An Ironic whose cleaning holds the lock of the node for long."""

    is_locked = True

    def delete_volume_target(self, target):
        if self.is_locked:
            raise errors.NodeLocked('Node n is locked by host c')
        super().delete_volume_target(target)


def test_delete_does_not_wait_until_the_node_is_cleaned():
    """A server with a volume is gone within some seconds.

    Its target stays until the next build on the node, which deletes it.
    Before, the delete waited for the lock of the cleaning, for two minutes.
    """
    bench = fake.bench()
    bench.spawn(fake.server(), [fake.Volume()])
    ironic = bench.ironic
    ironic.__class__ = _Cleaning
    began_s = bench.clock.now_s()
    bench.driver.destroy(None, fake.server(), fake.network())
    assert bench.clock.now_s() - began_s < 10
    assert ironic.nodes[fake.NODE].instance_uuid is None
    assert len(ironic.targets) == 1
    ironic.is_locked = False
    ironic.change(fake.NODE, provision_state='available')
    bench.spawn(fake.server())
    assert not ironic.targets


class _Denying(FakeIronic):
    """An Ironic whose policy file denies the delete of targets."""

    def delete_volume_target(self, target):
        raise errors.IronicForbidden('baremetal:volume:delete')


@pytest.mark.parametrize(
    ('ironic', 'level'), [(_Denying, 'WARNING'), (_Cleaning, 'INFO')]
)
def test_target_that_stays_for_want_of_a_right_is_a_warning(
    ironic, level, caplog
):
    """A lock of the node ends by itself."""
    caplog.set_level(logging.INFO)
    bench = fake.bench()
    bench.spawn(fake.server(), [fake.Volume()])
    bench.ironic.__class__ = ironic
    bench.driver.destroy(None, fake.server(), fake.network())
    (record,) = [r for r in caplog.records if 'keeps volume' in r.message]
    assert record.levelname == level


@pytest.mark.parametrize('boot_index', [None, -1])
def test_data_volumes_are_numbered_from_one(boot_index):
    """A root volume has the boot index 0, and the data volumes 1, 2 and so on.

    Nova gives data volumes the index -1 or none, and Ironic refuses both: its
    schema takes no null, and two targets of a node need different indexes.
    """
    bench = fake.bench()
    volumes = [
        fake.Volume(boot_index, 'data'),
        fake.Volume(0, 'root'),
        fake.Volume(boot_index, 'more'),
    ]
    bench.spawn(fake.server(), volumes)
    assert {
        target['volume_id']: target['boot_index']
        for target in bench.ironic.targets.values()
    } == {'root': 0, 'data': 1, 'more': 2}


@pytest.mark.parametrize(
    ('kind', 'name'),
    [
        ('refused', 'create_volume_target'),
        ('invalid', 'power'),
        ('refused', 'active'),
    ],
)
def test_target_of_a_failed_build_is_deleted(kind, name):
    """A build that fails deletes its volume target and frees the node."""
    bench = fake.bench()
    getattr(bench.ironic, kind)[name] = 'no'
    with pytest.raises(nova_exception.InstanceDeployFailure):
        bench.spawn(fake.server(), [fake.Volume()])
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


# ---- volumes of a running server


def _running(**node):
    """Return a running server, and a driver on its node."""
    bench = fake.bench(
        instance_uuid=fake.SERVER, provision_state='active', **node
    )
    return bench, fake.server(vm_state='active')


def _attach(bench, server, encryption=None):
    info = {'serial': fake.OTHER, 'driver_volume_type': 'iscsi', 'data': {}}
    bench.driver.attach_volume(
        None, info, server, '/dev/sdb', encryption=encryption
    )
    return info


def test_volume_of_a_running_server_changes_nothing_in_ironic():
    """The server's system logs in by itself; Ironic has no target of it."""
    bench, server = _running()
    assert bench.driver.why_no_attach(server) is None
    info = _attach(bench, server)
    assert bench.driver.why_no_detach(server, fake.OTHER) is None
    bench.driver.detach_volume(None, info, server, '/dev/sdb')
    assert not bench.ironic.calls


def test_encrypted_volume_is_not_attached_to_a_running_server():
    """Nothing on the server could decrypt it."""
    bench, server = _running()
    with pytest.raises(nova_exception.NovaException, match='encrypted'):
        _attach(bench, server, encryption={'provider': 'luks'})


def test_server_with_an_encrypted_volume_is_not_built():
    """It would be ACTIVE, and could not boot; another node would not help."""
    bench, volume = fake.bench(), fake.Volume()
    volume._bdm_obj.connection_info = (
        '{"driver_volume_type": "iscsi", "data": {"encrypted": true}}'
    )
    with pytest.raises(nova_exception.BuildAbortException, match='encrypted'):
        bench.spawn(fake.server(), [volume])
    assert bench.is_free()


@pytest.mark.parametrize('interface', ['noop', 'cinder', 'external'])
def test_running_server_takes_volumes_by_its_storage_interface(interface):
    """An operator sets ``noop`` for a node without a storage network."""
    bench, server = _running()
    bench.ironic.storage_interface = interface
    reason = bench.driver.why_no_attach(server)
    assert (reason is not None) == (interface == 'noop')


def test_volume_of_the_creation_is_detached_only_while_the_machine_is_off():
    """Ironic deletes no volume target of a running machine."""
    bench, server = _running()
    target = bench.ironic.create_volume_target(
        fake.NODE, volume_id=fake.OTHER, boot_index=1
    )
    reason = bench.driver.why_no_detach(server, fake.OTHER)
    assert 'stop the server first' in reason
    info = {'serial': fake.OTHER}
    with pytest.raises(nova_exception.NovaException, match='is on'):
        bench.driver.detach_volume(None, info, server, '/dev/sdb')
    assert set(bench.ironic.targets) == {target}
    bench.ironic.change(fake.NODE, power_state='power off')
    assert bench.driver.why_no_detach(server, fake.OTHER) is None
    bench.driver.detach_volume(None, info, server, '/dev/sdb')
    assert not bench.ironic.targets


def test_server_without_a_node_takes_no_volume():
    """The reason is Ironic's answer, not a traceback."""
    bench, server = fake.bench(), fake.server()
    for reason in (
        bench.driver.why_no_attach(server),
        bench.driver.why_no_detach(server, fake.OTHER),
    ):
        assert fake.SERVER in reason


@pytest.mark.parametrize('name', ['list_volume_connectors', 'read_node'])
def test_connector_is_read_when_ironic_answers(name):
    """Nova would put the server to ERROR, and not try another node."""
    bench = fake.bench_with_server()
    read, ends_s = getattr(bench.ironic, name), bench.clock.now_s() + 600.0

    def read_later(node):
        if bench.clock.now_s() < ends_s:
            raise errors.IronicNotReached('connection refused')
        return read(node)

    setattr(bench.ironic, name, read_later)
    server = fake.server(info_cache=objects.InstanceInfoCache())
    server.info_cache.network_info = fake.network()
    assert bench.driver.get_volume_connector(server)['host'] == 'one'


def test_connector_that_ironic_cannot_read_is_not_waited_for():
    """Ironic may answer 500 for this node for ever."""
    bench = fake.bench_with_server()

    def fail(node):
        raise errors.IronicUnavailable('oops', 500)

    bench.ironic.list_volume_connectors = fail
    with pytest.raises(nova_exception.InstanceDeployFailure):
        bench.driver.get_volume_connector(fake.server())
