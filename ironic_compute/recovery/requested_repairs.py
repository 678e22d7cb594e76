# SPDX-License-Identifier: Apache-2.0
"""Requested repairs: mends at an operator's request what no audit mends.

``ironic-computectl fsck --repair`` names servers and nodes of this host. Each
of them is read again here, and what is changed follows from these answers and
never from the request, an error or an empty list:

* An allocation on a held node is deleted if Nova has the record of its server
  and has deleted the server, and Ironic does not have the server on the node.
* A server that is on its node in Nova and in Ironic, and has no task, gets the
  allocation of this node alone.
* VIFs and volume targets of a node are removed if Ironic has it available and
  without a server; the targets, if it is off. No build can claim the node
  meanwhile.

The recovery loop calls ``run``; the repairs run in a thread of their own.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import attrs
from nova import context as nova_context
from nova import objects
from oslo_log import log as logging

from ironic_compute.batching import run_isolated
from ironic_compute.gate import without_waiting
from ironic_compute.nodes.held_nodes import HeldNodes
from ironic_compute.recovery import in_progress
from ironic_compute.recovery.decisions import is_active, is_idle, is_resting
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)

# Placement has ``consumer_type`` since this version.
_MICROVERSION = '1.38'
_OFF = 'power off'


@attrs.define(eq=False, repr=False, slots=False)
class RequestedRepairs:
    """Repairs what an operator names; see the module.

    :param ironic: an ``IronicClient``, whose writes need the lease
    :param placement: Nova's client of Placement, whose writes need the lease
    :param request_audit: begins an audit of all nodes soon; does not block
    :param begin: runs a function in a thread of its own
    """

    _held_nodes: HeldNodes
    _ironic: Any
    _placement: Any
    _in_progress: in_progress.InProgress
    request_audit: Callable[[], None]
    _begin: in_progress.StartThread = in_progress.start_thread

    def run(
        self,
        servers: Iterable[str],
        nodes: Iterable[NodeId],
        recheck: Callable[[list[str]], None],
    ) -> None:
        """Start a thread that repairs these; returns at once.

        :param recheck: called with the servers first, in the same thread,
            because two threads would keep each other off a server
        """
        repair = functools.partial(
            self._repair, sorted(servers), sorted(nodes), recheck
        )
        self._begin('requested-repairs', repair)

    def _repair(
        self,
        servers: list[str],
        nodes: list[NodeId],
        recheck: Callable[[list[str]], None],
    ) -> None:
        recheck(servers)
        for node in nodes:
            run_isolated(node, self._delete_allocations, node)
            run_isolated(node, self._remove_leftovers, node)
        for server in servers:
            in_progress.run_exclusive(
                self._in_progress,
                server,
                functools.partial(self._restore_allocation, server),
                'Could not check the allocation of server %(server)s',
            )
        # It reserves the nodes whose allocation was restored.
        self.request_audit()

    # Allocations of deleted servers

    def _delete_allocations(self, node: NodeId) -> None:
        row = self._held_nodes.row(node)
        if row is None:
            return
        context = nova_context.get_admin_context()
        for consumer in sorted(self._consumers(context, row.uuid)):
            in_progress.run_exclusive(
                self._in_progress,
                consumer,
                functools.partial(self._delete_if_deleted, node, consumer),
                'Could not check the allocation of server %(server)s',
            )

    def _consumers(self, context: Any, provider: str) -> Iterable[str]:
        found = self._placement.get_allocations_for_resource_provider(
            context, provider
        )
        consumers: Iterable[str] = found.allocations.keys()
        return consumers

    def _delete_if_deleted(self, node: NodeId, consumer: str) -> None:
        """Delete the allocation of a server that Nova has deleted.

        The teardown of a node that still has the server comes first.

        :raises nova.exception.InstanceNotFound: Nova never had the server,
            so the allocation is another program's
        """
        context = nova_context.get_admin_context(read_deleted='yes')
        instance = objects.Instance.get_by_uuid(
            context, consumer, expected_attrs=[]
        )
        if not instance.deleted:
            return
        if self._ironic.read_node(node).instance_uuid == consumer:
            return
        with without_waiting():
            self._placement.delete_allocation_for_instance(context, consumer)
        LOG.info(
            'Deleted the allocation of server %(server)s on node %(node)s, '
            'because Nova has deleted the server',
            {'server': consumer, 'node': node},
        )

    # Allocations of servers on their nodes

    def _restore_allocation(self, server: str) -> None:
        """Give a server on its node the allocation of this node alone."""
        context = nova_context.get_admin_context()
        instance = objects.Instance.get_by_uuid(
            context, server, expected_attrs=['flavor']
        )
        row = self._row_of(instance)
        if row is None or not self._is_on_node(instance):
            return
        known = self._placement.get_allocs_for_consumer(context, server)
        others = set(self._consumers(context, row.uuid)) - {server}
        if set(known['allocations']) == {row.uuid} or others:
            return
        self._put_allocation(context, instance, row, known)

    def _row_of(self, instance: Any) -> Any | None:
        """Return the row of a resting server's node, if this host has both."""
        is_here = instance.host == self._held_nodes.host
        if not is_here or not is_resting(instance):
            return None
        return self._held_nodes.row(NodeId(instance.node))

    def _is_on_node(self, instance: Any) -> bool:
        facts = self._ironic.read_node(instance.node)
        return facts.instance_uuid == instance.uuid and is_active(facts)

    def _put_allocation(
        self, context: Any, instance: Any, row: Any, known: Any
    ) -> None:
        """Write inventory and allocation at once, so no build gets the node.

        The node is reserved, and Placement refuses an allocation then. The
        next report of the node reserves it again.
        """
        url = f'/resource_providers/{row.uuid}/inventories'
        inventories = self._placement.get(url).json()
        free = {
            name: {**fields, 'reserved': 0}
            for name, fields in inventories['inventories'].items()
        }
        if len(free) != 1:
            return
        body = {
            'inventories': {row.uuid: {**inventories, 'inventories': free}},
            'allocations': {
                instance.uuid: {
                    'allocations': {
                        row.uuid: {'resources': dict.fromkeys(free, 1)}
                    },
                    'project_id': instance.project_id,
                    'user_id': instance.user_id,
                    'consumer_generation': known.get('consumer_generation'),
                    'consumer_type': 'INSTANCE',
                }
            },
        }
        with without_waiting():
            answer = self._placement.post(
                '/reshaper', body, version=_MICROVERSION
            )
        if not answer:
            LOG.warning(
                'Placement refused the allocation of server %(server)s on '
                'its node %(node)s: %(answer)s',
                {
                    'server': instance.uuid,
                    'node': row.uuid,
                    'answer': answer.text,
                },
            )
            return
        LOG.info(
            'Server %(server)s has the allocation of its node %(node)s again, '
            'and no other',
            {'server': instance.uuid, 'node': row.uuid},
        )

    # Leftovers in Ironic

    def _remove_leftovers(self, node: NodeId) -> None:
        """Remove VIFs and volume targets of a former server from a free node.

        The node's lock is held, and its claim, until Ironic has answered.
        """
        with self._held_nodes.locked_free_row(node) as row:
            facts = None if row is None else self._ironic.read_node(node)
            if facts is None or not is_idle(facts):
                return
            with without_waiting():
                self._detach_vifs(node)
                # Ironic refuses it while the node is on.
                if facts.power_state == _OFF:
                    self._delete_targets(node)

    def _detach_vifs(self, node: NodeId) -> None:
        for vif in self._ironic.list_vifs(node):
            self._ironic.detach_vif(node, vif)
            self._log_leftover(node, f'VIF {vif}')

    def _delete_targets(self, node: NodeId) -> None:
        for target in self._ironic.list_volume_targets(node):
            self._ironic.delete_volume_target(target['uuid'])
            self._log_leftover(node, f'volume target {target["uuid"]}')

    def _log_leftover(self, node: NodeId, name: str) -> None:
        LOG.info(
            'Removed %(name)s of a former server from free node %(node)s',
            {'name': name, 'node': node},
        )
