# SPDX-License-Identifier: Apache-2.0
"""The scenario of an operator who moves nodes with their servers on line.

A host is retired and started again, the pool is rebalanced with its servers,
and some nodes go to another pool and back. All of it is done once undisturbed,
and once while daemons are killed in the middle. Users send requests all the
while.
"""

import contextlib
import dataclasses
import json
import random
import time
from collections.abc import Iterator, Sequence

from onemachine import packages, registry
from onemachine.chaos.killer import Killer, Victim, shares
from onemachine.chaos.load import WITH_STOPS, End, Load
from onemachine.chaos.looks import Look, Looks, Move, moved_twice
from onemachine.chaos.orders import (
    Answer,
    Compared,
    compare_drain,
    compare_rebalance,
    did,
)
from onemachine.chaos.pools import (
    OTHER_SHARD,
    OTHERS,
    SHARD,
    Pools,
    two_pools,
)
from onemachine.chaos.refusals import (
    Refusals,
    other_zone,
    unknown_hosts,
    unmapped,
    without_backend,
    without_daemon,
)
from onemachine.chaos.scenarios import HOSTS
from onemachine.chaos.stage import ALL_HOSTS, Stage
from onemachine.naming import server_names
from onemachine.progress import CloudError, print_line, step, wait_until

_LEAVING = 'c3'
_KILLS_MAX = 10
_INTERVAL_S = 2.0
_ORDER_MAX_S = 1500.0
# The manual wants this between the end of a retirement and a new start.
_PAUSE_S = 120.0
_BATCH = 20
_MOVED_BY_HAND = 3
_COLUMNS = (
    *('Part', 'What', 'Nodes moved', 'With server', 'Seconds'),
    *('Per 100 servers', 'Kills', 'Lines as in the dry run'),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Phase:
    """One order, and the moves that followed.

    :param begun_s: when it was given, on the clock of the looks
    """

    name: str
    moves: Sequence[Move]
    begun_s: float
    kills: Sequence[Victim] = ()
    compared: Compared | None = None

    def row(self, part: str) -> tuple[object, ...]:
        """Return the row of the table."""
        with_server = [move for move in self.moves if move.server]
        took_s = max((m.at_s for m in self.moves), default=0.0) - self.begun_s
        return (
            *(part, self.name, len(self.moves), len(with_server)),
            f'{took_s:.0f}' if self.moves else '-',
            per_hundred(with_server),
            ' '.join(self.kills) or '-',
            self.compared.summary if self.compared else '-',
        )


def per_hundred(moves: Sequence[Move]) -> str:
    """Return the seconds for a hundred moves, from the first to the last."""
    if len(moves) < 2:
        return '-'
    at_s = [move.at_s for move in moves]
    took_s = (max(at_s) - min(at_s)) / (len(moves) - 1) * 100
    return f'{took_s:.0f} s'


def moves(stage: Stage) -> None:
    """Retire, return, rebalance, and change of pool, under load and kills."""
    if stage.plan.stock:
        raise CloudError('stock nova-computes cannot move nodes')
    stage.report.scenario = 'moves'
    looks = Looks(stage.cloud.layout, time.monotonic)
    with two_pools(stage) as pools:
        try:
            with (
                stage.act('moves', ALL_HOSTS) as pings,
                _under_load(stage) as load,
                looks.going_on(),
            ):
                killer = Killer(stage, looks, pings)
                _Script(stage, pools, looks, load, killer).play()
        finally:
            _report_looks(stage, looks)
        _report_services(stage)
        stage.report_requests(load)
        stage.report.figure('slowest of each kind', _slowest(load))
        stage.report.none(
            'requests refused, or lost on their way',
            [f'{r.kind}: {r.detail}' for r in load.ended(*_NOT_DONE)],
        )


_NOT_DONE = (End.REFUSED, End.UNHEARD)


def _slowest(load: Load) -> str:
    took_s: dict[str, float] = {}
    for request in load.requests:
        kind = request.kind.value
        took_s[kind] = max(took_s.get(kind, 0.0), request.took_s)
    found = sorted(took_s.items())
    return ', '.join(f'{kind} {seconds:.0f} s' for kind, seconds in found)


@contextlib.contextmanager
def _under_load(stage: Stage) -> Iterator[Load]:
    """Boot all servers, then send requests while the context is open."""
    count = stage.plan.servers_count
    load = Load(
        stage.content,
        random.Random(stage.rng.random()),
        interval_s=_INTERVAL_S,
        population=count,
        kinds=WITH_STOPS,
    )
    load.start()
    try:
        with step(f'Booting {count} servers'):
            names = server_names(str(count))
            for number in range(0, count, _BATCH):
                load.boot_at_once(names[number : number + _BATCH])
                with load.paused():
                    pass
        yield load
    finally:
        with step('Waiting until all that was asked for has ended'):
            load.stop(stage.evidence.not_received)


class _Script:
    """What the operator does."""

    def __init__(
        self,
        stage: Stage,
        pools: Pools,
        looks: Looks,
        load: Load,
        killer: Killer,
    ) -> None:
        self._stage = stage
        self._pools = pools
        self._ctl = pools.operator
        self._looks = looks
        self._load = load
        self._killer = killer
        layout = stage.cloud.layout
        self._refusals = Refusals(layout, stage.content, stage.report)
        self._rows: list[tuple[object, ...]] = []
        self._part = ''
        self._is_first = True

    def play(self) -> None:
        """Do all undisturbed, then again with kills; report."""
        kills_count = min(self._stage.plan.rounds, _KILLS_MAX)
        try:
            self._perform('undisturbed', [[], [], []])
            self._is_first = False
            self._perform('kill -9', shares(kills_count, 3))
        finally:
            self._stage.report.add_table('Moves', _COLUMNS, self._rows)
        times_s = self._killer.served_s
        self._stage.report.figure(
            f'served again after {kills_count} kills',
            f'worst {max(times_s, default=0.0):.1f} s',
        )

    def _perform(self, part: str, kills: Sequence[Sequence[Victim]]) -> None:
        self._part = part
        print_line(f'Part: {part}')
        self._retire(kills[0])
        ended_s = time.monotonic()
        if self._is_first:
            with self._load.paused():
                self._refuse()
                self._move_by_hand()
        with step('Waiting, as the manual wants'):
            time.sleep(max(0.0, ended_s + _PAUSE_S - time.monotonic()))
        self._return()
        self._rebalance(kills[1])
        self._change_pool(kills[2])
        self._check()

    # Phases

    def _add(self, phase: Phase) -> None:
        """Report a phase."""
        row = phase.row(self._part)
        self._rows.append(row)
        print_line(' | '.join(map(str, row)))
        report, name = self._stage.report, f'{phase.name}, {self._part}'
        report.none(f'{name}: moved twice', moved_twice(phase.moves))
        if phase.compared is not None:
            report.none(
                f'{name}: lines that differ from the dry run',
                phase.compared.different,
            )

    def _look(self) -> tuple[Look, int, float]:
        """Look now; return that, the number of moves, and the time."""
        found = self._looks.look()
        return found, len(self._looks.moves), time.monotonic()

    def _retire(self, kills: Sequence[Victim]) -> None:
        words = ('host', 'retire', _LEAVING)
        with self._load.paused():
            plan = self._ctl.run(*words, '--dry-run', '-f', 'json').rows()
            _, since, begun_s = self._look()
        count = sum(row['Server'] != '-' for row in plan)
        limit = _limit(count, 2 * len(kills))
        under_way = self._ctl.start(*words, *limit, '--wait', '-f', 'json')
        self._killer.kill_all(kills, since)
        if kills:
            self._ctl.run(*words)  # Without a limit, so that it ends soon.
        answer = under_way.wait(_ORDER_MAX_S)
        _require(answer)
        with step(f'Waiting until the daemon of {_LEAVING} ends'):
            wait_until(
                'its end',
                lambda: _LEAVING not in self._stage.running.hosts(),
                120,
            )
        after, until, _ = self._look()
        found = self._looks.moves[since:until]
        compared = compare_drain(_LEAVING, plan, found, after)
        self._add(Phase('retire', found, begun_s, kills, compared))

    def _return(self) -> None:
        """Start the retired host again; free nodes return."""
        _, since, begun_s = self._look()
        self._stage.computes.start_agents([_LEAVING], maps=False)
        if self._is_first:
            with self._load.paused():
                node = self._node_with_server(self._looks.look())
                self._refuse_orders([unmapped(node, _LEAVING)], moves=False)
        self._stage.computes.map_hosts()
        if self._is_first:
            with self._load.paused():
                self._refuse_zone()
        self._await_node()
        _require(self._ctl.run('pool', 'rebalance', '--wait'))
        until = len(self._looks.moves)
        found = self._looks.moves[since:until]
        self._add(Phase('free nodes return', found, begun_s))

    def _await_node(self) -> None:
        wait_until(
            f'a node at {_LEAVING}',
            lambda: _LEAVING in self._looks.look().holder.values(),
            180,
        )

    def _rebalance(self, kills: Sequence[Victim]) -> None:
        words = ('pool', 'rebalance', '--with-servers', '-f', 'json')
        with self._load.paused():
            plan = self._ctl.run(*words, '--dry-run').rows()
            before, since, begun_s = self._look()
        count = sum(
            max(0, row['Servers'] - row['Servers then']) for row in plan
        )
        limit = _limit(count, len(kills) + 1)
        under_way = self._ctl.start(*words, *limit, '--wait')
        self._killer.kill_all(kills, since)
        _require(under_way.wait(_ORDER_MAX_S))
        after, until, _ = self._look()
        compared = compare_rebalance(plan, before, after, HOSTS)
        found = self._looks.moves[since:until]
        self._add(Phase('rebalance', found, begun_s, kills, compared))

    def _change_pool(self, kills: Sequence[Victim]) -> None:
        """Give some nodes to the other pool, and back."""
        parts = self._choose_nodes(max(1, len(kills)))
        _, since, begun_s = self._look()
        for number, nodes in enumerate(parts):
            before = len(self._looks.moves)
            self._pools.set_shard(nodes, OTHER_SHARD)
            self._killer.kill_all(kills[number : number + 1], before)
        nodes = [node for part in parts for node in part]
        self._await_pool(nodes, OTHERS)
        until = len(self._looks.moves)
        found = self._looks.moves[since:until]
        self._add(Phase('to the other pool', found, begun_s, kills))
        _, since, begun_s = self._look()
        self._pools.set_shard(nodes, SHARD)
        self._await_pool(nodes, HOSTS)
        found = self._looks.moves[since:]
        self._add(Phase('back to their pool', found, begun_s))

    def _choose_nodes(self, parts_count: int) -> list[list[str]]:
        """Return a sixth of the nodes, with a fifth of the servers."""
        look, plan = self._looks.look(), self._stage.plan
        with_server = sorted(
            node
            for node, server in look.on_node.items()
            if server in look.servers and look.servers[server].keeps_allocation
        )
        free = sorted(set(look.holder) - set(look.on_node))
        servers_count = max(2, plan.servers_count // 5)
        nodes_count = max(servers_count, plan.nodes_count // 6)
        rng = self._stage.rng
        some = rng.sample(with_server, min(servers_count, len(with_server)))
        others = rng.sample(free, min(nodes_count - len(some), len(free)))
        return [
            some[n::parts_count] + others[n::parts_count]
            for n in range(parts_count)
        ]

    def _await_pool(self, nodes: Sequence[str], hosts: Sequence[str]) -> None:
        def are_there() -> bool:
            holder = self._looks.look().holder
            return all(holder.get(node) in hosts for node in nodes)

        with step(f'Waiting for {len(nodes)} nodes at {" ".join(hosts)}'):
            wait_until('the nodes of the pool', are_there, 600, 1.0)

    # Orders about single nodes, and refused ones

    def _node_with_server(self, look: Look) -> str:
        """Return a node with a server at the first host."""
        return min(
            node for node in look.on_node if look.holder.get(node) == HOSTS[0]
        )

    def _move_by_hand(self) -> None:
        """Move single nodes, compare with the dry runs, and unpin them."""
        look = self._looks.look()
        at_first = [n for n, h in look.holder.items() if h == HOSTS[0]]
        with_server = sorted(n for n in at_first if n in look.on_node)
        free = sorted(n for n in at_first if n not in look.on_node)
        nodes = with_server[:_MOVED_BY_HAND] + free[:1]
        different = []
        for node in nodes:
            words = ('node', 'move', node, HOSTS[1])
            planned = self._ctl.run(*words, '--dry-run').out.strip()
            done = self._ctl.run(*words).out.strip()
            if not planned or did(planned) != done:
                different.append(f'{planned}; {done}')
        for node in nodes:
            self._ctl.run('node', 'unpin', node)
        self._stage.report.none(
            f'of {len(nodes)} nodes moved by hand, not as in the dry run',
            different,
        )

    def _refuse(self) -> None:
        """Give orders that must be refused, while nothing moves."""
        node = self._node_with_server(self._looks.look())
        self._refuse_orders(unknown_hosts(node), moves=False)
        check = self._refusals.check
        check(self._pools.without_daemon, [without_daemon()], moves=False)
        check(self._pools.without_backend, without_backend(), moves=False)

    def _refuse_orders(self, orders: Sequence[object], *, moves: bool) -> None:
        self._refusals.check(self._ctl, orders, moves=moves)

    def _refuse_zone(self) -> None:
        """Order a move to the returned host while it is in another zone."""
        # nova-api adds no host to an aggregate that has no node.
        self._await_node()
        with self._refusals.zone(_LEAVING):
            node = self._node_with_server(self._looks.look())
            # Its free nodes come back meanwhile.
            self._refuse_orders([other_zone(node, _LEAVING)], moves=True)

    # Checks

    def _check(self) -> None:
        """Have fsck find nothing in either pool."""
        with self._load.paused():
            for name, operator in (
                (SHARD, self._pools.operator),
                (OTHER_SHARD, self._pools.other_operator),
            ):
                answer = operator.run('fsck', timeout_s=600)
                lines = answer.out.strip().splitlines()
                self._stage.report.none(
                    f'{self._part}: fsck of {name} finds',
                    [*lines, answer.error] if answer.status else [],
                )


def _limit(count: int, parts: int) -> tuple[str, ...]:
    """Return the option to move so many servers in some minutes.

    :param parts: the minutes; up to one: without a limit
    """
    if parts < 2:
        return ()
    return ('--limit', str(max(1, count // parts)))


def _require(answer: Answer) -> None:
    if answer.status:
        raise CloudError(f'an order has failed: {answer.error[-500:]}')


def _report_looks(stage: Stage, looks: Looks) -> None:
    report = stage.report
    report.figure('looks', looks.count)
    report.none('nodes without a holder', sorted(looks.without_holder))
    report.none('nodes with two holders', sorted(looks.with_two))
    report.none('servers in ERROR', sorted(looks.in_error))
    report.none('allocations changed', sorted(looks.changed))
    report.figure(
        'looks at which a server was ahead of its node', looks.apart_count
    )


def _report_services(stage: Stage) -> None:
    """Demand that Nova lists all hosts, and each as enabled and up."""
    layout = stage.cloud.layout
    words = ('compute', 'service', 'list', '-f', 'json')
    rows = json.loads(
        packages.run(
            layout,
            ['env', *_assignments(stage), layout.bin('openstack'), *words],
        )
    )
    computes = sorted(r['Host'] for r in rows if r['Binary'] == 'nova-compute')
    stage.report.demand(
        computes == sorted(ALL_HOSTS), 'compute services', ' '.join(computes)
    )
    stage.report.none(
        'compute services not enabled or not up',
        [r for r in rows if (r['Status'], r['State']) != ('enabled', 'up')],
    )


def _assignments(stage: Stage) -> list[str]:
    found = registry.environment(stage.cloud.layout)
    return [f'{name}={value}' for name, value in found.items()]
