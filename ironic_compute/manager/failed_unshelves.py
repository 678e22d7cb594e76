# SPDX-License-Identifier: Apache-2.0
"""Unshelves that fail: node and volumes of the server are free again.

nova-scheduler allocates a node to a server before its host unshelves it. Nova
deletes this allocation if the claim or the deploy fails, but not if a step
before them does, such as the first save of the server's record
(``ComputeManager._unshelve_instance``). The node would stay allocated to a
server that has none. This host has kept the node for the unshelve as well, see
``build_forwarding``: it would refuse the builds and unshelves of other servers
on it until the next round of recovery, while Placement offers the node.

Nova attaches the volumes before the claim. If one of them fails, it leaves the
others attached to the node, which the next server on it could read then. And
if Cinder could not complete an attachment, Nova has deleted it, but its record
of the volume names it still: the server could not be unshelved any more.

Importing this module imports Nova's manager; see ``compute_manager``.
"""

from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import manager as nova_manager
from nova.compute import task_states, vm_states
from oslo_log import log as logging
from oslo_utils import excutils

from hashring.clock import Clock
from hashring.ring import Host
from ironic_compute.manager.reservations import RESERVED, list_attachments
from ironic_compute.manager.retries import (
    has_no_answer,
    retried,
    retried_in_cinder,
    while_kept,
)
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)

_UNSHELVING = frozenset({task_states.UNSHELVING, task_states.SPAWNING})
_retried_when_answered = retried(
    'The unshelve of server %(server)s has failed, and its volumes leave the '
    'node when Cinder answers: %(error)s',
    has_no_answer,
)


class FreesFailedUnshelves(nova_manager.ComputeManager):
    """Nova's ComputeManager, whose failed unshelves leave no allocation."""

    clock: Clock
    host: Host
    reportclient: Any
    volume_api: Any

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
        """Unshelve a server; free all that it has got if that fails.

        The volumes leave the node first, and it is released before others may
        get it, which is as soon as it has no allocation. If nova-api has
        deleted the server, it has none now. A deployed server keeps its
        allocation, even if it could not be saved: Nova's
        ``reverts_task_state`` saves that it is active, or the key.
        """
        key = instance.key_data, instance.auto_disk_config
        rest = image, filter_properties, node, *args
        try:
            super()._unshelve_instance(context, instance, *rest)
        except Exception:
            with excutils.save_and_reraise_exception():
                instance.key_data, instance.auto_disk_config = key
                if instance.vm_state != vm_states.ACTIVE:
                    self._free_volumes(context, instance, node)
                    self.release_node(node, instance.uuid)
                    self._free_allocation(context, instance, node)

    def _free_volumes(
        self, context: Any, instance: Any, node: str | None
    ) -> None:
        """Reserve the volumes of a server that is still shelved.

        Blocks until Cinder has answered. A volume that it refuses to reserve
        keeps no other from leaving the node.
        """
        try:
            if not self._has_no_other_node(context, instance, node):
                return
            for bdm in self._list_attached(context, instance):
                self._reserve_volume(context, instance, bdm)
        except Exception as exc:
            _log_attached(instance, exc)

    @retried(
        'The unshelve of server %(server)s has failed, and it is not known '
        'yet whether it has another node: %(error)s',
        while_kept,
    )
    def _has_no_other_node(
        self, context: Any, instance: Any, node: str | None
    ) -> bool:
        """Return whether no newer request may have the server's volumes."""
        if not self._is_unshelving(instance.uuid):
            return False
        nodes = self.list_allocated_nodes(context, instance.uuid)
        return not nodes or node in nodes

    @_retried_when_answered
    @retried_in_cinder
    def _list_attached(self, context: Any, instance: Any) -> list[Any]:
        """Return the block devices of volumes that are not only reserved."""
        found = list_attachments(self.volume_api, context, instance.uuid)
        reserved = [e['id'] for e in found if e.get('status') == RESERVED]
        bdms = objects.BlockDeviceMappingList.get_by_instance_uuid(
            context, instance.uuid
        )
        return [
            bdm
            for bdm in bdms
            if bdm.is_volume
            and bdm.attachment_id
            and bdm.attachment_id not in reserved
        ]

    def _reserve_volume(self, context: Any, instance: Any, bdm: Any) -> None:
        try:
            self._reserve_when_answered(context, instance, bdm)
        except Exception as exc:
            _log_attached(instance, exc)

    @_retried_when_answered
    @retried_in_cinder
    def _reserve_when_answered(
        self, context: Any, instance: Any, bdm: Any
    ) -> None:
        self._terminate_volume_connections(context, instance, [bdm])

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


def _log_attached(instance: Any, exc: Exception) -> None:
    LOG.warning(
        'The unshelve of server %(server)s has failed, and a volume may still '
        'be attached to the node: %(error)s',
        {'server': instance.uuid, 'error': exc},
    )


def is_shelved(instance: Any, host: Host) -> bool:
    """Return whether a server is shelved, and of no other host already."""
    return (
        instance.vm_state == vm_states.SHELVED_OFFLOADED
        and instance.host in (None, host)
    )
