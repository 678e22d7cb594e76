# SPDX-License-Identifier: Apache-2.0
"""Volumes: Ironic is told which, and attaches them itself.

A node is known to storage by its volume connectors, which its operator
registers; a volume is a volume target of the node. Ironic forgets no target
by itself, and takes one away only from a node that is off or unlocked. What
could not be taken away after a teardown is taken away before the next build.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nova.virt import driver as nova_driver
from oslo_log import log as logging

from ironic_compute import errors
from ironic_compute.driver.node_waiter import NodeWaiter
from ironic_compute.driver.power import Power
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)


class Volumes:
    """Give volumes to nodes and take them away."""

    def __init__(self, waiter: NodeWaiter, power: Power) -> None:
        self._waiter = waiter
        self._client = waiter.client
        self._power = power
        self._destined: dict[str, NodeId] = {}

    @contextlib.contextmanager
    def destined(self, instance_uuid: str, node: NodeId) -> Iterator[None]:
        """Know the node of a server whose row does not name it yet."""
        self._destined[instance_uuid] = node
        try:
            yield
        finally:
            del self._destined[instance_uuid]

    def connector(self, instance: Any) -> dict[str, Any]:
        """Return by what Cinder knows the machine of a server.

        Keys are those of os-brick; an address of the server's own will do if
        the operator registered none.
        """
        node = NodeId(instance.node or self._destined[instance.uuid])
        named: dict[str, list[str]] = {}
        for each in self._waiter.asked(
            lambda: self._client.volume_connectors(node)
        ):
            named.setdefault(each['type'], []).append(each['connector_id'])
        facts = self._waiter.look(node)
        found: dict[str, Any] = {
            'host': instance.hostname,
            'platform': facts.properties.get('cpu_arch'),
            'os_type': 'baremetal',
            'multipath': False,
        }
        address = self._address(node, instance, named)
        if address:
            found['ip'] = found['host'] = address
        if 'iqn' in named:
            found['initiator'] = named['iqn'][0]
        for kind in ('wwpn', 'wwnn'):
            if kind in named:
                found[f'{kind}s'] = named[kind]
        return found

    def attach(self, node: NodeId, mapping: Iterable[Any]) -> None:
        """Give a server's volumes to a node that has its server.

        :param mapping: Nova's driver block devices
        """
        self.detach_all(node)
        for device in mapping:
            if device.is_volume:
                self._attach(node, device._bdm_obj)

    def targets(self, node: NodeId) -> list[str]:
        """Return the volume targets of a node."""
        found = self._waiter.asked(lambda: self._client.volume_targets(node))
        return [str(one['uuid']) for one in found]

    def detach_all(self, node: NodeId) -> None:
        """Take all volumes from a node that has nothing running."""
        targets = self.targets(node)
        if targets:
            self._power.off(node)
            self._delete(targets)

    def forget(self, node: NodeId, targets: Sequence[str]) -> None:
        """Take away the targets of a server that has left a node."""
        try:
            self._delete(targets)
        except errors.IronicComputeError as exc:
            LOG.info(
                'Node %(node)s keeps volume targets until its next build: '
                '%(error)s',
                {'node': node, 'error': exc},
            )

    def _delete(self, targets: Sequence[str]) -> None:
        for target in targets:
            self._waiter.patiently(
                lambda target=target: self._client.delete_volume_target(  # type: ignore[misc]
                    target
                ),
                (errors.Retriable, errors.NodeAssociated),
            )

    def _attach(self, node: NodeId, device: Any) -> None:
        connection = json.loads(device.connection_info)

        def create() -> None:
            known = self._client.volume_targets(node)
            if device.volume_id not in {one['volume_id'] for one in known}:
                self._client.create_volume_target(
                    node,
                    volume_id=device.volume_id,
                    volume_type=connection['driver_volume_type'],
                    boot_index=device.boot_index,
                    properties=connection['data'],
                )

        self._waiter.patiently(create, errors.Retriable)

    def _address(
        self, node: NodeId, instance: Any, named: dict[str, list[str]]
    ) -> str | None:
        if 'ip' in named:
            return named['ip'][0]
        vifs = instance.get_network_info() or ()
        wanted = self._vifs_of_cards(node, named.get('mac', ()))
        fixed = [
            ip
            for vif in vifs
            if not wanted or vif['id'] in wanted
            for ip in vif.fixed_ips()
        ]
        fixed.sort(key=lambda ip: int(ip['version']))
        return str(fixed[0]['address']) if fixed else None

    def _vifs_of_cards(self, node: NodeId, macs: Iterable[str]) -> set[str]:
        known = {mac.lower() for mac in macs}
        if not known:
            return set()
        cards = [
            *self._waiter.asked(lambda: self._client.ports(node)),
            *self._waiter.asked(lambda: self._client.portgroups(node)),
        ]
        return {
            str(card['internal_info']['tenant_vif_port_id'])
            for card in cards
            if str(card.get('address')).lower() in known
            and (card.get('internal_info') or {}).get('tenant_vif_port_id')
        }


def mapping_of(block_device_info: Any) -> list[Any]:
    """Return the volumes that Nova hands to a driver."""
    return list(nova_driver.block_device_info_get_mapping(block_device_info))


def is_root(mapping: Iterable[Any]) -> bool:
    """Say whether the root disk is one of these volumes."""
    return any(one.is_volume and one.get('boot_index') == 0 for one in mapping)
