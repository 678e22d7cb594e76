# SPDX-License-Identifier: Apache-2.0
"""Figures of other agents' hosts, read from real ports."""

import contextlib
import dataclasses
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from hashring.clock import SystemClock
from hashring.group import Boot, Member
from hashring.ring import Host
from ironic_compute.agent_port.figures import HostFigures
from ironic_compute.agent_port.peers import (
    HEALTH_PATH,
    MOVES_PATH,
    PATH,
    PeerAnswer,
    PeerAnswers,
    PeerReader,
    answers,
    is_reachable,
    parse_answer,
    parse_moves,
    published_url,
    read_peer,
    split_url,
)
from ironic_compute.agent_port.server import BoundedServer
from tests.unit.ironic_compute.journal.made_up import move

C2, C3 = Host('c2'), Host('c3')
FIGURES = HostFigures(
    nodes=9,
    servers=4,
    moving={C3: 2},
    dirty=1,
    oldest_dirty_s=2.5,
    findings={'node-without-class': 2},
)
ROW = {'host': 'c2', **FIGURES.as_json()}
# A busy machine may need more than the part of a second of one try.
TRIES_COUNT = 60
ANSWER_MAX_S = 30.0


@pytest.mark.parametrize(
    ('address', 'url'),
    [
        ('192.0.2.1', 'http://192.0.2.1:9178/'),
        ('2001:db8::1', 'http://[2001:db8::1]:9178/'),
        ('c1.example', 'http://c1.example:9178/'),
        ('0.0.0.0', 'http://m1:9178/'),
        ('::', 'http://m1:9178/'),
        ('127.0.0.1', 'http://127.0.0.1:9178/'),
        ('::1', 'http://[::1]:9178/'),
        ('localhost', 'http://localhost:9178/'),
    ],
)
def test_the_url_is_one_that_others_can_read(address: str, url: str) -> None:
    """It names the address, or the machine if the port is on all of them."""
    assert published_url(address, 9178, 'm1') == url
    assert split_url(url) is not None


@pytest.mark.parametrize(
    ('address', 'is_for_all'),
    [
        *(('192.0.2.1', True), ('c1.example', True), ('0.0.0.0', True)),
        *(('127.0.0.1', False), ('127.1.2.3', False), ('::1', False)),
        ('localhost', False),
    ],
)
def test_a_port_on_loopback_is_read_on_its_own_machine(
    address: str, is_for_all: bool
) -> None:
    """Elsewhere the address is that of another program."""
    member = dataclasses.replace(
        _member(published_url(address, 9178, 'm1')), machine='m1'
    )
    assert is_reachable(member, 'm1')
    assert is_reachable(member, 'm2') == is_for_all


@pytest.mark.parametrize(
    'url',
    [
        *('', 'c1', 'http://c1', 'https://c1:1/', 'file:///etc/passwd'),
        *('javascript:alert(1)', 'http://[::1:80/', 'http://c1:99999/'),
    ],
)
def test_what_is_no_url_of_a_port_is_not_read(url: str) -> None:
    """The page makes no link of it, either."""
    assert split_url(url) is None
    assert not is_reachable(_member(url), '')
    assert read_peer(_member(url)).figures == {}


def _member(url: str, *serving: Host) -> Member:
    return Member(C2, Boot('b2'), page=url, serving=serving or (C2,))


@contextlib.contextmanager
def port_that_answers(
    text: bytes,
    status: str = '200 OK',
    paths: frozenset[str] = frozenset({HEALTH_PATH, PATH, MOVES_PATH}),
) -> Iterator[str]:
    """Serve one answer; yield the URL.

    :param paths: those that may be asked for
    """
    asked = []

    def application(environ: Any, start_response: Any) -> list[bytes]:
        asked.append(environ['PATH_INFO'])
        start_response(status, [('Content-Length', str(len(text)))])
        return [text]

    with BoundedServer('127.0.0.1', 0, application, SystemClock()) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f'http://127.0.0.1:{server.server_address[1]}/'
        finally:
            server.shutdown()
            thread.join()
    assert set(asked) <= paths


@contextlib.contextmanager
def port_that_refuses() -> Iterator[str]:
    """Keep a port on which nobody listens; yield the URL."""
    with socket.socket() as kept:
        kept.bind(('127.0.0.1', 0))
        yield f'http://127.0.0.1:{kept.getsockname()[1]}/'


def _read(
    members: Sequence[Member], is_whole: Callable[[PeerAnswers], bool]
) -> PeerAnswers:
    """Read the ports, again if one was late."""
    found = PeerReader(SystemClock()).read(members)
    for _ in range(TRIES_COUNT):
        if is_whole(found):
            break
        found = PeerReader(SystemClock()).read(members)
    return found


