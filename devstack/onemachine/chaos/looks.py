# SPDX-License-Identifier: Apache-2.0
"""Looks at holders, servers and allocations, about once a second.

Each look reads all of them from the databases in one transaction, so that they
belong together. What must never be seen is collected; so is each move.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from onemachine.backends import sql
from onemachine.layout import Layout
from onemachine.progress import CloudError

LOOK_S = 1.0
_NONE = '-'
_LOOK = """
START TRANSACTION WITH CONSISTENT SNAPSHOT;
SELECT 'node', n.uuid, COALESCE(n.instance_uuid, '-'),
    COALESCE(c.host, '-'), COALESCE(s.host, '-')
    FROM ironic.nodes n
    LEFT JOIN nova.compute_nodes c
        ON c.hypervisor_hostname = n.uuid AND c.deleted = 0
    LEFT JOIN nova.services s ON s.host = c.host AND s.deleted = 0
        AND s.`binary` = 'nova-compute';
SELECT 'server', uuid, COALESCE(host, '-'), COALESCE(node, '-'),
    COALESCE(vm_state, '-'), COALESCE(task_state, '-')
    FROM nova.instances WHERE deleted = 0;
SELECT 'allocation', a.consumer_id, p.uuid, a.resource_class_id, a.used
    FROM placement.allocations a JOIN placement.resource_providers p
    ON p.id = a.resource_provider_id;
COMMIT;
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Server:
    """A server as Nova has it."""

    host: str
    node: str
    vm_state: str
    task_state: str

    @property
    def keeps_allocation(self) -> bool:
        """Whether its allocation is complete, and must not change."""
        is_built = self.vm_state in ('active', 'stopped')
        return is_built and self.task_state not in ('deleting', 'rebuilding')


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """What one look has seen.

    :param holders: node -> the hosts that its records name; none if it has no
        record, or if Nova has no Service of the host
    :param on_node: node -> the server on it, in Ironic
    :param allocations: server -> its allocations
    """

    holders: Mapping[str, Sequence[str]]
    on_node: Mapping[str, str]
    servers: Mapping[str, Server]
    allocations: Mapping[str, frozenset[str]]

    @property
    def holder(self) -> dict[str, str]:
        """The holder of each node that has exactly one."""
        return {n: h[0] for n, h in self.holders.items() if len(h) == 1}

    def server_on(self, node: str) -> str | None:
        """Return the server on a node, in Ironic; None: it is free."""
        return self.on_node.get(node)


def parse(text: str) -> Look:
    """Return the look from the output of the database."""
    holders: dict[str, list[str]] = {}
    on_node: dict[str, str] = {}
    servers: dict[str, Server] = {}
    allocations: dict[str, set[str]] = {}
    for kind, key, *rest in (line.split('\t') for line in text.splitlines()):
        if kind == 'node':
            server, host, service = rest
            hosts = holders.setdefault(key, [])
            hosts += [host] if service != _NONE else []
            if server != _NONE:
                on_node[key] = server
        elif kind == 'server':
            servers[key] = Server(*rest)
        else:
            allocations.setdefault(key, set()).add(' '.join(rest))
    frozen = {key: frozenset(found) for key, found in allocations.items()}
    return Look(holders, on_node, servers, frozen)


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """A change of a node's holder.

    :param server: the server that was on the node before and after; None if
        the node was free
    :param at_s: when it was seen, on the clock of the looks
    """

    node: str
    server: str | None
    source: str
    target: str
    at_s: float


def moves_between(before: Look, after: Look, at_s: float) -> list[Move]:
    """Return the moves between two looks."""
    was, now = before.holder, after.holder
    return [
        Move(node, _stayed(node, before, after), was[node], now[node], at_s)
        for node in sorted(was.keys() & now.keys())
        if was[node] != now[node]
    ]


def _stayed(node: str, before: Look, after: Look) -> str | None:
    server = before.server_on(node)
    return server if server == after.server_on(node) else None


def changed_allocations(before: Look, after: Look) -> set[str]:
    """Return the built servers whose allocation is another one later."""
    return {
        server
        for server, state in before.servers.items()
        if state.keeps_allocation
        and server in after.servers
        and after.servers[server].keeps_allocation
        and before.allocations.get(server) != after.allocations.get(server)
    }


class Looks:
    """Looks again and again; any thread may call.

    :param now_s: returns the seconds of a clock
    """

    def __init__(self, layout: Layout, now_s: Callable[[], float]) -> None:
        self.count = 0
        self.moves: list[Move] = []
        self.without_holder: set[str] = set()
        self.with_two: set[str] = set()
        self.in_error: set[str] = set()
        self.changed: set[str] = set()
        self.apart_count = 0
        self._layout = layout
        self._now_s = now_s
        self._lock = threading.Lock()
        self._last: Look | None = None
        self._over = threading.Event()

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """Look while the context is open."""
        self.look()
        thread = threading.Thread(target=self._look_on, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _look_on(self) -> None:
        while not self._over.wait(LOOK_S):
            with contextlib.suppress(CloudError):
                self.look()

    def look(self) -> Look:
        """Look now."""
        with self._lock:
            found = parse(sql(self._layout, _LOOK))
            self.take(found)
            return found

    def take(self, found: Look) -> None:
        """Take in what a look has seen."""
        hosts = found.holders.items()
        self.count += 1
        self.without_holder |= {node for node, on in hosts if not on}
        self.with_two |= {node for node, on in hosts if len(on) > 1}
        states = found.servers.items()
        self.in_error |= {s for s, at in states if at.vm_state == 'error'}
        self.apart_count += _count_apart(found)
        if self._last is not None:
            self.moves += moves_between(self._last, found, self._now_s())
            self.changed |= changed_allocations(self._last, found)
        self._last = found


def _count_apart(look: Look) -> int:
    """Return how many servers have another host than their node."""
    holder = look.holder
    return sum(
        server in look.servers
        and look.servers[server].host not in (_NONE, holder.get(node))
        for node, server in look.on_node.items()
    )


def moved_twice(moves: Iterable[Move]) -> list[str]:
    """Return a line for each node that moved more than once."""
    ways: dict[str, list[str]] = {}
    for move in moves:
        ways.setdefault(move.node, [move.source]).append(move.target)
    return [
        f'{node}: {" ".join(way)}'
        for node, way in sorted(ways.items())
        if len(way) > 2
    ]
