# SPDX-License-Identifier: Apache-2.0
"""Confirmation of new ComputeNode rows: when a new node may get builds.

Two hosts can create the row of the same new node when they have different
rings; the later write wins. A new row is therefore *unconfirmed* until no
other host's request to create it can still be carried out and a second read
shows that the row names this host. The rebalancer's thread of each worker does
so.
"""

import attrs

from hashring.clock import Clock
from ironic_compute.nodes import records
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.held_nodes import HeldNodes
from ironic_compute.ownership.pacing import RowWriters
from ironic_compute.pool.view import PoolView
from resource_tracker.node import NodeId


@attrs.define(eq=False, repr=False, slots=False)
class RowConfirmation:
    """Reads new rows a second time; only one thread may call.

    :param confirm_s: seconds after which no other host's request to create a
        row can still be carried out (the option of this name)
    """

    _held_nodes: HeldNodes
    _compute_nodes: ComputeNodes
    _pool: PoolView
    _clock: Clock
    _writers: RowWriters
    _confirm_s: float

    def __attrs_post_init__(self) -> None:
        # Unconfirmed row, by its node and incarnation -> when this worker
        # first saw it. A node can get another row between two calls.
        self._new_since_s: dict[tuple[NodeId, str], float] = {}

    def confirm_due_rows(self) -> None:
        """Read the rows that are due; offer their nodes in Placement.

        A node whose row names another host now is dropped.
        """
        due = self._due()
        if due:
            rows = self._compute_nodes.list_by_nodes(due)
            self._writers.for_each(
                lambda node: self._held_nodes.confirm_row(
                    node, rows.get(node)
                ),
                due,
            )

    def _due(self) -> list[NodeId]:
        """Return the nodes whose rows no other host can overwrite any more.

        Another host's request to create a row is as old as the ring that made
        that host the target. The request is over once all agents have had the
        present ring for ``confirm_s``, and still had it after the row was
        created. If the agents do not agree, the time counts from when this
        worker first saw the row, because the host's former worker may have
        created it.
        """
        now_s, confirm_s = self._clock.now_s(), self._confirm_s
        self._new_since_s = {
            row: self._new_since_s.get(row, now_s)
            for row in self._list_unconfirmed()
        }
        status, host = self._pool.ring_status(), self._held_nodes.host
        is_long_agreed = (status.agreed_for_s or 0.0) >= confirm_s
        agreed_until_s = status.agreed_until_s if is_long_agreed else 0.0
        return [
            node
            for (node, _), since_s in self._new_since_s.items()
            if now_s - since_s >= confirm_s
            or (since_s <= agreed_until_s and status.ring.target(node) == host)
        ]

    def _list_unconfirmed(self) -> list[tuple[NodeId, str]]:
        """Return the unconfirmed nodes, each with its row's incarnation."""
        rows = {
            node: self._held_nodes.row(node)
            for node in sorted(self._held_nodes.unconfirmed_rows.nodes())
        }
        return [
            (node, records.incarnation_of(row))
            for node, row in rows.items()
            if row is not None
        ]
