# SPDX-License-Identifier: Apache-2.0
"""Limits of ownership changes: waiting times, budgets, row writers.

``rebalance``, ``new_nodes`` and ``row_confirmation`` use them in the
rebalancer's thread of each worker. An operator limits the servers that a drain
or a rebalance of the pool moves in a minute.
"""

import dataclasses
from collections.abc import Callable, Iterable
from concurrent import futures
from typing import Any

from oslo_log import log as logging

from hashring.clock import Clock
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)

_MINUTE_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Pace:
    """How fast nodes may change their hosts; see the options of these names.

    :param settle_s: seconds without a change of the ring before a push
    :param confirm_s: seconds after which a new row is read again
    :param push_budget: nodes that are pushed in one round
    """

    settle_s: float
    confirm_s: float
    push_budget: int
    disagree_s: float = 0.0
    """Seconds without a ring change before a push if the agents disagree."""


class MinuteLimit:
    """Counts the servers that were moved in the last minute; no threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._moved_s: list[float] = []

    def note_move(self) -> None:
        """Count a server that was moved just now."""
        self._moved_s.append(self._clock.now_s())

    def wait_s(self, limit: int | None) -> float:
        """Return after how many seconds the next server may be moved.

        :param limit: servers that may be moved in a minute; None: any number
        """
        now_s = self._clock.now_s()
        self._moved_s = [s for s in self._moved_s if s > now_s - _MINUTE_S]
        if limit is None or len(self._moved_s) < limit:
            return 0.0
        return self._moved_s[-limit] + _MINUTE_S - now_s


class RowWriters:
    """Runs one function for many nodes in parallel.

    :param parallelism: the number of threads
    :param executor: runs the function instead of threads of its own
    """

    def __init__(
        self, parallelism: int, executor: futures.Executor | None = None
    ) -> None:
        self._executor = executor or futures.ThreadPoolExecutor(
            parallelism, thread_name_prefix='rows'
        )

    def for_each(
        self, act: Callable[[NodeId], Any], nodes: Iterable[NodeId]
    ) -> dict[NodeId, Any]:
        """Call ``act`` for each node; block until all calls have ended.

        :returns: the results by node; an error is logged and has no result
        """
        running = {self._executor.submit(act, node): node for node in nodes}
        done = {}
        for future, node in running.items():
            error = future.exception()
            if error is None:
                done[node] = future.result()
                continue
            LOG.warning(
                'Could not determine the holder of node %(node)s and will '
                'try again: %(error)s',
                {'node': node, 'error': error},
            )
        return done

    def stop(self) -> None:
        """Start no further call; calls that are running go on."""
        self._executor.shutdown(wait=False, cancel_futures=True)
