# SPDX-License-Identifier: Apache-2.0
"""Planted defects of moves; see ``defects``."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hashring.ring import Host, Ring
from ironic_compute.gate import without_waiting
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.pins import read_pin, set_pin
from ironic_compute.ownership.draining import Draining
from ironic_compute.ownership.eviction import Evictor, Refused, Terms
from ironic_compute.ownership.movability import Found, why_not_movable
from ironic_compute.ownership.rebalance import Rebalancer
from ironic_compute.ownership.retirement import Retirement
from resource_tracker.node import NodeFacts, NodeId
from tests.simulation.handlers import Manager
from tests.simulation.makeup import Makeup, with_parts


class WritesRowFirst(Evictor):
    """The row of a node gets its new host before the server does."""

    def _evict(
        self, node: NodeId, server: str, target: Host, terms: Terms
    ) -> None:
        with self._held_nodes.locked_row(node) as row, without_waiting():
            service_id = self.check_target(target, terms)
            found = self._find(node, server, target, row, terms)
            self._write_row(row, target, service_id, terms)
            self._held_nodes.drop_node(node)
            self._write_instance(found)


class MovesBusyServers(Evictor):
    """A server is moved although it has a task."""

    def _why_not(self, found: Found) -> str | None:
        why_not = why_not_movable(found)
        if why_not is not None and ' has task ' in why_not:
            return None
        return why_not

    def _write_instance(self, found: Found) -> None:
        found.instance.host = found.target
        found.instance.save()


class ForgetsTheTaskAtTheWrite(Evictor):
    """The task is only checked when it is read, and not when it is written."""

    def _write_instance(self, found: Found) -> None:
        found.instance.host = found.target
        found.instance.save()


class IgnoresZones(Evictor):
    """A server is moved into another availability zone."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._find_difference = lambda one, other: None


class MovesTwiceAtOnce(Evictor):
    """Two moves of a server read its record, and then both write it.

    Nothing but moves is let in: neither messages nor recovery.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._moving: list[str] = []
        self._lock_server = lambda server: contextlib.nullcontext()

    @contextlib.contextmanager
    def _alone_with(self, server: str) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if server not in self._moving:
                stack.enter_context(super()._alone_with(server))
            self._moving.append(server)
            stack.callback(self._moving.remove, server)
            yield

    def _evict(
        self, node: NodeId, server: str, target: Host, terms: Terms
    ) -> None:
        service_id = self.check_target(target, terms)
        row = self._held_nodes.row(node)
        found = self._find(node, server, target, row, terms)
        with self._held_nodes.locked_row(node), without_waiting():
            self._write_instance(found)
            self._write_row(row, target, service_id, terms)
            self._held_nodes.drop_node(node)


class MovesDuringADelete(Evictor):
    """A server is moved while it is deleted, and not twice at once."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._moving: set[str] = set()

    @contextlib.contextmanager
    def _alone_with(self, server: str) -> Iterator[None]:
        if server in self._moving:
            raise Refused('It is being moved')
        self._moving.add(server)
        try:
            yield
        finally:
            self._moving.discard(server)

    def _why_not(self, found: Found) -> str | None:
        why_not = why_not_movable(found)
        if why_not is not None and ' is deleted' in why_not:
            return None
        return why_not


class MovesBesideMessages(Evictor):
    """A message may have chosen its host before the move."""

    @contextlib.contextmanager
    def _alone_with(self, server: str) -> Iterator[None]:
        with self._in_progress.exclusive(server):
            yield


class ForwardsWithoutFollowing(Manager):
    """A message is forwarded to the server's host, which lacks the node."""

    def follow(self, strays: Any) -> None:
        super().follow(strays)
        self.forwarder._follow_server = lambda node, server, host: None


class LeavesServersOnDrainedHosts(Draining):
    """Only the free nodes of a drained host go away."""

    def run_round(self) -> None:
        pass


