# SPDX-License-Identifier: Apache-2.0
"""Known bugs of other projects with hash rings or leases, by number.

Each test replays the situation of one bug with real agents, rings and leases
in the simulated world, without its faults. The page ``old-bugs.rst`` of the
contributors' manual describes the bugs.
"""

import logging
from collections.abc import Iterator

import pytest

from hashring.adoption import PresenceWatch, View
from hashring.agent import Agent
from hashring.assignment import Assignment
from hashring.events import (
    BreakLock,
    KnownHosts,
    LeaseStatus,
    LockGranted,
    Release,
    Start,
    TryLock,
)
from hashring.group import Boot, LockToken, Member
from hashring.heartbeat import HeartbeatThread
from hashring.lock_thread import LockThread
from hashring.pool import Pool
from hashring.ring import Host, Ring
from hashring.workers import ServiceFacts, WorkerView
from tests.fakes.clock import ManualClock
from tests.unit.hashring import coordination
from tests.unit.hashring.machine import TIMING, Machine
from tests.unit.hashring.rings import moves
from tests.unit.hashring.world import STEP_S, World

C1, C2, C3 = Host('c1'), Host('c2'), Host('c3')
NODES = [f'node-{number}' for number in range(3000)]
FINE = ServiceFacts(mapped=True, disabled=False, exists=True)
GONE = ServiceFacts(mapped=False, disabled=False, exists=False)
# The longest time until an orphaned host is adopted: a term, two steps, and
# ten seconds for the start of the worker.
ADOPTED_S = TIMING.lease_term_s + 2 * TIMING.adopt_step_s + 10.0


def make(hosts_count: int, **clocks_s: float) -> World:
    """Return a world without faults; clocks may start at any value."""
    world = World(1, coordination.ETCD, hosts_count, revives=False)
    for machine in world.machines:
        start_s = clocks_s.get(machine.home)
        if start_s is not None:
            machine.clock = ManualClock(start_s)
    world.heal()
    return world


@pytest.fixture
def world() -> World:
    """A world with two machines."""
    return make(2)


def run(world: World, seconds: float) -> None:
    """Let time pass; each step checks safety."""
    for _ in range(int(seconds / STEP_S)):
        world.step()


def served(world: World) -> dict[Host, Host]:
    """Return the machine that serves each host now."""
    return {host: machine.home for host, machine in world.open_gates()}


def agent(machine: Machine) -> Agent:
    """Return the agent of a machine whose agent runs."""
    assert machine.agent is not None
    return machine.agent


def views(world: World) -> Iterator[WorkerView]:
    """Yield the last view of each worker."""
    for machine in world.machines:
        for worker in machine.workers.live.values():
            assert worker.view is not None
            yield worker.view


def pool_of(home: Host, *hosts: Host) -> Pool:
    """Return a pool in which all these hosts are mapped and enabled."""
    made = Pool(home, hosts, settle_s=TIMING.settle_s)
    made.update_services(dict.fromkeys(hosts, FINE))
    return made


# ---- nova


def _renamed_world(
    renamed: Host, facts: ServiceFacts
) -> tuple[World, Machine]:
    """Return a world of one machine some time after its host was renamed.

    :param facts: the Service record of the new name
    """
    world = make(1)
    run(world, 30)
    (machine,) = world.machines
    machine.kill(1.0)
    machine.home = renamed
    world.facts[renamed] = facts
    run(world, 30 + ADOPTED_S)
    return world, machine


