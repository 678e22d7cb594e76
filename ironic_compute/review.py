# SPDX-License-Identifier: Apache-2.0
"""Whether the rows of held nodes are still ours; asked with each audit.

In parts: to parse one reply about thousands keeps the interpreter from all
other threads for so long that claims would notice. Rows that are ours of late
are found by ``newcomers`` among the nodes that are not held. Only a row of
ours whose node neither Ironic nor we know shows in nothing but a list of all
rows, which is read once in a while.
"""

from collections.abc import Callable, Sequence

from hashring.clock import Clock
from ironic_compute.holdings import Holdings
from ironic_compute.pace import in_parts
from ironic_compute.rows import Rows
from resource_tracker.node import NodeId

_LOAD_INTERVAL_S = 3600.0
# One RPC each, so not too few.
_ROWS_A_PART = 500
_REST_S = 0.6


class Review:
    """Looks at the rows of all held nodes; one thread calls ``audited``.

    To be made when the holdings are about to be loaded.

    :param load_interval_s: how often all rows of the host are read
    :param on_loaded: called each time they were
    """

    def __init__(
        self,
        holdings: Holdings,
        rows: Rows,
        clock: Clock,
        load_interval_s: float = _LOAD_INTERVAL_S,
        on_loaded: Callable[[], object] = lambda: None,
    ) -> None:
        self._holdings = holdings
        self._rows = rows
        self._clock = clock
        self._load_interval_s = load_interval_s
        self._on_loaded = on_loaded
        self._loaded_at_s = clock.now_s()

    def audited(self, *, hurry: bool = False) -> None:
        """Drop the nodes whose row is not ours any more.

        :param hurry: do not rest between the parts
        """
        now_s = self._clock.now_s()
        if now_s - self._loaded_at_s >= self._load_interval_s:
            self._holdings.load()
            self._on_loaded()
            self._loaded_at_s = now_s
            return
        held, rest_s = self._holdings.rows(), 0.0 if hurry else _REST_S
        for some in in_parts(held, _ROWS_A_PART, self._clock, rest_s):
            self._look(some)

    def _look(self, nodes: Sequence[NodeId]) -> None:
        read_at, host = self._holdings.moment(), self._holdings.host
        found = self._rows.of_nodes(nodes)
        # Rows made before Nova 18 have another uuid than their node.
        rows = {n: found.get(n) or self._rows.named(n) for n in nodes}
        ours = {n for n, row in rows.items() if row and row.host == host}
        self._holdings.lose(rows.keys() - ours, read_at)
