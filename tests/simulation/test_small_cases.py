# SPDX-License-Identifier: Apache-2.0
"""Exhaustive small cases: two agents, and every order of moves to a depth.

The agents' assignments and leases are real and have no threads. After each
move every other move is tried; equal states are explored once.
"""

import copy
import itertools
from collections.abc import Callable

import pytest

from hashring import events
from hashring.adoption import View
from hashring.assignment import Assignment
from hashring.group import Boot, Member, Traits
from hashring.host_states import WITH_WORKER
from hashring.lease import Beat, Lease
from hashring.opts import Timing
from hashring.ring import Host
from hashring.workers import WorkerExited
from ironic_compute.manager.forwarding import HOPS_MAX, next_hop
from tests.fakes.clock import ManualClock
from tests.simulation.defects import IgnoresLostLocks, endless_hop
from tests.unit.hashring.coordination import (
    CACHE,
    ETCD,
    ZOOKEEPER,
    FakeGroup,
    Service,
)

HOSTS = (Host('c1'), Host('c2'))
TIMING = Timing()
WAIT_S = 6.0
DEPTH = 6
# The moves until c1 is about to adopt the host of the silent c2.
SILENCE = ('wait', 'beat c1') * 4


class Side:
    """One agent: its lease, its locks and its assignment."""

    def __init__(
        self,
        home: Host,
        service: Service,
        clock: ManualClock,
        kind: type[Assignment],
    ) -> None:
        boot = Boot(f'{home}.1')
        self.home = home
        self.clock = clock
        self.group = FakeGroup(service, boot)
        self.lease = Lease(TIMING.lease_term_s, TIMING.lease_margin_s)
        self.machine = kind(home, boot, TIMING, service.traits)
        self.asked: list[events.Effect] = []
        self.handle(events.KnownHosts(frozenset(HOSTS)))

    def handle(self, event: events.Event) -> None:
        effects = self.machine.handle(event, self.clock.now_s())
        kinds = (
            events.TryLock | events.Prove | events.Release | events.BreakLock
        )
        self.asked += [e for e in effects if isinstance(e, kinds)]

    def beat(self) -> None:
        """Send one heartbeat, as `HeartbeatThread` does."""
        now_s = self.clock.now_s()
        me = Member(self.home, self.group.boot, known=HOSTS)
        if self.lease.base_s is None:
            self.group.join(me)
            self.lease = self.lease.joined(now_s)
        self.group.heartbeat()
        members = self.group.members()
        shown = any(m.boot == self.group.boot for m in members)
        if shown:
            serving = self.machine.serving()
            self.group.publish(
                Member(
                    self.home,
                    self.group.boot,
                    known=HOSTS,
                    serving=serving,
                )
            )
        self.lease, _ = self.lease.after(Beat(now_s, now_s, shown))
        self.handle(
            events.LeaseStatus(
                self.lease.deadline_s,
                self.lease.epoch,
                View(members),
                self.group.lost_locks(),
                now_s,
            )
        )

    def lock(self) -> None:
        """Send one lock request, as `LockThread` does."""
        match self.asked.pop(0):
            case events.TryLock(host=host, ticket=ticket):
                kind = (
                    events.LockGranted
                    if self.group.try_lock(host)
                    else events.LockRefused
                )
                self.handle(kind(host, ticket))
            case events.Prove(host=host, ticket=ticket):
                self.handle(
                    events.LockChecked(
                        host, ticket, self.group.owns_lock(host)
                    )
                )
            case events.Release(host=host, ticket=ticket):
                self.group.release(host)
                self.handle(events.LockReleased(host, ticket))

    def may_act(self, host: Host) -> bool:
        """Return whether a worker of this host has an open gate."""
        now_s = self.clock.now_s()
        opens_s = self.machine.opens_s(now_s).get(host, 0.0)
        phase = self.machine.phases().get(host)
        in_force = opens_s <= now_s < self.machine.deadline_s()
        return phase in WITH_WORKER and in_force


