# SPDX-License-Identifier: Apache-2.0
"""Client of Ironic's API: the requests that change nodes, with types.

Each of these requests waits at the lease gate and is sent once; the driver
decides whether it may be repeated. The read requests are inherited from
``reader``. API reference: https://docs.openstack.org/api-ref/baremetal/
"""

from collections.abc import Callable, Sequence
from typing import Any

from oslo_log import log as logging

from ironic_compute import errors
from ironic_compute.gate import Gate
from ironic_compute.ironic_api.reader import IronicReader, Record
from resource_tracker.node import NodeFacts

LOG = logging.getLogger(__name__)


_VERSION = 'the API version is agreed on with Ironic'
_REPEATED = (
    'requests are repeated as api_max_retries and api_retry_interval say, '
    'and nowhere else'
)

# Options of Nova's group [ironic] that do nothing here, and why.
UNUSED = {
    'peer_list': (
        'daemons of one pool find each other through [coordination] '
        'backend_url'
    ),
    'service_name': (
        'Ironic is found by its service_type; tell two apart by region_name '
        'or endpoint_override'
    ),
    'min_version': _VERSION,
    'max_version': _VERSION,
    'version': _VERSION,
    'connect_retries': _REPEATED,
    'connect_retry_delay': _REPEATED,
    'status_code_retries': _REPEATED,
    'status_code_retry_delay': _REPEATED,
    'retriable_status_codes': _REPEATED,
}


def _is_set(group: Any, name: str) -> bool:
    """Say whether nova.conf says something about an option."""
    return getattr(group, name, None) not in (None, [])


def make_client(conf: Any, gate: Gate) -> 'IronicClient':
    """Make a client from ``[ironic]`` of nova.conf; asks nothing yet.

    :raises errors.ConfigError: there are no credentials
    """
    unused = [name for name in UNUSED if _is_set(conf.ironic, name)]
    if unused:
        LOG.warning(
            'Ignored %(options)s in [ironic] of nova.conf: %(reasons)s',
            {
                'options': ', '.join(unused),
                'reasons': '; '.join(sorted({UNUSED[n] for n in unused})),
            },
        )
    return IronicClient(conf, gate)


