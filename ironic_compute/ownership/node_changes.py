# SPDX-License-Identifier: Apache-2.0
"""Sink of the node feed: passes each change of a node to its owner.

The facts of a held node go to ``held_nodes``, those of any other node of the
pool to ``unheld_nodes``. A node that left the pool may still be held. A full
list also starts the audits: of rows, of deleted nodes, of providers. If the
facts of one node cause an error, the feed reads that node again; the other
nodes are not affected.
"""

from collections.abc import Callable, Mapping

import attrs
from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute.batching import CHUNK_PAUSE_S, paced_chunks, run_isolated
from ironic_compute.nodes import placement_reports
from ironic_compute.nodes.held_nodes import HeldNodes
from ironic_compute.ownership.new_nodes import NewNodes
from ironic_compute.ownership.removal import Removal
from ironic_compute.ownership.row_audit import RowAudit
from ironic_compute.ownership.unheld_nodes import UnheldNodes
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.reconciler import Reconciler

LOG = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False, slots=False)
class NodeChanges:
    """The feed's sink; any thread may call, the audit's alone ``audit_nodes``.

    :param request_read: has a node read from Ironic again soon
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
        """Pass on the facts of a node of the pool."""
        self._held_nodes.accept_facts(facts)

    def node_left_pool(self, facts: NodeFacts) -> None:
        """Pass on the facts of a node of another pool.

        A node that is not held is not taken any more.
        """
        if not self._held_nodes.update_facts(facts):
            self._unheld.mark_missing(facts.uuid)

    def mark_missing(self, node: NodeId) -> None:
        """Pass on that Ironic answered 404 for a node."""
        self._unheld.mark_missing(node)
        self._held_nodes.mark_missing(node)

    def is_held(self, node: NodeId) -> bool:
        """Return whether this host holds a node, whatever its pool."""
        return self._held_nodes.row(node) is not None

    def is_missing(self, node: NodeId) -> bool:
        """Return whether Ironic last answered 404 for a held node."""
        return self._held_nodes.is_missing(node)

    def mark_present(self, node: NodeId) -> None:
        """Pass on that a read of this one node found it in Ironic."""
        self._held_nodes.mark_present(node)

    def audit_nodes(self, nodes: Mapping[NodeId, NodeFacts]) -> None:
        """Pass on a full list of the pool's nodes, and run the audits.

        Blocks for many requests. ``has_audited`` is True after the first call.

        :param nodes: a live view of the list: a read of one node may change
            or remove it meanwhile
        """
        # The first audit ends the restart, so that it makes no pauses.
        is_first = not self.has_audited
        self._check_rows(rests=not is_first)
        self._accept_all(nodes, 0.0 if is_first else CHUNK_PAUSE_S)
        self._new_nodes.reset_from_list(nodes)
        self._removal.check_absent(nodes)
        if self.has_audited:
            # After a start each provider is read anyway.
            placement_reports.audit_providers(self._reconciler)
        self.has_audited = True

    def _check_rows(self, *, rests: bool) -> None:
        """Audit the rows; after an error, the list is still passed on."""
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
                    # The feed reads the node until it is passed on. A node
                    # that is marked as missing may exist after all.
                    self._request_read(facts.uuid)
