# SPDX-License-Identifier: Apache-2.0
"""Each fault that an agent can see is one sentence on its page."""

import dataclasses
from typing import Any

import pytest

from hashring.adoption import View
from hashring.heartbeat import HeartbeatState
from hashring.paths import Path
from hashring.ring import Host, Ring
from ironic_compute.agent_port.figures import HostFigures
from ironic_compute.agent_port.problems import Alert, find_problems
from tests.unit.ironic_compute.agent_port import pools
from tests.unit.ironic_compute.agent_port.statuses import SECRET, STATUS

WELL = pools.well().status
C1 = Host('c1')
FIGURES = {C1: HostFigures(nodes=9)}


def _found(figures: Any = FIGURES, **changes: Any) -> list[Alert]:
    status = dataclasses.replace(WELL, **changes)
    problems = find_problems(status, figures, pools.NOW_S)
    return [problem.alert for problem in problems]


def _peer(**changes: Any) -> HeartbeatState:
    me, first, second = WELL.heartbeat.view.members
    peer = dataclasses.replace(first, **changes)
    return dataclasses.replace(WELL.heartbeat, view=View((me, peer, second)))


def test_a_pool_that_is_well_has_no_problem() -> None:
    """Not even a note."""
    assert _found() == []


@pytest.mark.parametrize(
    ('alert', 'changes'),
    [
        (Alert.MAIN_LOOP_STUCK, {'turned_at_s': pools.NOW_S - 6.0}),
        (
            Alert.BACKEND_FAILS,
            {'heartbeat': dataclasses.replace(WELL.heartbeat, failure='no')},
        ),
        (Alert.HOST_UNSERVED, {'heartbeat': _peer(serving=())}),
        (Alert.RING_DISAGREEMENT, {'heartbeat': _peer(ring='other')}),
        (
            Alert.PATH_FAILING,
            {'heartbeat': _peer(failing_paths=(Path('Neutron'),))},
        ),
        (Alert.HOST_NOT_IN_RING, {'known': WELL.known | {Host('c4')}}),
        (Alert.WORKER_SILENT, {'figures': {}}),
        (
            Alert.DIRTY_NODE,
            {'figures': {C1: HostFigures(dirty=1, oldest_dirty_s=60.0)}},
        ),
        (
            Alert.NODE_WITHOUT_CLASS,
            {'figures': {C1: HostFigures(without_class=1)}},
        ),
    ],
)
def test_each_fault_is_named(alert: Alert, changes: dict[str, Any]) -> None:
    """The alert is the first that is named for it."""
    assert alert in _found(**changes)


def test_a_lapsed_lease_names_the_hosts_that_are_not_served() -> None:
    """Both are true, and the lease comes first."""
    lease = WELL.heartbeat.lease.joined(pools.NOW_S)
    heartbeat = dataclasses.replace(WELL.heartbeat, lease=lease)
    assert _found(heartbeat=heartbeat) == [
        Alert.LEASE_LOST,
        Alert.HOST_UNSERVED,
    ]


def test_a_half_alive_daemon_says_what_it_does_not_reach() -> None:
    """Its hosts are at another daemon, which serves them."""
    status = dataclasses.replace(WELL, lost_path=Path('Placement'))
    first = find_problems(status, FIGURES, pools.NOW_S)[0]
    assert first.alert is Alert.HALF_ALIVE
    assert 'Placement' in first.text


def test_a_member_that_has_no_ring_yet_does_not_disagree() -> None:
    """A daemon that has just joined publishes an empty digest."""
    assert _found(heartbeat=_peer(ring='')) == []


def test_an_empty_ring_is_a_note_for_each_host() -> None:
    """No host is mapped yet."""
    others = tuple(
        dataclasses.replace(member, ring='')
        for member in WELL.heartbeat.view.members
    )
    heartbeat = dataclasses.replace(WELL.heartbeat, view=View(others))
    me = dataclasses.replace(WELL.me, ring='')
    problems = find_problems(
        dataclasses.replace(WELL, ring=Ring(), me=me, heartbeat=heartbeat),
        FIGURES,
        pools.NOW_S,
    )
    assert [each.alert for each in problems] == [Alert.HOST_NOT_IN_RING] * 3
    assert all(each.is_note for each in problems)


def test_no_sentence_has_the_text_of_a_library() -> None:
    """It may contain a URL with a password."""
    problems = find_problems(STATUS, {}, pools.NOW_S)
    assert Alert.BACKEND_FAILS in {each.alert for each in problems}
    assert SECRET not in repr(problems)
