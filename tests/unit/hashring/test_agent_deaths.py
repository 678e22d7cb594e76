# SPDX-License-Identifier: Apache-2.0
"""A daemon that dies again and again leaves its host to others."""

import pytest

from hashring.agent_deaths import AgentDeaths
from hashring.host_states import HOLD_OFF_MAX_S, HOLD_OFF_YIELDING_S
from hashring.ring import Host
from tests.fakes.controller import SavedState
from tests.unit.hashring import coordination, world

C1 = Host('c1')
KINDS = {
    'redis': (coordination.CACHE, True),
    'zookeeper': (coordination.ZOOKEEPER, False),
    'etcd': (coordination.ETCD, False),
}


def test_third_death_in_a_row_delays_the_next_process() -> None:
    """The next ones wait twice as long each time."""
    state = SavedState()
    waits_s = [
        AgentDeaths(state).new_hold(C1, 100.0).retry_at_s for _ in range(5)
    ]
    first_s = 100.0 + HOLD_OFF_YIELDING_S
    assert waits_s == [0.0, 0.0, 0.0, first_s, first_s + HOLD_OFF_YIELDING_S]


def test_process_that_serves_well_or_is_stopped_forgets_all() -> None:
    """Deaths that are far apart have different causes."""
    state = SavedState()
    state.write_deaths_count(7)
    AgentDeaths(state).end()
    assert state.read_deaths_count() == 0
    assert not AgentDeaths(state).new_hold(C1, 100.0).keeps_dying


class _BrokenState(SavedState):
    """A state directory that takes no count, as on a full disk."""

    writes_count = 0
    works = False

    def write_deaths_count(self, count: int) -> bool:
        """Save how many agents have died, if it works."""
        self.writes_count += 1
        return self.works and super().write_deaths_count(count)


def test_end_is_written_once_and_tried_until_it_succeeds() -> None:
    """The agent goes on with a full disk, and does not write in each turn."""
    state = _BrokenState()
    deaths = AgentDeaths(state)
    assert not deaths.new_hold(C1, 100.0).keeps_dying
    deaths.end()
    state.works = True
    for _ in range(3):
        deaths.end()
    assert state.writes_count == 3


def test_agent_that_is_killed_while_it_stops_has_not_died() -> None:
    """A service manager kills it when its tasks take too long to end."""
    made = world.World(1, coordination.ETCD, 1, revives=False)
    made.heal()
    (one,) = made.machines
    for _ in range(5):
        _run(made, 20.0)
        assert one.saved_state.read_deaths_count() == 1
        assert one.home in one.workers.live
        assert one.agent is not None
        one.agent.request_stop()
        made.step()
        one.kill(2.0)
        assert one.saved_state.read_deaths_count() == 0


def test_one_long_life_ends_the_count() -> None:
    """The agent serves for two minutes, and is killed or loses power then."""
    made = world.World(1, coordination.ETCD, 1, revives=False)
    made.heal()
    (one,) = made.machines
    one.saved_state.write_deaths_count(2)
    _run(made, 100.0)
    assert one.saved_state.read_deaths_count() == 3
    _run(made, 60.0)
    assert one.saved_state.read_deaths_count() == 0
    one.kill(2.0)
    _run(made, 30.0)
    assert one.saved_state.read_deaths_count() == 1
    assert one.home in one.workers.live


def test_agent_alone_takes_its_host_back_by_itself() -> None:
    """After many deaths it waits for five minutes at most."""
    made = world.World(1, coordination.ETCD, 1, revives=False)
    made.heal()
    (one,) = made.machines
    one.saved_state.write_deaths_count(100)
    _run(made, HOLD_OFF_MAX_S - 10.0)
    assert not one.workers.live
    _run(made, 30.0)
    assert made.find_problem() is None


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('up_s', [8.0, 20.0, 30.0])
def test_host_of_a_daemon_that_is_killed_again_and_again(
    kind: str, up_s: float
) -> None:
    """Nobody adopted it: each new process published that it wants it."""
    traits, revives = KINDS[kind]
    made = world.World(1, traits, 2, revives=revives)
    made.heal()
    _run(made, 60.0)
    one, two = made.machines
    served = []
    while made.now_s < 700.0:
        one.kill(2.0)
        for _ in range(int((up_s + 2.0) / world.STEP_S)):
            made.step()
            served.append(one.home in {host for host, _ in made.open_gates()})
    assert one.home in two.workers.live
    later = served[len(served) // 2 :]
    assert sum(later) / len(later) > 0.7
    made.heal()
    _run(made, 400.0)
    assert made.find_problem() is None


def _run(made: world.World, seconds: float) -> None:
    """Let time pass; each step checks safety."""
    for _ in range(int(seconds / world.STEP_S)):
        made.step()
