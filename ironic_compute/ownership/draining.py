# SPDX-License-Identifier: Apache-2.0
"""Drain: all nodes of a host go to other hosts, also those with a server.

Nova stores an operator's order (``drain_order``), so whoever serves the host
carries it out. Free nodes are pushed as from any disabled host
(``rebalance``). The worker evicts the others, one after the other, as soon as
their servers have no task. A host that is to be retired leaves the pool when
it is empty (``retirement``).
"""

import dataclasses
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
from oslo_log import log as logging

from hashring.clock import Clock
from hashring.ring import Host, Ring
from ironic_compute.errors import GateShut
from ironic_compute.gate import Gate, without_waiting
from ironic_compute.journal.moves import Cause, Reason
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.held_nodes import HeldNodes
from ironic_compute.nodes.records import ServerRow
from ironic_compute.ownership.drain_order import DrainOrder, read_order
from ironic_compute.ownership.eviction import (
    Evictor,
    Refused,
    Terms,
    no_lease,
)
from ironic_compute.ownership.movability import why_server_stays
from ironic_compute.ownership.move_plan import MovePlanner, PlannedMove
from ironic_compute.ownership.pacing import MinuteLimit
from ironic_compute.ownership.retirement import Retirement
from ironic_compute.pool.services import ServiceDirectory
from ironic_compute.pool.view import PoolView
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)

ROUND_INTERVAL_S = 5.0


