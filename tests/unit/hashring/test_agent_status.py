# SPDX-License-Identifier: Apache-2.0
"""The status of an agent, as other threads read it."""

import dataclasses

import pytest

from hashring.adoption import View
from hashring.agent import Agent
from hashring.agent_status import TURN_MAX_S, AgentStatus
from hashring.counts import Counts
from hashring.group import Boot, Member, MemberState
from hashring.heartbeat import HeartbeatState
from hashring.host_states import HostState, Phase
from hashring.lease import Lease
from hashring.paths import Path
from hashring.ring import Host, Ring
from tests.unit.hashring import coordination
from tests.unit.hashring.machine import Machine
from tests.unit.hashring.world import STEP_S, World

C1, C2, C3 = Host('c1'), Host('c2'), Host('c3')
NOW_S = 1000.0
ME = Member(C1, Boot('c1.1'), serving=(C1,))
PEER = Member(C2, Boot('c2.1'), serving=(C2,))
LEASE = Lease(15.0, 2.0, base_s=NOW_S - 1.0, counted=True, epoch=1)
SERVING = HostState(C1, Phase.SERVING, serves_since_s=NOW_S - 60.0)


def status(*hosts: HostState, **changes: object) -> AgentStatus:
    """Return a status of c1 in which all is well, with these changes."""
    well = AgentStatus(
        turned_at_s=NOW_S,
        me=ME,
        heartbeat=HeartbeatState(LEASE, View((ME, PEER))),
        deadline_s=LEASE.deadline_s,
        hosts=hosts or (SERVING,),
        opens_s={},
        known=frozenset({C1, C2}),
        ring=Ring((C1, C2)),
        agreed_since_s=NOW_S - 50.0,
        lost_path=None,
        counts=Counts(),
    )
    return dataclasses.replace(well, **changes)  # type: ignore[arg-type]


def test_all_is_well() -> None:
    """A host that is served here is not among the unserved ones."""
    well = status()
    assert well.turns(NOW_S)
    assert well.has_lease(NOW_S)
    assert well.heartbeat_age_s(NOW_S) == 1.0
    assert well.unserved_here(NOW_S) == {}
    assert well.served_here(NOW_S) == {C1}
    assert well.served_by_nobody() == frozenset()


def test_agent_of_a_known_host_that_is_no_member_is_gone() -> None:
    """Whoever serves its host; one that is forgotten is not known."""
    assert status().gone_homes() == frozenset()
    left = HeartbeatState(LEASE, View((ME,)))
    assert status(heartbeat=left).gone_homes() == {C2}
    forgotten = status(heartbeat=left, known=frozenset({C1}))
    assert forgotten.gone_homes() == frozenset()


def test_no_agent_is_gone_before_the_members_are_read() -> None:
    """An agent knows the saved hosts before it has joined the group."""
    unread = HeartbeatState(Lease(15.0, 2.0))
    assert status(heartbeat=unread).gone_homes() == frozenset()


def test_a_loop_that_stands_still_shows() -> None:
    """Five seconds may pass between two turns."""
    assert status().turns(NOW_S + TURN_MAX_S)
    assert not status().turns(NOW_S + TURN_MAX_S + 0.1)


def test_a_heartbeat_that_did_not_count_has_no_age() -> None:
    """After an interruption the age of the former lease says nothing."""
    lease = LEASE.joined(NOW_S)
    late = status(heartbeat=HeartbeatState(lease))
    assert late.heartbeat_age_s(NOW_S) is None
    assert not late.has_lease(NOW_S)


def test_status_that_nobody_renews_loses_its_lease() -> None:
    """A reader sees the end of the lease even if the loop hangs."""
    later_s = NOW_S + 20.0
    assert not status().has_lease(later_s)
    assert C1 in status().unserved_here(later_s)
    assert status().served_here(later_s) == frozenset()


@pytest.mark.parametrize(
    ('state', 'why'),
    [
        (HostState(C1, Phase.SERVING), 'is starting'),
        (HostState(C1, Phase.STOPPING, 1.0), 'is stopping'),
        (HostState(C1, Phase.PAUSED, 1.0), 'proven to be kept'),
        (HostState(C1, Phase.PROVING, 1.0), 'proven to be kept'),
        (HostState(C1, Phase.RELEASING), 'is being released'),
        (HostState(C1, Phase.TRYING), 'does not have its lock yet'),
        (HostState(C1, Phase.IDLE), 'does not have its lock yet'),
        (HostState(C1, Phase.IDLE, None, NOW_S + 7), 'again in 7 s'),
    ],
)
def test_each_state_of_the_home_host_has_its_reason(
    state: HostState, why: str
) -> None:
    """A home host that is not served here is always named."""
    me = dataclasses.replace(ME, serving=())
    (reason,) = status(state, me=me).unserved_here(NOW_S).values()
    assert reason.endswith(why)


