# SPDX-License-Identifier: Apache-2.0
"""The state of an agent as JSON."""

import dataclasses
import json
from collections.abc import Mapping, Sequence

import pytest

from hashring.group import Boot
from hashring.heartbeat import HeartbeatState
from hashring.ring import Host
from ironic_compute.agent_port import state
from tests.unit.ironic_compute.agent_port.statuses import (
    LEASE,
    ME,
    NOW_S,
    PEER,
    SECRET,
    STATUS,
    changed,
)


def test_the_agent() -> None:
    """Its lease, its services and its counts."""
    status = changed(
        me=dataclasses.replace(ME, failing_paths=PEER.failing_paths)
    )
    assert state.describe_agent(status, NOW_S) == {
        'home': 'c1',
        'machine': 'm1',
        'boot': 'b1',
        'version': '1.2',
        'state': 'up',
        'last_turn_s': 0.5,
        'lease': {
            'in_force': True,
            'term_s': 15.0,
            'heartbeat_age_s': 2.0,
            'backend_answers': False,
            'lapses': 3,
        },
        'half_alive': False,
        'failing_paths': ['Neutron'],
        'working_paths': [],
        'wants_home': True,
        'counts': {
            'adoptions': 2,
            'hand_backs': 1,
            'worker_starts': {'c1': 4, 'c3': 2},
            'worker_exits': [
                {'host': 'c1', 'status': '-9', 'count': 2},
                {'host': 'c3', 'status': 'killed', 'count': 1},
            ],
        },
    }


def test_an_agent_without_a_lease() -> None:
    """A heartbeat that never counted has no age."""
    heartbeat = HeartbeatState(LEASE.joined(NOW_S))
    lease = state.describe_agent(changed(heartbeat=heartbeat), NOW_S)['lease']
    assert lease['in_force'] is False
    assert lease['heartbeat_age_s'] is None
    assert lease['backend_answers'] is True


def test_the_hosts() -> None:
    """One is served, one starts here, one is served by nobody."""
    here = {'home': 'c1', 'machine': 'm1', 'boot': 'b1', 'version': '1.2'}
    assert state.describe_hosts(STATUS, NOW_S) == [
        {
            'host': 'c1',
            'in_ring': True,
            'served_by': here,
            'served_here': True,
            'phase_here': 'serving',
            'why_not_served_here': None,
        },
        {
            'host': 'c2',
            'in_ring': True,
            'served_by': None,
            'served_here': False,
            'phase_here': 'idle',
            'why_not_served_here': None,
        },
        {
            'host': 'c3',
            'in_ring': False,
            'served_by': here,
            'served_here': False,
            'phase_here': 'serving',
            'why_not_served_here': 'its worker is starting',
        },
    ]


def test_the_ring_and_the_rings_of_others() -> None:
    """Who publishes another digest is seen at once."""
    ring = state.describe_ring(STATUS, NOW_S, {})
    assert ring['digest'] == STATUS.ring.digest
    assert ring['hosts'] == ['c1', 'c2']
    assert ring['agreed_for_s'] == 30.0
    mine, peer = ring['members']
    assert (mine['home'], mine['ring']) == ('c1', 'd1')
    assert (peer['home'], peer['ring']) == ('c2', 'd2')
    assert peer['failing_paths'] == ['Neutron']
    unsettled = state.describe_ring(changed(agreed_since_s=None), NOW_S, {})
    assert unsettled['agreed_for_s'] is None


@pytest.mark.parametrize(
    ('answering', 'expected'),
    [
        ({PEER.boot: True}, [True, True]),
        ({PEER.boot: False}, [True, False]),
        ({}, [True, None]),
    ],
)
def test_the_ports_that_answer(
    answering: Mapping[Boot, bool], expected: Sequence[bool | None]
) -> None:
    """This daemon answers just now; of others it may not be known."""
    members = state.describe_ring(STATUS, NOW_S, answering)['members']
    assert [member['port_answers'] for member in members] == expected


def test_the_daemons_that_are_gone() -> None:
    """With the daemon that serves their host now, if one does."""
    here = {'home': 'c1', 'machine': 'm1', 'boot': 'b1', 'version': '1.2'}
    known = STATUS.known | {Host('c4')}
    assert state.describe_ring(changed(known=known), NOW_S, {})['gone'] == [
        {'home': 'c3', 'served_by': here},
        {'home': 'c4', 'served_by': None},
    ]


def test_the_text_of_an_error_is_not_shown() -> None:
    """It may have the URL of the backend, with its password."""
    for page in (
        state.describe_agent(STATUS, NOW_S),
        state.describe_hosts(STATUS, NOW_S),
        state.describe_ring(STATUS, NOW_S, {}),
    ):
        assert SECRET not in json.dumps(page)
