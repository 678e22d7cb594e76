# SPDX-License-Identifier: Apache-2.0
"""The pages of the agent's port."""

import contextlib
import dataclasses
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from hashring.adoption import View
from hashring.clock import SystemClock
from hashring.group import MemberState
from hashring.heartbeat import HeartbeatState
from ironic_compute.agent_port import worker_metrics
from ironic_compute.agent_port.agent_metrics import BackendMetrics
from ironic_compute.agent_port.application import Application, Snapshot
from ironic_compute.agent_port.peers import HEALTH_PATH
from ironic_compute.journal.moves import Move, parse_move
from tests.fakes.clock import ManualClock
from tests.unit.ironic_compute.agent_port.statuses import (
    C1,
    C3,
    LEASE,
    NOW_S,
    PEER,
    SECRET,
    STATUS,
    WELL,
    changed,
)
from tests.unit.ironic_compute.agent_port.test_peers import (
    TRIES_COUNT,
    port_that_answers,
    port_that_refuses,
)
from tests.unit.ironic_compute.journal.made_up import move

PATHS = (
    '/',
    '/healthz',
    '/readyz',
    '/metrics',
    '/api/v1/agent',
    '/api/v1/findings',
    '/api/v1/hosts',
    '/api/v1/moves',
    '/api/v1/nodes',
    '/api/v1/ring',
)


