# SPDX-License-Identifier: Apache-2.0
"""Operators who pin and unpin nodes and rebalance the pool, and the checks.

Their choices come from a random generator of their own. A pin that a worker
has confirmed must be in the node's row in the end, and so must the lack of
one.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from hashring.ring import Host
from ironic_compute.nodes.pins import Pin, read_pin
from ironic_compute.ownership.eviction import Refused
from resource_tracker.node import NodeId
from tests.simulation.nova_manager import FAILURES

PINS_PER_S = (0.05, 0.3)
REBALANCES_PER_S = (0.01, 0.05)
# How likely an operator replaces another one's pin.
REPLACES_CHANCE = 0.7
# How likely a world with moves has pins.
PINS_CHANCE = 0.5


class Pins:
    """The pins of one world that has moves."""

    def __init__(self, world: Any) -> None:
        self._world = world
        # In the other worlds, servers move without pins, as in a drain.
        self._is_on = world.rng.random() < PINS_CHANCE
        # Node -> the host that it must be pinned to, or None.
        self._confirmed: dict[str, Host | None] = {}
        # How many orders about a node are under way, and whether one of them
        # was together with another one.
        self._under_way: Counter[str] = Counter()
        self._mixed: set[str] = set()
        if not self._is_on:
            return
        rng, repeat = world.rng, world.faults.repeat
        repeat('pin', rng.choice(PINS_PER_S), self._pin_any)
        repeat('unpin', rng.choice(PINS_PER_S), self._unpin_any)
        repeat('rebalance', rng.choice(REBALANCES_PER_S), self._rebalance)

    def move(self, worker: Any, node: NodeId, host: Host) -> None:
        """``node move``, by the holder's worker."""
        if not self._is_on:
            self._evict(worker, node, host)
            return
        pin = Pin(host, 'an operator')
        replaces = self._world.rng.random() < REPLACES_CHANCE

        def move() -> bool:
            result = worker.moves.move(
                node, pin, replaces=replaces, is_dry_run=False
            )
            self._world.log(
                f'{worker.name} moves {node} to {host}: '
                f'{result.why_not or "done"}'
            )
            # The node of a server may have to follow it, without a pin.
            return result.why_not is None and result.server is None

        self._carry_out(node, host, move)

    def _evict(self, worker: Any, node: NodeId, host: Host) -> None:
        what = f'{worker.name} moves {node} to {host}'
        try:
            worker.evictor.evict(node, host)
        except Refused as exc:
            self._world.log(f'{what}: {exc}')
        except FAILURES as exc:
            self._world.log(f'{what}: {exc!r}')
        else:
            self._world.log(f'{what}: done')

    def _carry_out(
        self, node: str, host: Host | None, act: Callable[[], bool]
    ) -> None:
        """Carry out an order; note its result unless there are two at once.

        :param act: returns whether the node is pinned to ``host`` for certain
        """
        self._confirmed.pop(node, None)
        if self._under_way[node]:
            self._mixed.add(node)
        self._under_way[node] += 1
        is_certain = False
        try:
            is_certain = act()
        except FAILURES as exc:
            self._world.log(f'order about {node}: {exc!r}')
        finally:
            self._under_way[node] -= 1
            if is_certain and node not in self._mixed:
                self._confirmed[node] = host
            if not self._under_way[node]:
                self._mixed.discard(node)

    def _pin_any(self) -> None:
        nodes = sorted(self._world.ironic.nodes)
        host = self._world.rng.choice(self._world.homes)
        if nodes:
            node = self._world.rng.choice(nodes)
            self._send(node, lambda worker: self.move(worker, node, host))

    def _unpin_any(self) -> None:
        rows = self._world.nova.rows.values()
        pinned = [r.node for r in rows if not r.deleted and read_pin(r)]
        if pinned:
            node = self._world.rng.choice(pinned)
            self._send(node, lambda worker: self._unpin(worker, node))

    def _unpin(self, worker: Any, node: NodeId) -> None:
        def unpin() -> bool:
            result = worker.moves.unpin(node)
            self._world.log(
                f'{worker.name} unpins {node}: '
                f'{result.why_not or result.former}'
            )
            return result.why_not is None

        self._carry_out(node, None, unpin)

    def _rebalance(self) -> None:
        """``pool rebalance --with-servers``, of one host after the other."""
        for worker in self._world.workers():
            if worker.may_act and not worker.draining:
                worker.spawn(lambda worker=worker: self._move_all(worker))

    def _move_all(self, worker: Any) -> None:
        try:
            for move in worker.moves.plan().moves:
                if move.server is None or move.why_not is not None:
                    continue
                result = worker.moves.rebalance(NodeId(move.node))
                self._world.log(
                    f'{worker.name} rebalances {move.node}: '
                    f'{result.why_not or result.server}'
                )
        except FAILURES as exc:
            self._world.log(f'{worker.name} rebalances: {exc!r}')

    def _send(self, node: str, act: Callable[[Any], None]) -> None:
        """Have the holder's worker do something."""
        row = self._world.nova.live_row(node)
        for worker in self._world.workers():
            is_holder = row is not None and worker.host == row.host
            if is_holder and worker.may_act and not worker.draining:
                worker.spawn(lambda worker=worker: act(worker))

    def forget(self, node: str) -> None:
        """Forget where a node must be pinned."""
        self._confirmed.pop(node, None)

    def problems(self) -> Iterator[str]:
        """Yield the nodes that are not pinned as their workers have said."""
        for node, host in self._confirmed.items():
            row = self._world.nova.live_row(node)
            if row is None:
                continue
            pin = read_pin(row)
            if host != (pin and pin.host):
                yield f'{node} should be pinned to {host}, and has {pin}'