class IronicClient(IronicReader):
    """A typed client; any thread may call. Changes wait at the gate.

    Every method raises ``errors.IronicUnavailable`` if Ironic does not
    answer, ``errors.NodeNotFound`` if it has no such node,
    ``errors.NodeLocked`` if somebody works on the node,
    and ``errors.IronicRefused`` with Ironic's text if it will not.

    :param conf: has the group ``client`` as Nova registers it
    :param gate: what changes wait for
    """

    def __init__(self, conf: Any, gate: Gate) -> None:
        super().__init__(conf)
        self._gate = gate

    def _send_change(self, action: str, send: Callable[[Any], Any]) -> Any:
        """Send a request that changes something, once, with a lease.

        Whoever asks knows what may be asked again, and looks before he does
        (`Watch.patiently`). The client that repeats by itself would go on
        for minutes after the lease has ended.
        """
        self._gate.wait()
        with self._session.request(action) as client:
            return send(client)

    def reserve_node(self, node: str, instance_uuid: str) -> NodeFacts:
        """Put an instance on a node: Ironic refuses a second one.

        :returns: the node as it is then
        :raises errors.NodeAssociated: another instance has it, or the
            instance has another node
        """
        patch = [
            {'op': 'add', 'path': '/instance_uuid', 'value': instance_uuid}
        ]
        try:
            return self._update(f'reserve node {node}', node, patch)
        except (errors.NodeLocked, errors.IronicRefused) as exc:
            return self._check_reservation(node, instance_uuid, exc)
        except errors.NodeAssociated:
            present = self.read_node(node)
            if present.instance_uuid != instance_uuid:
                raise
            return present

    def _check_reservation(
        self, node: str, instance_uuid: str, exc: errors.IronicComputeError
    ) -> NodeFacts:
        """Find out whether the node is taken, whatever Ironic's text says."""
        present = self.read_node(node)
        if present.instance_uuid is None:
            raise exc
        if present.instance_uuid != instance_uuid:
            raise errors.NodeAssociated(
                f'Node {node} has instance {present.instance_uuid} already'
            ) from exc
        return present

    def release_node(self, node: str, instance_uuid: str) -> None:
        """Take an instance off a node; another's instance stays."""
        if self.read_node(node).instance_uuid != instance_uuid:
            return
        # Exactly this patch: Ironic takes it in more states than others.
        self.patch_node(node, [{'op': 'remove', 'path': '/instance_uuid'}])

    def patch_node(self, node: str, patch: Sequence[Record]) -> NodeFacts:
        """Change fields of a node, by operations of JSON patch.

        :returns: the node as it is then
        """
        return self._update(f'change node {node}', node, patch)

    def _update(
        self, action: str, node: str, patch: Sequence[Record]
    ) -> NodeFacts:
        def update(client: Any) -> NodeFacts:
            answer = client.node.update(node, list(patch))
            return NodeFacts.parse(answer.to_dict())

        answered: NodeFacts = self._send_change(action, update)
        return answered

    def set_provision_state(
        self,
        node: str,
        target: str,
        *,
        configdrive: Record | bytes | None = None,
        rescue_password: str | None = None,
    ) -> None:
        """Ask for a provision state: active, deleted, rebuild, rescue …

        :param configdrive: what it is made of (1.56), or the drive itself in
            base64; never text, which the library takes for a file's name
        """
        arguments: dict[str, Any] = {}
        if configdrive is not None:
            arguments['configdrive'] = configdrive
        if rescue_password is not None:
            arguments['rescue_password'] = rescue_password
        self._send_change(
            f'set node {node} to {target}',
            lambda client: client.node.set_provision_state(
                node, target, **arguments
            ),
        )

    def set_power_state(
        self,
        node: str,
        target: str,
        *,
        soft: bool = False,
        timeout_s: int | None = None,
    ) -> None:
        """Ask for power on, off or reboot."""
        self._send_change(
            f'set the power of node {node} to {target}',
            lambda client: client.node.set_power_state(
                node, target, soft=soft, timeout=timeout_s
            ),
        )

    def inject_nmi(self, node: str) -> None:
        """Send a non-maskable interrupt."""
        self._send_change(
            f'send an NMI to node {node}',
            lambda client: client.node.inject_nmi(node),
        )

    # VIFs

    def attach_vif(self, node: str, vif: str) -> None:
        """Attach a VIF; one that is attached to this very node is fine.

        A 409 may also mean that no port is free or that the node is
        locked, so its text is not believed: the list is.
        """
        try:
            self._send_change(
                f'attach VIF {vif} to node {node}',
                lambda client: client.node.vif_attach(node, vif),
            )
        except (errors.NodeLocked, errors.IronicRefused):
            if vif not in self.list_vifs(node):
                raise

    def detach_vif(self, node: str, vif: str) -> None:
        """Detach a VIF; one that is not attached is fine."""
        try:
            self._send_change(
                f'detach VIF {vif} from node {node}',
                lambda client: client.node.vif_detach(node, vif),
            )
        except (errors.NodeNotFound, errors.IronicRefused):
            if vif in self.list_vifs(node):
                raise

    # Consoles

    def set_console_mode(self, node: str, enabled: bool) -> None:
        """Switch the console of a node on or off."""
        self._send_change(
            f'switch the console of node {node}',
            lambda client: client.node.set_console_mode(node, enabled),
        )

    # Volumes

    def create_volume_target(
        self,
        node: str,
        *,
        volume_id: str,
        volume_type: str,
        boot_index: int,
        properties: Record,
    ) -> str:
        """Tell a node of a volume; return the uuid of the target."""
        created = self._send_change(
            f'give volume {volume_id} to node {node}',
            lambda client: client.volume_target.create(
                node_uuid=node,
                volume_id=volume_id,
                volume_type=volume_type,
                boot_index=boot_index,
                properties=dict(properties),
            ),
        )
        return str(created.uuid)

    def delete_volume_target(self, target: str) -> None:
        """Take a volume from its node; one that is gone is fine."""
        try:
            self._send_change(
                f'delete volume target {target}',
                lambda client: client.volume_target.delete(target),
            )
        except errors.NodeNotFound:
            LOG.debug('No volume target %(target)s', {'target': target})
