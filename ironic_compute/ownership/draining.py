# SPDX-License-Identifier: Apache-2.0
"""Drain: all nodes of a host go to other hosts, also those with a server.

An operator's order is stored in Nova, in the Service record of the host: the
host is disabled, and the reason begins with a mark of ours. So it survives
every daemon, all of them read it, and whoever serves the host carries it out.
Free nodes are pushed as from any disabled host (``rebalance``). The worker
evicts the others, one after the other, as soon as their servers have no task.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
from oslo_log import log as logging

from hashring.clock import Clock
from hashring.ring import Host, Ring
from ironic_compute.gate import Gate
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.held_nodes import HeldNodes
from ironic_compute.nodes.records import ServerRow
from ironic_compute.ownership.eviction import (
    Evictor,
    Refused,
    why_server_stays,
)
from ironic_compute.pool.services import ServiceDirectory
from ironic_compute.pool.view import PoolView
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)

ROUND_INTERVAL_S = 5.0
# ``disabled_reason`` of a host that is drained; a limit may follow.
MARK = 'ironic-compute: draining'
_LIMIT = ', servers per minute: '
_MINUTE_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedMove:
    """One node of a drained host.

    :param server: the server on it; None if the node is free
    :param target: the host that gets the node; None without any other host
    :param why_not: why it is not moved now; None: it is moved in this round
    """

    node: str
    server: str | None
    target: str | None
    why_not: str | None = None


def reason_of(limit: int | None) -> str:
    """Return the ``disabled_reason`` of a host that is to be drained.

    :param limit: servers that are moved in a minute at most
    """
    return MARK if limit is None else f'{MARK}{_LIMIT}{limit}'


def is_draining(record: Any | None) -> bool:
    """Return whether a Service record says that its host is drained."""
    if record is None or not record.disabled:
        return False
    return str(record.disabled_reason or '').startswith(MARK)


def _limit_of(record: Any) -> int | None:
    _, _, limit = str(record.disabled_reason).partition(_LIMIT)
    return int(limit) if limit.isdigit() else None


@attrs.define(eq=False, repr=False, slots=False)
class Draining:
    """Drains the host of one worker.

    One thread calls ``try_round``; any thread may call the other methods. All
    of them block for requests.

    :param services_changed: has the Service records read again soon
    """

    _held_nodes: HeldNodes
    _compute_nodes: ComputeNodes
    _services: ServiceDirectory
    _pool: PoolView
    _gate: Gate
    _clock: Clock
    _evictor: Evictor
    _settle_s: float
    _services_changed: Callable[[], None]

    def __attrs_post_init__(self) -> None:
        self._moved_s: list[float] = []

    # The order

    def begin(self, limit: int | None) -> str | None:
        """Store the order to drain this host.

        :returns: None, or a sentence with the reason of a refusal
        """
        here = self._held_nodes.host
        if not self._ring_of_others().hosts:
            return (
                f'Host {here} is the only host of this pool that takes nodes, '
                f'so its nodes can go nowhere; enable or start another one'
            )
        return self._write(disabled=True, reason=reason_of(limit))

    def end(self) -> str | None:
        """Enable this host again, if it is drained.

        :returns: None, or a sentence with the reason of a refusal
        """
        return self._write(disabled=False, reason=None)

    def _write(self, *, disabled: bool, reason: str | None) -> str | None:
        here = self._held_nodes.host
        self._gate.wait()
        record = self._services.read_record(here)
        if record is None:
            return f'Nova has no Service record of host {here}'
        if record.disabled and not is_draining(record):
            return (
                f'Host {here} was disabled by somebody else, with the reason '
                f'{record.disabled_reason or "none"}; enable it first: '
                f'openstack compute service set --enable {here} nova-compute'
            )
        record.disabled, record.disabled_reason = disabled, reason
        record.save()
        LOG.info(
            'An operator has host %(host)s %(what)s',
            {'host': here, 'what': 'drained' if disabled else 'enabled'},
        )
        self._services_changed()
        return None

    # The plan

    def plan(self) -> list[PlannedMove]:
        """Return what is left to be moved from this host, and what waits.

        It is the same before and during a drain.
        """
        ring = self._ring_of_others()
        servers = self._list_servers()
        rows = self._compute_nodes.read_servers(filter(None, servers.values()))
        refused = self._check_targets(ring, servers)
        return [
            self._plan_one(node, server, ring.target(node), rows, refused)
            for node, server in sorted(servers.items())
        ]

    def _ring_of_others(self) -> Ring:
        """Return the ring as it is when this host is disabled."""
        hosts = self._pool.ring_status().ring.hosts
        return Ring(hosts - {self._held_nodes.host})

    def _list_servers(self) -> dict[NodeId, str | None]:
        held = {n: self._held_nodes.facts(n) for n in self._held_nodes.rows()}
        return {
            node: None if facts is None else facts.instance_uuid
            for node, facts in held.items()
        }

    def _check_targets(
        self, ring: Ring, servers: Mapping[NodeId, str | None]
    ) -> dict[Host | None, str | None]:
        """Return why each target can take no server now, or None."""
        targets = {ring.target(node) for node in servers if servers[node]}
        return {target: self._why_not(target) for target in targets}

    def _why_not(self, target: Host | None) -> str | None:
        if target is None:
            return 'No other host of this pool takes nodes'
        try:
            self._evictor.check_target(target)
        except Refused as exc:
            return str(exc)
        return None

    def _plan_one(
        self,
        node: NodeId,
        server: str | None,
        target: Host | None,
        rows: Mapping[str, ServerRow],
        refused: Mapping[Host | None, str | None],
    ) -> PlannedMove:
        if server is None:
            is_free = self._held_nodes.is_free(node)
            why_not = None if is_free else f'Node {node} is being built on'
        else:
            why_not = refused[target] or why_server_stays(
                server, rows.get(server), self._held_nodes.host
            )
        return PlannedMove(node, server, target, why_not)

    # The work

    def try_round(self) -> float:
        """Run a round, log its error, return the seconds until the next."""
        try:
            self.run_round()
        except Exception:
            LOG.exception('Could not drain this host; trying again')
        return ROUND_INTERVAL_S

    def run_round(self) -> None:
        """Move the servers of a drained host that can be moved now."""
        record = self._services.find_record(self._held_nodes.host)
        if not self._gate.is_open() or not is_draining(record):
            return
        status = self._pool.ring_status()
        is_settled = status.agreed and status.settled_for_s >= self._settle_s
        if not is_settled or self._held_nodes.host in status.ring.hosts:
            return
        self._move_some(self.plan(), _limit_of(record))

    def _move_some(
        self, plan: Iterable[PlannedMove], limit: int | None
    ) -> None:
        for move in plan:
            if move.server is None or move.target is None or move.why_not:
                continue
            if self._is_over(limit):
                return
            try:
                self._evictor.evict(NodeId(move.node), Host(move.target))
            except Refused as exc:
                LOG.debug('Not moved yet: %(reason)s', {'reason': exc})
                continue
            self._moved_s.append(self._clock.now_s())

    def _is_over(self, limit: int | None) -> bool:
        """Return whether as many servers as allowed were moved lately.

        Also if an operator has changed the order meanwhile.
        """
        since_s = self._clock.now_s() - _MINUTE_S
        self._moved_s = [s for s in self._moved_s if s > since_s]
        if limit is not None and len(self._moved_s) >= limit:
            return True
        record = self._services.find_record(self._held_nodes.host)
        return not is_draining(record)
