# SPDX-License-Identifier: Apache-2.0
"""Commands read the ports of the daemons, and do without them."""

import dataclasses
import json
import socket
import time
from collections.abc import Sequence

import pytest

from hashring.clock import SystemClock
from hashring.group import Boot, Member, MemberState
from hashring.ring import Host
from ironic_compute import catalogue
from ironic_compute.agent_port.problems import Alert, Problem
from ironic_compute.cmd import agent_ports
from tests.unit.ironic_compute.agent_port.test_application import (
    Client,
    beside,
)
from tests.unit.ironic_compute.agent_port.test_peers import (
    TRIES_COUNT,
    port_that_answers,
)
from tests.unit.ironic_compute.agent_port.test_server import serving

C1, C2, C3 = map(Host, ('c1', 'c2', 'c3'))
SILENT = Problem(Alert.WORKER_SILENT, 'Silent.', None, C2, 'is silent')
UNSERVED = Problem(
    Alert.HOST_UNSERVED, 'Not here.', catalogue.HOST_NOT_SERVED, C2, 'not here'
)
NOT_MAPPED = Problem(
    Alert.HOST_NOT_IN_RING, 'No.', catalogue.HOST_NOT_MAPPED, C2, 'not mapped'
)


def _member(home: Host, *serving: Host, url: str = '') -> Member:
    return Member(home, Boot(f'{home}.1'), page=url, serving=serving)


def test_ports_that_do_not_answer_leave_their_answers_out() -> None:
    """One is silent, one is closed, one answers what is no JSON."""
    text, paths = json.dumps([1]).encode(), frozenset({'/api/v1/x'})
    with (
        port_that_answers(text, paths=paths) as good,
        port_that_answers(b'<html>', paths=paths) as bad,
        socket.create_server(('127.0.0.1', 0)) as silent,
        socket.socket() as closed,
    ):
        closed.bind(('127.0.0.1', 0))
        urls = [good, bad]
        for each in (silent, closed):
            urls.append(f'http://127.0.0.1:{each.getsockname()[1]}/')
        members = [
            _member(Host(f'c{n}'), url=url) for n, url in enumerate(urls)
        ]
        begun_s = time.monotonic()
        found = agent_ports.read_answers(members, '/api/v1/x', SystemClock())
        assert time.monotonic() - begun_s < 3.0
    assert found == {Boot('c0.1'): [1]}


def test_hosts_of_a_daemon_whose_port_is_silent_are_named() -> None:
    """A daemon without a port, or with one that answers, is none of them."""
    url = 'http://192.0.2.1:9178/'
    members = [
        _member(C1, C1, url=url),
        _member(C2, C2, url=url),
        _member(C3, C3),
    ]
    assert agent_ports.silent_hosts(members, {Boot('c1.1')}) == {C2}


@pytest.mark.parametrize(
    'state', [MemberState.RESTARTING, MemberState.LEAVING]
)
def test_daemon_that_stops_is_not_taken_for_silent(state: MemberState) -> None:
    """Its record keeps its hosts until another daemon serves them."""
    up = _member(C1, C1, url='http://192.0.2.1:9178/')
    stopping = dataclasses.replace(up, state=state)
    assert agent_ports.silent_hosts([stopping], ()) == frozenset()


def test_a_problem_of_a_later_release_is_left_out() -> None:
    """So is an answer that is none."""
    later = {**SILENT.as_json(), 'alert': 'IronicComputeFlooded'}
    rows = [later, {}, 7, SILENT.as_json()]
    assert agent_ports.parse_problems(rows) == [SILENT]
    assert agent_ports.parse_problems({'error': 'no'}) == []


@pytest.mark.parametrize(
    ('serving', 'answers', 'found'),
    [
        (C2, {C2: [SILENT], C1: [UNSERVED, NOT_MAPPED]}, [SILENT]),
        (C2, {C2: [UNSERVED]}, [UNSERVED]),
        (C2, {C1: [UNSERVED, NOT_MAPPED]}, [NOT_MAPPED]),
        (C3, {C1: [UNSERVED], C2: [UNSERVED]}, []),
        (C3, {C2: [UNSERVED, NOT_MAPPED], C3: []}, []),
    ],
)
def test_the_daemon_that_serves_a_host_knows_best(
    serving: Host, answers: dict[Host, list[Problem]], found: list[Problem]
) -> None:
    """If it does not answer, others are asked, but not whether it serves."""
    members = [
        _member(home, *([C2] if home == serving else ()))
        for home in (C1, C2, C3)
    ]
    assert _problems(members, answers) == found


def test_a_host_that_nobody_serves_is_described_once() -> None:
    """By its own daemon, if that answers."""
    own = dataclasses.replace(UNSERVED, text='And why.', phrase='and why')
    members = [_member(C1), _member(C2)]
    assert _problems(members, {C1: [UNSERVED], C2: [own]}) == [own]
    assert _problems(members, {C1: [UNSERVED]}) == [UNSERVED]


def _problems(
    members: Sequence[Member], answers: dict[Host, list[Problem]]
) -> list[Problem]:
    by_boot = {m.boot: answers[m.home] for m in members if m.home in answers}
    return agent_ports.problems_of_host(C2, members, by_boot)


def test_the_ring_of_a_daemon_is_read_without_the_ports_of_others() -> None:
    """Else a command on a large pool would send the square of its size."""
    client = Client(SystemClock())
    with port_that_answers(b'', paths=frozenset()) as other:
        client.publish(beside(page=other, machine='m1'))
        with serving(client.application) as server:
            url = f'http://127.0.0.1:{server.server_port}/'
            for _ in range(TRIES_COUNT):
                found = agent_ports.read_answers(
                    [_member(C1, url=url)], agent_ports.RING, SystemClock()
                )
                if found:
                    break
    mine, its = found[Boot('c1.1')]['members']
    assert (mine['port_answers'], its['port_answers']) == (True, None)
