# SPDX-License-Identifier: Apache-2.0
"""The agent's main loop: state on disk, views for workers, adoption, exit.

The machines are those of the simulated world, without its faults.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping

import pytest

from hashring import errors
from hashring.agent import BUSY_INTERVAL_S, Agent
from hashring.clock import SystemClock
from hashring.group import Boot, Member, MemberState
from hashring.opts import Timing
from hashring.paths import Path, PathState
from hashring.ring import Host, Ring
from hashring.workers import (
    NO_HOST,
    HostAdded,
    HostForgotten,
    HostRetired,
    MappingConfirmed,
    PathsObserved,
    ServiceFacts,
    WorkerEvent,
    WorkerExited,
    WorkerView,
)
from tests.fakes.controller import SavedState
from tests.unit.hashring import coordination
from tests.unit.hashring.machine import TIMING, FakeWorkers, Machine
from tests.unit.hashring.world import STEP_S, World

C1, C2 = Host('c1'), Host('c2')


@pytest.fixture
def world() -> World:
    made = World(1, coordination.ETCD, 2, revives=False)
    made.heal()
    return made


def run(world: World, seconds: float) -> None:
    for _ in range(int(seconds / STEP_S)):
        world.step()


def agent(machine: Machine) -> Agent:
    assert machine.agent is not None
    return machine.agent


def view(machine: Machine, host: Host) -> WorkerView:
    found = machine.workers.live[host].view
    assert found is not None
    return found


def test_each_serves_its_home(world: World) -> None:
    """Each of two agents serves its home host, and both agree on one ring."""
    run(world, 60)
    for machine in world.machines:
        assert set(machine.workers.live) == {machine.home}
        told = view(machine, machine.home)
        assert told.known == told.ring == (C1, C2)
        assert told.agreed_since_s is not None
        now_s = machine.clock.now_s()
        assert told.agreed_since_s < told.agreed_until_s <= now_s
        assert told.opens_s == {}
        assert told.deadline_s > machine.clock.now_s()


def test_known_hosts_are_kept_on_disk(world: World) -> None:
    """Known hosts and the home lock's token are saved on disk."""
    run(world, 20)
    one = world.machines[0]
    assert one.saved_state.read_known() == {C1, C2}
    assert one.saved_state.read_home_lock(C1) == str(world.service.token(C1))


def test_restarted_agent_knows_the_longest_term_that_it_has_read() -> None:
    """Its backend may have forgotten the member that had this term.

    That member is cut off and may still act for its host.
    """
    world = World(1, coordination.ETCD, 2, revives=False, terms_s=(10.0, 40.0))
    world.heal()
    run(world, 20)
    one, other = world.machines
    assert one.saved_state.read_longest_term_s() == 40.0
    other.kill(600.0)
    one.kill(STEP_S)
    world.service.forget()
    run(world, 5)
    assert one.agent is not None
    assert one.agent.assignment.seen_term_s == 40.0
    run(world, 120)
    assert one.agent.assignment.longest_term_s == 10.0
    assert one.saved_state.read_longest_term_s() == 10.0


def test_restarted_agent_breaks_its_old_home_lock(world: World) -> None:
    """An agent that was killed twice has its home lock within seconds."""
    run(world, 40)
    one = world.machines[0]
    held = world.service.token(C1)
    one.kill(STEP_S)
    run(world, STEP_S)
    assert one.agent is not None and world.service.token(C1) == held
    one.kill(STEP_S)
    run(world, 6)
    assert world.service.token(C1) not in (0, held)
    assert C1 in one.workers.live


def test_restarted_agent_breaks_no_lock_of_another_agent(world: World) -> None:
    """A lock that another agent got by adoption is not broken."""
    run(world, 40)
    one, two = world.machines
    one.kill(60.0)
    run(world, 40)
    adopted = world.service.token(C1)
    assert C1 in two.workers.live
    two.cut_until_s = world.now_s + 8.0
    one.returns_at_s = world.now_s
    world.service.enter(Member(C1, Boot('c1.1'), serving=(C1,)))
    world.service.enter(Member(C2, Boot('c2.1'), serving=(C2,)))
    run(world, 8)
    assert world.service.token(C1) == adopted
    run(world, 60)
    assert world.find_problem() is None


