# SPDX-License-Identifier: Apache-2.0
"""The watch of a daemon over the port of the next one."""

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Collection, Sequence

import pytest

from hashring.adoption import View
from hashring.agent_status import AgentStatus
from hashring.group import Boot, Member, MemberState
from hashring.heartbeat import HeartbeatState
from hashring.ring import Host
from ironic_compute.agent_port import peers
from ironic_compute.agent_port.neighbor_watch import (
    Kind,
    NeighborThread,
    NeighborWatch,
    PortEvent,
)
from tests.fakes.clock import ManualClock
from tests.unit.ironic_compute.agent_port.statuses import (
    LEASE,
    NOW_S,
    STATUS,
)
from tests.unit.ironic_compute.agent_port.test_peers import (
    port_that_answers,
    port_that_refuses,
)

C1, C2, C3, C4, C5 = map(Host, ('c1', 'c2', 'c3', 'c4', 'c5'))
SOON_S = 60.0
SILENT = (
    'The port of the daemon of c2 has not answered for 5 s: if that daemon '
    'has died, another one serves c2 when its lease has ended'
)
ANSWERS = 'The port of the daemon of c2 answers again after 10 s'
GONE = (
    'The daemon of c2, whose port has not answered for 10 s, is gone from the '
    'group'
)


