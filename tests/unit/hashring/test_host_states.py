# SPDX-License-Identifier: Apache-2.0
"""Host states: the transition table, and the waits after worker deaths."""

import itertools

import pytest

from hashring import errors
from hashring.host_states import TRANSITIONS, Hold, Phase, Signal, hold_off_s
from hashring.ring import Host


@pytest.mark.parametrize(
    ('phase', 'signal'), list(itertools.product(Phase, Signal))
)
def test_only_what_is_in_the_table_moves(phase: Phase, signal: Signal) -> None:
    """A transition in the table succeeds; any other raises."""
    hold = Hold(Host('c1'), phase)
    expected = TRANSITIONS.get((phase, signal))
    if expected is None:
        with pytest.raises(errors.InvalidTransition, match='c1'):
            hold.move(signal)
        assert hold.phase is phase
    else:
        hold.move(signal)
        assert hold.phase is expected
        assert hold.history == (f'{signal.value}->{expected.value}',)


def test_every_phase_is_reached_and_left() -> None:
    """Each phase can be reached from IDLE, and IDLE from each phase."""
    ways = {(a, b) for (a, _), b in TRANSITIONS.items()}
    assert _reach({Phase.IDLE}, ways) == set(Phase)
    backward = {(b, a) for a, b in ways}
    assert _reach({Phase.IDLE}, backward) == set(Phase)


def _reach(start: set[Phase], ways: set[tuple[Phase, Phase]]) -> set[Phase]:
    found = start
    while True:
        more = found | {b for a, b in ways if a in found}
        if more == found:
            return found
        found = more


def test_a_lock_is_left_only_through_release() -> None:
    """A granted lock ends in IDLE only by a release."""
    into_idle = {
        (a, signal)
        for (a, signal), b in TRANSITIONS.items()
        if b is Phase.IDLE
    }
    assert into_idle == {
        (Phase.TRYING, Signal.REFUSED),
        (Phase.RELEASING, Signal.RELEASED),
    }


def test_history_has_twelve_transitions() -> None:
    """A host keeps its last 12 transitions."""
    hold = Hold(Host('c1'))
    for _ in range(20):
        hold.move(Signal.WANTED)
        hold.move(Signal.REFUSED)
    assert len(hold.history) == 12


def test_hold_off_doubles_and_ends() -> None:
    """The waits are 1, 2, 15, 30, ... seconds, at most five minutes."""
    assert [hold_off_s(n) for n in range(1, 9)] == [
        1.0,
        2.0,
        15.0,
        30.0,
        60.0,
        120.0,
        240.0,
        300.0,
    ]
    assert hold_off_s(500) == 300.0


def test_a_healthy_tenure_forgives() -> None:
    """A worker that served for long resets the count of worker deaths."""
    hold = Hold(Host('c1'), serves_since_s=0.0)
    for _ in range(3):
        hold.record_death(10.0)
    assert hold.keeps_dying
    hold.record_death(1000.0)
    assert not hold.keeps_dying
