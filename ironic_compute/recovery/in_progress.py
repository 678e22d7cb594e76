# SPDX-License-Identifier: Apache-2.0
"""Which servers somebody is at work on in this process.

Messages work on a server beside each other: Nova's own locks order them.
Whoever takes up what an earlier worker left half done works alone: it does
not begin while a message is being served, and a message that arrives then
waits until it has ended, and looks again whether there is anything to do.

A worker that stops lets what is at work come to an end, but for what only
waits until Ironic is done: the next worker waits just as well.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator

from nova import exception as nova_exception
from oslo_log import log as logging

from hashring.clock import Clock

LOG = logging.getLogger(__name__)

_LOOK_S = 0.2
# In a row: a build is at work in no thread for a moment, between the one that
# took the message and the one that builds.
_QUIET_LOOKS_COUNT = 3

StartThread = Callable[[str, Callable[[], None]], None]


def start_thread(name: str, act: Callable[[], None]) -> None:
    """Do something in a thread of its own."""
    threading.Thread(target=act, name=name, daemon=True).start()


def wait_until_idle(
    is_busy: Callable[[], bool], clock: Clock, timeout_s: float
) -> bool:
    """Wait until nothing is at work; return False if that took too long."""
    deadline_s = clock.now_s() + timeout_s
    quiet_count = 0
    while quiet_count < _QUIET_LOOKS_COUNT:
        quiet_count = 0 if is_busy() else quiet_count + 1
        if clock.now_s() >= deadline_s:
            return quiet_count > 0
        clock.sleep(_LOOK_S)
    return True


class InProgress:
    """Counts who is at work on each server; any thread may call."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._working: Counter[str] = Counter()
        self._alone: dict[str, int] = {}
        self._threads: Counter[tuple[str, int]] = Counter()

    @contextlib.contextmanager
    def shared(self, server: str) -> Iterator[None]:
        """Work on a server beside others.

        Blocks while somebody else works on it alone.
        """
        with self._changed:
            while self._is_taken(server):
                self._changed.wait()
            self._working[server] += 1
            self._note(server, 1)
        try:
            yield
        finally:
            with self._changed:
                self._note(server, -1)
                self._working[server] -= 1
                self._working += Counter()  # Drops zeros.

    @contextlib.contextmanager
    def exclusive(self, server: str) -> Iterator[bool]:
        """Work on a server alone; yields False, at once, if one may not."""
        with self._changed:
            free = not self._working[server] and server not in self._alone
            if free:
                self._alone[server] = threading.get_ident()
                self._note(server, 1)
        try:
            yield free
        finally:
            if free:
                with self._changed:
                    self._note(server, -1)
                    del self._alone[server]
                    self._changed.notify_all()

    def threads_by_server(self) -> dict[str, frozenset[int]]:
        """Return the threads at work on each server, by server."""
        with self._changed:
            pairs = list(self._threads)
        found: dict[str, frozenset[int]] = {}
        for server, thread in pairs:
            found[server] = found.get(server, frozenset()) | {thread}
        return found

    def _note(self, server: str, change: int) -> None:
        self._threads[server, threading.get_ident()] += change
        self._threads += Counter()  # Drops zeros.

    def _is_taken(self, server: str) -> bool:
        """Say whether another thread works on a server alone."""
        return self._alone.get(server) not in (None, threading.get_ident())


def run_exclusive(
    in_progress: InProgress, server: str, act: Callable[[], None], failed: str
) -> None:
    """Do something for a server alone, or nothing; raises nothing.

    :param failed: the sentence to log, with ``%(server)s`` in it
    """
    try:
        with in_progress.exclusive(server) as free:
            if free:
                act()
    except nova_exception.InstanceNotFound:
        LOG.debug('Server %(server)s is gone', {'server': server})
    except Exception:
        LOG.exception(failed, {'server': server})
