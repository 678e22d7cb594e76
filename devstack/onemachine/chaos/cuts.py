# SPDX-License-Identifier: Apache-2.0
"""The ``cuts`` scenario: a worker is killed at every point of a build.

For each request that a build sends (to Nova's conductor, Neutron, Placement
and Ironic), one server is booted whose worker is killed before the request
leaves, and one whose worker is killed when the answer has come. Each server
must become ACTIVE. The table says what the next worker found.
"""

import concurrent.futures
import contextlib
import dataclasses
import json
import pathlib
import threading
import time
from typing import Any

from onemachine import content
from onemachine.chaos.scenarios import HOSTS
from onemachine.chaos.stage import Stage
from onemachine.computes import Computes
from onemachine.layout import Layout
from onemachine.progress import CloudError, print_line, wait_until

_HOOKS = pathlib.Path(__file__).with_name('killpoints')
_SIDES = ('before', 'after')
_ACTIVE_MAX_S = 180.0
# A build may send fewer requests than another one; so many builds in a row
# that ended before their point mean that there are no more points.
_ENDED_FIRST_MAX = 4


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Point:
    """A point of a build: before or after its n-th request."""

    number: int
    side: str

    def __str__(self) -> str:
        return f'{self.side} request {self.number}'


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a build whose worker was killed.

    :param request: the request at which the worker was killed
    :param found: the state that the next worker found
    :param end: the status of the server in the end
    :param took_s: seconds from the kill to that status
    """

    point: Point
    request: str
    found: str
    end: str
    took_s: float

    def __str__(self) -> str:
        return f'{self.point.side} {self.request}: {self.end}'


def cuts(stage: Stage) -> None:
    """A worker is killed at every point of a build."""
    with stage.act('cuts', HOSTS):
        with _counted_agents(stage):
            outcomes = sorted(_Builds(stage).run(), key=lambda o: o.point)
        rows = [
            (o.point.side, o.request, o.found, o.end, f'{o.took_s:.0f} s')
            for o in outcomes
        ]
        columns = ('Killed', 'Request', 'The next worker finds', 'End', '')
        print('\n' + content.table(columns, rows) + '\n')
        stage.report.figure('builds cut', len(outcomes))
        slowest = max((o.took_s for o in outcomes), default=0.0)
        stage.report.figure('slowest after its kill', f'{slowest:.0f} s')
        stage.report.demand(bool(outcomes), 'points found', len(outcomes))
        stage.report.none(
            'builds not ACTIVE', [o for o in outcomes if o.end != 'ACTIVE']
        )
    stage.clear()


@contextlib.contextmanager
def _counted_agents(stage: Stage) -> Any:
    """Have the agents run with the hooks that kill their workers."""
    layout = stage.cloud.layout
    services = {str(layout.port(name)): name for name in layout.apis}
    environments = {
        host: {
            'PYTHONPATH': str(_HOOKS),
            'CHAOS_CUT': str(_order(layout, host)),
            'CHAOS_CUT_SERVICES': json.dumps(services),
        }
        for host in HOSTS
    }
    stage.running.stop(HOSTS)
    Computes(stage.cloud, environments=environments).start_agents(HOSTS)
    try:
        yield
    finally:
        stage.running.stop(HOSTS)
        stage.start(HOSTS)


def _order(layout: Layout, host: str) -> pathlib.Path:
    """Return the file that says at which request a host's worker ends."""
    return layout.folder('chaos', 'cuts') / f'{host}.order'


class _Builds:
    """Builds on all hosts at once, each with its own point."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._content, self._evidence = stage.content, stage.evidence
        self._layout = stage.cloud.layout
        self._lock = threading.Lock()
        self._next_number = 0
        self._ended_first_count = 0

    def run(self) -> list[Outcome]:
        """Cut builds until one ends before its point comes."""
        with concurrent.futures.ThreadPoolExecutor(len(HOSTS)) as pool:
            found = list(pool.map(self._run_host, HOSTS))
        return [outcome for outcomes in found for outcome in outcomes]

    def _run_host(self, host: str) -> list[Outcome]:
        outcomes: list[Outcome] = []
        while (point := self._next_point()) is not None:
            outcome = self._cut(host, point)
            if outcome is None:
                self._ended_first_count += 1
                print_line(f'{host}: a build has ended before {point}')
            else:
                self._ended_first_count = 0
                print_line(f'{host}: {outcome} after {outcome.took_s:.0f} s')
                outcomes.append(outcome)
        return outcomes

    def _next_point(self) -> Point | None:
        with self._lock:
            if self._ended_first_count >= _ENDED_FIRST_MAX:
                return None
            number, side = divmod(self._next_number, len(_SIDES))
            self._next_number += 1
        return Point(number + 1, _SIDES[side])

    def _cut(self, host: str, point: Point) -> Outcome | None:
        """Cut one build; None if it had ended before its point came."""
        order = _order(self._layout, host)
        fired = order.with_suffix('.fired')
        fired.unlink(missing_ok=True)
        name = f'cut-{point.number}-{point.side}-{int(time.time())}'
        given = {**dataclasses.asdict(point), 'build': name}
        order.write_text(json.dumps(given))
        (server,) = self._content.create_servers([name], host)
        try:
            wait_until(
                f'{server.id} cut or built',
                lambda: fired.exists() or self._has_ended(server.id, fired),
                _ACTIVE_MAX_S,
                0.0,
            )
        finally:
            order.unlink(missing_ok=True)
        if not fired.exists():
            self._content.delete_server(server)
            return None
        killed_s, found = time.monotonic(), self._evidence.traces(server.id)
        end = self._await_end(server.id)
        self._content.delete_server(server)
        request = fired.read_text()
        took_s = time.monotonic() - killed_s
        return Outcome(point, request, found, end, took_s)

    def _has_ended(self, server_id: str, fired: pathlib.Path) -> bool:
        """Wait two seconds for the kill; then read the server's status.

        The next worker is quick, so the kill must be noticed at once.
        """
        ends_s = time.monotonic() + 2.0
        while time.monotonic() < ends_s:
            if fired.exists():
                return True
            time.sleep(0.02)
        return self._end(server_id) is not None

    def _await_end(self, server_id: str) -> str:
        what = f'{server_id} ACTIVE or ERROR'
        try:
            return str(
                wait_until(what, lambda: self._end(server_id), _ACTIVE_MAX_S)
            )
        except CloudError:
            return 'no end'

    def _end(self, server_id: str) -> str | None:
        server = self._content.server(server_id)
        is_over = (
            server.status in ('ACTIVE', 'ERROR') and not server.task_state
        )
        return server.status if is_over else None
