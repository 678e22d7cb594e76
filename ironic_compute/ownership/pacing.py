# SPDX-License-Identifier: Apache-2.0
"""How fast holders may change, and what goes through many nodes."""

import dataclasses
from collections.abc import Callable, Iterable
from concurrent import futures
from typing import Any

from oslo_log import log as logging

from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Pace:
    """How fast holders may change; see the options of the same names."""

    settle_s: float
    confirm_s: float
    push_budget: int
    disagree_s: float = 0.0
    """How long the ring must have stayed where not all have the same."""
    recheck_s: float = 10.0
    """Between two looks at rows that nobody may change now."""
    foreign_recheck_s: float = 30.0
    """Between two looks at rows of hosts that are not of the pool."""


class RowWriters:
    """Do something about many nodes, some of them at once.

    :param parallelism: how many
    :param executor: what runs them; threads unless given
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
        """Do ``act`` for all nodes in parallel; one's error harms only it."""
        running = {self._executor.submit(act, node): node for node in nodes}
        done = {}
        for future in futures.as_completed(running):
            node = running[future]
            error = future.exception()
            if error is None:
                done[node] = future.result()
                continue
            LOG.warning(
                'Could not settle who holds node %(node)s and will try '
                'again: %(error)s',
                {'node': node, 'error': error},
            )
        return done

    def stop(self) -> None:
        """Begin nothing more."""
        self._executor.shutdown(wait=False, cancel_futures=True)
