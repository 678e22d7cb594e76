# SPDX-License-Identifier: Apache-2.0
"""Client of Ironic's API: requests that change nodes; made from ``[ironic]``.

Each of these requests waits at the lease gate and is sent once; the driver
decides whether it may be repeated. The read requests are inherited from
``reader``. API reference: https://docs.openstack.org/api-ref/baremetal/
"""

import http
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

# Options of Nova's group [ironic] that have no effect here, and the reason.
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
    """Return whether nova.conf sets an option."""
    return getattr(group, name, None) not in (None, [])


def _is_reserve_skipped(conf: Any) -> bool:
    workarounds = getattr(conf, 'workarounds', None)
    return bool(
        getattr(workarounds, 'skip_reserve_in_use_ironic_nodes', False)
    )


def make_client(conf: Any, gate: Gate) -> 'IronicClient':
    """Create a client from ``[ironic]`` of nova.conf, without a request.

    Warns of options that are set but have no effect.

    :raises errors.ConfigError: the credentials are missing or incomplete
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
    if _is_reserve_skipped(conf):
        LOG.warning(
            'Ignored [workarounds] skip_reserve_in_use_ironic_nodes of '
            'nova.conf: a node in use stays reserved in Placement, and a node '
            'that Ironic has cleaned is offered at once'
        )
    return IronicClient(conf, gate)


class IronicClient(IronicReader):
    """Client of one Ironic that reads and changes nodes; thread-safe.

    Every method blocks for its requests, and a change first blocks until the
    gate is open. Every method raises ``errors.IronicUnavailable`` if Ironic
    does not answer, ``errors.NodeNotFound`` if Ironic has no such node,
    ``errors.NodeLocked`` if another request holds the node's lock, and
    ``errors.IronicRefused`` with Ironic's text if Ironic refuses the request.

    :param conf: Nova's options, with the group ``ironic``
    :param gate: the lease gate that each change waits for
    """

    def __init__(self, conf: Any, gate: Gate) -> None:
        super().__init__(conf)
        self._gate = gate

    def wait_for_lease(self) -> None:
        """Block until the lease is in force, before a node is read.

        :raises errors.GateShut: it is not, and the caller may not wait
        """
        self._gate.wait()

    def _send_change(self, action: str, send: Callable[[Any], Any]) -> Any:
        """Wait at the gate, then send a request that changes something, once.

        What the request needs of Keystone, and the API version, may come after
        the lease has ended; therefore the gate is looked at again. A wait at
        it may be longer than these are valid.

        ironicclient does not repeat the request, because its repetitions
        would go on for minutes after the lease has ended. The caller repeats
        it where that is safe (``NodeWaiter.retry``).

        If Ironic refuses the token, all of this is done again with a new one.

        :param action: completes "Ironic refused to …" in an error's text
        :param send: sends the request with the ironicclient it is given
        """
        try:
            return self._send_prepared(action, send)
        except errors.IronicNotReached as exc:
            if exc.http_status != http.HTTPStatus.UNAUTHORIZED:
                raise
        return self._send_prepared(action, send)

    def _send_prepared(self, action: str, send: Callable[[Any], Any]) -> Any:
        self._gate.wait()
        prepared = self._session.prepare(action)
        while not self._gate.is_open():
            self._gate.wait()
            prepared = self._session.prepare(action)
        with self._session.request(action, prepared) as client:
            return send(client)

    def reserve_node(self, node: str, instance_uuid: str) -> NodeFacts:
        """Set the ``instance_uuid`` of a node that has none.

        :returns: the node with the instance
        :raises errors.NodeAssociated: the node has another instance, or the
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
        """Read the node after Ironic refused to reserve it.

        The node shows whether another instance has it; the text of Ironic's
        refusal does not.

        :returns: the node, if it has the instance already
        :raises errors.NodeAssociated: the node has another instance
        :raises errors.IronicComputeError: ``exc``, if the node has none
        """
        present = self.read_node(node)
        if present.instance_uuid is None:
            raise exc
        if present.instance_uuid != instance_uuid:
            raise errors.NodeAssociated(
                f'Node {node} has instance {present.instance_uuid} already'
            ) from exc
        return present

    def release_node(self, node: str, instance_uuid: str) -> None:
        """Remove an instance from a node if the node has this instance."""
        if self.read_node(node).instance_uuid != instance_uuid:
            return
        # Ironic accepts a patch of exactly this operation in more states
        # (among them maintenance) than any other patch.
        self.patch_node(node, [{'op': 'remove', 'path': '/instance_uuid'}])

    def patch_node(self, node: str, patch: Sequence[Record]) -> NodeFacts:
        """Change fields of a node.

        :param patch: operations of a JSON patch (RFC 6902)
        :returns: the changed node
        """
        return self._update(f'change node {node}', node, patch)

    def _update(
        self, action: str, node: str, patch: Sequence[Record]
    ) -> NodeFacts:
        def update(client: Any) -> NodeFacts:
            sent_at_s = self._clock.now_s()
            answer = client.node.update(node, list(patch))
            return self._parse(answer, sent_at_s)

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
        """Request a provision state: active, deleted, rebuild, rescue …

        Ironic changes the state later.

        :param configdrive: the parts that Ironic builds a config drive of
            (API 1.56), or a finished drive in base64 as bytes. Never a str,
            because ironicclient takes it for the name of a file.
        """
        self._send_change(
            f'set node {node} to {target}',
            lambda client: client.node.set_provision_state(
                node,
                target,
                configdrive=configdrive,
                rescue_password=rescue_password,
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
        """Request power ``on``, ``off`` or ``reboot``; Ironic acts later.

        :param soft: let the operating system shut down
        :param timeout_s: after so long Ironic gives up
        """
        self._send_change(
            f'set the power of node {node} to {target}',
            lambda client: client.node.set_power_state(
                node, target, soft=soft, timeout=timeout_s
            ),
        )

    def inject_nmi(self, node: str) -> None:
        """Have Ironic send a non-maskable interrupt (NMI) to a node."""
        self._send_change(
            f'send an NMI to node {node}',
            lambda client: client.node.inject_nmi(node),
        )

    # VIFs

    def attach_vif(self, node: str, vif: str) -> None:
        """Attach a VIF to a node; succeeds if it is attached already.

        Ironic answers 409 for a VIF that is attached, for a lack of free
        ports and for a locked node. Therefore the node's list of VIFs is read.
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
        """Detach a VIF from a node; succeeds if it is not attached."""
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
        """Enable or disable the console of a node."""
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
        """Add a volume to those that a node uses; return the target's uuid."""
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
        """Remove a volume from its node; succeeds if it is not there.

        :param target: the uuid that ``create_volume_target`` returned
        """
        try:
            self._send_change(
                f'delete volume target {target}',
                lambda client: client.volume_target.delete(target),
            )
        except errors.NodeNotFound:
            LOG.debug('No volume target %(target)s', {'target': target})
