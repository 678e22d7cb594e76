# SPDX-License-Identifier: Apache-2.0
"""Cinder volumes: volume connectors and volume targets of a node in Ironic.

Cinder exports volumes to the volume connectors that the operator registered
for a node. A volume target is the record in Ironic of one volume; Ironic boots
from it. Ironic never deletes a target by itself, and lets us delete one only
while the node is off and unlocked. A target that could not be deleted after a
teardown is therefore deleted before the next build on the node.
"""

import contextlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nova.virt import driver as nova_driver
from oslo_log import log as logging

from ironic_compute import errors
from ironic_compute.driver.node_waiter import NodeWaiter
from ironic_compute.driver.power import Power
from ironic_compute.ironic_api.states import PowerState
from ironic_compute.retry import retry
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)


_ENCRYPTED = (
    'An encrypted volume cannot be attached to a bare metal server, because '
    'nothing on it has the key; encrypt a volume within the server instead'
)

# How long a delete waits for the lock of a node that is being cleaned.
_LOCK_WAIT_S = 5.0


class Volumes:
    """Creates and deletes volume targets; any thread may call.

    :param power: switches a node off before its targets are deleted
    """

    def __init__(self, waiter: NodeWaiter, power: Power) -> None:
        self._waiter = waiter
        self._client = waiter.client
        self._power = power
        self._assumed_nodes: dict[str, NodeId] = {}

    @contextlib.contextmanager
    def assume_node(self, instance_uuid: str, node: NodeId) -> Iterator[None]:
        """Use this node for a server whose Instance names no node yet."""
        self._assumed_nodes[instance_uuid] = node
        try:
            yield
        finally:
            del self._assumed_nodes[instance_uuid]

    def read_connector(self, instance: Any) -> dict[str, Any]:
        """Return the connector properties of a server's node for Cinder.

        Blocks until Ironic answers: Nova would put a server to ERROR whose
        volumes cannot be attached, and would not try another node.

        The keys are those of os-brick. If the operator registered no IP
        address, the address of one of the server's ports is used.
        """
        node = NodeId(instance.node or self._assumed_nodes[instance.uuid])
        return retry(
            lambda: self._read_connector(node, instance),
            self._waiter.clock,
            errors.is_ironic_away,
            lambda exc: LOG.warning(
                'The volumes of server %(server)s are attached when Ironic '
                'answers: %(error)s',
                {'server': instance.uuid, 'error': exc},
            ),
        )

    def _read_connector(self, node: NodeId, instance: Any) -> dict[str, Any]:
        connectors: dict[str, list[str]] = {}
        for record in self._waiter.retry(
            lambda: self._client.list_volume_connectors(node)
        ):
            connectors.setdefault(record['type'], []).append(
                record['connector_id']
            )
        facts = self._waiter.read_node(node)
        properties: dict[str, Any] = {
            'host': instance.hostname,
            'platform': facts.properties.get('cpu_arch'),
            'os_type': 'baremetal',
            'multipath': False,
        }
        address = self._ip_address(node, instance, connectors)
        if address:
            properties['ip'] = properties['host'] = address
        if 'iqn' in connectors:
            properties['initiator'] = connectors['iqn'][0]
        for kind in ('wwpn', 'wwnn'):
            if kind in connectors:
                properties[f'{kind}s'] = connectors[kind]
        return properties

    def check_storage(self, node: NodeId) -> None:
        """Check that Ironic gives volumes to a node.

        :raises errors.DeployFailed: Ironic ignores the node's volume targets
        """
        fields = self._waiter.retry(
            lambda: self._client.read_fields(node, ['storage_interface'])
        )
        if fields.get('storage_interface') == 'noop':
            raise errors.DeployFailed(
                f'Node {node} takes no volumes: its storage_interface in '
                f'Ironic is noop'
            )

    def why_no_attach(self, instance: Any) -> str | None:
        """Return why a running server takes no volume; None if it does.

        Nothing is written to Ironic for a volume that is attached to a running
        server: the server's own system logs in to it. Ironic would not boot
        from a volume target that is created then, and would not delete it
        before the machine is off.
        """
        try:
            self.check_storage(self._waiter.read_node_of(instance).uuid)
        except errors.IronicComputeError as exc:
            return str(exc)
        return None

    def check_encryption(self, encryption: Any) -> None:
        """Check that the system on a server can read a volume.

        :param encryption: Cinder's encryption metadata; empty if there is none
        :raises errors.IronicRefused: the volume is encrypted
        """
        if encryption:
            raise errors.IronicRefused(_ENCRYPTED)

    def why_no_detach(self, instance: Any, volume: str) -> str | None:
        """Return why a volume cannot be detached; None if it can."""
        try:
            facts = self._waiter.read_node_of(instance)
            targets = self._targets_of(facts.uuid, volume)
        except errors.IronicComputeError as exc:
            return str(exc)
        power = PowerState.parse(facts.power_state)
        if targets and power is not PowerState.OFF:
            return (
                f'Volume {volume} was attached when the server was created, '
                f'and Ironic lets go of it only while the machine is off; '
                f'stop the server first'
            )
        return None

    def detach_volume(self, instance: Any, volume: str) -> None:
        """Delete the target of a volume, if the volume has one.

        :raises errors.IronicRefused: the machine is on
        """
        node = self._waiter.read_node_of(instance).uuid
        self._delete_targets(self._targets_of(node, volume))

    def _targets_of(self, node: NodeId, volume: str) -> list[str]:
        """Return the uuids of the volume targets of one volume."""
        targets = self._waiter.retry(
            lambda: self._client.list_volume_targets(node)
        )
        return [str(t['uuid']) for t in targets if t['volume_id'] == volume]

    def attach_volumes(self, node: NodeId, mapping: Iterable[Any]) -> None:
        """Create the volume targets of a server; the node has no others.

        Data volumes get the boot indexes 1, 2 and so on: Ironic wants a
        different number for each, and Nova gives them -1 or none.

        :param mapping: Nova's driver block devices
        :raises errors.DeployFailed: Ironic gives no volumes to the node
        :raises errors.DeployInvalid: a volume is encrypted
        """
        records = [device._bdm_obj for device in mapping if device.is_volume]
        if any(_is_encrypted(record) for record in records):
            raise errors.DeployInvalid(_ENCRYPTED)
        if records:
            self.check_storage(node)
        data_indexes = itertools.count(1)
        for record in records:
            boot_index = 0 if record.boot_index == 0 else next(data_indexes)
            self._attach_volume(node, record, boot_index)

    def list_targets(self, node: NodeId) -> list[str]:
        """Return the uuids of the volume targets of a node."""
        targets = self._waiter.retry(
            lambda: self._client.list_volume_targets(node)
        )
        return [str(target['uuid']) for target in targets]

    def detach_all_volumes(self, node: NodeId) -> None:
        """Switch a node off, if it has volume targets, and delete them."""
        self.detach_targets(node, self.list_targets(node))

    def detach_targets(self, node: NodeId, targets: Sequence[str]) -> None:
        """Switch a node off, if there are any of its targets; delete them."""
        if targets:
            self._power.power_off_node(node)
            self._delete_targets(targets)

    def try_delete_targets(self, node: NodeId, targets: Sequence[str]) -> None:
        """Delete targets; log those that must stay until the next build.

        Blocks for some seconds only, because the cleaning of a node may hold
        its lock for minutes. That ends by itself, a missing right does not.
        """
        try:
            self._delete_targets(targets, _LOCK_WAIT_S)
        except errors.IronicComputeError as exc:
            lacks_right = isinstance(exc, errors.IronicForbidden)
            LOG.log(
                logging.WARNING if lacks_right else logging.INFO,
                'Node %(node)s keeps volume targets until its next build: '
                '%(error)s',
                {'node': node, 'error': exc},
            )

    def _delete_targets(
        self, targets: Sequence[str], longest_s: float = math.inf
    ) -> None:
        for target in targets:
            self._waiter.retry(
                lambda target=target: self._client.delete_volume_target(  # type: ignore[misc]
                    target
                ),
                on=(errors.Retriable, errors.NodeAssociated),
                longest_s=longest_s,
            )

    def _attach_volume(
        self, node: NodeId, device: Any, boot_index: int
    ) -> None:
        connection = json.loads(device.connection_info)

        def create() -> None:
            targets = self._client.list_volume_targets(node)
            if device.volume_id not in [t['volume_id'] for t in targets]:
                self._client.create_volume_target(
                    node,
                    volume_id=device.volume_id,
                    volume_type=connection['driver_volume_type'],
                    boot_index=boot_index,
                    properties=connection['data'],
                )

        self._waiter.retry(create)

    def _ip_address(
        self, node: NodeId, instance: Any, connectors: dict[str, list[str]]
    ) -> str | None:
        """Return the IP address to which Cinder exports the volumes."""
        if 'ip' in connectors:
            return connectors['ip'][0]
        vifs = instance.get_network_info() or ()
        wanted = self._vifs_of_macs(node, connectors.get('mac', ()))
        fixed = [
            ip
            for vif in vifs
            if not wanted or vif['id'] in wanted
            for ip in vif.fixed_ips()
        ]
        fixed.sort(key=lambda ip: int(ip['version']))
        return str(fixed[0]['address']) if fixed else None

    def _vifs_of_macs(self, node: NodeId, macs: Iterable[str]) -> set[str]:
        """Return the VIFs on the Ironic ports with these MAC addresses."""
        addresses = {mac.lower() for mac in macs}
        if not addresses:
            return set()
        ports = [
            *self._waiter.retry(lambda: self._client.list_ports(node)),
            *self._waiter.retry(lambda: self._client.list_portgroups(node)),
        ]
        return {
            str(port['internal_info']['tenant_vif_port_id'])
            for port in ports
            if str(port.get('address')).lower() in addresses
            and (port.get('internal_info') or {}).get('tenant_vif_port_id')
        }


def _is_encrypted(device: Any) -> bool:
    """Return whether Cinder says that a volume is encrypted.

    Nova asks for the encryption of a volume only where a hypervisor attaches
    it, and not while it prepares a build.
    """
    return bool(json.loads(device.connection_info)['data'].get('encrypted'))


def list_volumes(block_device_info: Any) -> list[Any]:
    """Return the driver block devices from Nova's ``block_device_info``."""
    return list(nova_driver.block_device_info_get_mapping(block_device_info))
