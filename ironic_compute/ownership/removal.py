# SPDX-License-Identifier: Apache-2.0
"""The end of a node: its row and provider go only when Ironic is certain.

A node that a full list does not show may be gone, may have left the pool, or
the list may be wrong. Only Ironic's own "404" for that very uuid, twice and
an audit apart, with nothing allocated on it, counts as gone, and only if
Ironic shows us all nodes. Errors, time-outs, short lists and empty ones never
do (bugs 1750450, 1853009).
"""

from collections.abc import Mapping
from typing import Any

from oslo_log import log as logging

from ironic_compute import errors
from ironic_compute.batching import run_isolated
from ironic_compute.ironic_api.client import IronicClient
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.held_nodes import HeldNodes
from resource_tracker.errors import PlacementError
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.reconciler import Reconciler

LOG = logging.getLogger(__name__)


class Removal:
    """Remember which nodes Ironic denied; the feed's audit thread calls."""

    def __init__(
        self,
        held_nodes: HeldNodes,
        compute_nodes: ComputeNodes,
        client: IronicClient,
        reconciler: Reconciler,
    ) -> None:
        self._held_nodes = held_nodes
        self._compute_nodes = compute_nodes
        self._client = client
        self._reconciler = reconciler
        self._denied: frozenset[NodeId] = frozenset()
        self._left: frozenset[NodeId] = frozenset()

    def check_absent(self, nodes: Mapping[NodeId, NodeFacts]) -> None:
        """Look at the held nodes that a full list did not show."""
        absent = self._held_nodes.rows().keys() - nodes.keys()
        self._left &= absent
        denied = frozenset(
            node for node in sorted(absent) if self._is_missing(node)
        )
        for node in sorted(denied):
            self._held_nodes.deny(node)
        again = denied & self._denied
        if again and self._is_certain(len(again)):
            for node in sorted(again):
                run_isolated(node, self._remove, node, 'deleted in Ironic')
        # One that was removed and comes back is a new one.
        self._denied = denied & self._held_nodes.rows().keys()

    def _is_certain(self, count: int) -> bool:
        """Say whether "404" is certain to mean that there is no such node."""
        try:
            if self._client.sees_all():
                return True
        except errors.IronicComputeError as exc:
            LOG.debug('Could not ask what Ironic shows: %(exc)s', {'exc': exc})
            return False
        LOG.error(
            'Ironic says that %(count)d nodes of this host do not exist, but '
            'it does not show us the nodes of all projects: their records '
            'stay. Give the user of [ironic] in nova.conf system scope or '
            'the role that Ironic allows to list all nodes',
            {'count': count},
        )
        return False

    def _is_missing(self, node: NodeId) -> bool:
        """Say whether Ironic answers 404 for this very uuid."""
        try:
            facts = self._client.node(node)
        except errors.NodeNotFound:
            return True
        except errors.IronicComputeError as exc:
            LOG.debug('Could not ask for a node: %(exc)s', {'exc': exc})
            return False
        if not self._client.in_pool(facts):
            self._say_left(node)
        # No list says how it is now, and it is still offered.
        self._held_nodes.found(node)
        run_isolated(node, self._held_nodes.renew, facts)
        return False

    def _say_left(self, node: NodeId) -> None:
        """Say once that a node has left the pool."""
        if node in self._left:
            return
        self._left |= {node}
        LOG.warning(
            'Node %(node)s is in Ironic but not in this pool any more '
            '(conductor group or shard); its record stays until an operator '
            'says "ironic-computectl node forget %(node)s"',
            {'node': node},
        )

    def forget_node(self, node: NodeId) -> str | None:
        """Remove what Nova has of a held node that has left this pool.

        By an operator's order, because Ironic has it still. Another pool
        takes it for a new one then.

        :returns: None, or a sentence that says why not
        """
        try:
            facts = self._client.node(node)
        except errors.NodeNotFound:
            return (
                f'Ironic does not have node {node} any more; it is removed '
                f'without an order, after two audits'
            )
        except errors.IronicComputeError as exc:
            return f'Ironic does not say where node {node} belongs: {exc}'
        if self._client.in_pool(facts):
            return (
                f'Node {node} is in this pool; give it another conductor '
                f'group or shard first, or delete it in Ironic'
            )
        if not self._remove(node, 'which has left this pool'):
            return (
                f'Node {node} is not held by this host, or has a server or '
                f'an allocation'
            )
        return None

    def _remove(self, node: NodeId, why: str) -> bool:
        """Remove a node, while nobody reports it: that would make it anew."""
        with self._held_nodes.still(node) as row:
            is_removed = row is not None and self._remove_records(node, row)
        if is_removed:
            LOG.info(
                'Removed node %(node)s, %(why)s', {'node': node, 'why': why}
            )
        return is_removed

    def _remove_records(self, node: NodeId, row: Any) -> bool:
        if self._compute_nodes.instances_on(node, self._held_nodes.host):
            return False
        # The provider first: while it stays, so does the row that leads to
        # it, and the next audit tries again.
        try:
            if not self._reconciler.delete_provider(node):
                return False
        except PlacementError as exc:
            self._reconciler.withdraw_node(node)
            LOG.warning(
                'Could not remove the provider of node %(node)s and will try '
                'again: %(error)s',
                {'node': node, 'error': exc},
            )
            return False
        self._compute_nodes.delete(row)
        self._held_nodes.drop(node)
        return True