def member(home: Host, boot: str = '', **changes: object) -> Member:
    """Return a member whose port this machine can reach."""
    made = Member(
        home,
        Boot(boot or f'b{home[1:]}'),
        machine=f'm-{home}',
        page=f'http://{home}:9178/',
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


POOL = tuple(map(member, (C1, C2, C3, C4, C5)))


class Pool:
    """A watch in a pool whose ports the test silences.

    :param home: the host whose daemon watches
    """

    def __init__(
        self, home: Host = C1, members: Sequence[Member] = POOL
    ) -> None:
        self.watch = NeighborWatch()
        self.me = next(each for each in members if each.home == home)
        self.members = tuple(members)
        self.silent: Collection[Host] = ()
        self.asked: list[Host] = []
        self.now_s = NOW_S
        self.list_age_s = 1.0
        self.has_lease = True

    def status(self) -> AgentStatus:
        """Return what the main loop has handed over just now."""
        lease = dataclasses.replace(
            LEASE, base_s=self.now_s - 1.0, counted=self.has_lease
        )
        return dataclasses.replace(
            STATUS,
            me=self.me,
            turned_at_s=self.now_s,
            heartbeat=HeartbeatState(
                lease,
                View(self.members),
                requested_at_s=self.now_s - self.list_age_s,
            ),
        )

    def turn(self) -> list[PortEvent]:
        """Let five seconds pass, and have the watch ask."""
        self.now_s += 5.0
        self.asked = []
        return self.watch.turn(self.status(), self.now_s, self._ask)

    def turns(self, count: int) -> list[list[PortEvent]]:
        """Return what is to be logged in so many turns."""
        return [self.turn() for _ in range(count)]

    def change(self, home: Host, **changes: object) -> None:
        """Replace what one daemon publishes."""
        self.members = tuple(
            dataclasses.replace(each, **changes)  # type: ignore[arg-type]
            if each.home == home
            else each
            for each in self.members
        )

    def remove(self, *homes: Host) -> None:
        """Let the leases of daemons end."""
        self.members = tuple(m for m in self.members if m.home not in homes)

    def _ask(self, asked: Member) -> bool:
        self.asked.append(asked.home)
        return asked.home not in self.silent


def silent(home: Host = C2, seconds: float = 5.0) -> PortEvent:
    """Return the event of a port that does not answer."""
    return PortEvent(Kind.SILENT, home, seconds)


@pytest.mark.parametrize(
    ('home', 'asked'), [(C1, C2), (C2, C3), (C3, C4), (C4, C5), (C5, C1)]
)
def test_each_daemon_is_asked_by_one_other(home: Host, asked: Host) -> None:
    """However many they are; while all is well nothing is logged."""
    pool = Pool(home, (POOL[3], POOL[1], POOL[4], POOL[0], POOL[2]))
    assert pool.turns(3) == [[], [], []]
    assert pool.asked == [asked]


def test_a_daemon_alone_asks_nobody() -> None:
    """Nor does it ask a former process of its own host."""
    pool = Pool(members=[POOL[0], member(C1, 'former')])
    assert pool.turn() == []
    assert pool.asked == []


def test_two_questions_without_an_answer_are_logged_once() -> None:
    """One may have been lost; afterwards the log has said it."""
    pool = Pool()
    pool.turn()
    pool.silent = [C2]
    assert pool.turns(4) == [[], [silent()], [], []]


def test_an_answer_between_two_silences_is_a_new_beginning() -> None:
    """The questions without an answer have to be successive."""
    pool = Pool()
    pool.turn()
    for _ in range(3):
        pool.silent = [C2]
        assert pool.turn() == []
        pool.silent = []
        assert pool.turn() == []


@pytest.mark.parametrize('is_back', [True, False])
def test_the_end_of_a_silence_is_logged_once(is_back: bool) -> None:
    """The daemon answers again, or its lease has ended."""
    pool = Pool()
    pool.turn()
    pool.silent = [C2]
    pool.turns(2)
    if is_back:
        pool.silent = []
    else:
        pool.remove(C2)
    kind = Kind.ANSWERS if is_back else Kind.GONE
    assert pool.turns(2) == [[PortEvent(kind, C2, 10.0)], []]


def test_a_silence_that_was_not_logged_has_no_end_in_the_log() -> None:
    """A daemon that was stopped is gone; that is no news here."""
    pool = Pool()
    pool.turn()
    pool.silent = [C2]
    pool.turn()
    pool.remove(C2)
    assert pool.turns(2) == [[], []]


@pytest.mark.parametrize(
    'changes',
    [
        {'state': MemberState.RESTARTING},
        {'state': MemberState.LEAVING},
        {'page': ''},
        {'page': 'http://127.0.0.1:9178/'},
    ],
)
def test_who_stops_or_has_no_port_is_passed_over(
    changes: dict[str, object],
) -> None:
    """The one after it is watched instead."""
    pool = Pool()
    pool.turn()
    pool.silent = [C2]
    pool.turn()
    pool.change(C2, **changes)
    assert pool.turns(3) == [[], [], []]
    assert pool.asked == [C3]


def test_a_silence_in_the_log_has_its_end_there_whatever_happens() -> None:
    """Another daemon is the next one by then, and this one stops."""
    pool = Pool(members=(POOL[0], POOL[2]))
    pool.turn()
    pool.silent = [C3]
    assert pool.turns(2)[-1] == [silent(C3)]
    pool.members = POOL
    pool.change(C3, state=MemberState.RESTARTING)
    assert pool.turn() == []
    assert pool.asked == [C2, C3]
    pool.silent = []
    assert pool.turn() == [PortEvent(Kind.ANSWERS, C3, 15.0)]
    pool.turn()
    assert pool.asked == [C2]


def test_without_a_lease_nobody_is_asked() -> None:
    """The silence begins anew; one in the log has its end there later."""
    pool = Pool()
    pool.turn()
    pool.silent = [C2]
    pool.turn()
    pool.has_lease = False
    assert pool.turns(3) == [[], [], []]
    assert pool.asked == []
    pool.has_lease = True
    assert pool.turns(2) == [[], [silent()]]
    pool.has_lease = False
    pool.turn()
    pool.has_lease, pool.silent = True, []
    assert pool.turn() == [PortEvent(Kind.ANSWERS, C2, 15.0)]


def test_the_member_list_has_to_be_newer_than_the_silence() -> None:
    """A daemon that has left the group is not in a newer list."""
    pool = Pool()
    pool.turn()
    pool.silent, pool.list_age_s = [C2], 11.0
    assert pool.turns(4) == [[], [], [], [silent(seconds=15.0)]]


def test_the_daemon_after_a_silent_one_is_asked_too() -> None:
    """The silent one does not watch it; three are asked at most."""
    pool = Pool()
    pool.turn()
    pool.silent = [C2, C3, C4]
    assert pool.turns(2) == [[], [silent(C2), silent(C3), silent(C4)]]
    assert pool.asked == [C2, C3, C4]
    pool.silent = [C2, C4]
    assert pool.turn() == [PortEvent(Kind.ANSWERS, C3, 10.0)]
    pool.silent = []
    assert {event.home for event in pool.turn()} == {C2, C4}
    pool.turn()
    assert pool.asked == [C2]


def test_ports_of_which_none_has_ever_answered_are_no_news() -> None:
    """A firewall is between the daemons, until it is opened."""
    pool = Pool(members=POOL[:3])
    pool.silent = [C2, C3]
    assert pool.turns(4) == [[]] * 4
    pool.silent = [C2]
    assert pool.turn() == [silent(seconds=20.0)]


def test_a_new_process_of_a_dead_daemon_has_its_own_silence() -> None:
    """It answers on the same port, and the former one is gone."""
    pool = Pool()
    pool.turn()
    pool.silent = [C2]
    pool.turns(2)
    pool.change(C2, boot=Boot('new'))
    pool.silent = []
    assert pool.turn() == [PortEvent(Kind.GONE, C2, 10.0)]
    pool.silent = [C2]
    assert pool.turns(2) == [[], [silent()]]


# ---- the thread


def _ask(asked: Member) -> bool:
    """Ask a real port, with the patience that a busy machine needs."""
    return peers.answers(asked, SOON_S)


def _health_port(
    status: str = '200 OK',
) -> contextlib.AbstractContextManager[str]:
    return port_that_answers(b'', status, frozenset({peers.HEALTH_PATH}))


def _logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(each.levelname, each.getMessage()) for each in caplog.records]


