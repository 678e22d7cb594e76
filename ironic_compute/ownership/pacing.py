# SPDX-License-Identifier: Apache-2.0
"""Limits of ownership changes: waiting times, push budget, row writers.

Used by ``rebalance``, ``new_nodes`` and ``row_confirmation`` in the
rebalancer's thread of each worker.
"""

import dataclasses
from collections.abc import Callable, Iterable
from concurrent import futures
from typing import Any

from oslo_log import log as logging

from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)


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
