# SPDX-License-Identifier: Apache-2.0
"""Work on many nodes in parts, so that other threads get their turn.

Used by all threads of a worker that read or write thousands of nodes: the
interpreter runs one thread at a time, and claims of builds come first.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from oslo_log import log as logging

from hashring.clock import Clock
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)


_REST_MAX_S = 5.0

_Thing = TypeVar('_Thing')

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
