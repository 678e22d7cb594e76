# SPDX-License-Identifier: Apache-2.0
"""Which servers somebody is at work on in this process.

Messages work on a server beside each other: Nova's own locks order them.
Whoever takes up what an earlier worker left half done works alone: it does
not begin while a message is being served, and a message that arrives then
waits until it has ended, and looks again whether there is anything to do.
"""

import collections
import contextlib
import threading
from collections.abc import Callable, Iterator

from nova import exception as nova_exception
from oslo_log import log as logging

LOG = logging.getLogger(__name__)

Begin = Callable[[str, Callable[[], None]], None]


def begin_thread(name: str, act: Callable[[], None]) -> None:
    """Do something in a thread of its own."""
    threading.Thread(target=act, name=name, daemon=True).start()


class LiveTasks:
    """Counts who is at work on each server; any thread may call."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._working: collections.Counter[str] = collections.Counter()
        self._alone: dict[str, int] = {}

    @contextlib.contextmanager
    def working(self, server: str) -> Iterator[None]:
        """Work on a server beside others.

        Blocks while somebody else works on it alone.
        """
        with self._changed:
            while self._is_taken(server):
                self._changed.wait()
            self._working[server] += 1
        try:
            yield
        finally:
            with self._changed:
                self._working[server] -= 1
                self._working += collections.Counter()  # Drops zeros.

    @contextlib.contextmanager
    def alone(self, server: str) -> Iterator[bool]:
        """Work on a server alone; yields False, at once, if one may not."""
        with self._changed:
            free = not self._working[server] and server not in self._alone
            if free:
                self._alone[server] = threading.get_ident()
        try:
            yield free
        finally:
            if free:
                with self._changed:
                    del self._alone[server]
                    self._changed.notify_all()

    def _is_taken(self, server: str) -> bool:
        """Say whether another thread works on a server alone."""
        return self._alone.get(server) not in (None, threading.get_ident())


def try_alone(
    tasks: LiveTasks, server: str, act: Callable[[], None], failed: str
) -> None:
    """Do something for a server alone, or nothing; raises nothing.

    :param failed: the sentence to log, with ``%(server)s`` in it
    """
    try:
        with tasks.alone(server) as free:
            if free:
                act()
    except nova_exception.InstanceNotFound:
        LOG.debug('Server %(server)s is gone', {'server': server})
    except Exception:
        LOG.exception(failed, {'server': server})
