# SPDX-License-Identifier: Apache-2.0
"""Queue of nodes to read one by one; a burst of requests becomes one read.

A few loops read the nodes. A node that is requested while it waits is read
once; a node that is requested while it is being read is read once more,
because the answer may be older than the request.
"""

import threading
from collections.abc import Callable

from oslo_log import log as logging

from ironic_compute.loop_thread import LoopThread, NewLoop

LOG = logging.getLogger(__name__)

_READERS = 4
# A reader without work waits until a request wakes it; it may wake earlier.
_IDLE_S = 3600.0


class ReadQueue:
    """A queue whose readers read each node in one reader at a time.

    :param read: reads a node; its errors are logged, and reading goes on
    :param new_loop: makes the readers
    """

    def __init__(
        self, read: Callable[[str], None], new_loop: NewLoop = LoopThread
    ) -> None:
        self._read = read
        self._lock = threading.Lock()
        # In order of their requests.
        self._waiting: dict[str, None] = {}
        self._running: set[str] = set()
        # Nodes requested again while they are being read.
        self._again: set[str] = set()
        self._readers = [
            new_loop(f'reader-{number}', self._read_waiting, 0.0)
            for number in range(_READERS)
        ]

    def start(self) -> None:
        """Start the readers."""
        for reader in self._readers:
            reader.start()

    def stop(self) -> None:
        """End the readers without reading the nodes that still wait.

        Does not block: a reader that is reading a node ends after that read.
        """
        for reader in self._readers:
            reader.stop()
        with self._lock:
            self._waiting.clear()
            self._again.clear()

    def add(self, node: str) -> None:
        """Request a read of a node; a read in progress does not count."""
        with self._lock:
            if node in self._running:
                self._again.add(node)
                return
            self._waiting[node] = None
        # All, because a reader that is busy takes no notice.
        for reader in self._readers:
            reader.wake()

    def _read_waiting(self) -> float:
        """Read the waiting nodes; return the seconds until the next call."""
        while (node := self._begin()) is not None:
            try:
                self._read(node)
            except Exception:
                LOG.exception('Could not read %(node)s', {'node': node})
            self._end(node)
        return _IDLE_S

    def _begin(self) -> str | None:
        """Mark the next node as being read and return it, if any waits."""
        with self._lock:
            node = next(iter(self._waiting), None)
            if node is not None:
                del self._waiting[node]
                self._running.add(node)
            return node

    def _end(self, node: str) -> None:
        """End a read; queue the node again if it was requested meanwhile."""
        with self._lock:
            self._running.discard(node)
            if node in self._again:
                self._again.discard(node)
                self._waiting[node] = None
