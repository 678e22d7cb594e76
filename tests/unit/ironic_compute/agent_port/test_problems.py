# SPDX-License-Identifier: Apache-2.0
"""Each fault that an agent can see is one sentence on its page."""

import dataclasses
from typing import Any

import pytest

from hashring.adoption import View
from hashring.group import MemberState
from hashring.heartbeat import HeartbeatState
from hashring.host_states import HostState, Phase
from hashring.paths import Path
from hashring.ring import Host, Ring
from hashring.workers import ServiceFacts
from ironic_compute import catalogue
from ironic_compute.agent_port.agent_metrics import describe
from ironic_compute.agent_port.figures import HostFigures
from ironic_compute.agent_port.problems import (
    Alert,
    Problem,
    find_problems,
    merge_findings,
)
from tests.unit.ironic_compute.agent_port import pools
from tests.unit.ironic_compute.agent_port.statuses import SECRET, STATUS
from tests.unit.ironic_compute.agent_port.test_agent_metrics import samples

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


def test_a_daemon_that_never_joined_does_not_speak_of_other_hosts() -> None:
    """It does not hear who serves them."""
    c9, later_s = Host('c9'), pools.NOW_S + 1000.0
    status = dataclasses.replace(STATUS, known=frozenset({C1, c9}))
    assert not status.has_lease(later_s)
    found = find_problems(status, {}, later_s)
    assert c9 not in {
        each.host for each in found if each.alert is Alert.HOST_UNSERVED
    }


def test_hosts_with_the_same_finding_share_one_note() -> None:
    """A pool of fifty hosts would fill the page otherwise."""
    check, other = catalogue.DEPLOY_FAILED, catalogue.HOST_NOT_MAPPED
    findings = [
        Problem(Alert.FINDING, f'Host c{n} …', check, f'c{n}')
        for n in range(7)
    ]
    note = Problem(Alert.HOST_NOT_IN_RING, 'Host c9 …', other, 'c9')
    merged, kept = merge_findings([*findings, note])
    assert merged.text.startswith('7 hosts (c0, c1, c2, c3, c4, …) have nodes')
    assert merged.check is check and kept == note
    assert merge_findings(findings[:1]) == findings[:1]


def test_a_port_that_does_not_answer_is_the_first_problem_of_a_peer() -> None:
    """Its lease still seems to be in force."""
    (found,) = find_problems(WELL, FIGURES, pools.NOW_S, {Host('c2')})
    assert found.alert is Alert.DOWN
    assert 'daemon of c2 does not answer' in found.text


@dataclasses.dataclass(frozen=True, slots=True)
class _Fault:
    """One fault, and where it shows.

    :param sample: the series of `/metrics` that an alert watches
    """

    alert: Alert
    sample: str
    value: float
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    figures: dict[Host, HostFigures] = dataclasses.field(
        default_factory=lambda: FIGURES
    )


LAPSED = dataclasses.replace(
    WELL.heartbeat, lease=WELL.heartbeat.lease.joined(pools.NOW_S)
)
FAULTS = {
    'frozen agent': _Fault(
        Alert.MAIN_LOOP_STUCK,
        'last_turn_seconds{}',
        6.0,
        {'turned_at_s': pools.NOW_S - 6.0},
    ),
    'lapsed lease': _Fault(
        Alert.LEASE_LOST, 'lease_in_force{}', 0, {'heartbeat': LAPSED}
    ),
    'path that fails': _Fault(
        Alert.HALF_ALIVE, 'half_alive{}', 1, {'lost_path': Path('Ironic')}
    ),
    'unserved host, after kill -9 of a daemon': _Fault(
        Alert.HOST_UNSERVED,
        'host_served{host=c2}',
        0,
        {'heartbeat': _peer(serving=())},
    ),
    'worker that starts': _Fault(
        Alert.HOST_UNSERVED,
        'ready{}',
        0,
        {'hosts': (HostState(C1, Phase.SERVING),)},
    ),
    'frozen worker': _Fault(
        Alert.WORKER_SILENT, 'worker_metrics_read{host=c1}', 0, figures={}
    ),
    'ring disagreement': _Fault(
        Alert.RING_DISAGREEMENT,
        'ring_agreed{}',
        0,
        {'heartbeat': _peer(ring='other'), 'agreed_since_s': None},
    ),
    'unmapped or disabled host': _Fault(
        Alert.HOST_NOT_IN_RING,
        'hosts_known{}',
        4,
        {'known': WELL.known | {Host('c4')}},
    ),
}


@pytest.mark.parametrize('name', FAULTS)
def test_each_fault_shows_on_the_page_and_in_a_metric(name: str) -> None:
    """In the first answer after the turn that saw it."""
    fault = FAULTS[name]
    assert fault.alert in _found(fault.figures, **fault.changes)
    status = dataclasses.replace(WELL, **fault.changes)
    answered = {C1: C1 in fault.figures}
    found = samples(describe(status, answered, pools.NOW_S))
    assert found[fault.sample] == fault.value
    well = samples(describe(WELL, {C1: True}, pools.NOW_S))
    assert well[fault.sample] != fault.value


