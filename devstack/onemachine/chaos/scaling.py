# SPDX-License-Identifier: Apache-2.0
"""The scenario of an autoscaler: from two daemons to five, and back.

Daemons are added by their start and by ``discover_hosts``. Each ends by
itself, after ``host retire --wait``, as in a preStop hook.
"""

import concurrent.futures
import time
from collections.abc import Callable, Sequence

from onemachine import content, packages
from onemachine.chaos.growth import Moves
from onemachine.chaos.load import End, Load
from onemachine.chaos.stage import ALL_HOSTS, Stage
from onemachine.progress import print_line, step, wait_until

_STAY, _COME = ALL_HOSTS[:2], ALL_HOSTS[2:]
_ROUNDS_MAX = 2
# The manual wants this between the end of a retirement and a new start.
_PAUSE_S = 120.0
_SETTLED_S = 45.0
_SERVERS_COUNT = 12
# So many that no host's share is all in use by servers on other hosts.
_NODES_COUNT = 60


def scaling(stage: Stage) -> None:
    """Two daemons become five and two again, under load."""
    stage.report.scenario = 'scaling'
    stage.set_nodes(max(_NODES_COUNT, stage.plan.nodes_count))
    stage.await_offered(600)
    _retire_one_by_one(stage, [h for h in stage.running.hosts() if h in _COME])
    rounds = min(stage.plan.rounds, _ROUNDS_MAX)
    with (
        stage.act('scaling', _STAY),
        stage.under_load(population=_SERVERS_COUNT) as load,
    ):
        for number in range(rounds):
            if number:
                time.sleep(_PAUSE_S)
            print_line(f'Round {number + 1} of {rounds}')
            _grow(stage)
            retire = (_retire_at_once, _retire_one_by_one)[number % 2]
            _shrink(stage, load, retire)
    stage.report_requests(load)


def _grow(stage: Stage) -> None:
    begun_s = time.monotonic()
    stage.start(_COME)
    with step('Waiting until each has its share'):
        wait_until(
            'nodes on each',
            lambda: set(stage.evidence.shares()) >= set(ALL_HOSTS),
            300,
        )
        # The load moves nodes on and on: each that is freed goes to its share.
        time.sleep(_SETTLED_S)
    shares = dict(sorted(stage.evidence.shares().items()))
    took_s = time.monotonic() - begun_s
    stage.report.figure('two became five', f'{took_s:.0f} s: {shares}')


def _shrink(
    stage: Stage, load: Load, retire: Callable[[Stage, Sequence[str]], None]
) -> None:
    before = _servers(stage)
    looker = Moves(stage)
    begun_s = time.monotonic()
    with looker.seen():
        retire(stage, _COME)
    took_s = time.monotonic() - begun_s
    after = _servers(stage)
    moved = [s for s in before if s in after and before[s][1] != after[s][1]]
    stage.report.figure(
        f'five became two{retire.__name__.replace("_", " ")}',
        f'{took_s:.0f} s, {len(looker.moves)} nodes moved, '
        f'{len(moved)} of them with a server',
    )
    _check(stage, load, before, after)
    stage.report.none('nodes without a holder', sorted(looker.homeless))
    twice = [node for node, to in looker.moves.items() if len(to) > 1]
    stage.report.figure('nodes moved more than once', len(twice))


def _check(
    stage: Stage,
    load: Load,
    before: dict[str, tuple[str, ...]],
    after: dict[str, tuple[str, ...]],
) -> None:
    """Check that servers are where they were, and on no retired host."""
    stage.report.none(
        'servers whose node or allocation changed',
        [s for s in before if s in after and before[s][0] != after[s][0]],
    )
    stage.report.none(
        'servers on a retired host',
        [s for s, where in after.items() if where[1] in _COME],
    )
    stage.report.none(
        'servers in ERROR', [s for s, w in after.items() if w[2] == 'ERROR']
    )
    stage.report.none(
        'failed requests',
        [str(r.server) for r in load.ended(End.ERROR, End.REFUSED)],
    )


def _servers(stage: Stage) -> dict[str, tuple[str, ...]]:
    """Return node with allocation, host and status of each built server."""
    nodes = {
        consumer: node
        for node, consumer in stage.evidence.snapshot().consumers.items()
    }
    return {
        s.id: (
            f'{s.hypervisor_hostname} {nodes.get(s.id)}',
            s.compute_host,
            s.status,
        )
        for s in stage.content.servers()
        if s.status in ('ACTIVE', 'ERROR')
    }


def _retire_at_once(stage: Stage, hosts: Sequence[str]) -> None:
    with concurrent.futures.ThreadPoolExecutor(len(hosts)) as pool:
        for _ in pool.map(lambda host: _retire(stage, host), hosts):
            pass


def _retire_one_by_one(stage: Stage, hosts: Sequence[str]) -> None:
    for host in hosts:
        _retire(stage, host)


def _retire(stage: Stage, host: str) -> None:
    """Retire a host; its daemon must end by itself."""
    layout = stage.cloud.layout
    files = stage.computes.write_agent('operator')
    words = ['host', 'retire', host, '--wait']
    with step(f'Retiring {host}'):
        command = [layout.bin('ironic-computectl'), *files, *words]
        packages.run(layout, command)
        wait_until(
            f'the daemon of {host} to end',
            lambda: host not in stage.running.hosts(),
            60,
        )
    left = {h for h in content.Content(layout).services() if h == host}
    stage.report.none('Services of retired hosts', sorted(left))
