# SPDX-License-Identifier: Apache-2.0
"""How fast holders may change, and what goes through many nodes."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any, TypeVar

from oslo_log import log as logging

from hashring.clock import Clock
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)

_REST_MAX_S = 5.0

_Thing = TypeVar('_Thing')


@dataclasses.dataclass(frozen=True, slots=True)
class Pace:
    """How fast holders may change; see the options of the same names."""

    settle_s: float
    confirm_s: float
    push_budget: int
    disagree_s: float = 0.0
    """How long the ring must have stayed where not all have the same."""
    look_again_s: float = 10.0
    """Between two looks at rows that nobody may change now."""
    foreign_s: float = 30.0
    """Between two looks at rows of hosts that are not of the pool."""


# So many nodes of a list are taken in in a hundredth of a second.
NODES_A_PART = 50
REST_S = 0.05


def in_parts(
    things: Sequence[_Thing], count: int, clock: Clock, rest_s: float
) -> Iterator[Sequence[_Thing]]:
    """Yield what concerns many nodes in parts, with a rest between them.

    All threads share one interpreter, and claims come before a list of
    nodes: what is done about a part should take a fifth of the time or less.

    :param count: things in a part
    """
    for start in range(0, len(things), count):
        if start:
            clock.sleep(rest_s)
        yield things[start : start + count]


class Rest:
    """As long as the work before it took: others have half of the time.

    Called between two parts of a long work; made when that begins.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_s = clock.now_s()

    def __call__(self) -> None:
        """Rest, but not for long if somebody else was slow."""
        took_s = self._clock.now_s() - self._began_s
        self._clock.sleep(min(took_s, _REST_MAX_S))
        self._began_s = self._clock.now_s()


def tried(node: NodeId, act: Callable[..., object], *args: Any) -> bool:
    """Take in what is new of one node; its error harms no other node.

    :returns: whether it worked; else the error is logged
    """
    try:
        act(*args)
    except Exception:
        LOG.exception(
            'Could not take in a change of node %(node)s', {'node': node}
        )
        return False
    return True


class Writers:
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

    def each(
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
