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
    """A few threads that read nodes, each node by one of them at a time.

    :param read: reads a node; its errors are logged and end nothing
    """

    def __init__(self, read: Callable[[str], None]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._waiting: set[str] = set()
        self._running: set[str] = set()
        self._again: set[str] = set()

    def start(self) -> None:
        """Start the threads."""
        for number in range(_READERS):
            threading.Thread(
                target=self._work, name=f'reader-{number}', daemon=True
            ).start()

    def stop(self) -> None:
        """End the threads; what waits is not read any more."""
        with self._lock:
            self._waiting.clear()
        for _ in range(_READERS):
            self._queue.put(None)

    def add(self, node: str) -> None:
        """Have a node read; once more if it is being read now."""
        with self._lock:
            if node in self._running:
                self._again.add(node)
            elif node not in self._waiting:
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
        with self._lock:
            if node not in self._waiting:
                return False
            self._waiting.discard(node)
            self._running.add(node)
            return True

    def _end(self, node: str) -> None:
        with self._lock:
            self._running.discard(node)
            if node in self._again:
                self._again.discard(node)
                self._waiting.add(node)
                self._queue.put(node)
