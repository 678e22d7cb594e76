# SPDX-License-Identifier: Apache-2.0
"""Build slots: a limit on the builds that send requests to Ironic at once.

Each build sends a dozen requests before its deploy begins. If a hundred
builds sent theirs at the same time, the first would end as late as the last.
With a limited number of slots, the first machine is already being deployed
while later builds wait for a slot. A build releases its slot when only the
machine is left to wait for.
"""

from ironic_compute.driver.cancellations import Cancellations
from ironic_compute.waiting_threads import WaitingThreads

# A request to Ironic takes about a second unless Ironic is overloaded. A build
# whose request hangs keeps its slot, so there must be some more.
_SLOTS_COUNT = 20


class BuildSlots:
    """The build slots of one worker; any thread may call.

    :param count: how many builds may have a slot at once
    :param cancellations: the builds that must not wait any longer
    :param waiting_threads: gets the threads that wait for a slot, so that a
        worker that stops does not wait for them. They may wait for long while
        Ironic has too many deploys, and the next worker gets their messages
    """

    def __init__(
        self,
        count: int = _SLOTS_COUNT,
        cancellations: Cancellations | None = None,
        waiting_threads: WaitingThreads | None = None,
    ) -> None:
        self._free_count = count
        self._waiting_threads = waiting_threads or WaitingThreads()
        self._cancellations = cancellations or Cancellations()
        self._changed = self._cancellations.changed

    def new_slot(self, server: str = '') -> 'BuildSlot':
        """Return a slot for the build of a server, which is not acquired."""
        return BuildSlot(self, server)

    def acquire(self, server: str) -> None:
        """Block until a slot is free, and take it.

        :raises nova_errors.Cancelled: the delete of the server has arrived
        """
        with self._changed:
            while not self._free_count:
                self._cancellations.raise_if_cancelled(server)
                with self._waiting_threads.include_current():
                    self._changed.wait()
            self._free_count -= 1

    def release(self) -> None:
        """Free a slot, and let one waiting build go on."""
        with self._changed:
            self._free_count += 1
            self._changed.notify()


class BuildSlot:
    """The slot of one build; only the thread of the build may call."""

    def __init__(self, slots: BuildSlots, server: str) -> None:
        self._slots = slots
        self._server = server
        self._is_acquired = False

    def acquire(self) -> None:
        """Block until fewer than ``count`` other builds have a slot.

        :raises nova_errors.Cancelled: the delete of the server has arrived
        """
        self._slots.acquire(self._server)
        self._is_acquired = True

    def release(self) -> None:
        """Free the slot; does nothing if the slot is not acquired."""
        if self._is_acquired:
            self._is_acquired = False
            self._slots.release()
