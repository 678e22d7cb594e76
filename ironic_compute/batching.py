# SPDX-License-Identifier: Apache-2.0
"""Work on thousands of nodes in chunks, with pauses for other threads.

Python runs one thread of a process at a time. The threads of a worker that
read or write thousands of nodes therefore use this module to pause between
chunks: a build's claim, which runs in another thread, must not wait long.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from oslo_log import log as logging

from hashring.clock import Clock
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)

_PAUSE_MAX_S = 5.0

_Thing = TypeVar('_Thing')

# Updating the node cache and the changes for Placement with this number of
# nodes takes a hundredth of a second, a fifth of the pause after it.
NODES_PER_CHUNK = 50

CHUNK_PAUSE_S = 0.05


def paced_chunks(
    things: Sequence[_Thing],
    clock: Clock,
    pause_s: float = CHUNK_PAUSE_S,
    count: int = NODES_PER_CHUNK,
) -> Iterator[Sequence[_Thing]]:
    """Yield a sequence in chunks and sleep between two chunks.

    Choose ``count`` so that the work on one chunk takes a fifth of the pause
    or less.

    :param pause_s: seconds between two chunks
    :param count: length of a chunk
    """
    for start in range(0, len(things), count):
        if start:
            clock.sleep(pause_s)
        yield things[start : start + count]


class HalfTimePause:
    """Pauses as long as the work before it took, at most five seconds.

    Other threads therefore get half of the processor time. Create it when a
    long piece of work begins and call it between two parts of that work.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_s = clock.now_s()

    def __call__(self) -> None:
        """Sleep as long as the work since the last call took, at most 5 s.

        The limit is there because the work may only have waited for a slow
        server; then other threads were not held up.
        """
        took_s = self._clock.now_s() - self._began_s
        self._clock.sleep(min(took_s, _PAUSE_MAX_S))
        self._began_s = self._clock.now_s()


def run_isolated(node: NodeId, act: Callable[..., object], *args: Any) -> bool:
    """Call ``act`` for one node of many; log an exception of it.

    No exception is raised, so that the caller goes on with the other nodes.

    :param node: the node that the log names
    :returns: False if ``act`` raised an exception
    """
    try:
        act(*args)
    except Exception:
        LOG.exception(
            'Could not process a change of node %(node)s', {'node': node}
        )
        return False
    return True
