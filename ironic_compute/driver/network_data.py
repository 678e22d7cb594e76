# SPDX-License-Identifier: Apache-2.0
"""network_data.json of the config drive, with the MAC addresses of the node.

cloud-init finds each network card by the MAC address of its link. Neutron
invents an address for a port; Ironic replaces it by the card's own when it
attaches the VIF, but Nova has read the port before. The links therefore get
the addresses of the node's Ironic ports here, and each Ironic port group
becomes a bond with its ports as members. Format: Nova's
``doc/api_schemas/network_data.json``.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ironic_compute.ironic_api.client import IronicClient
from resource_tracker.node import NodeId

Record = Mapping[str, Any]


def with_node_links(
    network_data: dict[str, Any] | None, client: IronicClient, node: NodeId
) -> dict[str, Any] | None:
    """Return network data with links to the node's own network cards.

    Reads the ports and port groups of the node from Ironic.

    :param network_data: Nova's; None if the server has no network
    """
    if network_data is None:
        return None
    return replace_links(
        network_data, client.list_ports(node), client.list_portgroups(node)
    )


def replace_links(
    network_data: dict[str, Any],
    ports: Iterable[Record],
    portgroups: Iterable[Record],
) -> dict[str, Any]:
    """Return network data whose links are the given ports and port groups.

    :param ports: Ironic's ports of the node
    :param portgroups: Ironic's port groups of the node
    """
    ports = list(ports)
    port_of = {vif: port for port in ports if (vif := _vif(port))}
    group_of = {vif: group for group in portgroups if (vif := _vif(group))}
    links: list[dict[str, Any]] = []
    bond_members: list[dict[str, Any]] = []
    for link in network_data['links']:
        vif = link.get('vif_id')
        if vif in group_of:
            group = group_of[vif]
            members = [
                port
                for port in ports
                if port['portgroup_uuid'] == group['uuid']
            ]
            links.append({**link, **_bond(group, members)})
            bond_members += [_physical_link(port) for port in members]
        elif vif in port_of:
            address = port_of[vif]['address']
            links.append(
                {**link, 'type': 'phy', 'ethernet_mac_address': address}
            )
        else:
            links.append(link)
    return {**network_data, 'links': links + bond_members}


def _vif(record: Record) -> str | None:
    """Return the Neutron port that is attached to an Ironic port or group."""
    internal = record.get('internal_info') or {}
    extra = record.get('extra') or {}
    vif: str | None = internal.get('tenant_vif_port_id') or extra.get(
        'vif_port_id'
    )
    return vif


def _bond(group: Record, members: Iterable[Record]) -> dict[str, Any]:
    """Return the bond of a port group, with the kernel's bonding options."""
    bond: dict[str, Any] = {
        'type': 'bond',
        'bond_mode': group.get('mode'),
        'bond_links': [port['uuid'] for port in members],
    }
    if group.get('address'):
        bond['ethernet_mac_address'] = group['address']
    for name, value in (group.get('properties') or {}).items():
        bond[name if name.startswith('bond') else f'bond_{name}'] = value
    return bond


def _physical_link(port: Record) -> dict[str, Any]:
    return {
        'id': port['uuid'],
        'type': 'phy',
        'ethernet_mac_address': port['address'],
    }
