# SPDX-License-Identifier: Apache-2.0
"""The pages of the agent's port: a WSGI application that only reads.

It answers from the newest status that the main loop has handed over, and
never asks the main loop for anything.
"""

import dataclasses
import functools
import http
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from oslo_log import log as logging

from hashring.agent_status import AgentStatus
from hashring.clock import Clock
from hashring.group import Boot, Member, MemberState
from hashring.ring import Host
from hashring.workers import NO_HOST
from ironic_compute.agent_port import (
    agent_metrics,
    figures,
    page,
    peers,
    problems,
    state,
    worker_metrics,
)
from ironic_compute.journal.moves import Move, Query

LOG = logging.getLogger(__name__)

METRICS_TYPE = 'text/plain; version=0.0.4; charset=utf-8'
_TEXT, _JSON = 'text/plain; charset=utf-8', 'application/json'
_HTML = 'text/html; charset=utf-8'
_ASSETS = {
    'page.css': 'text/css; charset=utf-8',
    'page.js': 'text/javascript; charset=utf-8',
}
_METHODS = ('GET', 'HEAD')
_NEWEST = Query(limit=peers.MOVES_COUNT)
# Seconds to wait for the metrics of all workers together. Prometheus gives up
# after 10 s.
WORKERS_MAX_S = 2.0
# The same for the status page, for which a person waits. A worker takes 5 ms.
FIGURES_MAX_S = 0.5
# The same for another thread that reads the journals; it takes milliseconds.
MOVES_MAX_S = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """What the main loop hands over after each turn."""

    status: AgentStatus
    channels: Mapping[Host, worker_metrics.MetricsChannel]
    """The workers that serve, each with the way to its metrics."""


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer."""

    status: http.HTTPStatus
    body: bytes
    content_type: str = _TEXT
    allow: str = ''


class Application:
    """Answers requests; any thread may call it.

    :param backend: the metrics of requests to the coordination backend
    :param read_moves: reads the journals of this machine
    """

    def __init__(
        self,
        clock: Clock,
        backend: agent_metrics.BackendMetrics,
        read_moves: Callable[[Query], list[Move]] = lambda query: [],
    ) -> None:
        self._clock = clock
        self._backend = backend
        self._read_moves = read_moves
        self._snapshot: Snapshot | None = None
        page.load(_ASSETS)
        self._peers = peers.PeerReader(clock)
        # One thread at a time computes, so that the main loop, which needs
        # the interpreter too, waits for one thread and not for all.
        self._computing = threading.Lock()
        # One thread at a time reads the journals: a disk that hangs costs the
        # port one thread, and the others answer.
        self._reading = threading.Lock()
        self._pages: Mapping[str, Callable[[Snapshot], Answer]] = {
            '/': self._page,
            peers.HEALTH_PATH: self._health,
            '/readyz': self._readiness,
            '/metrics': self._metrics,
            '/api/v1/agent': self._json(state.describe_agent),
            '/api/v1/findings': self._findings,
            '/api/v1/hosts': self._json(state.describe_hosts),
            peers.MOVES_PATH: self._moves,
            peers.PATH: self._nodes,
            '/api/v1/ring': self._ring,
        }
        self._queries = {peers.RING_WITHOUT_PORTS: self._ring_without_ports}
        self._assets = {
            f'/{name}': functools.partial(_asset, name) for name in _ASSETS
        }

    def publish(self, snapshot: Snapshot) -> None:
        """Replace the snapshot; the main loop calls it, and it never waits."""
        self._snapshot = snapshot

    def newest_status(self) -> AgentStatus | None:
        """Return the newest status; None before the first turn."""
        snapshot = self._snapshot
        return None if snapshot is None else snapshot.status

    def __call__(
        self, environ: Mapping[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer one request; see PEP 3333."""
        method = environ['REQUEST_METHOD']
        path, query = environ['PATH_INFO'], environ.get('QUERY_STRING', '')
        answer = self._answer(method, path, f'{path}?{query}')
        headers = [
            ('Content-Type', answer.content_type),
            ('Content-Length', str(len(answer.body))),
            ('Cache-Control', 'no-store'),
            ('X-Content-Type-Options', 'nosniff'),
            ('Content-Security-Policy', page.POLICY),
            ('Referrer-Policy', 'no-referrer'),
        ]
        if answer.allow:
            headers.append(('Allow', answer.allow))
        status = answer.status
        start_response(f'{status.value} {status.phrase}', headers)
        return [b'' if method == 'HEAD' else answer.body]

    def _answer(self, method: str, path: str, target: str) -> Answer:
        if method not in _METHODS:
            return Answer(
                http.HTTPStatus.METHOD_NOT_ALLOWED,
                b'This port only shows; use GET or HEAD.\n',
                allow=', '.join(_METHODS),
            )
        if path not in self._pages and path not in self._assets:
            return _text(http.HTTPStatus.NOT_FOUND, 'Paths:', *self._pages)
        try:
            return self._answer_get(path, target)
        except Exception:
            LOG.exception('No answer for %(path)s', {'path': path})
            return _text(http.HTTPStatus.INTERNAL_SERVER_ERROR, 'See the log.')

    def _answer_get(self, path: str, target: str) -> Answer:
        if path in self._assets:
            return self._assets[path]()
        snapshot = self._snapshot
        if snapshot is None:
            return _text(
                http.HTTPStatus.SERVICE_UNAVAILABLE,
                'The main loop has not turned yet.',
            )
        answer = self._queries.get(target) or self._pages[path]
        return answer(snapshot)

    # ---- the pages

    def _page(self, snapshot: Snapshot) -> Answer:
        status = snapshot.status
        answers = self._peers.read(_reachable_peers(status))
        # What a worker here says is newer than what its former agent says.
        known = {**answers.figures, **self._figures(snapshot)}
        moves = _NEWEST.newest([*self._moves_here(), *answers.moves])
        with self._computing:
            silent = answers.silent & _homes_that_are_up(status)
            html = page.render(
                status, known, self._clock.now_s(), moves, silent
            )
        # A name in UTF-8 may have been cut in the middle.
        return Answer(http.HTTPStatus.OK, html.encode(errors='replace'), _HTML)

    def _nodes(self, snapshot: Snapshot) -> Answer:
        known = self._figures(snapshot)
        return _json(
            [
                {'host': host, **each.as_json()}
                for host, each in sorted(known.items())
            ]
        )

    def _moves(self, snapshot: Snapshot) -> Answer:
        moves = self._moves_here()
        with self._computing:
            return _json(state.describe_moves(moves))

    def _moves_here(self) -> list[Move]:
        """Return the newest moves of this machine; none if the disk hangs."""
        if not self._reading.acquire(timeout=MOVES_MAX_S):
            return []
        try:
            return self._read_moves(_NEWEST)
        finally:
            self._reading.release()

    def _ring(self, snapshot: Snapshot) -> Answer:
        asked = _reachable_peers(snapshot.status)
        return self._describe_ring(snapshot, self._peers.find_answering(asked))

    def _ring_without_ports(self, snapshot: Snapshot) -> Answer:
        return self._describe_ring(snapshot, {})

    def _describe_ring(
        self, snapshot: Snapshot, answering: Mapping[Boot, bool]
    ) -> Answer:
        with self._computing:
            now_s = self._clock.now_s()
            return _json(
                state.describe_ring(snapshot.status, now_s, answering)
            )

    def _findings(self, snapshot: Snapshot) -> Answer:
        known = self._figures(snapshot)
        with self._computing:
            found = problems.find_problems(
                snapshot.status, known, self._clock.now_s()
            )
            return _json([each.as_json() for each in found])

    def _figures(self, snapshot: Snapshot) -> dict[Host, figures.HostFigures]:
        """Return the figures of the hosts here whose worker has answered."""
        texts = worker_metrics.read_all(
            snapshot.channels, self._clock, FIGURES_MAX_S
        )
        with self._computing:
            return {
                host: figures.parse(text)
                for host, text in texts.items()
                if host != NO_HOST
            }

    def _health(self, snapshot: Snapshot) -> Answer:
        now_s, status = self._clock.now_s(), snapshot.status
        sentence = (
            f'The main loop turned {now_s - status.turned_at_s:.1f} s ago.'
        )
        return _text(_ok_if(status.turns(now_s)), sentence)

    def _readiness(self, snapshot: Snapshot) -> Answer:
        now_s, status = self._clock.now_s(), snapshot.status
        problems = [
            f'{host}: {why}.'
            for host, why in sorted(status.unserved_here(now_s).items())
        ]
        if not status.turns(now_s):
            problems.insert(0, 'The main loop does not turn.')
        if not status.has_lease(now_s):
            problems.insert(0, 'The lease is not in force.')
        lines = problems or ['Ready.']
        return _text(_ok_if(status.is_ready(now_s)), *lines)

    def _metrics(self, snapshot: Snapshot) -> Answer:
        channels = snapshot.channels
        texts = worker_metrics.read_all(channels, self._clock, WORKERS_MAX_S)
        answered = {host: host in texts for host in channels}
        with self._computing:
            ours = agent_metrics.describe(
                snapshot.status, answered, self._clock.now_s()
            )
            workers = [text for _, text in sorted(texts.items())]
            whole = worker_metrics.merge(
                [ours, self._backend.text(), *workers]
            )
            body = whole.encode()
        return Answer(http.HTTPStatus.OK, body, METRICS_TYPE)

    def _json(
        self, describe: Callable[[AgentStatus, float], Any]
    ) -> Callable[[Snapshot], Answer]:
        def answer(snapshot: Snapshot) -> Answer:
            with self._computing:
                return _json(describe(snapshot.status, self._clock.now_s()))

        return answer


def _reachable_peers(status: AgentStatus) -> list[Member]:
    """Return the other members whose port this machine can reach."""
    me = status.me
    return [
        each
        for each in status.members()
        if each.boot != me.boot and peers.is_reachable(each, me.machine)
    ]


def _homes_that_are_up(status: AgentStatus) -> frozenset[Host]:
    """Return the home hosts of the members that have not said to stop."""
    return frozenset(
        each.home for each in status.members() if each.state is MemberState.UP
    )


def _ok_if(is_well: bool) -> http.HTTPStatus:
    return (
        http.HTTPStatus.OK if is_well else http.HTTPStatus.SERVICE_UNAVAILABLE
    )


def _json(value: Any) -> Answer:
    body = json.dumps(value, indent=2).encode() + b'\n'
    return Answer(http.HTTPStatus.OK, body, _JSON)


def _asset(name: str) -> Answer:
    return Answer(http.HTTPStatus.OK, page.asset(name), _ASSETS[name])


def _text(status: http.HTTPStatus, *lines: str) -> Answer:
    return Answer(status, ''.join(f'{line}\n' for line in lines).encode())
