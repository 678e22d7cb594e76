# SPDX-License-Identifier: Apache-2.0
"""Who may ask Ironic now to build; who came first is first.

Of a hundred builds at once each has a dozen requests to make before its
deploy begins. If all are under way together they all end late, and the first
as late as the last. In turns the first machine is being deployed while the
others still wait, and Ironic meets no more requests at once than it can
answer. A turn ends where the waiting for the machine begins.
"""

import threading

# So many ask at once; each for about a second if Ironic is well. One that
# hangs in a request keeps one turn of these.
_TURNS_COUNT = 20


class BuildSlots:
    """The turns of all builds.

    :param count: how many may ask at once
    """

    def __init__(self, count: int = _TURNS_COUNT) -> None:
        self._free = threading.Semaphore(count)

    def turn(self) -> 'BuildSlot':
        """Return a turn that has not begun."""
        return BuildSlot(self._free)


class BuildSlot:
    """The turn of one build, for one thread."""

    def __init__(self, free: threading.Semaphore) -> None:
        self._free = free
        self._is_on = False

    def begin(self) -> None:
        """Block until it is this build's turn."""
        self._free.acquire()
        self._is_on = True

    def end(self) -> None:
        """Let another build begin; again is nothing."""
        if self._is_on:
            self._is_on = False
            self._free.release()
