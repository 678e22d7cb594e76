# SPDX-License-Identifier: Apache-2.0
"""Which network card carries which network, for ``network_data.json``.

Neutron makes up a MAC address for each port; Ironic puts the card's own in
its place when the VIF is attached, after Nova has read the port. cloud-init
finds no card with the made-up address, so links get the cards' addresses
here, and bonds the cards they are made of. Format: Nova's
``network_data.json`` (doc/api_schemas/network_data.json).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ironic_compute.ironic_api.client import IronicClient
from resource_tracker.node import NodeId

Record = Mapping[str, Any]


def describe(
    network_data: dict[str, Any] | None, client: IronicClient, node: NodeId
) -> dict[str, Any] | None:
    """Return network data with the cards' own addresses.

    :param network_data: None: the server has no network
    """
    if network_data is None:
        return None
    return rewrite(network_data, client.ports(node), client.portgroups(node))


def rewrite(
    network_data: dict[str, Any],
    ports: Iterable[Record],
    portgroups: Iterable[Record],
) -> dict[str, Any]:
    """Return the same networks on links that exist on the machine."""
    ports = list(ports)
    port_of = {vif: port for port in ports if (vif := _vif(port))}
    group_of = {vif: group for group in portgroups if (vif := _vif(group))}
    links: list[dict[str, Any]] = []
    cards: list[dict[str, Any]] = []
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
            cards += [_card(port) for port in members]
        elif vif in port_of:
            address = port_of[vif]['address']
            links.append(
                {**link, 'type': 'phy', 'ethernet_mac_address': address}
            )
        else:
            links.append(link)
    return {**network_data, 'links': links + cards}


def _vif(record: Record) -> str | None:
    internal = record.get('internal_info') or {}
    extra = record.get('extra') or {}
    vif: str | None = internal.get('tenant_vif_port_id') or extra.get(
        'vif_port_id'
    )
    return vif


def _bond(group: Record, members: Iterable[Record]) -> dict[str, Any]:
    """Describe a bond; its properties are the kernel's bonding options."""
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


def _card(port: Record) -> dict[str, Any]:
    return {
        'id': port['uuid'],
        'type': 'phy',
        'ethernet_mac_address': port['address'],
    }
