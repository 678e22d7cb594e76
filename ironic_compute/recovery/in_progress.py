# SPDX-License-Identifier: Apache-2.0
"""Servers in progress: which threads of this worker work on which server.

RPC handlers work on a server side by side, because Nova's own locks order
them. ``recovery`` works on a server exclusively: it does not start while a
handler runs, and a handler that starts during recovery waits and then reads
the server's Instance record again, because recovery may have done the task.
A handler that puts an interrupted request back waits until it is alone.

At shutdown the manager waits until the threads recorded here have ended,
except threads that only wait (``ironic_compute.waiting_threads``), because the
next worker can wait as well.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator

from nova import exception as nova_exception
from oslo_log import log as logging

from hashring.clock import Clock

LOG = logging.getLogger(__name__)

_POLL_S = 0.1
# The worker counts as idle after this number of idle polls in succession. One
# poll is not enough, because no thread works on a build between the end of the
# RPC handler and the start of the build thread.
_IDLE_POLLS_COUNT = 3

StartThread = Callable[[str, Callable[[], None]], None]


def start_thread(name: str, act: Callable[[], None]) -> None:
    """Run a function in a daemon thread of its own; returns at once."""
    threading.Thread(target=act, name=name, daemon=True).start()


def wait_until_idle(
    is_busy: Callable[[], bool], clock: Clock, timeout_s: float
) -> bool:
    """Wait until ``is_busy`` returns False; return False after the timeout."""
    deadline_s = clock.now_s() + timeout_s
    idle_count = 0
    while True:
        idle_count = 0 if is_busy() else idle_count + 1
        if idle_count == _IDLE_POLLS_COUNT:
            return True
        if clock.now_s() >= deadline_s:
            return idle_count > 0
        clock.sleep(_POLL_S)


class InProgress:
    """Counts the threads that work on each server; any thread may call."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._shared: Counter[str] = Counter()
        self._exclusive: dict[str, int] = {}
        self._messages: Counter[str] = Counter()
        self._threads: Counter[tuple[str, int]] = Counter()

    @contextlib.contextmanager
    def shared(self, server: str) -> Iterator[None]:
        """Record that the calling thread works on a server, beside others.

        Blocks while another thread works on the server exclusively.
        """
        with self._changed:
            while self._is_exclusive_elsewhere(server):
                self._changed.wait()
            self._shared[server] += 1
            self._count_thread(server, 1)
        try:
            yield
        finally:
            with self._changed:
                self._count_thread(server, -1)
                self._shared[server] -= 1
                self._shared += Counter()  # Removes counts of 0.
                self._changed.notify_all()

    @contextlib.contextmanager
    def exclusive(
        self, server: str, *, despite_messages: bool = False
    ) -> Iterator[bool]:
        """Record that the calling thread alone works on a server.

        Yields True, or False at once if any thread works on the server, or
        has a message about it.

        :param despite_messages: messages do not matter; the calling thread
            may have one itself
        """
        with self._changed:
            has_message = self._messages[server] and not despite_messages
            is_free = self._is_free(server) and not has_message
            if is_free:
                self._begin_exclusive(server)
        try:
            yield is_free
        finally:
            if is_free:
                self._end_exclusive(server)

    @contextlib.contextmanager
    def with_message(self, server: str) -> Iterator[None]:
        """Record that the calling thread has a message about a server.

        Other messages are served meanwhile; see :meth:`exclusive`.
        """
        with self._changed:
            self._messages[server] += 1
        try:
            yield
        finally:
            with self._changed:
                self._messages[server] -= 1
                self._messages += Counter()  # Removes counts of 0.

    @contextlib.contextmanager
    def without_message(self, server: str) -> Iterator[None]:
        """Let recovery work on a server whose message waits for long.

        Undoes the calling thread's :meth:`with_message` for the body. Blocks
        at the end while recovery works on the server: the rest of the handler
        does not run beside it.
        """
        with self._changed:
            count = min(self._messages[server], 1)
            self._messages[server] -= count
            self._messages += Counter()  # Removes counts of 0.
        try:
            yield
        finally:
            with self._changed:
                while self._is_exclusive_elsewhere(server):
                    self._changed.wait()
                self._messages[server] += count

    @contextlib.contextmanager
    def alone(self, server: str) -> Iterator[None]:
        """Record that the calling thread alone works on a server.

        Blocks while any thread works on the server. The calling thread must
        not work on it already, or it would wait for itself.
        """
        with self._changed:
            while not self._is_free(server):
                self._changed.wait()
            self._begin_exclusive(server)
        try:
            yield
        finally:
            self._end_exclusive(server)

    def threads_by_server(self) -> dict[str, frozenset[int]]:
        """Return the idents of the threads that work on each server."""
        with self._changed:
            pairs = list(self._threads)
        found: dict[str, frozenset[int]] = {}
        for server, thread in pairs:
            found[server] = found.get(server, frozenset()) | {thread}
        return found

    def _count_thread(self, server: str, change: int) -> None:
        self._threads[server, threading.get_ident()] += change
        self._threads += Counter()  # Removes counts of 0.

    def _is_free(self, server: str) -> bool:
        return not self._shared[server] and server not in self._exclusive

    def _begin_exclusive(self, server: str) -> None:
        self._exclusive[server] = threading.get_ident()
        self._count_thread(server, 1)

    def _end_exclusive(self, server: str) -> None:
        with self._changed:
            self._count_thread(server, -1)
            del self._exclusive[server]
            self._changed.notify_all()

    def _is_exclusive_elsewhere(self, server: str) -> bool:
        """Return whether another thread works on a server exclusively."""
        return self._exclusive.get(server) not in (None, threading.get_ident())


def run_exclusive(
    in_progress: InProgress, server: str, act: Callable[[], None], failed: str
) -> None:
    """Run a function if no other thread works on a server; raises nothing.

    :param failed: the sentence to log after an error, with ``%(server)s``
    """
    try:
        with in_progress.exclusive(server) as free:
            if free:
                act()
    except nova_exception.InstanceNotFound:
        LOG.debug('Server %(server)s is gone', {'server': server})
    except Exception:
        LOG.exception(failed, {'server': server})