@attrs.define(eq=False, repr=False, slots=False)
class Draining:
    """Drains the host of one worker.

    One thread calls ``try_round``; any thread may call the other methods. All
    of them block for requests.

    :param retirement: ends the host, if it is to be retired
    :param services_changed: has the Service records read again soon
    :param why_not_pushed: returns why a free node is not pushed at present
    """

    _held_nodes: HeldNodes
    _compute_nodes: ComputeNodes
    _services: ServiceDirectory
    _pool: PoolView
    _gate: Gate
    _clock: Clock
    _evictor: Evictor
    _retirement: Retirement
    _settle_s: float
    _services_changed: Callable[[], None]
    _why_not_pushed: Callable[[NodeId], str | None] = lambda node: None

    def __attrs_post_init__(self) -> None:
        self._planner = MovePlanner(
            self._held_nodes,
            self._compute_nodes,
            self._evictor,
            self._why_not_pushed,
        )
        self._limit = MinuteLimit(self._clock)
        # Held while an order is changed, and while the host is ended.
        self._order_lock = threading.Lock()

    # The order

    def begin(
        self, limit: int | None, *, retires: bool, changes_zone: bool = False
    ) -> str | None:
        """Store the order to drain this host, instead of an earlier one.

        :param limit: servers that are moved in a minute at most
        :param retires: the host leaves the pool when it is empty
        :param changes_zone: servers may go to hosts in other availability
            zones
        :returns: None, or a sentence with the reason of a refusal
        """
        order = DrainOrder(limit, retires, changes_zone=changes_zone)
        return self._change(
            lambda record: self._why_last() or _begin(record, order)
        )

    def check(self, *, retires: bool) -> str | None:
        """Return what :meth:`begin` would return now, and write nothing."""
        here = self._held_nodes.host
        record = self._services.read_record(here)
        if record is None:
            return _no_service(here)
        return self._why_last() or _why_retired(record, retires)

    def _why_last(self) -> str | None:
        here = self._held_nodes.host
        if any(map(self._takes_nodes, sorted(self._ring_of_others().hosts))):
            return None
        return (
            f'Host {here} is the only host of this pool that takes nodes, so '
            f'its nodes can go nowhere; enable or start another one'
        )

    def _takes_nodes(self, host: Host) -> bool:
        """Read whether a host of the ring is enabled still.

        Another one that is drained just now is in the ring for some seconds.
        """
        record = self._services.read_record(host)
        return record is not None and not record.disabled

    def end(self) -> str | None:
        """End the drain of this host, which is as before then.

        A host that somebody had disabled before stays disabled, with the
        former reason. Any other host is enabled.

        :returns: None, or a sentence with the reason of a refusal
        """
        return self._change(_end)

    def _change(self, change: Callable[[Any], str | None]) -> str | None:
        """Change the Service record of this host, if ``change`` permits it."""
        self._gate.wait()
        try:
            with self._order_lock, without_waiting():
                return self._change_now(change)
        except GateShut:
            return str(no_lease())

    def _change_now(self, change: Callable[[Any], str | None]) -> str | None:
        """Do it, unless the lease lapses before the write.

        :raises errors.GateShut: it has lapsed
        """
        here = self._held_nodes.host
        record = self._services.read_record(here)
        if record is None:
            return _no_service(here)
        former = read_order(record)
        why_not = change(record)
        if why_not is not None:
            return why_not
        # Nova's own saves of this record do not wait at the gate.
        self._gate.wait()
        if former is None or not former.retires:
            # First: a save without an answer may have been carried out.
            self._retirement.begin_anew()
        record.save()
        LOG.info(
            'An operator has host %(host)s %(what)s',
            {'host': here, 'what': _describe(record)},
        )
        self._services_changed()
        return None

    # The plan

    def plan(self, *, changes_zone: bool = False) -> list[PlannedMove]:
        """Return what is left to be moved from this host, and what waits.

        It is the same before and during a drain. What all that is left waits
        for has an entry without a node and a server, once there is an order.

        :param changes_zone: of the order that is carried out, or is to be
        """
        moves = self._plan_moves(Terms(changes_zone=changes_zone))
        return moves + self._list_waits(is_empty=not moves)

    def _plan_moves(self, terms: Terms) -> list[PlannedMove]:
        moves = self._planner.plan_moves(self._ring_of_others(), terms)
        return moves + self._list_homeless(move.server for move in moves)

    def _list_waits(self, *, is_empty: bool) -> list[PlannedMove]:
        """Return why no round goes on, or why the host cannot be ended."""
        order = read_order(self._services.find_record(self._held_nodes.host))
        if order is None or (is_empty and not order.retires):
            return []
        whys = [self._why_not_agreed()]
        if order.retires:
            whys.append(self._retirement.why_waits())
        return [PlannedMove('', None, None, why) for why in whys if why]

    def _why_not_agreed(self) -> str | None:
        status = self._pool.ring_status()
        if not status.ring.hosts:
            return 'No host of this pool takes nodes; enable or start one'
        if status.agreed:
            return None
        return (
            'The daemons of this pool do not agree on their hosts yet; see '
            '"ironic-computectl pool show"'
        )

    def _ring_of_others(self) -> Ring:
        """Return the ring as it is when this host is disabled."""
        hosts = self._pool.ring_status().ring.hosts
        return Ring(hosts - {self._held_nodes.host})

    def _list_homeless(
        self, on_nodes: Iterable[str | None]
    ) -> list[PlannedMove]:
        """Return the servers of this host that are on none of its nodes.

        While a node has not been read, any of them may be on it.
        """
        here = self._held_nodes.host
        if any(map(self._held_nodes.is_unread, self._held_nodes.rows())):
            return []
        servers = self._compute_nodes.list_servers_of_host(here)
        homeless = sorted(servers.difference(on_nodes))
        if not homeless:
            return []
        rows = self._compute_nodes.read_servers(homeless)
        nodes = {NodeId(row.node) for row in rows.values() if row.node}
        away = self._compute_nodes.list_by_nodes(
            nodes - self._held_nodes.rows().keys()
        )
        return [
            PlannedMove(
                '',
                server,
                None,
                # A build that waits for Ironic has no server there yet.
                why_server_stays(server, rows.get(server), here)
                or _why_away(server, rows[server], away)
                or f'Server {server} is on host {here} in Nova, and on no '
                f'node of it',
            )
            for server in homeless
        ]

    # The work

    def try_round(self) -> float:
        """Run a round, log its error, return the seconds until the next."""
        try:
            self.run_round()
        except GateShut as exc:
            LOG.debug('Not drained now: %(reason)s', {'reason': exc})
        except Exception:
            LOG.exception('Could not drain this host; trying again')
        return ROUND_INTERVAL_S

    def run_round(self) -> None:
        """Move the servers of a drained host that can be moved now."""
        self._retirement.report()
        order = read_order(self._services.find_record(self._held_nodes.host))
        if not self._gate.is_open() or order is None:
            return
        status = self._pool.ring_status()
        is_settled = status.agreed and status.settled_for_s >= self._settle_s
        if not is_settled or self._held_nodes.host in status.ring.hosts:
            return
        terms = Terms(changes_zone=order.changes_zone)
        plan = self._plan_moves(terms) if self._needs_plan(order) else None
        self._move_some(plan or (), order, terms)
        if order.retires:
            self._end_host(is_empty=plan == [])

    def _needs_plan(self, order: DrainOrder) -> bool:
        """Return whether a server may move now, or no node is left.

        A plan reads all servers of the host. While the limit of moves in a
        minute is reached, a plan in each round would read them for nothing.
        """
        is_limited = self._limit.wait_s(order.limit) > 0.0
        return not (is_limited and self._held_nodes.rows())

    def _end_host(self, *, is_empty: bool) -> None:
        with self._order_lock:
            self._retirement.run_round(is_empty=is_empty)

    def _move_some(
        self, plan: Iterable[PlannedMove], order: DrainOrder, terms: Terms
    ) -> None:
        cause = Cause(Reason.RETIRE if order.retires else Reason.DRAIN)
        for move in plan:
            if move.server is None or move.target is None or move.why_not:
                continue
            if self._is_over(order):
                return
            try:
                self._evictor.evict(
                    NodeId(move.node), Host(move.target), terms, cause=cause
                )
            except Refused as exc:
                LOG.debug('Not moved yet: %(reason)s', {'reason': exc})
                continue
            self._limit.note_move()

    def _is_over(self, order: DrainOrder) -> bool:
        """Return whether as many servers as allowed were moved lately.

        Also if an operator has changed the order meanwhile.
        """
        if self._limit.wait_s(order.limit) > 0.0:
            return True
        record = self._services.find_record(self._held_nodes.host)
        return read_order(record) != order


