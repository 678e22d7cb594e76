# SPDX-License-Identifier: Apache-2.0
"""Restores the host of a server that is on a held node and has none in Nova.

The end of a failed build and that of a shelving remove the host and the node
from a server. nova-conductor may carry such a request out a minute late, when
the server is built or unshelved again. ``manager.late_saves`` has most of them
refused. One is not if the server has the same states then as before: a claim
that is given up looks like the claim of the next build. The server would run
on its node, and nobody would serve it. ``stray_instances`` finds it.
"""

from typing import Any, Protocol

import attrs
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from oslo_log import log as logging

from ironic_compute.ironic_api.client import IronicClient
from ironic_compute.recovery import decisions
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)


class HeldNodes(Protocol):
    """What is needed of the nodes that this host holds."""

    @property
    def host(self) -> str: ...
    def row(self, node: NodeId) -> Any | None:
        """Return the row of a held node, None if the node is not held."""


@attrs.define(eq=False, repr=False, slots=False)
class LostHosts:
    """Gives servers back to the host that holds their node."""

    _held_nodes: HeldNodes
    _client: IronicClient

    def restore(self, node: NodeId, server: str) -> None:
        """Save the host and the node of a server that has lost its host.

        Does nothing if Nova and Ironic, read again, show another state. Blocks
        for some requests; the caller has made sure that no thread of this
        worker works on the server.
        """
        instance = objects.Instance.get_by_uuid(
            nova_context.get_admin_context(), server, expected_attrs=[]
        )
        row = self._held_nodes.row(node)
        is_lost = decisions.has_lost_host(instance)
        if row is None or not is_lost or not self._is_on(node, server):
            return
        instance.host = instance.launched_on = self._held_nodes.host
        instance.node, instance.compute_id = node, row.id
        _save_unless_changed(instance)

    def _is_on(self, node: NodeId, server: str) -> bool:
        facts = self._client.read_node_of_instance(server)
        if facts is None or facts.uuid != node:
            return False
        return decisions.is_deployed(facts)


def _save_unless_changed(instance: Any) -> None:
    try:
        instance.save(
            expected_vm_state=[instance.vm_state],
            expected_task_state=[instance.task_state],
        )
    except nova_exception.InstanceUpdateConflict:
        return  # It has another state by now, and is checked again.
    LOG.warning(
        'Server %(server)s is on node %(node)s and had no host in Nova; it '
        'has host %(host)s again',
        {
            'server': instance.uuid,
            'node': instance.node,
            'host': instance.host,
        },
    )