@pytest.mark.parametrize('phase', [Phase.IDLE, Phase.TRYING])
def test_a_host_that_others_serve_is_not_missed_here(phase: Phase) -> None:
    """A lock that this agent once had, or tries to get, is not held."""
    adopted = HostState(C2, phase)
    assert status(SERVING, adopted).unserved_here(NOW_S) == {}


def test_an_adopted_host_is_named_while_its_worker_starts() -> None:
    """The lock is held here, so nobody else serves the host."""
    adopted = HostState(C2, Phase.SERVING)
    unserved = status(SERVING, adopted).unserved_here(NOW_S)
    assert unserved == {C2: 'its worker is starting'}


@pytest.mark.parametrize(
    ('changes', 'why'),
    [
        ({'deadline_s': 0.0}, 'until all locks are proven to be kept'),
        ({'opens_s': {C1: NOW_S + 9.0}}, 'may begin in 9 s'),
        ({'lost_path': Path('Neutron')}, 'does not reach Neutron'),
        (
            {'heartbeat': HeartbeatState(LEASE.joined(NOW_S))},
            'the lease is not in force',
        ),
    ],
)
def test_a_shut_gate_has_its_reason(
    changes: dict[str, object], why: str
) -> None:
    """A worker that runs behind a shut gate does not serve its host."""
    assert why in status(**changes).unserved_here(NOW_S)[C1]


def test_a_home_host_that_another_daemon_serves_names_it() -> None:
    """The list of members has the daemon that adopted the host."""
    peer = dataclasses.replace(PEER, serving=(C1, C2))
    me = dataclasses.replace(ME, serving=())
    heartbeat = HeartbeatState(LEASE, View((ME, peer)))
    idle = HostState(C1, Phase.IDLE)
    unserved = status(idle, me=me, heartbeat=heartbeat).unserved_here(NOW_S)
    assert unserved == {C1: 'the daemon of c2 serves it'}


def test_a_daemon_that_stops_says_so() -> None:
    """A lock that it let go of is not one that it waits for."""
    me = dataclasses.replace(ME, state=MemberState.LEAVING, serving=())
    idle = HostState(C1, Phase.IDLE)
    unserved = status(idle, me=me).unserved_here(NOW_S)
    assert unserved == {C1: 'this daemon is stopping'}


def test_hosts_of_nobody() -> None:
    """A known host whose lock no member has is served by nobody."""
    known = frozenset({C1, C2, C3})
    assert status(known=known).served_by_nobody() == {C3}


def test_its_own_record_is_newer_than_that_in_the_list() -> None:
    """A lock that was let go of after the last heartbeat is not shown."""
    me = dataclasses.replace(ME, serving=())
    assert status(me=me).served_by_nobody() == {C1}
    assert [m.boot for m in status(me=me).members()] == [ME.boot, PEER.boot]


# ---- of a real agent


def agent(machine: Machine) -> Agent:
    assert machine.agent is not None
    return machine.agent


def test_adoption_and_hand_back_of_a_real_agent() -> None:
    """A controller dies and comes back: its peer's status tells the story."""
    world = World(1, coordination.ETCD, 2, revives=False)
    world.heal()
    one, two = world.machines

    def run(seconds: float) -> AgentStatus:
        for _ in range(int(seconds / STEP_S)):
            world.step()
        return agent(two).status()

    now_s = two.clock.now_s
    assert run(40).served_here(now_s()) == {C2}
    one.kill(60.0)
    adopted = run(40)
    assert adopted.served_here(now_s()) == {C1, C2}
    assert adopted.served_by_nobody() == frozenset()
    assert adopted.counts.adoptions == 1
    assert 0 < adopted.counts.adoption_s.sum_s < 30.0
    handed_back = run(80)
    assert handed_back.served_here(now_s()) == {C2}
    assert handed_back.counts.hand_backs == 1
    assert handed_back.counts.lapses == 0


def test_lapse_of_a_real_agent() -> None:
    """An outage of the backend costs each agent its lease, once."""
    world = World(1, coordination.ETCD, 2, revives=False)
    world.heal()
    for _ in range(80):
        world.step()
    one = world.machines[0]
    one.cut_until_s = world.now_s + 30.0
    for _ in range(40):
        world.step()
    lapsed = agent(one).status()
    assert lapsed.counts.lapses == 1
    assert not lapsed.has_lease(one.clock.now_s())
    assert C1 in lapsed.unserved_here(one.clock.now_s())
    for _ in range(80):
        world.step()
    assert agent(one).status().has_lease(one.clock.now_s())
    assert agent(one).status().counts.lapses == 1
