# SPDX-License-Identifier: Apache-2.0
"""What the feed has read of nodes, handed to whoever it concerns.

A node is held here or it is met as a stranger; one that left the pool may be
held all the same. What one node breaks is that node's news alone, and the
feed reads it again.
"""

from collections.abc import Callable, Mapping

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


class NodeChanges:
    """The feed's sink; any thread may call, the audit's alone ``audited``.

    :param request_read: has a node read from Ironic again soon
    """

    def __init__(
        self,
        held_nodes: HeldNodes,
        unheld: UnheldNodes,
        new_nodes: NewNodes,
        removal: Removal,
        row_audit: RowAudit,
        reconciler: Reconciler,
        clock: Clock,
        request_read: Callable[[NodeId], None],
    ) -> None:
        self._held_nodes = held_nodes
        self._unheld = unheld
        self._new_nodes = new_nodes
        self._removal = removal
        self._row_audit = row_audit
        self._reconciler = reconciler
        self._clock = clock
        self._request_read = request_read
        self.has_audited = False

    def observe(self, facts: NodeFacts) -> None:
        """Take in one node of the pool as Ironic has it now."""
        self._held_nodes.observe(facts)

    def renew(self, facts: NodeFacts) -> None:
        """Take in a node of another pool, which is held perhaps.

        If it is not, it is not taken either, though it was ours when met.
        """
        if not self._held_nodes.renew(facts):
            self._unheld.mark_missing(facts.uuid)

    def deny(self, node: NodeId) -> None:
        """Take in that Ironic has no such node."""
        self._unheld.mark_missing(node)
        self._held_nodes.deny(node)

    def is_held(self, node: NodeId) -> bool:
        """Say whether a node is held, of whatever pool."""
        return self._held_nodes.row(node) is not None

    def is_denied(self, node: NodeId) -> bool:
        """Say whether Ironic had no such held node when last asked for it."""
        return self._held_nodes.is_denied(node)

    def found(self, node: NodeId) -> None:
        """Take in that Ironic has a node when it is asked for it alone."""
        self._held_nodes.found(node)

    def audited(self, nodes: Mapping[NodeId, NodeFacts]) -> None:
        """Take in all nodes of the pool, read without an error."""
        # A restart is over when the first one is; the others have time.
        hurry = not self.has_audited
        self._look_at_records(hurry=hurry)
        self._observe_all(nodes, 0.0 if hurry else CHUNK_PAUSE_S)
        self._new_nodes.reset_from_list(nodes)
        self._removal.check_absent(nodes)
        if self.has_audited:
            # At first each provider is looked at anyway.
            placement_reports.audit(self._reconciler)
        self.has_audited = True

    def _look_at_records(self, *, hurry: bool) -> None:
        """Look at records; what Ironic said must not be lost for them."""
        try:
            self._row_audit.check_rows(rests=not hurry)
        except Exception:
            LOG.exception(
                'Could not look at the records of nodes; the next audit will'
            )

    def _observe_all(
        self, nodes: Mapping[NodeId, NodeFacts], pause_s: float
    ) -> None:
        for some in paced_chunks(sorted(nodes), self._clock, pause_s):
            # What was read meanwhile shows in it, and may be gone again.
            for facts in filter(None, map(nodes.get, some)):
                observe = self._held_nodes.observe
                succeeded = run_isolated(facts.uuid, observe, facts)
                if not succeeded or self.is_denied(facts.uuid):
                    # The cause may be gone by then; else the feed tries again.
                    self._request_read(facts.uuid)