def test_bug_1866380_host_renamed_leaves_no_host_unserved(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After a host is renamed, its old and its new name have a worker."""
    caplog.set_level(logging.INFO)
    for name in ('C1', 'c1.example.org', 'c1.'):
        renamed = Host(name)
        world, machine = _renamed_world(renamed, FINE)
        assert set(served(world)) == {C1, renamed}
        assert agent(machine).pool.ring == Ring([C1, renamed])
        assert 'Adopted c1 after' in caplog.text
        caplog.clear()


def test_bug_1866380_record_that_ignores_case_is_one_ring_member() -> None:
    """A renamed host without a Service of its own is not in the ring."""
    world, machine = _renamed_world(Host('C1'), GONE)
    assert agent(machine).pool.ring == Ring([C1])
    assert C1 in served(world)


def test_bug_1713095_start_waits_for_whoever_is_not_there_yet() -> None:
    """An agent waits for the backend and restarts a failing worker."""
    world = make(1)
    world.calm, world._rates = False, dict.fromkeys(world._rates, 0.0)
    world.service.up, world._service_back_s = False, 60.0
    run(world, 40)
    (machine,) = world.machines
    assert machine.agent is not None
    assert served(world) == {}
    run(world, 40)
    # Without a conductor each worker ends at once.
    for _ in range(3):
        machine.workers.crash(C1)
        run(world, 1)
    assert machine.agent is not None
    run(world, 60)
    assert served(world) == {C1: C1}


def test_bug_1755602_unmapped_host_is_in_nobodys_ring(world: World) -> None:
    """An unmapped host is in no agent's ring until it is mapped."""
    world.facts[C2] = ServiceFacts(mapped=False, disabled=False, exists=True)
    run(world, 40)
    assert set(served(world)) == {C1, C2}
    assert {view.ring for view in views(world)} == {(C1,)}
    world.facts[C2] = FINE
    for machine in world.machines:
        agent(machine).pool.update_services(world.facts)
    run(world, 40)
    assert {view.ring for view in views(world)} == {(C1, C2)}


def test_disabled_host_does_not_count_itself() -> None:
    """A disabled host is not in its own agent's ring either."""
    for home in (C1, C2, C3):
        pool = pool_of(home, C1, C2, C3)
        before = pool.ring
        pool.update_services(
            {C2: ServiceFacts(mapped=True, disabled=True, exists=True)}
        )
        assert pool.ring == Ring([C1, C3])
        changed = moves(before, pool.ring, NODES)
        # Only nodes of the disabled host move.
        assert {old for old, _ in changed.values()} == {C2}


def test_new_host_without_nodes_is_in_all_rings_or_in_none(
    world: World,
) -> None:
    """Agents that publish agreement on a ring have the same ring."""
    late = world.machines.pop()
    run(world, 40)
    world.machines.append(late)
    for _ in range(int(60 / STEP_S)):
        world.step()
        told = [
            view for view in views(world) if view.agreed_since_s is not None
        ]
        # Views with an agreement never have different rings.
        assert len({view.ring for view in told}) <= 1
    assert {view.ring for view in views(world)} == {(C1, C2)}
    assert None not in {view.agreed_since_s for view in views(world)}


def test_clocks_five_minutes_apart_change_nothing() -> None:
    """Clocks that differ by minutes make no agent look dead."""
    world = make(3, c1=1000.0, c2=1300.0, c3=700.0)
    run(world, 60)
    homes = {C1: C1, C2: C2, C3: C3}
    for _ in range(120):
        run(world, STEP_S)
        assert served(world) == homes
    world.machines[1].kill(1e9)
    run(world, ADOPTED_S)
    assert served(world)[C2] in (C1, C3)


def test_bug_1764883_zombie_finds_its_gate_shut(world: World) -> None:
    """After a freeze during which its host was adopted, a gate is shut."""
    run(world, 40)
    one = world.machines[0]
    one.frozen_until_s = world.now_s + 600.0
    run(world, ADOPTED_S)
    assert served(world) == {C1: C2, C2: C2}
    run(world, 600.0 - ADOPTED_S - STEP_S)
    zombie = one.workers.live[C1]
    one.frozen_until_s = 0.0
    assert not zombie.gate_open(one.clock.now_s())
    run(world, 60)
    assert one.workers.live[C1] is not zombie
    assert served(world) == {C1: C1, C2: C2}


def test_sap_update_host_takes_nobody_from_another_group(
    world: World,
) -> None:
    """A host of another pool is not adopted."""
    other = Host('rack2')
    world.facts[other] = FINE  # It is in Nova but no agent serves it.
    run(world, 40 + ADOPTED_S)
    assert set(served(world)) == {C1, C2}
    assert other not in {host for view in views(world) for host in view.ring}
    assert all(other not in m.saved_state.read_known() for m in world.machines)


# ---- ironic


def test_bug_1365334_ring_is_stable_when_one_joins_and_leaves() -> None:
    """A joined host gets its share of nodes; a leave undoes it."""
    two, three = Ring([C1, C2]), Ring([C1, C2, C3])
    joined = moves(two, three, NODES)
    assert {new for _, new in joined.values()} == {C3}
    assert 0.25 < len(joined) / len(NODES) < 0.42
    left = moves(three, Ring([C2, C1]), NODES)
    assert left == {n: (new, old) for n, (old, new) in joined.items()}


def test_bug_1378570_newcomer_is_seen_without_a_restart(
    world: World,
) -> None:
    """A host that joins late is in the ring of agents that run already.

    Ceilometer's bug 1729617 was the same: members were read only once.
    """
    late = world.machines.pop()
    run(world, 60)
    (early,) = world.machines
    before = agent(early)
    assert before.pool.ring == Ring([C1])
    world.machines.append(late)
    run(world, 40)
    assert agent(early) is before
    assert before.pool.ring == Ring([C1, C2])
    assert early.workers.live[C1].view == next(views(world))


def test_bug_1729617_members_that_change_end_the_agreement() -> None:
    """A new member with another ring ends the agreement."""
    pool = pool_of(C1, C1, C2)
    digest = pool.ring.digest
    two = tuple(Member(h, Boot(h), ring=digest) for h in (C1, C2))
    pool.update_members(View(two), 0.0, in_force=True)
    assert pool.agreed_since_s(TIMING.settle_s) == 0.0
    third = Member(C3, Boot(C3), ring='another')
    pool.update_members(View((*two, third)), 20.0, in_force=True)
    assert pool.agreed_since_s(20.0) is None


class Clumsy(coordination.FakeGroup):
    """A group whose lock requests raise unexpected exceptions."""

    def try_lock(self, host: Host) -> bool:
        raise RuntimeError('not an error of ours')

    def lost_locks(self) -> frozenset[Host]:
        if self.clumsy:
            raise RuntimeError('nor this')
        return frozenset()

    clumsy = False


def test_bug_1506657_view_is_refreshed_whatever_else_fails() -> None:
    """Unexpected exceptions do not stop reads of the member list."""
    clock = ManualClock(start_s=100.0)
    service = coordination.Service(clock.now_s, 15.0, coordination.ETCD)
    group = Clumsy(service, Boot('b1'))
    heartbeat_thread = HeartbeatThread(
        group, Member(C1, Boot('b1')), TIMING, clock
    )
    locks = LockThread(group, heartbeat_thread.state().lease, clock)
    heartbeat_thread.beat()
    locks.submit(TryLock(C1, 1))
    locks.run_pending()
    group.clumsy = True
    clock.advance(3.0)
    heartbeat_thread.beat()
    group.clumsy = False
    service.enter(Member(C2, Boot('b2')))
    clock.advance(3.0)
    heartbeat_thread.beat()
    seen = {member.home for member in heartbeat_thread.state().view.members}
    assert seen == {C1, C2}
    assert len(locks.answers()) == 1


def test_bug_1588901_dead_owners_lock_holds_nothing_for_long(
    world: World,
) -> None:
    """A host whose agent was killed is adopted after the term."""
    run(world, 40)
    world.machines[0].kill(1e9)
    run(world, STEP_S)
    assert world.service.token(C1)
    run(world, ADOPTED_S)
    assert served(world)[C1] == C2


def test_bug_1970484_starved_agent_breaks_no_lock_of_its_own() -> None:
    """An agent that missed its own term does not break its own lock.

    Another agent has had the lock meanwhile. Therefore the agent kills its
    worker and then requests the lock as any agent would.
    """
    world = make(1)
    run(world, 40)
    (machine,) = world.machines
    starved, worker = agent(machine), machine.workers.live[C1]
    asked: list[str] = []
    fault = machine.fault

    def note(where: str) -> None:
        asked.append(where)
        fault(where)

    starved._group._fault = note  # type: ignore[attr-defined]
    machine.frozen_until_s = world.now_s + 3 * TIMING.lease_term_s
    run(world, 2 * TIMING.lease_term_s)
    other = coordination.FakeGroup(world.service, Boot('other'))
    assert other.try_lock(C1)
    other.release(C1)
    run(world, TIMING.lease_term_s)
    assert not worker.gate_open(machine.clock.now_s())
    run(world, 60)
    assert served(world) == {C1: C1}
    assert agent(machine) is starved
    assert machine.workers.live[C1] is not worker
    assert 'before break' not in asked
    assert asked.index('before release') < asked.index('before lock')


def test_ironic_b8e4aba1e_locks_are_cleared_before_anything_is_served() -> (
    None
):
    """The old lock is broken and a new one granted before the start."""
    boot, left = Boot('now'), LockToken('last')
    machine = Assignment(C1, boot, TIMING, coordination.ETCD, left_lock=left)
    machine.handle(KnownHosts(frozenset((C1,))), 0.0)
    members = (Member(C1, boot),)
    first = machine.handle(LeaseStatus(50.0, 1, View(members)), 0.0)
    assert [type(effect) for effect in first] == [BreakLock, TryLock]
    then = machine.handle(LockGranted(C1, first[1].ticket), 1.0)  # type: ignore[union-attr]
    assert [type(effect) for effect in then] == [Start]


def test_ironic_e54ee2ba4_ring_does_not_change_when_a_daemon_goes(
    world: World,
) -> None:
    """The ring stays the same when an agent stops and its host is adopted.

    Therefore a node's RPC messages go to the same host all the time.
    """
    run(world, 40)
    one, two = world.machines
    digest = agent(two).pool.ring.digest
    agent(one).request_stop()
    rings, adopted = set(), False
    for _ in range(300):
        run(world, STEP_S)
        rings.add(agent(two).pool.ring.digest)
        if one.agent is None and not adopted:
            adopted = C1 in two.workers.live
            one.returns_at_s = world.now_s + 20.0
    assert adopted
    assert served(world) == {C1: C1, C2: C2}
    assert rings == {digest}


def test_bug_2069771_host_that_was_deleted_is_forgotten(world: World) -> None:
    """A host without an agent and without a Service is dropped."""
    run(world, 40)
    one, two = world.machines
    two.kill(1e9)
    run(world, TIMING.lease_term_s + STEP_S)
    assert {m.home for m in world.service.members()} == {C1}
    world.facts[C2] = GONE
    one.workers.crash(C1)  # The next worker reads Nova's Services again.
    run(world, 60)
    assert one.saved_state.read_known() == {C1}
    assert agent(one).pool.known == {C1}
    assert set(served(world)) == {C1}


# ---- networking-baremetal, inspector, designate


def test_networking_baremetal_restart_moves_nothing(world: World) -> None:
    """A restart gives an agent a new member id but changes no ring."""
    run(world, 40)
    one, two = world.machines
    digest = agent(two).pool.ring.digest
    for _ in range(3):
        boot = agent(one)._group.boot
        one.kill(TIMING.lease_term_s + 5.0)
        for _ in range(100):
            run(world, STEP_S)
            assert agent(two).pool.ring.digest == digest
        assert agent(one)._group.boot != boot


def test_networking_baremetal_members_go_by_nobodys_message() -> None:
    """Dead members vanish at the end of the backend's term."""
    world = make(3, c1=1000.0, c2=1e6, c3=5.0)
    run(world, 40)
    world.machines[2].kill(1e9)
    run(world, TIMING.lease_term_s + TIMING.heartbeat_interval_s + 1.0)
    for machine in world.machines[:2]:
        seen = agent(machine).heartbeat_thread.state().view.members
        assert {member.home for member in seen} == {C1, C2}


def test_networking_baremetal_ring_in_use_does_not_change() -> None:
    """A ring that is being read does not change."""
    pool = pool_of(C1, C1, C2)
    ring, seen = pool.ring, []
    for host in ring.hosts:
        seen.append(host)
        pool.update_services({C1: GONE, C2: GONE})
        pool.update_members(
            View((Member(C3, Boot('b3')),)), 0.0, in_force=True
        )
    assert set(seen) == ring.hosts == {C1, C2}
    assert pool.ring.hosts != ring.hosts


def test_inspector_leader_that_lost_its_lease_knows_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """An agent cut off from the backend shuts its gate and logs it."""
    caplog.set_level(logging.INFO)
    run(world, 40)
    one = world.machines[0]
    assert agent(one).assignment.serving() == (C1,)
    one.cut_until_s = 1e9
    run(world, TIMING.lease_term_s)
    assert agent(one).assignment.serving() == ()
    assert agent(one).assignment.deadline_s() <= one.clock.now_s()
    assert 'Paused c1' in caplog.text


def test_designate_join_moves_its_share_alone() -> None:
    """When a host joins, only that host gets nodes."""
    hosts = [Host(f'c{number}') for number in range(9)]
    for count in range(1, 9):
        joined = moves(Ring(hosts[:count]), Ring(hosts[: count + 1]), NODES)
        assert {new for _, new in joined.values()} == {hosts[count]}
        assert len(joined) / len(NODES) < 1.4 / (count + 1)


def test_designate_agent_that_was_dropped_adopts_nothing() -> None:
    """An agent that is not in the member list adopts nothing."""
    watch = PresenceWatch(Boot('b1'), TIMING.adopt_step_s)
    watch.update(View((Member(C2, Boot('b2')),)), 0.0)
    for now_s in (0.0, 100.0):
        assert watch.due_adoptions([C3], frozenset(), now_s) == ()
    both = (Member(C1, Boot('b1')), Member(C2, Boot('b2')))
    watch.update(View(both), 100.0)
    assert [
        turn.host for turn in watch.due_adoptions([C3], frozenset(), 200.0)
    ]


def test_bug_2008200_lock_is_given_back_after_its_worker(
    world: World,
) -> None:
    """A lock is released only after its worker has ended."""
    run(world, 40)
    one, two = world.machines
    one.kill(60.0)
    run(world, ADOPTED_S)
    assert served(world)[C1] == C2
    released: list[bool] = []
    taken = agent(two).lock_thread.submit

    def submit(request: object) -> None:
        if isinstance(request, Release):
            released.append(C1 in two.workers.live)
        taken(request)  # type: ignore[arg-type]

    agent(two).lock_thread.submit = submit  # type: ignore[method-assign]
    run(world, 100)
    assert served(world) == {C1: C1, C2: C2}
    assert released == [False]
