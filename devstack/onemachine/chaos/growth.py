# SPDX-License-Identifier: Apache-2.0
"""Scenarios with joining hosts, and with idle hosts."""

import contextlib
import os
import pathlib
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping

from onemachine import processes, running
from onemachine.chaos.scenarios import HOSTS
from onemachine.chaos.stage import ALL_HOSTS, Stage
from onemachine.progress import print_line, step, wait_until

_NODES_COUNT = 1000
_UNEVEN_MAX = 1.2
_IDLE_S = 120.0
_LOOK_S = 2.0


class Moves:
    """Records each change of a node's holder."""

    def __init__(self, stage: Stage) -> None:
        self.moves: dict[str, list[str]] = {}
        self.homeless: set[str] = set()
        self._stage = stage
        self._over = threading.Event()

    @contextlib.contextmanager
    def seen(self) -> Iterator[None]:
        """Record while the context is open."""
        thread = threading.Thread(target=self._look_on, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _look_on(self) -> None:
        last = self._stage.content.holders()
        while not self._over.wait(_LOOK_S):
            now = self._stage.content.holders()
            self.homeless |= set(last) - set(now)
            for node, host in now.items():
                if last.get(node, host) != host:
                    self.moves.setdefault(node, []).append(host)
            last = {**last, **now}


def join(stage: Stage) -> None:
    """A fourth agent joins, later a fifth, with 1,000 nodes."""
    stage.set_nodes(max(_NODES_COUNT, stage.plan.nodes_count))
    stage.await_offered(1200)
    with stage.act('join', HOSTS), stage.under_load() as load:
        for host in ALL_HOSTS[3:5]:
            _join_one(stage, host)
        shares = stage.evidence.shares()
        mean = sum(shares.values()) / len(shares)
        uneven = max(shares.values()) / mean
        stage.report.demand(
            uneven <= _UNEVEN_MAX,
            f'largest share over the mean (at most {_UNEVEN_MAX})',
            f'{uneven:.2f}: {dict(sorted(shares.items()))}',
        )
        after = stage.evidence.snapshot()
        stage.report.none(
            'nodes without a provider of their own',
            sorted(set(after.holders) ^ after.providers),
        )
    stage.report_requests(load)


def _join_one(stage: Stage, host: str) -> None:
    before = stage.evidence.snapshot()
    looker = Moves(stage)
    begun_s = time.monotonic()
    with looker.seen():
        stage.start([host])
        with step(f'Waiting until {host} has its share'):
            _await_still(stage)
    took_s = time.monotonic() - begun_s
    moved = looker.moves
    stage.report.figure(
        f'{host} joined', f'{len(moved)} nodes moved within {took_s:.0f} s'
    )
    # A node that had a server when an earlier host joined moves to that host
    # when the server is deleted.
    elsewhere = [
        node
        for node, to in moved.items()
        if len(to) > 1 or (to != [host] and node not in before.consumers)
    ]
    stage.report.none('nodes moved twice, or not to the new host', elsewhere)
    stage.report.none('nodes without a holder', sorted(looker.homeless))
    pinned = set(before.consumers) & set(moved)
    after = stage.evidence.snapshot()
    still = [
        n for n in pinned if before.consumers[n] == after.consumers.get(n)
    ]
    stage.report.none('nodes moved with their server', still)


def _await_still(stage: Stage) -> None:
    """Wait until no node has moved for a minute after the first move."""
    seen: list[tuple[float, Mapping[str, int]]] = []

    def is_still() -> bool:
        shares = stage.evidence.shares()
        if not seen or seen[-1][1] != shares:
            seen.append((time.monotonic(), shares))
        return len(seen) > 1 and time.monotonic() - seen[-1][0] > 60

    wait_until('the nodes to rest', is_still, 900, _LOOK_S)


def idle(stage: Stage) -> None:
    """Measure the cost of agents and workers while nothing happens."""
    with stage.act('idle', ()):  # Without pings, which would cause work.
        print_line('Waiting until the start has died away')
        time.sleep(60)
        before, etcd_before = _cpu_s(stage), _etcd_requests(stage)
        with step(f'Watching for {_IDLE_S:.0f} s'):
            time.sleep(_IDLE_S)
        after, etcd_after = _cpu_s(stage), _etcd_requests(stage)
        for name, used_s in after.items():
            share = (used_s - before.get(name, 0.0)) / _IDLE_S
            stage.report.demand(
                share < 0.01,
                f'CPU of {name} (under 1 % of a core)',
                f'{share * 100:.2f} %',
            )
        if etcd_after is not None and etcd_before is not None:
            rate = (etcd_after - etcd_before) / _IDLE_S
            stage.report.figure('requests to etcd', f'{rate:.2f} per second')


def _cpu_s(stage: Stage) -> dict[str, float]:
    tick = os.sysconf('SC_CLK_TCK')
    found = {}
    for host in stage.running.hosts():
        for number, pid in enumerate(stage.running.family(host)):
            text = pathlib.Path(f'/proc/{pid}/stat').read_text()
            fields = text.rpartition(')')[2].split()
            kind = running.kind_of(processes.arguments(pid))
            found[f'{kind if number else "agent"} of {host}'] = (
                int(fields[11]) + int(fields[12])
            ) / tick
    return found


def _etcd_requests(stage: Stage) -> float | None:
    if stage.cloud.coordination.kind != 'etcd':
        return None
    port = stage.cloud.layout.port('etcd')
    url = f'http://127.0.0.1:{port}/metrics'
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        float(line.rpartition(' ')[2])
        for line in lines
        if line.startswith('grpc_server_handled_total')
    )
