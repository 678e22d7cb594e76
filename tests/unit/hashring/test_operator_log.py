# SPDX-License-Identifier: Apache-2.0
"""Log messages about members that disagree on the ring."""

import dataclasses
import logging

import pytest

from hashring.adoption import View
from hashring.group import Boot, Member
from hashring.half_alive import Cause
from hashring.heartbeat import HeartbeatState
from hashring.lease import Lease, Verdict
from hashring.operator_log import OperatorLog
from hashring.paths import Path, PathState
from hashring.ring import Host

C1, C2 = Host('c1'), Host('c2')
BACKEND = 'etcd3+http://etcd:2379'
NONE = Member(C2, Boot('c2.1'), machine='m2')
OTHER = Member(Host('c3'), Boot('c3.1'), machine='m3', ring='other')


def test_disagreeing_members_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A disagreement of ten seconds is logged once, with its members."""
    caplog.set_level(logging.INFO)
    operator_log = OperatorLog(C1, BACKEND, 0.0)
    for now_s in range(10, 200):
        operator_log.log_disagreement([NONE, OTHER], float(now_s))
    (said,) = caplog.messages
    assert said == (
        'The pool has not agreed on its hosts for 10 s and takes no new '
        'nodes: c2 on m2 has no ring yet, c3 on m3 has another ring'
    )


def test_different_lease_terms_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Agents with different terms are named once for each mix."""
    operator_log = OperatorLog(C1, BACKEND, 0.0)
    mine, same, longer = (
        Member(Host(home), Boot(home), lease_term_s=term_s)
        for home, term_s in (('c1', 15.0), ('c2', 15.0), ('c3', 40.0))
    )
    for members in [(mine, NONE), (mine, same)] * 2:
        operator_log.log_lease_terms(members)
    assert caplog.messages == []
    for _ in range(3):
        operator_log.log_lease_terms((mine, longer))
    (said,) = caplog.messages
    assert said.endswith('lease_term_s: c1 15 s, c3 40 s')


def test_another_pool_that_counts_on_the_host_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing else says so: its nodes wait, or its daemon, without an end."""
    operator_log = OperatorLog(C1, BACKEND, 0.0)
    operator_log.log_former_pool(())
    assert not caplog.messages
    for _ in range(2):
        operator_log.log_former_pool((Host('c2'), Host('c3')))
    (said,) = caplog.messages
    assert 'Host c1 is still a host of another pool, that of c2, c3' in said


def test_each_disagreement_has_its_own_ten_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each disagreement must itself last ten seconds to be logged."""
    caplog.set_level(logging.INFO)
    operator_log = OperatorLog(C1, BACKEND, 0.0)
    for now_s in range(0, 60, 10):
        operator_log.log_disagreement([NONE], float(now_s))
        operator_log.log_disagreement([], now_s + 9.0)
    assert not caplog.messages
    operator_log.log_disagreement([NONE], 60.0)
    operator_log.log_disagreement([NONE], 70.0)
    operator_log.log_disagreement([], 71.0)
    operator_log.log_disagreement([NONE], 72.0)
    operator_log.log_disagreement([NONE], 82.0)
    assert len(caplog.messages) == 2


def test_agent_that_never_joins_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once, after one term without a lease."""
    operator_log = OperatorLog(C1, BACKEND, 0.0)
    state = HeartbeatState(Lease(15.0, 3.0))
    for now_s in (15.0, 15.1, 30.0):
        operator_log.log_lease(state, now_s)
    assert len(caplog.messages) == 1
    assert 'c1' in caplog.messages[0]


def test_reason_of_a_lost_lease_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The verdict about the last heartbeat, or what the backend answered."""
    caplog.set_level(logging.INFO)
    held = HeartbeatState(Lease(15.0, 3.0, base_s=1.0, counted=True))
    for verdict, failure, why in (
        (Verdict.NOT_LISTED, None, Verdict.NOT_LISTED.value),
        (Verdict.LATE, None, Verdict.LATE.value),
        (Verdict.COUNTED, None, 'no heartbeat came back in time'),
        (Verdict.COUNTED, 'refused', f'{BACKEND} does not answer (refused)'),
    ):
        operator_log = OperatorLog(C1, BACKEND, 0.0)
        operator_log.log_lease(held, 2.0)
        lost = HeartbeatState(
            Lease(15.0, 3.0), verdict=verdict, failure=failure
        )
        operator_log.log_lease(lost, 3.0)
        assert why in caplog.messages[-1]


