# SPDX-License-Identifier: Apache-2.0
"""Whether the rows of held nodes are still ours; asked with each audit.

In parts: to parse one reply about thousands keeps the interpreter from all
other threads for so long that claims would notice, and takes memory that is
never given back. Rows that are ours of late are found by ``new_nodes`` among
the nodes that are not held. Only a row of ours whose node neither Ironic nor
we know shows in nothing but all rows of the cell, of which every second audit
reads some pages instead. Either goes on where it stopped: no audit asks more
because there are more.
"""

import bisect
from collections.abc import Sequence

from hashring.clock import Clock
from ironic_compute.batching import paced_chunks
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.held_nodes import HeldNodes
from ironic_compute.nodes.records import Marker, MarkerGone
from resource_tracker.node import NodeId

# One RPC each, and all others share the interpreter while it is parsed.
_ROWS_A_PART = 250
_PARTS_AN_AUDIT = 8
# One RPC each. What is searched for is rare, so a few thousand rows may take
# some hours.
_PAGES_AN_AUDIT = 3
_REST_S = 0.6


class RowAudit:
    """Looks at the rows of all held nodes; one thread calls ``check_rows``."""

    def __init__(
        self, held_nodes: HeldNodes, compute_nodes: ComputeNodes, clock: Clock
    ) -> None:
        self._held_nodes = held_nodes
        self._compute_nodes = compute_nodes
        self._clock = clock
        self._marker: Marker | None = None
        self._looked_to = NodeId('')
        self._is_to_search = False

    def check_rows(self, *, rests: bool = True) -> None:
        """Drop the nodes whose row is not ours any more, or find others.

        :param rests: pause between two requests
        """
        is_to_search = self._is_to_search
        # Before either: one that fails each time must not stop the other.
        self._is_to_search = not is_to_search
        if is_to_search:
            self._search()
        else:
            self._look_at_held(_REST_S if rests else 0.0)

    def _look_at_held(self, rest_s: float) -> None:
        held = sorted(self._held_nodes.rows())
        begin = bisect.bisect(held, self._looked_to)
        due = (held[begin:] + held[:begin])[: _PARTS_AN_AUDIT * _ROWS_A_PART]
        for some in paced_chunks(due, self._clock, rest_s, _ROWS_A_PART):
            self._look(some)
            self._looked_to = some[-1]

    def _search(self) -> None:
        """Read on where the last search stopped, at most to the last row."""
        for number in range(_PAGES_AN_AUDIT):
            if number:
                self._clock.sleep(_REST_S)
            read_at = self._held_nodes.moment()
            try:
                page = self._compute_nodes.page(self._marker)
            except MarkerGone:
                self._marker = None
                continue
            self._held_nodes.gain(page.rows, read_at)
            self._marker = page.marker
            if self._marker is None:
                return

    def _look(self, nodes: Sequence[NodeId]) -> None:
        read_at, host = self._held_nodes.moment(), self._held_nodes.host
        found = self._compute_nodes.of_nodes(nodes)
        # Rows made before Nova 18 have another uuid than their node.
        rows = {n: found.get(n) or self._compute_nodes.named(n) for n in nodes}
        ours = {n for n, row in rows.items() if row and row.host == host}
        self._held_nodes.lose(rows.keys() - ours, read_at)
