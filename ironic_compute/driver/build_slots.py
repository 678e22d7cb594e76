# SPDX-License-Identifier: Apache-2.0
"""Build slots: a limit on the builds that send requests to Ironic at once.

Each build sends a dozen requests before its deploy begins. If a hundred
builds sent theirs at the same time, the first would end as late as the last.
With a limited number of slots, the first machine is already being deployed
while later builds wait for a slot. A build releases its slot when only the
machine is left to wait for.
"""

import threading

# A request to Ironic takes about a second unless Ironic is overloaded. A build
# whose request hangs keeps its slot, so there must be some more.
_SLOTS_COUNT = 20


class BuildSlots:
    """The build slots of one worker; any thread may call.

    :param count: how many builds may have a slot at once
    """

    def __init__(self, count: int = _SLOTS_COUNT) -> None:
        self._free = threading.Semaphore(count)

    def new_slot(self) -> 'BuildSlot':
        """Return a slot for one build, which is not acquired yet."""
        return BuildSlot(self._free)


class BuildSlot:
    """The slot of one build; only the thread of the build may call."""

    def __init__(self, free: threading.Semaphore) -> None:
        self._free = free
        self._is_acquired = False

    def acquire(self) -> None:
        """Block until fewer than ``count`` other builds have a slot."""
        self._free.acquire()
        self._is_acquired = True

    def release(self) -> None:
        """Free the slot; does nothing if the slot is not acquired."""
        if self._is_acquired:
            self._is_acquired = False
            self._free.release()