@dataclasses.dataclass(frozen=True, slots=True)
class Answered:
    """What a client gets."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def lines(self) -> list[str]:
        """The lines of the body."""
        return self.body.decode().splitlines()


class Client:
    """A client of an application without a network."""

    def __init__(self, clock: Any = None, moves: Sequence[Move] = ()) -> None:
        self.clock = clock or ManualClock(NOW_S)
        self.backend = BackendMetrics(self.clock)
        self.application = Application(
            self.clock, self.backend, lambda query: query.newest(moves)
        )

    def publish(self, status: Any = WELL, **channels: Any) -> None:
        """Do what the main loop does after a turn."""
        self.application.publish(Snapshot(status, channels))

    def get(self, path: str, method: str = 'GET', query: str = '') -> Answered:
        """Return the answer to a request."""
        begun: list[Any] = []
        environ = {
            'REQUEST_METHOD': method,
            'PATH_INFO': path,
            'QUERY_STRING': query,
        }
        body = b''.join(
            self.application(environ, lambda *each: begun.append(each))
        )
        ((status, headers),) = begun
        return Answered(int(status.split()[0]), dict(headers), body)


@pytest.fixture
def client() -> Client:
    """A client of an agent that is well."""
    made = Client()
    made.publish()
    return made


@pytest.mark.parametrize('path', PATHS)
def test_each_page_answers_get_and_head(client: Client, path: str) -> None:
    """HEAD gets the same status and headers without a body."""
    got, head = client.get(path), client.get(path, 'HEAD')
    assert got.status == head.status == 200
    assert got.headers == head.headers
    assert int(got.headers['Content-Length']) == len(got.body) > 0
    assert head.body == b''
    assert got.headers['Cache-Control'] == 'no-store'


@pytest.mark.parametrize('method', ['POST', 'PUT', 'DELETE', 'OPTIONS', 'X'])
def test_nothing_can_be_changed(client: Client, method: str) -> None:
    """Every other method is refused on every path."""
    for path in (*PATHS, '/other'):
        answer = client.get(path, method)
        assert answer.status == 405
        assert answer.headers['Allow'] == 'GET, HEAD'


@pytest.mark.parametrize(
    'path', ['', '//', '/nothing', '/healthz/', '/../etc/passwd', '/api/v1']
)
def test_an_unknown_path_gets_the_list(client: Client, path: str) -> None:
    """Who guesses a path finds the right one."""
    answer = client.get(path)
    assert answer.status == 404
    assert answer.lines[1:] == list(PATHS)


@pytest.mark.parametrize('path', PATHS)
def test_before_the_first_turn_nothing_is_well(path: str) -> None:
    """A daemon that hangs at its start is not alive."""
    assert Client().get(path).status == 503


def test_a_loop_that_stands_still_is_not_healthy(client: Client) -> None:
    """Five seconds later a probe fails; one turn more, and it succeeds."""
    client.clock.advance(5.0)
    answer = client.get('/healthz')
    assert answer.status == 503
    assert answer.lines == ['The main loop turned 5.5 s ago.']
    assert 'The main loop does not turn.' in client.get('/readyz').lines
    client.publish(changed(turned_at_s=client.clock.now_s()))
    assert client.get('/healthz').status == 200


def test_a_lost_lease_is_healthy_but_not_ready(client: Client) -> None:
    """A restart would not help a daemon whose backend is away."""
    client.publish(changed(heartbeat=HeartbeatState(LEASE.joined(1.0))))
    assert client.get('/healthz').status == 200
    answer = client.get('/readyz')
    assert answer.status == 503
    assert answer.lines[0] == 'The lease is not in force.'


def test_ready_if_each_held_host_is_served(client: Client) -> None:
    """One line for each host that is not."""
    assert client.get('/readyz').lines == ['Ready.']
    client.publish(STATUS)
    answer = client.get('/readyz')
    assert answer.status == 503
    assert answer.lines == ['c3: its worker is starting.']


def test_state_is_json(client: Client) -> None:
    """The three pages of the interface for programs."""
    for path, key in (('agent', 'lease'), ('ring', 'digest')):
        answer = client.get(f'/api/v1/{path}')
        assert answer.headers['Content-Type'] == 'application/json'
        assert key in json.loads(answer.body)
    assert len(json.loads(client.get('/api/v1/hosts').body)) == 3
    assert json.loads(client.get('/api/v1/nodes').body) == []


def _ports_that_answer(client: Client, query: str = '') -> list[bool | None]:
    ring = json.loads(client.get('/api/v1/ring', query=query).body)
    return [member['port_answers'] for member in ring['members']]


@pytest.mark.parametrize(
    ('make_port', 'does_answer'),
    [
        (lambda: port_that_answers(b'', paths=frozenset({HEALTH_PATH})), True),
        (port_that_refuses, False),
    ],
)
def test_the_ring_says_whose_port_answers(
    make_port: Callable[[], contextlib.AbstractContextManager[str]],
    does_answer: bool,
) -> None:
    """The port is asked with each request, unless the request forbids it."""
    client = Client(SystemClock())
    with make_port() as url:
        client.publish(beside(page=url, machine='m1'))
        for _ in range(TRIES_COUNT):
            found = _ports_that_answer(client)
            # A busy machine may need longer than the page waits.
            if found == [True, does_answer]:
                break
        assert found == [True, does_answer]
        assert _ports_that_answer(client, 'ports=no') == [True, None]


@pytest.mark.parametrize(
    ('state', 'may_be_dead'),
    [
        (MemberState.UP, True),
        (MemberState.RESTARTING, False),
        (MemberState.LEAVING, False),
    ],
)
def test_a_daemon_that_stops_is_not_taken_for_dead(
    state: MemberState, may_be_dead: bool
) -> None:
    """It has said so, and others do not adopt its host within the grace."""
    client = Client(SystemClock())
    with port_that_refuses() as url:
        client.publish(beside(page=url, machine='m1', state=state))
        for _ in range(TRIES_COUNT if may_be_dead else 1):
            text = client.get('/').body.decode()
            if 'if it has died' in text:
                break
    assert ('if it has died' in text) is may_be_dead


def test_a_port_on_loopback_elsewhere_is_not_asked() -> None:
    """Its address is that of another program here."""
    client = Client(SystemClock())
    with port_that_answers(b'', paths=frozenset()) as url:
        client.publish(beside(page=url, machine='m2'))
        assert _ports_that_answer(client) == [True, None]


def beside(**changes: Any) -> Any:
    """Return the status of an agent beside another one with these changes."""
    peer = dataclasses.replace(PEER, **changes)
    heartbeat = dataclasses.replace(WELL.heartbeat, view=View((WELL.me, peer)))
    return dataclasses.replace(WELL, heartbeat=heartbeat)


def test_moves_and_findings_are_json() -> None:
    """A move has its time for people, too; a finding has its cure."""
    client = Client(moves=[move(number) for number in range(60)])
    client.publish(STATUS)
    rows = json.loads(client.get('/api/v1/moves').body)
    assert [parse_move(row) for row in rows] == [
        move(number) for number in range(59, 9, -1)
    ]
    assert rows[0]['at'] == '1970-01-01T00:00:59Z'
    found = json.loads(client.get('/api/v1/findings').body)
    unserved = [each for each in found if each['check'] == 'host-not-served']
    assert [each['host'] for each in unserved] == ['c2', 'c3']
    assert 'host list' in unserved[0]['cure']
    assert unserved[0]['alert'] == 'IronicComputeHostUnserved'
    assert not unserved[0]['is_note']


def test_metrics_of_agent_and_workers_are_one_text() -> None:
    """A worker that has ended is shown as not read."""
    client = Client(SystemClock())
    channel, end = worker_metrics.make_channel()
    gone, its_end = worker_metrics.make_channel()
    its_end.close()
    text = b'# HELP w of it\n# TYPE w gauge\nw{host="c1"} 7\n'
    worker_metrics.answer_requests(end.detach(), lambda: text, client.clock)
    client.publish(STATUS, **{C1: channel, C3: gone})
    with client.backend.time('heartbeat'):
        pass
    answer = client.get('/metrics')
    assert answer.headers['Content-Type'].startswith('text/plain; version=0')
    read = 'ironic_compute_agent_worker_metrics_read'
    assert f'{read}{{host="c1"}} 1.0' in answer.lines
    assert f'{read}{{host="c3"}} 0.0' in answer.lines
    assert 'w{host="c1"} 7' in answer.lines
    heartbeat = 'backend_request_seconds_count{request="heartbeat"} 1.0'
    assert f'ironic_compute_agent_{heartbeat}' in answer.lines


@pytest.mark.parametrize('path', PATHS)
def test_no_secret_is_shown(client: Client, path: str) -> None:
    """The status has an error with a URL and its password."""
    client.publish(STATUS)
    answer = client.get(path)
    assert SECRET.encode() not in answer.body
    assert SECRET not in str(answer.headers)


def test_a_bug_is_logged_and_shows_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client gets status 500 and no traceback."""
    client = Client()
    client.publish(None)
    with caplog.at_level(logging.ERROR):
        answer = client.get('/healthz')
    assert (answer.status, answer.lines) == (500, ['See the log.'])
    assert 'No answer for /healthz' in caplog.text