def test_daemon_with_two_records_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was restarted, and its former record is still in the group."""
    caplog.set_level(logging.INFO)
    members = tuple(Member(Host('c2'), Boot(b)) for b in ('b2', 'b3'))
    lease = Lease(15.0, 3.0, base_s=1.0, counted=True)
    state = HeartbeatState(lease, view=View(members))
    OperatorLog(C1, BACKEND, 0.0).log_lease(state, 1.0)
    assert caplog.messages == ['Joined the group as c1, beside c2']


def test_lease_that_stays_is_logged_when_it_is_won(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An agent with a lease since its start is not logged as waiting."""
    caplog.set_level(logging.INFO)
    operator_log = OperatorLog(C1, BACKEND, 0.0)
    for now_s in (1.0, 20.0, 40.0):
        lease = Lease(15.0, 3.0, base_s=now_s, counted=True)
        operator_log.log_lease(HeartbeatState(lease), now_s)
    assert caplog.messages == ['Joined the group as c1, beside nobody else']


def test_lease_is_away_since_its_deadline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A process that stood still for a minute notices the loss at its end."""
    caplog.set_level(logging.INFO)
    operator_log = OperatorLog(C1, BACKEND, 0.0)
    held = Lease(15.0, 3.0, base_s=40.0, counted=True)
    late = Lease(15.0, 3.0, base_s=100.0)
    operator_log.log_lease(HeartbeatState(held), 41.0)
    operator_log.log_lease(HeartbeatState(late, verdict=Verdict.LATE), 100.1)
    back = dataclasses.replace(late, base_s=103.0, counted=True)
    operator_log.log_lease(HeartbeatState(back), 103.0)
    assert caplog.messages[-1] == (
        'The lease of c1 is back after 51.0 s in which it was not in force, '
        'beside nobody else'
    )


def test_lease_that_was_broken_is_away_since_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The group may have lost an agent whose deadline is still to come."""
    caplog.set_level(logging.INFO)
    operator_log = OperatorLog(C1, BACKEND, 0.0)
    held = Lease(15.0, 3.0, base_s=40.0, counted=True)
    broken = dataclasses.replace(held, base_s=None, counted=False)
    back = dataclasses.replace(held, base_s=45.0)
    for lease, now_s in ((held, 40.0), (broken, 43.0), (back, 45.0)):
        operator_log.log_lease(HeartbeatState(lease), now_s)
    assert 'is back after 2.0 s in which' in caplog.messages[-1]


def test_path_that_fails_is_logged_once_and_its_end_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The peers that still reach the service are named."""
    caplog.set_level(logging.INFO)
    operator_log = OperatorLog(C1, BACKEND, 0.0)
    ironic = Path('Ironic')
    peers = [
        dataclasses.replace(NONE, working_paths=(ironic,)),
        dataclasses.replace(OTHER, failing_paths=(ironic,)),
    ]
    for now_s in range(100, 160, 10):
        states = {ironic: PathState(100.0, 'connection refused')}
        operator_log.log_paths(states, peers, float(now_s))
    operator_log.log_paths({}, peers, 160.0)
    operator_log.log_paths({ironic: PathState()}, peers, 170.0)
    operator_log.log_paths({ironic: PathState()}, peers, 180.0)
    assert caplog.messages == [
        'c1 has not reached Ironic for 20 s (connection refused); reached by '
        'c2',
        'c1 reaches Ironic again after 70 s',
    ]


def test_common_outage_names_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No peer reaches the service either."""
    operator_log = OperatorLog(C1, BACKEND, 0.0)
    states = {Path('Ironic'): PathState(0.0, 'no answer')}
    operator_log.log_paths(states, [NONE, OTHER], 30.0)
    assert caplog.messages[0].endswith('(no answer); nobody does')


def test_agent_that_gives_its_hosts_away_says_why_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One sentence has the path, the time, the reason, and who is well."""
    caplog.set_level(logging.INFO)
    operator_log = OperatorLog(C1, BACKEND, 0.0)
    cause = Cause(Path('RabbitMQ'), 100.0, 'refused', Host('c2'))
    operator_log.log_half_alive(None, 45.0, 90.0)
    for now_s in (116.0, 150.0):
        operator_log.log_half_alive(cause, 45.0, now_s)
    for now_s in (200.0, 210.0):
        operator_log.log_half_alive(None, 45.0, now_s)
    assert caplog.messages == [
        'c1 gives all its hosts away: it has not reached RabbitMQ for 16 s '
        '(refused), and c2 does. It takes hosts again when all services have '
        'answered for 45 s',
        'c1 takes hosts again after 84 s',
    ]
