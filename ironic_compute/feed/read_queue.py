# SPDX-License-Identifier: Apache-2.0
"""Queue of nodes to read one by one; a burst of requests becomes one read.

A few threads read the nodes. A node that is requested while it waits is read
once; a node that is requested while it is being read is read once more,
because the answer may be older than the request.
"""

import queue
import threading
from collections.abc import Callable

from oslo_log import log as logging

LOG = logging.getLogger(__name__)

_READERS = 4


class ReadQueue:
    """A queue whose threads read each node in one thread at a time.

    :param read: reads a node; its errors are logged, and reading goes on
    """

    def __init__(self, read: Callable[[str], None]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._waiting: set[str] = set()
        self._running: set[str] = set()
        # Nodes requested again while they are being read.
        self._again: set[str] = set()

    def start(self) -> None:
        """Start the threads that read."""
        for number in range(_READERS):
            threading.Thread(
                target=self._work, name=f'reader-{number}', daemon=True
            ).start()

    def stop(self) -> None:
        """End the threads without reading the nodes that still wait.

        Does not block: a thread that is reading a node ends after that read.
        """
        with self._lock:
            self._waiting.clear()
        for _ in range(_READERS):
            self._queue.put(None)

    def add(self, node: str) -> None:
        """Request a read of a node; a read in progress does not count."""
        with self._lock:
            if node in self._running:
                self._again.add(node)
            elif node not in self._waiting:
                self._put(node)

    def _put(self, node: str) -> None:
        self._waiting.add(node)
        self._queue.put(node)

    def _work(self) -> None:
        while (node := self._queue.get()) is not None:
            if self._begin(node):
                try:
                    self._read(node)
                except Exception:
                    LOG.exception('Could not read %(node)s', {'node': node})
                self._end(node)

    def _begin(self, node: str) -> bool:
        """Mark a node as being read; False if the queue was stopped."""
        with self._lock:
            if node not in self._waiting:
                return False
            self._waiting.discard(node)
            self._running.add(node)
            return True

    def _end(self, node: str) -> None:
        """End a read; queue the node again if it was requested meanwhile."""
        with self._lock:
            self._running.discard(node)
            if node in self._again:
                self._again.discard(node)
                self._put(node)
