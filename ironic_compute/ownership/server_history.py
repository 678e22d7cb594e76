# SPDX-License-Identifier: Apache-2.0
"""What only people read of a moved server: Nova's history, Ironic's field."""

from nova import context as nova_context
from nova import objects

from hashring.ring import Host
from ironic_compute.ironic_api import descriptions
from ironic_compute.ironic_api.client import IronicClient
from ironic_compute.nodes.records import MOVE_ACTION
from resource_tracker.node import NodeId

# The name of the event in the history of a server. It is shown to the server's
# user like the name of its action, so neither names a host. The event has the
# former host in a field of its own, which only administrators see.
_EVENT = 'ironic_compute_leave_host'


def note_move(server: str, former: Host) -> None:
    """Write that a server has left a host; sends casts to nova-conductor."""
    context = nova_context.get_admin_context()
    start = objects.InstanceAction.action_start
    start(context, server, MOVE_ACTION, want_result=False)
    event = objects.InstanceActionEvent
    event.event_start(context, server, _EVENT, want_result=False, host=former)
    event.event_finish(context, server, _EVENT, want_result=False)


def note_host(client: IronicClient, node: NodeId, host: Host) -> None:
    """Write a server's new host to its node in Ironic, if one is there."""
    if descriptions.is_described(client, node):
        path = f'/instance_info/{descriptions.HOST_KEY}'
        patch = {'op': 'add', 'path': path, 'value': host}
        client.patch_node(node, [patch])
