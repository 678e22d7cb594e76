# SPDX-License-Identifier: Apache-2.0
"""The config drive's description, and the network cards in it."""

import json
from typing import Any

from nova.network import model as network_model
from nova.virt import netutils

from ironic_compute.driver import configdrive, network_data


class _Metadata:
    """What is used of Nova's InstanceMetadata."""

    def __init__(
        self,
        user_data: bytes | None = None,
        content: dict[str, bytes] | None = None,
        vendor_data: dict[str, Any] | None = None,
    ) -> None:
        self.userdata_raw = user_data
        self.content = content or {}
        self._files = {
            'meta_data.json': {'uuid': 'u', 'hostname': 'one'},
            'network_data.json': {},
            'vendor_data.json': vendor_data or {},
            'vendor_data2.json': {'static': {}},
        }

    def lookup(self, path: str) -> bytes:
        """Return a file of the metadata service."""
        return json.dumps(self._files[path.rpartition('/')[2]]).encode()


def test_description_has_what_there_is():
    """Parts that are empty are left to Ironic."""
    assert configdrive.describe(_Metadata(b'#cloud-config')) == {
        'meta_data': {'uuid': 'u', 'hostname': 'one'},
        'vendor_data': {'static': {}},
        'user_data': '#cloud-config',
    }


def test_description_loses_nothing():
    """What JSON or Ironic cannot carry needs an image built here."""
    assert configdrive.describe(_Metadata(b'\x1f\x8b\xff')) is None
    assert configdrive.describe(_Metadata(content={'0000': b'x'})) is None
    assert configdrive.describe(_Metadata(vendor_data={'a': 1})) is None


def test_links_get_the_addresses_of_the_cards():
    """cloud-init finds cards by address, so Neutron's will not do."""
    data = {
        'links': [
            {'vif_id': 'v1', 'type': 'ovs', 'ethernet_mac_address': 'made:up'},
            {'vif_id': 'v2', 'type': 'ovs', 'ethernet_mac_address': 'made:up'},
            {'vif_id': 'v3', 'type': 'ovs', 'ethernet_mac_address': 'own'},
        ],
        'networks': [],
    }
    ports = [
        _port('p1', 'aa', None, 'v1'),
        _port('p2', 'bb', 'g', None),
        _port('p3', 'cc', 'g', None),
    ]
    group = {
        'uuid': 'g',
        'mode': '802.3ad',
        'address': 'dd',
        'properties': {'miimon': 100},
        'internal_info': {'tenant_vif_port_id': 'v2'},
    }
    single, bond, other, *cards = network_data.replace_links(
        data, ports, [group]
    )['links']
    assert (single['type'], single['ethernet_mac_address']) == ('phy', 'aa')
    assert bond['bond_links'] == ['p2', 'p3']
    assert bond['bond_miimon'] == 100
    assert other['ethernet_mac_address'] == 'own'
    assert [card['id'] for card in cards] == ['p2', 'p3']


def _port(
    uuid: str, address: str, group: str | None, vif: str | None
) -> dict[str, Any]:
    internal = {'tenant_vif_port_id': vif} if vif else {}
    return {
        'uuid': uuid,
        'address': address,
        'portgroup_uuid': group,
        'internal_info': internal,
    }


def _vif(uuid: str, address: str, **fields: Any) -> network_model.VIF:
    subnet = network_model.Subnet(
        cidr='192.0.2.0/24',
        ips=[network_model.FixedIP(address='192.0.2.9', version=4)],
        gateway=network_model.IP(address='192.0.2.1', version=4),
        dns=[],
        routes=[],
        version=4,
    )
    network = network_model.Network(
        id=f'net-{uuid}', bridge='br', label='x', subnets=[subnet]
    )
    return network_model.VIF(
        id=uuid, address=address, network=network, **fields
    )


def test_server_without_networks_has_no_network_data():
    """Nova describes no networks by nothing; no card is asked for."""
    none = netutils.get_network_metadata(network_model.NetworkInfo([]))
    assert network_data.with_node_links(none, client=None, node='n') is None


def test_network_data_of_nova_ends_on_real_cards():
    """Flat, VLAN and on a port group: each network keeps its link."""
    vifs = network_model.NetworkInfo(
        [
            _vif('v1', 'fa:16:3e:00:00:01', type='other', devname='tap1'),
            _vif(
                'v2',
                'fa:16:3e:00:00:02',
                type='other',
                devname='tap2',
                details={'vlan': '42'},
            ),
            _vif('v3', 'fa:16:3e:00:00:03', type='other', devname='tap3'),
        ]
    )
    ports = [
        _port('p1', 'aa', None, 'v1'),
        _port('p2', 'bb', None, 'v2'),
        _port('p3', 'cc', 'g', None),
        _port('p4', 'dd', 'g', None),
    ]
    group = {
        'uuid': 'g',
        'mode': 'active-backup',
        'address': 'ee',
        'internal_info': {'tenant_vif_port_id': 'v3'},
    }
    data = network_data.replace_links(
        netutils.get_network_metadata(vifs), ports, [group]
    )
    links = {link['id']: link for link in data['links']}
    assert len(data['networks']) == 3
    found = [links[network['link']] for network in data['networks']]
    assert [link['type'] for link in found] == ['phy', 'phy', 'bond']
    macs = [link['ethernet_mac_address'] for link in found]
    assert macs == ['aa', 'bb', 'ee']
    assert found[2]['bond_links'] == ['p3', 'p4']
    assert {'p3', 'p4'} <= set(links)