def _why_away(
    server: str, row: ServerRow, away: Mapping[NodeId, Any]
) -> str | None:
    """Return that a server's node has yet to come here, if it has a holder.

    The host was given the server, or the node as well, and not told of it.

    :param away: the rows of nodes that this host has not taken
    """
    found = away.get(NodeId(row.node or ''))
    if found is None:
        return None
    return (
        f'Host {row.host} has not taken node {row.node} of server {server} '
        f'yet, which host {found.host} holds in Nova; wait for an audit'
    )


def _no_service(host: Host) -> str:
    return f'Nova has no Service record of host {host}'


def _why_retired(record: Any, retires: bool) -> str | None:
    """Return why an order would contradict an earlier one, or None."""
    order = read_order(record)
    if order is None or not order.retires or retires:
        return None
    return (
        f'An operator has host {record.host} retired; end that first: '
        f'ironic-computectl host undrain {record.host}'
    )


def _begin(record: Any, order: DrainOrder) -> str | None:
    former, why_not = read_order(record), _why_retired(record, order.retires)
    if why_not is not None:
        return why_not
    reason = former.former if former is not None else None
    if former is None and record.disabled:
        reason = record.disabled_reason or ''
    record.disabled = True
    order = dataclasses.replace(order, former=reason)
    record.disabled_reason = order.reason()
    return None


def _end(record: Any) -> str | None:
    order = read_order(record)
    if order is None and record.disabled:
        return (
            f'Host {record.host} is not drained. Somebody else has disabled '
            f'it, with the reason {record.disabled_reason or "none"}; to '
            f'enable it, run: openstack compute service set --enable '
            f'{record.host} nova-compute'
        )
    former = None if order is None else order.former
    record.disabled = former is not None
    record.disabled_reason = former or None
    return None


def _describe(record: Any) -> str:
    order = read_order(record)
    if order is None:
        return 'drained no longer'
    return 'retired' if order.retires else 'drained'
