# SPDX-License-Identifier: Apache-2.0
"""Sink of the node feed: stores each change of a node that the feed delivers.

The facts of a held node go to ``held_nodes``, those of any other node of the
pool to ``unheld_nodes``. A node that left the pool may still be held. Each
list of all nodes also starts the audits of rows, of deleted nodes and of
providers. If the facts of one node cause an error, the feed reads that node
again; the other nodes are not affected.
"""

from collections.abc import Callable, Mapping

import attrs
from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute.batching import CHUNK_PAUSE_S, paced_chunks, run_isolated
from ironic_compute.nodes import placement_reports
from ironic_compute.nodes.held_nodes import HeldNodes
from ironic_compute.nodes.listed_nodes import listed_fingerprint
from ironic_compute.ownership.new_nodes import NewNodes
from ironic_compute.ownership.removal import Removal
from ironic_compute.ownership.row_audit import RowAudit
from ironic_compute.ownership.unheld_nodes import UnheldNodes
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.reconciler import Reconciler

LOG = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False, slots=False)
class NodeChanges:
    """The sink of the node feed; any thread may call.

    Only the feed's audit thread may call ``audit_nodes``.

    :param request_read: makes the feed read a node from Ironic again soon
    """

    _held_nodes: HeldNodes
    _unheld: UnheldNodes
    _new_nodes: NewNodes
    _removal: Removal
    _row_audit: RowAudit
    _reconciler: Reconciler
    _clock: Clock
    _request_read: Callable[[NodeId], None]

    def __attrs_post_init__(self) -> None:
        self.has_audited = False

    def node_changed(self, facts: NodeFacts) -> None:
        """Store the facts of a node of the pool."""
        self._held_nodes.accept_facts(facts)

    def node_left_pool(self, facts: NodeFacts) -> None:
        """Store the facts of a held node that has left the pool.

        If the node is not held, this host will not take it any more.
        """
        self._hold_given(facts.uuid)
        if not self._held_nodes.update_facts(facts):
            self._unheld.mark_missing(facts.uuid)

    def mark_missing(self, node: NodeId) -> None:
        """Mark a node as missing, because Ironic answered 404 for it."""
        self._unheld.mark_missing(node)
        self._hold_given(node)
        self._held_nodes.mark_missing(node)

    def _hold_given(self, node: NodeId) -> None:
        """Hold a node that another host has given here; blocks for an RPC.

        Only for a node that is not in this pool any more: no list contains it,
        so no pass would read its row, which names this host.
        """
        if not self._unheld.is_arriving(node):
            return
        if not self.is_held(node):  # The message may have come late.
            self._new_nodes.hold_if_ours(node)
        if self.is_held(node):
            self._unheld.pop_due(node)

    def note_deleted(self, node: NodeId) -> None:
        """Have two reads confirm the delete that Ironic notified."""
        self._removal.note_deleted(node)

    def is_held(self, node: NodeId) -> bool:
        """Return whether this host holds a node, whatever its pool."""
        return self._held_nodes.row(node) is not None

    def is_missing(self, node: NodeId) -> bool:
        """Return whether this host still waits until a read finds a node.

        Ironic last answered 404 for the held node. Or another host has given
        the node to this host, and no read has found it yet; the row names this
        host then, so no other host would offer the node after a wrong 404.
        """
        is_missing = self._held_nodes.is_missing(node)
        return is_missing or self._unheld.is_awaited(node)

    def is_stored(self, facts: NodeFacts) -> bool:
        """Return whether a node is held with these facts, or is not held.

        When they changed does not matter.
        """
        stored = self._held_nodes.facts(facts.uuid)
        return stored is None or (
            listed_fingerprint(stored) == listed_fingerprint(facts)
        )

    def mark_present(self, node: NodeId) -> None:
        """Remove the mark of a missing node: a single read has found it."""
        self._unheld.mark_found(node)
        self._held_nodes.mark_present(node)

    def audit_nodes(self, nodes: Mapping[NodeId, NodeFacts]) -> None:
        """Store the facts of all nodes of the pool, and run the audits.

        Blocks for many requests. ``has_audited`` is True after the first call.

        :param nodes: a live view of the list of all nodes: a node may change
            or vanish in it meanwhile
        """
        # The first audit makes no pauses, because the start of the worker ends
        # with it.
        is_first = not self.has_audited
        self._check_rows(rests=not is_first)
        self._accept_all(nodes, 0.0 if is_first else CHUNK_PAUSE_S)
        self._new_nodes.reset_from_list(nodes)
        self._removal.check_absent(nodes)
        if self.has_audited:
            # The first audit leaves this out, because after a start each
            # provider is read anyway.
            placement_reports.audit_providers(self._reconciler)
        self.has_audited = True

    def count_differing(self, told: Mapping[NodeId, str]) -> int | None:
        """Return how many held nodes a told list lacks or shows otherwise.

        None if a node waits here for a holder: then the newest facts of all
        nodes are needed.
        """
        if not self._unheld.is_settled():
            return None
        held = self._held_nodes.rows()
        return sum(not self._is_as_told(node, told) for node in held)

    def audit_told(self, told: Mapping[NodeId, str]) -> None:
        """Run the audits with a list that another worker has read.

        That list decides nothing: it only shows which nodes to read. Blocks
        for many requests.
        """
        self._check_rows(rests=True)
        held = sorted(self._held_nodes.rows().keys() & told.keys())
        for some in paced_chunks(held, self._clock):
            for node in some:
                self._check_told(node, told)
        self._new_nodes.check_listed(told.keys())
        self._removal.check_absent_names(told.keys())
        placement_reports.audit_providers(self._reconciler)

    def _check_told(self, node: NodeId, told: Mapping[NodeId, str]) -> None:
        # Reported even if nothing differs, as after a list of its own: an
        # earlier report may have failed.
        as_told = self._is_as_told(node, told)
        if not as_told or not run_isolated(
            node, self._held_nodes.report_node, node
        ):
            self._request_read(node)

    def _is_as_told(self, node: NodeId, told: Mapping[NodeId, str]) -> bool:
        facts = self._held_nodes.facts(node)
        if facts is None or self.is_missing(node):
            return False
        return listed_fingerprint(facts) == told.get(node)

    def _check_rows(self, *, rests: bool) -> None:
        """Audit the rows; an error is only logged, so the other audits run.

        :param rests: make a pause between two RPCs
        """
        try:
            self._row_audit.check_rows(rests=rests)
        except Exception:
            LOG.exception(
                'Could not read the records of nodes; the next audit tries '
                'again'
            )

    def _accept_all(
        self, nodes: Mapping[NodeId, NodeFacts], pause_s: float
    ) -> None:
        for some in paced_chunks(sorted(nodes), self._clock, pause_s):
            # A node can change or vanish in ``nodes`` during this loop.
            for facts in filter(None, map(nodes.get, some)):
                accept = self._held_nodes.accept_facts
                succeeded = run_isolated(facts.uuid, accept, facts)
                if not succeeded or self.is_missing(facts.uuid):
                    # After an error the feed reads the node until it is
                    # stored. A listed node that is marked as missing may exist
                    # after all, so it is read as well.
                    self._request_read(facts.uuid)
