# SPDX-License-Identifier: Apache-2.0
"""Audit of ComputeNode rows: whether each held node's row names this host.

The feed's audit thread calls it in each audit. Every second audit reads rows
of held nodes, and drops the nodes whose row names another host or is gone. A
pin that differs from what this worker knows is written again. The other audits
read some pages of all rows of the cell, to find rows of this host whose node
is neither held nor in Ironic; ``new_nodes`` finds all other rows that name
this host. Each audit reads a limited number of rows and continues where the
last one stopped. Rows are read in parts, because parsing one reply
with thousands of rows would block all other threads for too long and would
take memory that is never returned.
"""

import bisect
from collections.abc import Sequence

from hashring.clock import Clock
from ironic_compute.batching import paced_chunks, run_isolated
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.held_nodes import HeldNodes
from ironic_compute.nodes.pins import read_pin
from ironic_compute.nodes.records import Marker, MarkerGone
from resource_tracker.node import NodeId

# Each part is one RPC. Other threads run between two parts.
_ROWS_PER_PART = 250
_ROWS_PER_AUDIT = 8 * _ROWS_PER_PART
# Each page is one RPC. Rows of unknown nodes are rare, so that it may take
# hours to read all pages.
_PAGES_PER_AUDIT = 3
_REST_S = 0.6


class RowAudit:
    """Compares ComputeNode rows with the held nodes; one thread may call."""

    def __init__(
        self, held_nodes: HeldNodes, compute_nodes: ComputeNodes, clock: Clock
    ) -> None:
        self._held_nodes = held_nodes
        self._compute_nodes = compute_nodes
        self._clock = clock
        self._marker: Marker | None = None
        self._checked_to = NodeId('')
        self._searches_next = False

    def check_rows(self, *, rests: bool = True) -> None:
        """Drop nodes of another host, or hold nodes of unknown rows.

        Each call does one of the two, in turn.

        Blocks for some RPCs.

        :param rests: make a pause between two RPCs
        """
        searches = self._searches_next
        # The next turn is set before the work, so that a kind of read that
        # always fails does not prevent the other kind.
        self._searches_next = not searches
        if searches:
            self._search()
        else:
            self._check_held(_REST_S if rests else 0.0)

    def _check_held(self, rest_s: float) -> None:
        held = sorted(self._held_nodes.rows())
        begin = bisect.bisect(held, self._checked_to)
        due = (held[begin:] + held[:begin])[:_ROWS_PER_AUDIT]
        for some in paced_chunks(due, self._clock, rest_s, _ROWS_PER_PART):
            self._check(some)
            self._checked_to = some[-1]

    def _search(self) -> None:
        """Read the next pages of all rows; hold nodes of this host's rows."""
        for number in range(_PAGES_PER_AUDIT):
            if number:
                self._clock.sleep(_REST_S)
            read_at = self._held_nodes.version()
            try:
                page = self._compute_nodes.read_page(self._marker)
            except MarkerGone:
                self._marker = None
                continue
            self._held_nodes.add_rows(page.rows, read_at)
            self._marker = page.marker
            if self._marker is None:
                return

    def _check(self, nodes: Sequence[NodeId]) -> None:
        read_at, host = self._held_nodes.version(), self._held_nodes.host
        found = self._compute_nodes.list_by_nodes(nodes)
        # Rows created before Nova 18 have another uuid than their node.
        rows = {
            n: found.get(n) or self._compute_nodes.read_by_name(n)
            for n in nodes
        }
        ours = {n for n, row in rows.items() if row and row.host == host}
        self._held_nodes.drop_nodes(rows.keys() - ours, read_at)
        for node in sorted(ours):
            held = self._held_nodes.row(node)
            if held is not None and read_pin(held) != read_pin(rows[node]):
                run_isolated(node, self._held_nodes.restore_pin, node)