def test_lost_break_request_is_repeated(world: World) -> None:
    """A lost request to break the old lock is sent again."""
    run(world, 40)
    one = world.machines[0]
    held, fault = world.service.token(C1), one.fault
    lost: list[str] = []

    def lose_the_first(where: str) -> None:
        fault(where)
        if where == 'before break' and not lost:
            lost.append(where)
            raise errors.BackendUnavailable('lost')

    one.fault = lose_the_first  # type: ignore[method-assign]
    one.kill(STEP_S)
    run(world, 6)
    assert lost
    assert world.service.token(C1) not in (0, held)


def test_known_hosts_are_saved_after_a_full_disk(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known hosts are saved after the disk was full for a while."""
    one = world.machines[0]
    with monkeypatch.context() as patched:
        patched.setattr(one.saved_state, 'write_known', lambda hosts: False)
        run(world, 40)
    assert one.saved_state.read_known() == frozenset()
    run(world, 2)
    assert one.saved_state.read_known() == {C1, C2}


@pytest.mark.parametrize('is_alive', [False, True])
def test_only_a_live_second_agent_ends_this_one(
    world: World, *, is_alive: bool
) -> None:
    """Only an entry that lives for three terms ends the agent."""
    term_s, waited_s = TIMING.lease_term_s, 0.0
    other = coordination.FakeGroup(world.service, Boot('other'))
    other.join(Member(C1, Boot('other'), machine='m2', serving=(C1,)))
    assert other.try_lock(C1)
    run(world, STEP_S)
    one = agent(world.machines[0])
    while waited_s < 5 * term_s and one.exit_message is None:
        if is_alive or waited_s == term_s - 5.0:
            other.heartbeat()
        run(world, 5.0)
        waited_s += 5.0
    assert (C1 in world.machines[0].workers.live) is not is_alive
    if not is_alive:
        assert one.exit_message is None
    else:
        assert 'on m2, which serves it' in str(one.exit_message)
        assert waited_s >= 3 * term_s


def test_adoption_and_hand_back_are_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Join, adoption and hand-back have one log message each."""
    caplog.set_level(logging.INFO)
    run(world, 40)
    assert 'Joined the group as c2' in caplog.text
    assert 'Serving home host c2' in caplog.text
    world.machines[0].kill(40.0)
    run(world, 30)
    assert 'Adopted c1 after' in caplog.text
    run(world, 60)
    assert 'Handed back c1' in caplog.text
    assert world.find_problem() is None


def test_a_stop_is_a_restart(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """After a stop request the member is published as restarting."""
    caplog.set_level(logging.INFO)
    run(world, 40)
    one = world.machines[0]
    agent(one).request_stop()
    run(world, STEP_S)
    assert 'Leaving for a restart' in caplog.text
    run(world, 5)
    (member,) = (m for m in world.service.members() if m.home == C1)
    assert member.state is MemberState.RESTARTING
    assert member.grace_s == 30.0


def test_the_backend_goes_and_the_gates_shut(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """During an outage the gates are shut; afterwards they open again."""
    caplog.set_level(logging.INFO)
    run(world, 20)
    world.calm = False
    world.service.up = False
    world._service_back_s = 1e9
    for machine in world.machines:
        machine.cut_until_s = 1e9
    for _ in range(40):
        world.now_s += STEP_S
        for machine in world.machines:
            machine.clock.advance(STEP_S)
            machine.run()
    assert list(world.open_gates()) == []
    assert 'Paused c1' in caplog.text
    assert 'does not answer (no route)' in caplog.text
    world.heal()
    run(world, 30)
    assert world.find_problem() is None
    assert 'is back after' in caplog.text


def test_agent_whose_worker_never_serves_stops_no_enrolment(
    world: World,
) -> None:
    """The ring of a worker that has ended does not count for ever."""
    run(world, 40)
    one, two = world.machines
    two.workers.crash(C2)
    two.workers.run = lambda facts: None  # type: ignore[method-assign]
    c9 = Host('c9')
    world.facts[c9] = world.facts[C1]
    one.workers.say(HostAdded(c9))
    run(world, 40)
    one.workers.crash(C1)  # The next worker reads Nova's Services again.
    run(world, 40)
    assert agent(one).pool.ring == Ring([C1, C2, c9])
    assert agent(two).pool.ring == Ring([C1, C2])
    assert view(one, C1).agreed_since_s is not None
    assert view(two, C2).agreed_since_s is None


def test_new_worker_does_not_act_on_the_agreement_of_the_last_one(
    world: World,
) -> None:
    """The agreement begins anew when the group has the ring again."""
    run(world, 40)
    one, _ = world.machines
    before_s = view(one, C1).agreed_since_s
    one.workers.crash(C1)
    crashed_s = one.clock.now_s()
    run(world, 30)
    since_s = view(one, C1).agreed_since_s
    assert before_s is not None and since_s is not None
    assert before_s < crashed_s < since_s


def test_a_disabled_host_leaves_the_ring(world: World) -> None:
    """A host whose Service is disabled is not in the ring."""
    run(world, 20)
    one = world.machines[0]
    world.facts[C2] = ServiceFacts(mapped=True, disabled=True, exists=True)
    one.workers.crash(C1)
    run(world, 20)
    assert agent(one).pool.ring == Ring([C1])
    assert view(one, C1).ring == (C1,)


def test_added_host_is_served_and_saved(
    world: World,
) -> None:
    """A host added at one agent is known to both and served by one."""
    run(world, 60)
    c9 = Host('c9')
    world.facts[c9] = next(iter(world.facts.values()))
    world.machines[0].workers.say(HostAdded(c9))
    run(world, 60)
    assert [host for host, _ in world.open_gates()].count(c9) == 1
    for machine in world.machines:
        assert machine.saved_state.read_known() == {C1, C2, c9}


def _published_paths(world: World) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what the second agent reads: c1's working and failing paths."""
    view = agent(world.machines[1]).heartbeat_thread.state().view
    (member,) = view.of_home(C1)
    return member.working_paths, member.failing_paths


def test_paths_are_published_for_longer_than_their_worker_lives(
    world: World,
) -> None:
    """A path that fails for a moment is not; others are for half a minute.

    A new worker knows nothing, and may not use the path that fails.
    """
    run(world, 60)
    one = world.machines[0]
    states = {
        Path('RabbitMQ'): PathState(),
        Path('Ironic'): PathState(one.clock.now_s(), 'refused'),
    }
    tenure = one.workers.live[C1].tenure
    one.workers.say(PathsObserved(C1, states, tenure))
    run(world, 4)
    assert _published_paths(world) == (('RabbitMQ',), ())
    run(world, 15)
    assert _published_paths(world) == (('RabbitMQ',), ('Ironic',))
    one.workers.crash(C1)
    run(world, 20)
    assert _published_paths(world) == (('RabbitMQ',), ('Ironic',))
    run(world, 20)
    assert _published_paths(world) == ((), ())


def test_workers_that_keep_dying_reach_nothing(world: World) -> None:
    """Others would not adopt the host while a service is away for all."""
    run(world, 60)
    one = world.machines[0]
    for expected in (('RabbitMQ',), ('RabbitMQ',), ()):
        _observe(world, one, works=True)
        run(world, 4)
        one.workers.crash(C1)
        run(world, 4)
        assert _published_paths(world) == (expected, ())


def test_failure_is_published_while_workers_are_exchanged(
    world: World,
) -> None:
    """The next worker has met it, too, so the others must not forget it."""
    run(world, 60)
    one, ironic = world.machines[0], Path('Ironic')
    fails = {ironic: PathState(one.clock.now_s(), 'refused')}
    tenure = one.workers.live[C1].tenure
    one.workers.say(PathsObserved(C1, fails, tenure))
    run(world, 15)
    one.workers.crash(C1)
    for second in range(30):
        run(world, 1)
        if second == 10:
            fails = {ironic: PathState(one.clock.now_s(), 'refused')}
            tenure = one.workers.live[C1].tenure
            one.workers.say(PathsObserved(C1, fails, tenure))
        assert _published_paths(world) == ((), ('Ironic',)), second


def _observe(world: World, machine: Machine, works: bool) -> None:
    """Let all workers of a machine report their path to RabbitMQ."""
    now_s = machine.clock.now_s()
    state = PathState(answered_s=now_s)
    if not works:
        state = PathState(now_s - 1, 'refused')
    for host, worker in machine.workers.live.items():
        machine.workers.say(
            PathsObserved(host, {Path('RabbitMQ'): state}, worker.tenure)
        )


def test_host_of_a_half_alive_agent_moves_once_and_comes_back_once(
    world: World,
) -> None:
    """The other agent proves that it reaches what fails here."""
    run(world, 60)
    one, two = world.machines
    _observe(world, one, works=False)
    run(world, 30)
    assert set(one.workers.live) == {C1}, 'nobody has proven anything'
    _observe(world, two, works=True)
    run(world, 20)
    assert set(one.workers.live) == {NO_HOST}
    assert set(two.workers.live) == {C1, C2}
    run(world, 60)
    assert set(one.workers.live) == {NO_HOST}
    _observe(world, one, works=True)
    run(world, 40)
    assert set(one.workers.live) == {NO_HOST}
    run(world, 90)
    assert set(one.workers.live) == {C1}
    assert set(two.workers.live) == {C2}


def _with_one_half_alive(world: World) -> list[Machine]:
    """Have the first of two machines give its host to the second one."""
    run(world, 60)
    one, two = world.machines
    _observe(world, one, works=False)
    run(world, 20)
    _observe(world, two, works=True)
    run(world, 20)
    return [one, two]


def test_half_alive_agent_notices_a_failure_without_a_lease(
    world: World,
) -> None:
    """A bad cable takes the backend and the services away at once."""
    one, _ = _with_one_half_alive(world)
    _observe(world, one, works=True)
    run(world, 5)
    one.cut_until_s = world.now_s + 40
    for works, seconds in ((True, 15), (False, 15), (True, 40)):
        _observe(world, one, works=works)
        run(world, seconds)
    assert set(one.workers.live) == {NO_HOST}
    run(world, 60)
    assert set(one.workers.live) == {C1}


def test_half_alive_agent_serves_if_the_workers_of_the_other_keep_dying(
    world: World,
) -> None:
    """Its hosts are better served without one service than not at all."""
    one, two = _with_one_half_alive(world)
    assert set(one.workers.live) == {NO_HOST}
    for _ in range(120):
        for host in [h for h, w in two.workers.live.items() if w.serving]:
            two.workers.crash(host)
        _observe(world, one, works=False)
        run(world, 1)
    assert C1 in one.workers.live


def test_no_host_moves_in_an_outage_for_all(world: World) -> None:
    """No agent can prove that the service answers."""
    run(world, 60)
    for machine in world.machines:
        _observe(world, machine, works=False)
    run(world, 120)
    assert [set(m.workers.live) for m in world.machines] == [{C1}, {C2}]


def test_path_worker_ends_with_its_agent(world: World) -> None:
    """An agent without hosts leaves no process behind."""
    one, _ = _with_one_half_alive(world)
    assert set(one.workers.live) == {NO_HOST}
    agent(one).request_stop(for_good=True)
    run(world, 10)
    assert set(one.workers.live) == set()


def test_forgotten_host_is_served_by_nobody(world: World) -> None:
    """A host of a dismantled machine is dropped, also by one that was away."""
    run(world, 60)
    one, two = world.machines
    c9 = Host('c9')
    world.facts[c9] = world.facts[C1]
    one.workers.say(HostAdded(c9))
    run(world, 60)
    two.kill(100.0)
    run(world, 60)
    assert c9 in one.workers.live
    one.workers.say(HostForgotten(c9))
    run(world, 100)
    for machine in world.machines:
        assert set(machine.workers.live) == {machine.home}
        assert machine.saved_state.read_known() == {C1, C2}
        assert machine.saved_state.read_marks() == ((c9, 1),)


def test_agent_of_a_retired_host_ends(world: World) -> None:
    """The other one forgets the host, and does not adopt it."""
    run(world, 60)
    one, two = world.machines
    two.workers.say(HostRetired(C2))
    run(world, 1)
    assert agent(two).assignment.leaving is not None
    run(world, 8)
    assert one.saved_state.read_marks() == ((C2, 1),)
    assert set(one.workers.live) == {C1}


def test_retired_host_of_a_dead_agent_is_forgotten(world: World) -> None:
    """Whoever has adopted it does not end."""
    run(world, 60)
    one, two = world.machines
    two.kill(200.0)
    run(world, 60)
    assert C2 in one.workers.live
    one.workers.say(HostRetired(C2))
    run(world, 60)
    assert set(one.workers.live) == {C1}
    assert agent(one).assignment.leaving is None


def test_workers_read_whose_agents_are_in_the_group(world: World) -> None:
    """An adopted host has no agent of its own there, once its term is over."""
    run(world, 60)
    one, two = world.machines
    assert view(one, C1).member_homes == (C1, C2)
    two.kill(200.0)
    run(world, 60)
    assert view(one, C2).member_homes == (C1,)


def test_confirmed_mapping_outlives_agents(world: World) -> None:
    """A confirmed mapping reaches both disks and all later workers."""
    run(world, 20)
    world.machines[0].workers.say(MappingConfirmed(C2))
    run(world, 20)
    for machine in world.machines:
        assert machine.saved_state.read_confirmed_mappings() == {C2}
        machine.kill(1.0)
    run(world, 60)
    for machine in world.machines:
        assert view(machine, machine.home).confirmed_mappings == (C2,)


class OneShotWorkers(FakeWorkers):
    """Workers that exit at once because the configuration is wrong."""

    def start(
        self, host: Host, tenure: int, has_servers: bool = False
    ) -> None:
        fatal = '[ironic] auth_url is not set: set it in nova.conf.'
        self._events.append(WorkerExited(host, 78, fatal, tenure))


_NO_GROUPS: Mapping[str, tuple[Member, ...]] = {}


def make_service(term_s: float) -> coordination.Service:
    return coordination.Service(SystemClock().now_s, term_s, coordination.ETCD)


def make(
    workers: FakeWorkers,
    turned: Callable[[], None],
    other_groups: Mapping[str, tuple[Member, ...]] = _NO_GROUPS,
    term_s: float = 15.0,
    loop_interval_s: float = 0.01,
    service: coordination.Service | None = None,
    known: Iterable[Host] = (),
) -> Agent:
    clock = SystemClock()
    service = service or make_service(term_s)
    service.other_groups = other_groups
    saved_state = SavedState()
    saved_state.write_known(known)
    return Agent(
        membership=coordination.FakeGroup(service, Boot('b1')),
        workers=workers,
        home=C1,
        timing=Timing(
            loop_interval_s=loop_interval_s,
            lease_term_s=term_s,
            lease_margin_s=term_s / 7,
            adopt_step_s=term_s / 7,
        ),
        clock=clock,
        saved_state=saved_state,
        find_overlap=lambda group: (
            'it has our nodes' if 'bad' in group else None
        ),
        on_turn=turned,
    )


def test_agent_beside_a_pool_with_its_nodes_ends(world: World) -> None:
    """The agent exits with status 78 if another group has its nodes."""
    clock = world.machines[0].clock
    workers = FakeWorkers(world, clock)

    def turned() -> None:
        SystemClock().sleep(0.005)
        clock.advance(1.0)  # Its worker takes up to a minute to end.
        workers.run(world.facts)

    others = (Member(C2, Boot('b2'), is_admitted=True),)
    groups = {'good': others, 'bad': others}
    made = make(workers, turned, groups, term_s=0.5)
    assert made.run() == 78
    assert made.exit_message == 'it has our nodes'
    assert workers.live == {}


def test_of_pools_that_start_together_one_goes_on(world: World) -> None:
    """The agent stays, and publishes when it has seen the other one's end.

    Until then it adopts no host: those that it knows from its state directory
    may be in the other pool.
    """
    clock, service = world.machines[0].clock, make_service(0.5)
    workers = FakeWorkers(world, clock)
    published: set[bool] = set()

    def turned() -> None:
        SystemClock().sleep(0.005)
        clock.advance(1.0)  # Its worker takes up to a minute to end.
        workers.run(world.facts)
        status = made.status()
        published.add(status.me.is_admitted)
        if status.heartbeat.other_groups:
            assert not status.me.is_admitted
            service.other_groups = {}  # The other agent has ended.
        if C2 in workers.live:
            assert status.me.is_admitted
            made.request_stop()

    others = (Member(Host('c0'), Boot('b0')),)
    groups = {'bad': others}
    made = make(workers, turned, groups, 0.5, service=service, known=[C2])
    assert made.run() == 0
    assert published == {False, True}


def test_agent_beside_its_namesake_in_another_pool_ends(
    world: World,
) -> None:
    """It would wait for its home lock, and serve the host of the other one."""
    clock, service = world.machines[0].clock, make_service(0.5)
    rival = Member(
        C1,
        Boot('b2'),
        machine='control-2',
        serving=(C1,),
        lease_term_s=0.5,
    )
    service.take(C1, 600.0)

    def turned() -> None:
        SystemClock().sleep(0.005)

    workers = FakeWorkers(world, clock)
    made = make(workers, turned, {'good': (rival,)}, 0.5, service=service)
    assert made.run() == 78
    assert made.exit_message is not None
    assert 'host = c1: one on control-2' in made.exit_message


class ListeningWorkers(FakeWorkers):
    """Workers that write down for how long the agent would wait for them."""

    waits_s: tuple[float, ...] = ()

    def events(self, timeout_s: float) -> list[WorkerEvent]:
        self.waits_s += (timeout_s,)
        return super().events(timeout_s)


def test_agent_waits_neither_when_it_joins_nor_when_it_has_let_go(
    world: World,
) -> None:
    """Nobody serves its host from the end of one agent to the next one."""
    clock = world.machines[0].clock
    workers = ListeningWorkers(world, clock)

    def turned() -> None:
        SystemClock().sleep(0.005)
        clock.advance(1.0)
        workers.run(world.facts)
        if any(worker.serving for worker in workers.live.values()):
            made.request_stop()

    made = make(workers, turned, loop_interval_s=2.0)
    assert made.run() == 0
    assert workers.waits_s[0] == BUSY_INTERVAL_S
    assert 2.0 in workers.waits_s
    assert workers.waits_s[-1] == BUSY_INTERVAL_S


@pytest.mark.parametrize(
    ('publishes_marks', 'reads', 'waits'),
    [(True, True, False), (True, False, True), (False, True, False)],
    ids=['well', 'reads nothing', 'older release'],
)
def test_retired_agent_exits_when_the_others_know(
    world: World, publishes_marks: bool, reads: bool, waits: bool
) -> None:
    """They would adopt its host: its record is removed when it exits.

    It waits for a term at most, because a dead member reads nothing.
    """
    clock, term_s = world.machines[0].clock, 1.0
    workers, service = FakeWorkers(world, clock), make_service(term_s)
    other = Member(C2, Boot('b2'), marks=() if publishes_marks else None)
    ended_s: list[float] = []

    def turned() -> None:
        SystemClock().sleep(0.005)
        clock.advance(1.0)
        workers.run(world.facts)
        knows = publishes_marks and reads
        marks = made.pool.marks if knows else other.marks
        service.enter(dataclasses.replace(other, marks=marks))
        if any(worker.serving for worker in workers.live.values()):
            workers.say(HostRetired(C1))
        if made.assignment.leaving and not made.assignment.has_workers:
            ended_s.append(SystemClock().now_s())

    made = make(workers, turned, term_s=term_s, service=service)
    assert made.run() == 0
    waited_s = ended_s[-1] - ended_s[0]
    assert waited_s >= 0.9 * term_s if waits else waited_s < 0.9 * term_s


def test_state_folder_is_free_after_the_end(world: World) -> None:
    """A daemon that is started again must find the folder unlocked."""
    made = make(OneShotWorkers(world, world.machines[0].clock), lambda: None)
    closed: list[str] = []
    made._saved_state.close = lambda: closed.append('closed')  # type: ignore
    made.run()
    assert closed == ['closed']


def test_disagreement_about_the_ring_is_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """An agent that sees another ring for more than a minute names it."""
    caplog.set_level(logging.INFO)
    run(world, 60)
    boots = (Boot('c9.1'), Boot('c9.2'))
    for _ in range(int(90 / STEP_S)):
        for boot in boots:
            world.service.enter(Member(Host('c9'), boot, ring='another'))
        world.step()
    (text,) = {
        text
        for text in caplog.messages
        if text.startswith('The pool has not agreed')
    }
    assert text.count('c9') == 1, 'the record of its former process, too'


def test_a_wrong_configuration_ends_the_agent(world: World) -> None:
    """The agent exits with the worker's error message and status 78."""
    workers = OneShotWorkers(world, world.machines[0].clock)
    made = make(workers, lambda: SystemClock().sleep(0.005))
    assert made.run() == 78
    assert made.exit_message is not None and 'auth_url' in made.exit_message


def test_run_serves_until_it_is_stopped(world: World) -> None:
    """The loop with its threads serves until stopped and returns 0."""
    turns = []

    def turned() -> None:
        SystemClock().sleep(0.005)
        turns.append(made.assignment.serving())
        if turns[-1] == (C1,):
            made.request_stop()
        world.machines[0].clock.advance(5.0)
        workers.run(world.facts)

    workers = FakeWorkers(world, world.machines[0].clock)
    made = make(workers, turned)
    assert made.run() == 0
    assert (C1,) in turns
    assert made.exit_message is None
    assert workers.live == {}
