# SPDX-License-Identifier: Apache-2.0
"""network_data.json: the links get the node's own network cards."""

from typing import Any

from nova.network import model as network_model
from nova.virt import netutils

from ironic_compute.driver import network_data


def test_links_get_the_addresses_of_the_ports():
    """Each link gets the MAC address of its Ironic port or port group."""
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
    group = _group('802.3ad', 'dd', 'v2') | {'properties': {'miimon': 100}}
    single, bond, other, *members = network_data.replace_links(
        data, ports, [group]
    )['links']
    assert (single['type'], single['ethernet_mac_address']) == ('phy', 'aa')
    assert bond['bond_links'] == ['p2', 'p3']
    assert bond['bond_miimon'] == 100
    assert other['ethernet_mac_address'] == 'own'
    assert [link['id'] for link in members] == ['p2', 'p3']


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


def _group(mode: str, address: str, vif: str) -> dict[str, Any]:
    return {
        'uuid': 'g',
        'mode': mode,
        'address': address,
        'internal_info': {'tenant_vif_port_id': vif},
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
    """A server without networks gets no network data; Ironic is not read."""
    none = netutils.get_network_metadata(network_model.NetworkInfo([]))
    assert network_data.with_node_links(none, client=None, node='n') is None


def test_network_data_of_nova_gets_the_links_of_the_node():
    """Flat, VLAN and port group: each network refers to a link of the node."""
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
    group = _group('active-backup', 'ee', 'v3')
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
