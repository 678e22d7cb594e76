# SPDX-License-Identifier: Apache-2.0
"""A simulated file backend: a folder that agents on one machine share.

As tooz's driver: a process has its locks until it gives them back or ends,
however silent it is; a late heartbeat restores an entry. As an agent of an
older release: a changed record is written by a leave and a join, so that the
member is absent for an instant.
"""

from typing import Any

from hashring.group import Member, Traits
from hashring.ring import Host
from tests.simulation.kernel import Kernel
from tests.unit.hashring import coordination

TRAITS = Traits(forgets=False, breaks=False, shared=False)
REWRITE_S = 0.02


class FolderService(coordination.Service):
    """The folder."""

    def __init__(self, kernel: Kernel, term_s: float) -> None:
        super().__init__(lambda: kernel.now_s, term_s, TRAITS, revives=True)
        self._kernel = kernel
        self._owners: dict[Host, Any] = {}

    def members(self) -> tuple[Member, ...]:
        entries = self._entries.items()
        live = (e.member for boot, e in entries if self._live(boot))
        return tuple(sorted(live, key=lambda m: (m.home, m.boot)))

    def rewrite(self, member: Member) -> None:
        self.remove(member.boot)
        self._kernel.sleep(REWRITE_S)
        self.enter(member)

    def take(self, host: Host, term_s: float = 0.0) -> int:
        token = super().take(host, term_s)
        if token and self._kernel.task is not None:
            self._owners[host] = self._kernel.task.process
        return token

    def _lock(self, host: Host) -> Any:
        """Return the lock of a live process; the kernel frees the others."""
        owner = self._owners.get(host)
        if owner is None or not owner.alive:
            return None
        return self._locks.get(host)
