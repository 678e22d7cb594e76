# SPDX-License-Identifier: Apache-2.0
"""The ``paths`` scenario: a service is cut from one host, or from all.

One host: another daemon must serve it soon, and hand it back later. All
hosts: none may move, because nobody could serve it better. A flapping path:
few moves. Users boot, reboot and delete servers meanwhile.
"""

import contextlib
import dataclasses
import json
import math
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence

from keystoneauth1.exceptions import ClientException
from openstack.exceptions import SDKException

from onemachine.chaos import cells, tls
from onemachine.chaos.cells import Cell, Part, Service
from onemachine.chaos.load import End, Load, Request
from onemachine.chaos.proxies import Proxies
from onemachine.chaos.report import Report
from onemachine.chaos.scenarios import HOSTS
from onemachine.chaos.serving import ServingHistory, recorded
from onemachine.chaos.stage import Stage
from onemachine.chaos.watch import Pings
from onemachine.computes import Computes
from onemachine.progress import CloudError, print_line, step

SERVED_MAX_S = 45.0
REQUEST_MAX_S = 60.0
FLAPPING_MOVES_MAX = 3
# It is quiet if all hosts are at home, and nothing has changed for a while.
# A daemon takes its host back when the path has worked for a minute.
_QUIET_S = 30.0
_QUIET_MAX_S = 180.0
_ERRORS = (CloudError, SDKException, ClientException)
# nova-api logs this when it deletes a server without its host.
_LOCAL_DELETE = 'is down, deleting from database'


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What was seen of one cell.

    :param served_s: seconds from the cut until a daemon of another host
        served the host; infinite: none did
    :param asked: the requests of users during the cut
    :param down: how often Nova was seen to show a Service as down
    :param errors: the servers in ERROR at the end
    :param moves: host -> the daemons that it moved to, in turn
    """

    cell: Cell
    served_s: float
    asked: Sequence[Request]
    down: int
    local_deletes: int
    errors: Sequence[str]
    moves: Mapping[str, Sequence[str]]

    def slow(self) -> list[Request]:
        """Return the requests that were not done in time, or not at all."""
        return [
            r
            for r in self.asked
            if r.end is not End.DONE or r.took_s > REQUEST_MAX_S
        ]

    def row(self) -> tuple[str, ...]:
        """Return the line of the table."""
        slowest_s = max((r.took_s for r in self.asked), default=0.0)
        never = '-' if self.cell.part is not Part.ONE else 'never'
        served = (
            never if math.isinf(self.served_s) else f'{self.served_s:.0f} s'
        )
        return (
            served,
            f'{slowest_s:.0f} s',
            f'{len(self.slow())} of {len(self.asked)}',
            str(self.down),
            str(self.local_deletes),
            str(len(self.errors)),
            '; '.join(f'{h}: {" ".join(m)}' for h, m in self.moves.items())
            or '0',
        )


_COLUMNS = (
    'Cell',
    'Served by a peer',
    'Slowest request',
    'Not done in 60 s',
    'Shown down',
    'Local deletes',
    'ERROR',
    'Moves',
)


def paths(stage: Stage) -> None:
    """A service is cut from one host, from all hosts, again and again."""
    stage.report.scenario = 'paths'
    chosen = cells.choose_cells(
        stage.plan.paths, HOSTS, stage.rng, stock=stage.plan.stock
    )
    if not chosen:
        raise CloudError(
            'no cell is chosen: nova-conductor can be cut from all hosts '
            'only, and stock nova-compute has no coordination backend'
        )
    rows = _Rows(stage)
    try:
        with _through_proxies(stage) as proxies:
            for number, cell in enumerate(chosen):
                print_line(f'Cell {number + 1} of {len(chosen)}: {cell}')
                _run_cell(stage, proxies, cell, rows)
    finally:
        rows.report()


def _run_cell(
    stage: Stage, proxies: Proxies, cell: Cell, rows: '_Rows'
) -> None:
    """Try a cell; an error breaks off this cell only."""
    try:
        rows.add(_try_cell(stage, proxies, cell))
    except _ERRORS as exc:
        stage.report.demand(False, 'broken off', exc)
        with contextlib.suppress(*_ERRORS):
            stage.clear()
    _restart(stage)


@contextlib.contextmanager
def _through_proxies(stage: Stage) -> Iterator[Proxies]:
    """Have the hosts reach all services through TCP proxies."""
    has_tls = stage.plan.paths.tls
    if has_tls:
        tls.install()
    proxies = Proxies(stage.cloud, HOSTS, stage.plan.seed, tls=has_tls)
    direct = stage.computes
    _stop_hosts(stage)
    proxies.start()
    stage.computes = Computes(stage.cloud, rewrite=proxies.config.rewrite)
    try:
        stage.start(HOSTS)
        yield proxies
    finally:
        stage.computes = direct
        _stop_hosts(stage)
        proxies.stop()
        stage.start(HOSTS)


def _stop_hosts(stage: Stage) -> None:
    if hosts := stage.running.hosts():
        stage.running.stop(hosts)


def _restart(stage: Stage) -> None:
    """Restart all hosts, so that no cell depends on the one before.

    A daemon whose path has failed before waits longer until it comes back.
    """
    _stop_hosts(stage)
    stage.start(HOSTS)


def _try_cell(stage: Stage, proxies: Proxies, cell: Cell) -> Result:
    """Cut a path under load, report what must hold, and return it all."""
    may_be_down = cell.part is not Part.ONE
    log = stage.cloud.layout.log('api-nova')
    log_size = _size(log)
    with (
        stage.act(f'paths: {cell}', HOSTS, may_be_down=may_be_down) as pings,
        recorded(stage.running.serving) as history,
    ):
        with stage.under_load(interval_s=1.0) as load:
            cut_s = time.time()
            _cut(stage, proxies, cell)
            healed_s = time.time()
            _await_quiet(history, healed_s)
        served_s = _served_after_s(pings, history, cell, cut_s)
    result = Result(
        cell,
        served_s,
        _asked_between(load, cut_s, healed_s),
        sum(stage.shown_down.values()),
        _local_deletes(log, log_size),
        _errors(stage),
        {h: moves for h in HOSTS if (moves := history.moves(h))},
    )
    _judge(stage.report, result, healed_s)
    stage.report_requests(load)
    return result


def _cut(stage: Stage, proxies: Proxies, cell: Cell) -> None:
    """Cut a path, and report the counts of its proxies before and after."""
    before = proxies.counts(cell.hosts, cell.service)
    with step(f'{cell}, for {cell.cut_s:.0f} s'):
        ends_s = time.monotonic() + cell.cut_s
        while time.monotonic() < ends_s:
            flaps = cell.part is Part.FLAPPING
            with proxies.cut(cell.hosts, cell.service, cell.way):
                time.sleep(cells.FLAP_CUT_S if flaps else cell.cut_s)
            time.sleep(cells.FLAP_WORKS_S if flaps else 0.0)
    after = proxies.counts(cell.hosts, cell.service)
    stage.report.figure('proxies before the cut', before)
    stage.report.figure('proxies after it', after)


def _await_quiet(history: ServingHistory, healed_s: float) -> None:
    """Wait until all hosts are at home, or for three minutes.

    The demands show whether they are.
    """
    with step('Waiting until all hosts are at home'):
        while time.time() < healed_s + _QUIET_MAX_S:
            still_s = time.time() - max(healed_s, history.changed_s)
            if history.all_home(HOSTS) and still_s >= _QUIET_S:
                return
            time.sleep(1.0)


def _served_after_s(
    pings: Pings, history: ServingHistory, cell: Cell, cut_s: float
) -> float:
    """Return the seconds until a peer answered in the place of the host."""
    if cell.part is not Part.ONE:
        return math.inf
    (host,) = cell.hosts
    moved_s = history.by_other_s(host, cut_s)
    if moved_s is None:
        return math.inf
    answered_s = pings.first_answer_s(host, moved_s)
    return math.inf if answered_s is None else answered_s - cut_s


def _asked_between(load: Load, from_s: float, to_s: float) -> list[Request]:
    return [r for r in load.requests if from_s <= r.asked_s <= to_s]


def _size(path: pathlib.Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _local_deletes(log: pathlib.Path, begin: int) -> int:
    """Return how many servers nova-api has deleted without their host."""
    with log.open('rb') as file:
        file.seek(begin)
        return file.read().count(_LOCAL_DELETE.encode())


def _errors(stage: Stage) -> list[str]:
    return [s.id for s in stage.content.servers() if s.status == 'ERROR']


def _judge(report: Report, result: Result, healed_s: float) -> None:
    """Add the demands of a cell to the report."""
    judge = {
        Part.ONE: _judge_one,
        Part.ALL: _judge_all,
        Part.FLAPPING: _judge_flapping,
    }[result.cell.part]
    count = len(result.asked)
    report.demand(count > 0, 'requests of users during the cut', count)
    judge(report, result, healed_s)
    report.none('servers in ERROR', result.errors)


def _judge_one(report: Report, result: Result, healed_s: float) -> None:
    if not (result.cell.service is Service.KEYSTONE and not result.moves):
        _judge_hand_over(report, result)
    report.none(
        f'of {len(result.asked)} requests meanwhile, not done within '
        f'{REQUEST_MAX_S:.0f} s',
        [_describe(r) for r in result.slow()],
    )
    report.demand(
        result.local_deletes == 0, 'local deletes', result.local_deletes
    )


def _judge_hand_over(report: Report, result: Result) -> None:
    """Add the demands on moves.

    A daemon without Keystone need not move: its token is valid for an hour, so
    that most cuts fail no request.
    """
    (host,) = result.cell.hosts
    served, *_ = result.row()
    report.demand(
        result.served_s <= SERVED_MAX_S,
        f'served by a peer (at most {SERVED_MAX_S:.0f} s)',
        served,
    )
    moves = result.moves.get(host, ())
    report.demand(
        len(moves) == 2 and moves[-1] == host,
        'one hand-over and one return',
        f'{host}: {" ".join(moves) or "never moved"}',
    )
    report.none('moves of other hosts', [h for h in result.moves if h != host])


def _judge_all(report: Report, result: Result, healed_s: float) -> None:
    report.none('moves', _shown_moves(result))
    report.none(
        f'of {len(result.asked)} requests meanwhile, not done in the end',
        [_describe(r) for r in result.asked if r.end is not End.DONE],
    )
    last_s = max((r.ended_s for r in result.asked), default=healed_s)
    report.figure(
        'the last of them was done after the end',
        f'{max(0.0, last_s - healed_s):.0f} s',
    )
    report.figure('local deletes', result.local_deletes)


def _judge_flapping(report: Report, result: Result, healed_s: float) -> None:
    count = sum(len(moves) for moves in result.moves.values())
    report.demand(
        count <= FLAPPING_MOVES_MAX,
        f'moves of a flapping path (at most {FLAPPING_MOVES_MAX})',
        f'{count} {"; ".join(_shown_moves(result))}'.rstrip(),
    )
    report.figure('local deletes', result.local_deletes)


def _shown_moves(result: Result) -> list[str]:
    return [f'{h}: {" ".join(m)}' for h, m in result.moves.items()]


def _describe(request: Request) -> str:
    return (
        f'{request.kind} of {request.server}: {request.end} after '
        f'{request.took_s:.0f} s {request.detail}'
    ).rstrip()


class _Rows:
    """The table of cells, beside that of the other daemons' last run."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._rows: list[Sequence[str]] = []

    def add(self, result: Result) -> None:
        """Add a cell, and save all for runs with the other daemons."""
        self._rows.append((str(result.cell), *result.row()))
        path = self._path(stock=self._stage.plan.stock)
        path.write_text(json.dumps(self._rows))

    def report(self) -> None:
        """Add both tables to the report."""
        stock = self._stage.plan.stock
        self._add_table(stock, self._rows)
        with contextlib.suppress(OSError, ValueError):
            others = json.loads(self._path(stock=not stock).read_text())
            self._add_table(not stock, others)

    def _path(self, *, stock: bool) -> pathlib.Path:
        name = 'stock' if stock else 'ours'
        return self._stage.folder / f'paths-{name}.json'

    def _add_table(self, stock: bool, rows: Sequence[Sequence[str]]) -> None:
        daemons = 'stock nova-compute' if stock else 'ironic-compute'
        heading = f'Paths: {daemons}'
        self._stage.report.add_table(heading, _COLUMNS, rows)
