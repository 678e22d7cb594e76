# SPDX-License-Identifier: Apache-2.0
"""Hooks of deployers change the contents of config drives."""

import pathlib
import shutil
from typing import Any

import nova.conf
import pytest
from nova import objects
from nova.network import model as network_model
from nova.network import security_group_api
from nova.virt import configdrive as nova_configdrive

from ironic_compute import errors, opts
from ironic_compute.driver import config_drive_hooks, configdrive
from ironic_compute.driver.build_request import BuildRequest
from ironic_compute.driver.config_drive_hooks import (
    ConfigDriveHook,
    ConfigDriveHooks,
    load_hooks,
)
from tests.unit.ironic_compute.driver import fake

CONF = nova.conf.CONF
EXAMPLE = (
    pathlib.Path(__file__).resolve().parents[4]
    / 'doc/source/admin/example_hook'
)
LINKS = {'links': [{'id': 'tap1', 'mtu': 1500}], 'networks': []}


@pytest.fixture
def site(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the folder in which the example of the manual is installed."""
    info = tmp_path / 'site_hooks-1.0.dist-info'
    info.mkdir()
    (info / 'METADATA').write_text('Name: site-hooks\nVersion: 1.0\n')
    shutil.copy(EXAMPLE / 'entry_points.txt', info)
    shutil.copy(EXAMPLE / 'site_hooks.py', tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_example_of_the_manual_changes_the_config_drive(site: Any) -> None:
    """The installed example is found by its name, and its methods work."""
    hooks = load_hooks(['site'])
    changed = hooks.change_network_data(LINKS, fake.server(), fake.NODE)
    assert changed['links'] == [{'id': 'tap1', 'mtu': 9000}]
    assert hooks.extra_metadata(fake.server(), fake.NODE) == {
        'site': {'node': fake.NODE, 'project': 'p'}
    }
    assert not list(hooks.extra_files(fake.server(), fake.NODE))


def test_hook_that_is_not_installed_stops_the_worker() -> None:
    """The worker does not start, and names the missing entry point."""
    with pytest.raises(errors.ConfigError, match='no-such-hook'):
        load_hooks(['no-such-hook'])


def test_hook_that_cannot_be_loaded_stops_the_worker(site: Any) -> None:
    """The worker does not start if the module of a hook is broken."""
    (site / 'site_hooks-1.0.dist-info/entry_points.txt').write_text(
        f'[{config_drive_hooks.NAMESPACE}]\nbroken = no_such_module:Hook\n'
    )
    with pytest.raises(errors.ConfigError, match='broken'):
        load_hooks(['broken'])


def test_no_names_load_nothing() -> None:
    """Without the option no entry point is read, and nothing changes."""
    assert load_hooks([]).change_network_data(LINKS, None, 'n') is LINKS


class _Numbered(ConfigDriveHook):
    def __init__(self, number: int) -> None:
        self._number = number

    def change_network_data(
        self, network_data: dict[str, Any], instance: Any, node: str
    ) -> dict[str, Any]:
        return {'order': [*network_data.get('order', ()), self._number]}

    def extra_metadata(self, instance: Any, node: str) -> dict[str, Any]:
        return {'last': self._number}

    def extra_files(self, instance: Any, node: str) -> list[tuple[str, bytes]]:
        if self._number == 3:
            raise OSError('no such disk')
        return [(f'/{self._number}', b'x')]


def test_hooks_are_called_in_order() -> None:
    """Each hook gets the result of the one before, and the last one wins."""
    hooks = ConfigDriveHooks([('a', _Numbered(1)), ('b', _Numbered(2))])
    assert hooks.change_network_data({}, None, 'n') == {'order': [1, 2]}
    assert hooks.extra_metadata(None, 'n') == {'last': 2}
    assert [path for path, _ in hooks.extra_files(None, 'n')] == ['/1', '/2']


def test_hook_that_fails_ends_the_build() -> None:
    """The server goes to ERROR; another node would have the same error."""
    hooks = ConfigDriveHooks([('site', _Numbered(3))])
    with pytest.raises(errors.DeployInvalid, match='site failed: no such'):
        list(hooks.extra_files(None, 'n'))


class _Site(ConfigDriveHook):
    def change_network_data(
        self, network_data: dict[str, Any], instance: Any, node: str
    ) -> dict[str, Any]:
        return {**network_data, 'site': node}

    def extra_metadata(self, instance: Any, node: str) -> dict[str, Any]:
        return {'rack': 'r7'}


def _request(
    monkeypatch: pytest.MonkeyPatch, files: list[tuple[str, str]] | None = None
) -> BuildRequest:
    opts.register_opts(CONF)
    server = fake.server(
        config_drive='True',
        info_cache=None,
        security_groups=objects.SecurityGroupList(objects=[]),
        ec2_ids=objects.EC2Ids(
            instance_id='i-1',
            ami_id='ami-1',
            kernel_id=None,
            ramdisk_id=None,
        ),
        reservation_id='r-1',
        keypairs=objects.KeyPairList(objects=[]),
        device_metadata=None,
        numa_topology=None,
        metadata={},
        user_data=None,
        key_name=None,
        launch_index=0,
        availability_zone='z',
        project_id='p',
        display_name='one',
        root_device_name=None,
        default_ephemeral_device=None,
        default_swap_device=None,
    )
    # Nova copies the object, and therefore needs a registered class.
    server.__class__ = objects.Instance
    monkeypatch.setattr(
        security_group_api, 'get_instance_security_groups', lambda *args: []
    )
    monkeypatch.setattr(
        objects.BlockDeviceMappingList,
        'get_by_instance_uuid',
        lambda context, server: objects.BlockDeviceMappingList(objects=[]),
    )
    return BuildRequest(
        None, server, fake.image(), files, 'secret', _network()
    )


def test_config_drive_has_the_content_of_the_hooks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The description that Ironic gets has the changes of the hooks."""
    drive = configdrive.build(
        fake.bench().ironic,
        _request(monkeypatch),
        ConfigDriveHooks([('site', _Site())]),
    )
    assert isinstance(drive, dict)
    assert drive['network_data']['site'] == fake.NODE
    assert drive['meta_data']['rack'] == 'r7'
    assert drive['meta_data']['admin_pass'] == 'secret'


@pytest.mark.parametrize('files', [None, [('/etc/motd', 'hello')]])
def test_vendor_data_need_not_be_static(
    files: list[tuple[str, str]] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nova's own builder, which files need, expects a vendor_data.json."""
    made: list[dict[str, bytes]] = []

    def make_drive(builder: Any, path: str) -> None:
        made.append(dict(builder.mdfiles))

    monkeypatch.setattr(
        nova_configdrive.ConfigDriveBuilder, 'make_drive', make_drive
    )
    request = _request(monkeypatch, files)
    CONF.set_override('vendordata_providers', [], 'api')
    try:
        assert configdrive.build(fake.bench().ironic, request)
    finally:
        CONF.clear_override('vendordata_providers', 'api')
    assert [drive['openstack/latest/vendor_data.json'] for drive in made] == (
        [b'{}'] if files else []
    )


def _network() -> network_model.NetworkInfo:
    subnet = network_model.Subnet(
        cidr='192.0.2.0/24',
        version=4,
        ips=[network_model.FixedIP(address='192.0.2.5')],
        routes=[],
        dns=[],
        gateway=network_model.IP(address='192.0.2.1'),
        dhcp_server='192.0.2.2',
    )
    network = network_model.Network(
        id='n', label='n', subnets=[subnet], meta={}
    )
    vif = network_model.VIF(
        id=fake.VIF,
        address='aa:01',
        network=network,
        type='other',
        devname='tap1',
        details={},
    )
    return network_model.NetworkInfo([vif])
