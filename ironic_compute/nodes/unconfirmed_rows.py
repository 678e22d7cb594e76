# SPDX-License-Identifier: Apache-2.0
"""Held nodes whose new ComputeNode row is not confirmed as this host's yet.

Another worker's request to create the same row may still be on its way and
take the row over. A node with an unconfirmed row therefore gets no build.
``HeldNodes`` adds and removes nodes; ``ownership`` decides when a row is old
enough to be read again and confirmed. Any thread may call.
"""

import math
import threading
from typing import Any

from hashring.clock import Clock
from ironic_compute.nodes import records
from resource_tracker.node import NodeId

# Seconds by which the clocks of two controllers may differ. Nova itself shows
# hosts down from ``service_down_time`` on. Not more than needed: while a row
# counts as new, builds on its node wait after a take-over.
CLOCK_SKEW_S = 300.0
_STEP_S = 1.0
_RPC_TIMEOUT_S = 60.0


def new_row_s(conf: Any) -> float:
    """Return the age in seconds below which a ComputeNode row is new.

    Another worker may still overwrite a new row, because a conductor may be
    working on that worker's request to create it. oslo.messaging registers
    the option ``rpc_response_timeout`` when the message bus is set up.
    """
    timeout_s = getattr(conf, 'rpc_response_timeout', _RPC_TIMEOUT_S)
    longest_s: float = max(timeout_s, conf.ironic_compute.confirm_s)
    return longest_s + CLOCK_SKEW_S


class UnconfirmedRows:
    """The nodes of one host whose new rows are unconfirmed.

    :param new_s: seconds after which a row counts as confirmed without being
        read again, because no request to create it can still be carried out
    """

    def __init__(self, clock: Clock, new_s: float) -> None:
        self._clock = clock
        self._new_s = new_s
        self._nodes: set[NodeId] = set()
        self._changed = threading.Condition()

    def __contains__(self, node: NodeId) -> bool:
        return node in self._nodes

    def nodes(self) -> frozenset[NodeId]:
        """Return all nodes whose rows are unconfirmed."""
        with self._changed:
            return frozenset(self._nodes)

    def add(self, node: NodeId) -> None:
        """Require that the row of a node is confirmed before any build."""
        with self._changed:
            self._nodes.add(node)

    def add_if_new(self, row: Any) -> None:
        """Add the node of a row that was created less than ``new_s`` ago."""
        if records.is_new_row(row, self._clock.wall_s() - self._new_s):
            self.add(records.node_of_row(row))

    def discard(self, node: NodeId) -> None:
        """Remove a node: its row is confirmed, or the node is not held."""
        with self._changed:
            self._nodes.discard(node)
            self._changed.notify_all()

    def wait_confirmed(self, node: NodeId, timeout_s: float) -> None:
        """Block until a node is confirmed or dropped, or the time is over.

        The time in which this process was frozen hardly counts, because the
        thread that confirms rows was frozen as well.
        """
        for _ in range(math.ceil(timeout_s / _STEP_S)):
            with self._changed:
                if self._changed.wait_for(
                    lambda: node not in self._nodes, min(_STEP_S, timeout_s)
                ):
                    return
