# SPDX-License-Identifier: Apache-2.0
"""Unshelves that fail: the node of the server is free for others again.

nova-scheduler allocates a node to a server before its host unshelves it. Nova
deletes this allocation if the claim or the deploy fails, but not if a step
before them does, such as the first save of the server's record
(``ComputeManager._unshelve_instance``). The node would stay allocated to a
server that has none. This host has kept the node for the unshelve as well, see
``build_forwarding``: it would refuse the builds and unshelves of other servers
on it until the next round of recovery, while Placement offers the node.

Importing this module imports Nova's manager; see ``compute_manager``.
"""

from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import manager as nova_manager
from nova.compute import task_states, vm_states
from oslo_utils import excutils

from hashring.clock import Clock
from hashring.ring import Host
from ironic_compute.manager.retries import retried, while_kept
from resource_tracker.node import NodeId

_UNSHELVING = frozenset({task_states.UNSHELVING, task_states.SPAWNING})


class FreesFailedUnshelves(nova_manager.ComputeManager):
    """Nova's ComputeManager, whose failed unshelves leave no allocation."""

    clock: Clock
    host: Host
    reportclient: Any

    def list_allocated_nodes(self, context: Any, server: str) -> list[NodeId]:
        """Return the nodes on which a server has an allocation."""
        raise NotImplementedError

    def release_node(self, node: str | None, server: str) -> None:
        """Release a node that was kept for a build or unshelve."""
        raise NotImplementedError

    def _unshelve_instance(
        self,
        context: Any,
        instance: Any,
        image: Any,
        filter_properties: Any,
        node: Any,
        *args: Any,
    ) -> None:
        """Unshelve a server; free its node and allocation if that fails.

        The node is released first, because others may get it as soon as it has
        no allocation. If nova-api has deleted the server, it has none now.
        A deployed server keeps its allocation, even if it could not be saved:
        Nova's ``reverts_task_state`` saves that it is active.
        """
        rest = image, filter_properties, node, *args
        try:
            super()._unshelve_instance(context, instance, *rest)
        except Exception:
            with excutils.save_and_reraise_exception():
                if instance.vm_state != vm_states.ACTIVE:
                    self.release_node(node, instance.uuid)
                    self._free_allocation(context, instance, node)

    @retried(
        'The unshelve of server %(server)s has failed, and its allocation '
        'cannot be deleted yet: %(error)s',
        while_kept,
    )
    def _free_allocation(
        self, context: Any, instance: Any, node: str | None
    ) -> None:
        """Delete the allocation of a server that is still shelved.

        Blocks until nova-conductor and Placement answer. If the unshelve
        failed because another request has the server now, the allocation may
        be that of this request.
        """
        if not self._is_unshelving(instance.uuid):
            return
        if node in self.list_allocated_nodes(context, instance.uuid):
            self.reportclient.delete_allocation_for_instance(
                context, instance.uuid, force=True
            )

    def _is_unshelving(self, server: str) -> bool:
        """Read whether a server is still being unshelved here.

        Its Instance object has changes that Nova will save.
        """
        context = nova_context.get_admin_context()
        try:
            current = objects.Instance.get_by_uuid(context, server)
        except nova_exception.InstanceNotFound:
            return False
        is_waiting = current.task_state in _UNSHELVING
        return is_waiting and is_shelved(current, self.host)


def is_shelved(instance: Any, host: Host) -> bool:
    """Return whether a server is shelved, and of no other host already."""
    return (
        instance.vm_state == vm_states.SHELVED_OFFLOADED
        and instance.host in (None, host)
    )