class RetiresWithServers(Retirement):
    """A host is retired as soon as it has no free node left."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._quiet_s = 0.0

    def run_round(self, *, is_empty: bool) -> None:
        super().run_round(is_empty=True)

    def _is_unused(self) -> bool:
        rows = self._compute_nodes.list_by_host(self._host)
        servers = self._compute_nodes.list_servers_of_host(self._host)
        return len(rows) <= len(servers)


class RetiresWithoutItsAgent(Retirement):
    """The agent of a retired host lives on; so does the pool's host."""

    def _tell_agent(self) -> None:
        pass


class WritesReportsWithoutPins(ComputeNodes):
    """A row is written without the pin that it had."""

    def write_failed_builds(self, row: Any, count: int) -> None:
        set_pin(row, None)
        super().write_failed_builds(row, count)

    def update_row(self, row: Any, facts: NodeFacts) -> None:
        if read_pin(row) is not None:
            set_pin(row, None)
        super().update_row(row, facts)


class PushesPinnedNodes(Rebalancer):
    """A free node goes to the host that the ring names, pinned or not."""

    def _find_misplaced(self, ring: Ring) -> Iterable[NodeId]:
        targets = {n: ring.target(n) for n in self._held_nodes.rows()}
        here = (None, self._held_nodes.host)
        self._targets = {n: t for n, t in targets.items() if t not in here}
        return sorted(self._targets)

    def _give(self, node: NodeId, target: Host, ring: Ring) -> bool:
        return super()._give(node, target, Ring([target]))


class PushesToDisabledHosts(Rebalancer):
    """A pin holds although its host is drained."""

    def _push(self, ring: Ring) -> None:
        rows = self._held_nodes.rows().values()
        pins = {pin.host for pin in map(read_pin, rows) if pin is not None}
        super()._push(_WiderRing(ring, pins))


class _WiderRing(Ring):
    """A ring that also counts other hosts as its own, if they are named."""

    def __init__(self, ring: Ring, others: Iterable[Host]) -> None:
        super().__init__(ring.hosts)
        self.hosts = ring.hosts | frozenset(others)


MAKEUPS: Mapping[str, Makeup] = {
    'row moved before the server': with_parts('moves', evictor=WritesRowFirst),
    'server with a task moved': with_parts('moves', evictor=MovesBusyServers),
    'task not compared at the write': with_parts(
        'moves', evictor=ForgetsTheTaskAtTheWrite
    ),
    'server moved to another zone': with_parts('moves', evictor=IgnoresZones),
    'two moves of a server at once': with_parts(
        'moves', evictor=MovesTwiceAtOnce
    ),
    'server moved during its delete': with_parts(
        'moves', evictor=MovesDuringADelete
    ),
    'message handled during a move': with_parts(
        'moves', 'boot', 'delete', 'slow', evictor=MovesBesideMessages
    ),
    'forward without follow': with_parts(
        'moves', manager=ForwardsWithoutFollowing
    ),
    'servers left on a drained host': with_parts(
        'moves', draining=LeavesServersOnDrainedHosts
    ),
    'host retired with servers': with_parts(
        'moves', retirement=RetiresWithServers
    ),
    'agent of a retired host not told': with_parts(
        'moves', retirement=RetiresWithoutItsAgent
    ),
    'row written without its pin': with_parts(
        'moves', compute_nodes=WritesReportsWithoutPins
    ),
    'pinned node pushed away': with_parts(
        'moves', rebalancer=PushesPinnedNodes
    ),
    'pinned node pushed to a drained host': with_parts(
        'moves', rebalancer=PushesToDisabledHosts
    ),
}

# Name of a defect -> a seed that detects it.
SEEDS: Mapping[str, int] = {
    'row moved before the server': 10,
    'server with a task moved': 60032,
    'task not compared at the write': 60032,
    'server moved to another zone': 10,
    'two moves of a server at once': 60032,
    'server moved during its delete': 60185,
    'message handled during a move': 60306,
    'forward without follow': 60124,
    'servers left on a drained host': 23,
    'host retired with servers': 60084,
    'agent of a retired host not told': 60155,
    'row written without its pin': 60002,
    'pinned node pushed away': 60036,
    'pinned node pushed to a drained host': 12,
}
