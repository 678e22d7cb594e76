# SPDX-License-Identifier: Apache-2.0
"""Removal of deleted nodes: their ComputeNode row and resource provider.

A node that is missing in the list of all nodes may be deleted, may have left
the pool, or the list may be wrong. A node counts as deleted only if Ironic
answers 404 for its uuid twice in a row, if Ironic lets this service list the
nodes of all projects, and if no server or allocation is on the node. The two
404s are a minute apart, or more: each comes from an audit unless Ironic
notified the delete or a list with other nodes lacked the node. Errors,
time-outs, short lists and empty lists remove nothing (bugs 1750450, 1853009).
"""

from collections.abc import Callable, Mapping, Set
from typing import Any

import attrs
from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute import errors
from ironic_compute.batching import run_isolated
from ironic_compute.ironic_api.client import IronicClient
from ironic_compute.nodes import records
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.held_nodes import HeldNodes
from ironic_compute.ownership.suspects import CONFIRM_S, Suspects
from resource_tracker.errors import PlacementError
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.reconciler import Reconciler

LOG = logging.getLogger(__name__)

_ROUND_INTERVAL_S = 10.0


@attrs.define(eq=False, repr=False, slots=False)
class Removal:
    """Removes the records of deleted nodes.

    The feed's audit thread calls ``check_absent``, a thread of its own calls
    ``try_round``, and an RPC thread may call ``forget_node``; they block. Any
    thread may call ``note_deleted``, which does not.

    :param request_read: makes the feed read a node from Ironic again soon
    :param confirm_s: seconds between two 404s
    """

    _held_nodes: HeldNodes
    _compute_nodes: ComputeNodes
    _client: IronicClient
    _reconciler: Reconciler
    _clock: Clock
    _request_read: Callable[[NodeId], None]
    _confirm_s: float = CONFIRM_S

    def __attrs_post_init__(self) -> None:
        self._suspects = Suspects(self._confirm_s)
        # When Ironic answered 404 for the nodes that the last audit lacked.
        self._missing: dict[NodeId, float] = {}
        # The mark that each node had at its last 404.
        self._marks: dict[NodeId, int | None] = {}
        self._left: frozenset[NodeId] = frozenset()
        # Nodes that Ironic did not answer for when they were read last.
        self._unanswered: set[NodeId] = set()

    def note_deleted(self, node: NodeId) -> None:
        """Suspect a held node, because Ironic notified its delete.

        The notification may be older than a new node of this uuid.
        """
        if self._held_nodes.row(node) is not None:
            self._suspects.add(node, self._clock.now_s())

    def try_round(self) -> float:
        """Run a round; return the seconds until the next one."""
        try:
            self.run_round()
        except Exception:
            LOG.exception('Could not check which nodes are deleted')
        return _ROUND_INTERVAL_S

    def run_round(self) -> None:
        """Read the suspects that are due; remove those that are confirmed."""
        began_s = self._clock.now_s()
        due = self._suspects.due(began_s)
        for node in due - self._held_nodes.rows().keys():
            # An audit has removed it, or another host holds it now.
            self._suspects.discard(node)
        missing = self._find_missing(due & self._held_nodes.rows().keys())
        twice = {
            node for node in sorted(missing) if self._is_twice(node, began_s)
        }
        self._remove_deleted(twice)
        for node in twice:
            # Only an audit tries again to remove a node that is still held.
            self._suspects.discard(node)

    def _is_twice(self, node: NodeId, began_s: float) -> bool:
        """Return whether the 404 of a suspect was the second in a row.

        Otherwise it is recorded as the first.

        :param began_s: when the read of the suspects began
        """
        if self._suspects.is_confirmed(node, began_s):
            return True
        self._suspects.note_missing(node, self._clock.now_s())
        return False

    def check_absent(self, nodes: Mapping[NodeId, NodeFacts]) -> None:
        """Remove deleted nodes among the held nodes that a list lacks.

        Reads each of these nodes from Ironic, and removes those that Ironic
        answered 404 for in this audit and in the last one.

        :param nodes: the list of all nodes of the pool
        """
        self._suspects.discard_listed(nodes)
        self.check_absent_names(nodes.keys())

    def check_absent_names(self, names: Set[NodeId]) -> None:
        """As ``check_absent``; a name in the list proves nothing.

        :param names: the nodes of a list that another worker has read
        """
        absent = self._held_nodes.rows().keys() - names
        self._left &= absent
        began_s = self._clock.now_s()
        missing = self._find_missing(absent)
        self._unanswered &= absent
        known = dict(self._missing)
        since_s = {n: known[n] for n in missing & known.keys()}
        if names:  # An empty list is more often an error than a short one is.
            self._suspect(missing - self._missing.keys())
        self._remove_deleted(
            {n for n, s in since_s.items() if began_s - s >= self._confirm_s}
        )
        # Removed nodes are left out: one that comes back is a new node.
        now_s, held = self._clock.now_s(), self._held_nodes.rows()
        self._missing = {
            n: since_s.get(n, now_s) for n in missing & held.keys()
        }

    def _mark_missing(self, node: NodeId) -> None:
        """Allow no build on a node until a read finds it.

        The feed reads only those nodes again that it has read as missing
        itself. If this 404 is wrong, nothing else would offer the node again
        for a minute or for ever.

        The earlier 404s were wrong if another part of the worker has found the
        node since: it has another mark then, perhaps of a later 404.
        """
        self._held_nodes.mark_missing(node)
        mark = self._held_nodes.missing_mark(node)
        if self._marks.get(node) != mark:
            self._suspects.forget_missing(node)
            self._missing.pop(node, None)
        self._marks[node] = mark
        self._request_read(node)

    def _suspect(self, missing: Set[NodeId]) -> None:
        """Suspect nodes that a list lacks and Ironic answered 404 for."""
        now_s = self._clock.now_s()
        for node in sorted(missing):
            self._suspects.add(node, now_s)
            self._suspects.note_missing(node, now_s)

    def _remove_deleted(self, nodes: Set[NodeId]) -> None:
        """Remove nodes that Ironic answered 404 for twice, if certain."""
        if nodes and self._is_certain(len(nodes)):
            # Another thread may have found a node after the second 404.
            for node in filter(self._held_nodes.is_missing, sorted(nodes)):
                run_isolated(node, self._remove, node, 'deleted in Ironic')

    def _find_missing(self, absent: Set[NodeId]) -> frozenset[NodeId]:
        """Read absent nodes; mark and return those with a 404 of Ironic.

        Without those that another part of the worker has found while others
        were read here.

        Ends at the first node that Ironic does not answer for, because each
        further read may last as long, and no audit begins meanwhile. That node
        is read last from then on: perhaps Ironic fails for this node only.
        """
        missing = set()
        for node in sorted(absent, key=lambda n: (n in self._unanswered, n)):
            try:
                if self._is_missing(node):
                    self._mark_missing(node)
                    missing.add(node)
            except errors.IronicUnavailable as exc:
                LOG.debug('Could not ask for a node: %(exc)s', {'exc': exc})
                self._unanswered.add(node)
                self._suspects.forget_missing(node)
                break
            self._unanswered.discard(node)
        return frozenset(filter(self._is_marked, missing))

    def _is_marked(self, node: NodeId) -> bool:
        """Return whether no read has found a node since its last 404."""
        mark = self._held_nodes.missing_mark(node)
        return mark is not None and mark == self._marks.get(node)

    def _is_certain(self, count: int) -> bool:
        """Return whether a 404 means that the node does not exist.

        A 404 may also mean that the user of ``[ironic]`` has no access to the
        node's project.
        """
        try:
            if self._client.can_list_all_nodes():
                return True
        except errors.IronicComputeError as exc:
            LOG.debug('Could not ask what Ironic shows: %(exc)s', {'exc': exc})
            return False
        LOG.error(
            'Ironic says that %(count)d nodes of this host do not exist, but '
            'it does not show us all nodes: their records stay. The user '
            'below [ironic] in nova.conf needs the rules '
            'baremetal:node:list_all and baremetal:node:get; give it the role '
            'service with system_scope = all',
            {'count': count},
        )
        return False

    def _is_missing(self, node: NodeId) -> bool:
        """Read a node; return whether Ironic answers 404 for its uuid.

        A refusal counts as not missing. Facts that were read are stored.

        :raises errors.IronicUnavailable: Ironic did not answer
        """
        try:
            facts = self._client.read_node(node)
        except errors.NodeNotFound:
            return True
        except errors.IronicUnavailable:
            raise
        except errors.IronicComputeError as exc:
            self._suspects.discard(node)
            LOG.debug('Could not ask for a node: %(exc)s', {'exc': exc})
            return False
        self._suspects.discard(node)
        self._marks.pop(node, None)
        if not self._client.is_in_pool(facts):
            self._log_left(node)
        # The facts are stored, because the node still gets builds and no list
        # of the pool contains it.
        self._held_nodes.mark_present(node)
        run_isolated(node, self._held_nodes.update_facts, facts)
        return False

    def _log_left(self, node: NodeId) -> None:
        """Log once that a node has left the pool."""
        if node in self._left:
            return
        self._left |= {node}
        LOG.warning(
            'Node %(node)s is in Ironic but not in this pool any more '
            '(conductor group, shard or parent node); it stays here until a '
            'daemon of its new pool asks for it, or an operator runs '
            '"ironic-computectl node forget %(node)s"',
            {'node': node},
        )

    def forget_node(self, node: NodeId) -> str | None:
        """Remove the row and provider of a held node that left this pool.

        Called only upon the request of an operator, because Ironic still has
        the node. Its new pool can then take the node as a new one.

        :returns: None, or a sentence with the reason of a refusal
        """
        try:
            facts = self._client.read_node(node)
        except errors.NodeNotFound:
            return (
                f'Ironic does not have node {node} any more; the daemon '
                f'removes its records by itself'
            )
        except errors.IronicComputeError as exc:
            return f'Could not read node {node} from Ironic: {exc}'
        if self._client.is_in_pool(facts):
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
        """Remove the records of a node; return whether they were removed.

        It holds the lock of the node, because a write of the provider at the
        same time would create the provider again.
        """
        with self._held_nodes.locked_row(node) as row:
            is_removed = row is not None and self._remove_records(node, row)
        if is_removed:
            LOG.info(
                'Removed node %(node)s, %(why)s', {'node': node, 'why': why}
            )
        return is_removed

    def _remove_records(self, node: NodeId, row: Any) -> bool:
        # Of any host: a late answer of Nova may leave an Instance that names
        # the node and its former host.
        if self._compute_nodes.list_instances_of_any_host(node):
            return False
        # The provider is deleted before the row. If that fails, the row stays,
        # so that the next audit finds the node and tries again.
        try:
            if not self._reconciler.delete_provider(node):
                return False
        except PlacementError as exc:
            self._reconciler.withdraw_node(node, records.incarnation_of(row))
            LOG.warning(
                'Could not remove the provider of node %(node)s and will try '
                'again: %(error)s',
                {'node': node, 'error': exc},
            )
            return False
        self._compute_nodes.delete_row(row)
        self._held_nodes.drop_node(node)
        return True