class Case:
    """The state of both agents, and the possible moves."""

    def __init__(
        self,
        traits: Traits,
        *,
        revives: bool,
        kind: type[Assignment] = Assignment,
    ) -> None:
        self.clock = ManualClock(start_s=100.0)
        service = Service(
            self.clock.now_s, TIMING.lease_term_s, traits, revives=revives
        )
        self.service = service
        self.sides = [Side(host, service, self.clock, kind) for host in HOSTS]
        for side, _ in itertools.product(self.sides, range(3)):
            self.move(f'beat {side.home}')
            while side.asked:
                self.move(f'lock {side.home}')

    def moves(self) -> list[str]:
        beats = [f'beat {side.home}' for side in self.sides]
        locks = [f'lock {side.home}' for side in self.sides if side.asked]
        ends = [
            f'exit {side.home} {host}'
            for side in self.sides
            for host in side.machine.serving()
            if host != side.home
        ]
        return ['wait', *beats, *locks, *ends]

    def move(self, what: str) -> None:
        verb, *names = what.split()
        sides = [side for side in self.sides if side.home in names[:1]]
        match verb:
            case 'wait':
                self.clock.advance(WAIT_S)
            case 'beat':
                sides[0].beat()
            case 'lock':
                sides[0].lock()
            case 'exit':
                sides[0].handle(WorkerExited(Host(names[1]), -9))
        for side in sides:
            side.handle(events.Tick())

    def key(self) -> str:
        """Return a key that is equal for equal states."""
        parts = [repr(self.clock.now_s()), repr(sorted(vars(self.service)))]
        for side in self.sides:
            holds = [
                (h.host, h.phase, h.ticket, h.epoch, h.retry_at_s, h.due_s)
                for h in side.machine._holds.values()
            ]
            parts += [repr(holds), repr(side.lease), repr(side.asked)]
            parts.append(repr(side.machine._lease_status))
            parts.append(repr(vars(side.machine._presence_watch)))
            parts.append(repr(side.group._tokens))
        parts.append(repr(self.service._locks))
        parts.append(repr(self.service._entries))
        return '\n'.join(parts)

    def check(self, path: tuple[str, ...]) -> None:
        for host in HOSTS:
            acting = [s.home for s in self.sides if s.may_act(host)]
            assert len(acting) < 2, f'{host} acts twice after {path}'


@pytest.mark.parametrize(
    ('traits', 'revives'),
    [(ETCD, False), (CACHE, True), (ZOOKEEPER, False)],
    ids=['etcd', 'cache', 'zookeeper'],
)
def test_no_order_of_moves_lets_two_act(traits: Traits, revives: bool) -> None:
    """No order of waits, heartbeats, locks and deaths lets two act."""
    start = Case(traits, revives=revives)
    _explore(start, DEPTH)
    for what in SILENCE:
        start.move(what)
    # Without an adoption the test would prove nothing.
    assert _explore(start, DEPTH) > 0


def test_a_defect_is_seen() -> None:
    """Two workers act if an agent ignores that it could not prove its lock.

    On ZooKeeper, where the agent does not learn otherwise of the loss.
    """
    start = Case(ZOOKEEPER, revives=False, kind=IgnoresLostLocks)
    for what in SILENCE:
        start.move(what)
    with pytest.raises(AssertionError, match='acts twice'):
        _explore(start, DEPTH)


def _explore(start: Case, depth: int) -> int:
    """Try all moves; return how often a host was adopted."""
    layer: dict[str, tuple[Case, tuple[str, ...]]] = {start.key(): (start, ())}
    seen = set(layer)
    adopted_count = 0
    for _ in range(depth):
        following = {}
        for case, path in layer.values():
            for what in case.moves():
                after = copy.deepcopy(case)
                after.move(what)
                after.check((*path, what))
                adopted_count += _adopts(after)
                key = after.key()
                if key not in seen:
                    seen.add(key)
                    following[key] = (after, (*path, what))
        layer = following
    return adopted_count


def _adopts(case: Case) -> bool:
    return any(len(side.machine.serving()) == 2 for side in case.sides)


def test_message_is_forwarded_a_limited_number_of_times() -> None:
    """A message is forwarded a limited number of times."""
    assert _hops_most(next_hop) == HOPS_MAX


def test_a_missing_hop_limit_is_seen() -> None:
    """The planted defect without a hop limit is detected."""
    assert _hops_most(endless_hop) > HOPS_MAX


def _hops_most(hop: Callable[[str | None, str, int], str | None]) -> int:
    """Try all holders that hosts may read; return the most hops."""
    most = 0
    for answers in itertools.product(
        ('c1', 'c2', 'c3', None), repeat=HOPS_MAX + 2
    ):
        here, hops_count = 'c1', 0
        for holder in answers:
            after = hop(holder, here, hops_count)
            if after is None:
                break
            here, hops_count = after, hops_count + 1
        most = max(most, hops_count)
    return most