def test_a_real_port_that_ends_and_is_back_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At level WARNING if it may be a death; an error is an answer."""
    caplog.set_level(logging.INFO, 'ironic_compute.agent_port.neighbor_watch')
    pool = Pool(
        members=[POOL[0], dataclasses.replace(POOL[1], machine='m-c1')]
    )
    clock = ManualClock(NOW_S)
    thread = NeighborThread(pool.status, clock, ask=_ask)
    for port in (
        _health_port(),
        port_that_refuses(),
        port_that_refuses(),
        _health_port('503 Unwell'),
    ):
        with port as url:
            pool.change(C2, page=url)
            clock.advance(5.0)
            pool.now_s = clock.now_s()
            thread.turn()
    assert _logged(caplog) == [('WARNING', SILENT), ('INFO', ANSWERS)]


def test_a_daemon_that_is_gone_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It has not answered until its lease has ended."""
    caplog.set_level(logging.INFO)
    pool = Pool()
    clock = ManualClock(NOW_S)
    thread = NeighborThread(
        pool.status, clock, ask=lambda each: each.home not in pool.silent
    )
    for silent_homes, gone in (((), ()), ((C2,), ()), ((C2,), ()), ((), [C2])):
        pool.silent = silent_homes
        pool.remove(*gone)
        clock.advance(5.0)
        pool.now_s = clock.now_s()
        thread.turn()
    assert _logged(caplog) == [('WARNING', SILENT), ('INFO', GONE)]


class _EndingClock(ManualClock):
    """Ends its thread's work after some sleeps."""

    def __init__(self, sleeps_count: int) -> None:
        super().__init__(NOW_S)
        self.slept: list[float] = []
        self.has_ended = threading.Event()
        self._sleeps_count = sleeps_count

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)
        if len(self.slept) == self._sleeps_count:
            self.has_ended.set()
            threading.Event().wait()


def test_the_thread_asks_each_five_seconds_and_survives_a_bug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Before the first turn of the main loop there is nobody to ask."""
    clock = _EndingClock(4)
    pool = Pool()
    statuses = iter([None, STATUS, pool.status(), pool.status()])

    def ask(asked: Member) -> bool:
        clock.advance(2.0)
        raise RuntimeError('a bug')

    NeighborThread(lambda: next(statuses), clock, ask=ask).start()
    assert clock.has_ended.wait(SOON_S)
    # The bug is not logged each five seconds.
    assert clock.slept == [5.0, 5.0, 60.0, 0.0]
    assert caplog.text.count('The watch over the next daemon failed') == 1