@pytest.mark.parametrize(
    ('alert', 'figures'),
    [
        (Alert.DIRTY_NODE, HostFigures(dirty=1, oldest_dirty_s=10.0)),
        (Alert.NODE_WITHOUT_CLASS, HostFigures(without_class=1)),
    ],
)
def test_a_fault_of_a_node_shows(alert: Alert, figures: HostFigures) -> None:
    """The figures are those of the worker's metrics; see test_figures."""
    assert _found({C1: figures}) == [alert]


def test_a_backend_that_fails_shows_before_the_lease_ends() -> None:
    """Its metric is counted by the thread that sends the requests."""
    heartbeat = dataclasses.replace(WELL.heartbeat, failure='no')
    assert _found(heartbeat=heartbeat) == [Alert.BACKEND_FAILS]


def test_a_path_of_another_daemon_shows() -> None:
    """Each daemon publishes what it does not reach."""
    heartbeat = _peer(failing_paths=(Path('Neutron'),))
    assert _found(heartbeat=heartbeat) == [Alert.PATH_FAILING]


def test_a_lapsed_lease_names_the_hosts_that_are_not_served() -> None:
    """Both are true, and the lease comes first."""
    assert _found(heartbeat=LAPSED) == [
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


@pytest.mark.parametrize(
    ('service', 'check', 'why'),
    [
        (None, None, 'no worker has read its Service'),
        (ServiceFacts(True, True, True), None, 'it is disabled in Nova'),
        (ServiceFacts(False, False, True), 'host-not-mapped', 'no cell'),
        (ServiceFacts(False, False, False), 'host-without-service', 'record'),
    ],
)
def test_host_that_is_not_in_the_ring_has_a_reason(
    service: ServiceFacts | None, check: str | None, why: str
) -> None:
    """As fsck would find it, if it looks for that."""
    c4 = Host('c4')
    status = dataclasses.replace(
        WELL,
        known=WELL.known | {c4},
        services={} if service is None else {c4: service},
    )
    (found,) = [
        each
        for each in find_problems(status, FIGURES, pools.NOW_S)
        if each.alert is Alert.HOST_NOT_IN_RING
    ]
    assert why in found.text
    assert (found.check and found.check.name) == check
    assert bool(found.cure) == (check is not None)
    assert 'HOST' not in found.cure


def test_each_cure_can_be_shown() -> None:
    """Also that of a check that no daemon makes today."""
    for check in catalogue.ALL:
        problem = Problem(Alert.DIRTY_NODE, 'x', check, 'c1')
        assert '{' not in problem.cure


def test_what_a_worker_finds_on_its_nodes_is_shown() -> None:
    """As a note, with the meaning and cure of the check."""
    figures = HostFigures(
        findings={'failed-without-server': 2, 'of-a-later-release': 1}
    )
    (found,) = find_problems(WELL, {C1: figures}, pools.NOW_S)
    assert found.is_note
    assert found.alert == 'IronicComputeFinding'
    assert found.check is catalogue.DEPLOY_FAILED
    assert found.text.startswith('Host c1 has 2 nodes: A deploy or a removal')
    assert found.cure == 'openstack baremetal node undeploy NODE'


def _phrases(figures: Any = FIGURES, **changes: Any) -> list[tuple[str, str]]:
    status = dataclasses.replace(WELL, **changes)
    found = find_problems(status, figures, pools.NOW_S)
    return [(p.host, p.phrase) for p in found if p.phrase]


@pytest.mark.parametrize(
    ('service', 'phrase'),
    [
        (
            ServiceFacts(exists=True, mapped=False, disabled=False),
            'not mapped',
        ),
        (ServiceFacts(exists=True, mapped=True, disabled=True), 'disabled'),
        (ServiceFacts(exists=False, mapped=False, disabled=False), 'no Serv'),
    ],
)
def test_a_table_of_hosts_says_why_a_host_gets_no_nodes(
    service: ServiceFacts, phrase: str
) -> None:
    """The phrase does not name the host, whose row it is in."""
    c4 = Host('c4')
    changes = {'known': WELL.known | {c4}, 'services': {c4: service}}
    unserved, (host, found) = _phrases(**changes)
    assert unserved == (c4, 'not served for 0 s')
    assert host == c4
    assert found.startswith(phrase)


def test_a_table_of_hosts_says_for_how_long_a_host_is_not_served() -> None:
    """And why, if its own daemon is up."""
    away = _peer(serving=())
    since_s = {Host('c2'): pools.NOW_S - 12.0}
    assert _phrases(heartbeat=away, unserved_since_s=since_s) == [
        ('c2', 'not served for 12 s')
    ]
    ends = {
        'me': dataclasses.replace(
            WELL.me, serving=(), state=MemberState.LEAVING
        ),
        'hosts': (HostState(C1, Phase.IDLE),),
    }
    assert _phrases(**ends) == [
        ('c1', 'not served for 0 s: its daemon is stopping')
    ]


def test_a_table_of_hosts_says_that_a_worker_is_silent() -> None:
    """The problem names the host, for programs."""
    assert _phrases(figures={}) == [('c1', 'its worker does not answer')]


def test_a_problem_is_the_same_after_its_way_as_json() -> None:
    """Commands read it from the port."""
    status = pools.troubled().status
    found = find_problems(status, FIGURES, pools.NOW_S)
    assert len(found) > 5
    assert [Problem.parse(each.as_json()) for each in found] == found
