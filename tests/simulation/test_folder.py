# SPDX-License-Identifier: Apache-2.0
"""The simulated file backend has the traits of tooz's file driver."""

from collections.abc import Callable

from hashring.group import Boot, Member
from hashring.ring import Host
from tests.simulation.folder import FolderService
from tests.simulation.kernel import Kernel, Process

TERM_S = 15.0
C1 = Host('c1')


class _Folder:
    """A folder and a process that uses it."""

    def __init__(self) -> None:
        self.kernel = Kernel(1)
        self.service = FolderService(self.kernel, TERM_S)
        self.process = Process('agent')

    def run(self, act: Callable[[], object], until_s: float = 0.0) -> None:
        """Run a task of the process, then let the time pass."""
        self.kernel.spawn(self.process, act)
        self.kernel.at(until_s, lambda: None)
        while self.kernel.now_s < until_s or self.process.tasks:
            self.kernel.step()


def test_a_silent_process_keeps_its_lock_until_it_ends() -> None:
    """No term ends the lock; the end of the process does at once."""
    folder = _Folder()
    folder.run(lambda: folder.service.take(C1), until_s=3 * TERM_S)
    assert folder.service.take(C1) == 0
    folder.kernel.end(folder.process)
    assert folder.service.take(C1) > 0


def test_a_changed_record_is_absent_for_an_instant() -> None:
    """tooz's driver has no update, so the member leaves and joins."""
    folder = _Folder()
    me = Member(C1, Boot('c1.1'))
    folder.service.enter(me)
    seen: list[int] = []
    folder.kernel.later(
        0.01, lambda: seen.append(len(folder.service.members()))
    )
    folder.run(lambda: folder.service.rewrite(me), until_s=1.0)
    assert seen == [0]
    assert folder.service.members() == (me,)


def test_a_late_heartbeat_restores_the_entry() -> None:
    """An entry is listed while its file is young enough."""
    folder = _Folder()
    me = Member(C1, Boot('c1.1'))
    folder.service.enter(me)
    folder.run(lambda: None, until_s=2 * TERM_S)
    assert folder.service.members() == ()
    folder.service.renew(me.boot)
    assert folder.service.members() == (me,)