def test_figures_of_all_agents_are_read() -> None:
    """They come as the other agent has sent them."""
    other = {**ROW, 'host': 'c3'}
    with (
        port_that_answers(json.dumps([ROW]).encode()) as first,
        port_that_answers(json.dumps([other]).encode()) as second,
    ):
        members = [_member(first), _member(second, C3)]
        found = _read(members, lambda found: len(found.figures) > 1)
    assert found.figures == {C2: FIGURES, C3: FIGURES}
    assert found.moves == []


def test_moves_of_all_agents_are_read() -> None:
    """No more of each than it shows; figures may be missing."""
    moves = [move(number) for number in range(60)]
    text = json.dumps([each.as_json() for each in moves]).encode()
    with port_that_answers(text) as url:
        found = _read([_member(url)], lambda found: bool(found.moves))
    assert found.moves == moves[:50]
    assert found.figures == {}


def test_an_agent_speaks_only_of_hosts_that_it_serves() -> None:
    """One that has lost a host may not have noticed."""
    text = json.dumps([ROW]).encode()
    assert parse_answer(text, [C3]) == {}
    assert parse_answer(text, [C2, C3]) == {C2: FIGURES}


@pytest.mark.parametrize(
    'text',
    [
        *(b'', b'[', b'{}', b'7', b'null', b'[7]', b'[{}]', b'\xff'),
        json.dumps([{**ROW, 'nodes': 'many'}]).encode(),
        json.dumps([{**ROW, 'nodes': None}]).encode(),
        json.dumps([{**ROW, 'moving': 3}]).encode(),
        b'[' * 100_000,
    ],
)
def test_a_malformed_answer_has_no_figures(text: bytes) -> None:
    """It may be another program on the same port."""
    assert parse_answer(text, [C2]) == {}
    assert parse_moves(text) == []


def test_an_error_has_no_figures() -> None:
    """An older release does not have the path."""
    with port_that_answers(json.dumps([ROW]).encode(), '404 Not Found') as url:
        assert read_peer(_member(url)) == PeerAnswer(C2, {}, [])


def test_many_that_do_not_answer_cost_less_than_a_second() -> None:
    """Those that answer are shown; the threads end by themselves."""
    with (
        socket.create_server(('127.0.0.1', 0), backlog=64) as silent,
        port_that_answers(json.dumps([ROW]).encode()) as url,
    ):
        port = silent.getsockname()[1]
        dead = dataclasses.replace(
            _member(f'http://127.0.0.1:{port}/', C3), boot=Boot('b3')
        )
        reader = PeerReader(SystemClock())
        begun_s = time.monotonic()
        found = reader.read([_member(url), *[dead] * 49])
        assert time.monotonic() - begun_s < 5.0
    assert found.figures == {C2: FIGURES}
    assert reader.read([dead]).figures == {}


@pytest.mark.parametrize('status', ['200 OK', '503 Unwell', '404 Missing'])
def test_any_answer_is_an_answer(status: str) -> None:
    """A daemon that says that it is not well has not died."""
    with port_that_answers(b'', status, frozenset({HEALTH_PATH})) as url:
        assert answers(_member(url), ANSWER_MAX_S)


def test_a_port_that_refuses_does_not_answer() -> None:
    """The process that had it has ended."""
    with port_that_refuses() as url:
        assert not answers(_member(url), ANSWER_MAX_S)


def test_ports_that_answer_are_told_from_those_that_do_not() -> None:
    """One refuses at once; nothing is asked of nodes and moves."""
    with (
        port_that_answers(b'', paths=frozenset({HEALTH_PATH})) as url,
        port_that_refuses() as closed,
    ):
        other = dataclasses.replace(_member(closed), boot=Boot('b3'))
        for _ in range(TRIES_COUNT):
            found = PeerReader(SystemClock()).find_answering(
                [_member(url), other]
            )
            if found.get(Boot('b2')) and Boot('b3') in found:
                break
    assert found == {Boot('b2'): True, Boot('b3'): False}


def test_an_agent_that_waits_for_its_worker_is_not_silent() -> None:
    """Its machine is busy, too, so that the figures come too late."""
    may_end = threading.Event()

    def application(environ: Any, start_response: Any) -> list[bytes]:
        if environ['PATH_INFO'] == PATH:
            may_end.wait(60.0)
        start_response('200 OK', [('Content-Length', '0')])
        return [b'']

    with BoundedServer('127.0.0.1', 0, application, SystemClock()) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        member = _member(f'http://127.0.0.1:{server.server_address[1]}/')
        found = [read_peer(member) for _ in range(2)]
        may_end.set()
        server.shutdown()
        thread.join()
    assert PeerAnswer(C2, {}, []) in found


def test_a_port_that_refuses_is_silent() -> None:
    """Its agent has died, although its lease is still in force."""
    with port_that_answers(b'[]') as url:
        member = _member(url)
        found = _read([member], lambda found: not found.silent)
        assert found.silent == frozenset()
    assert PeerReader(SystemClock()).read([member]).silent == {C2}
