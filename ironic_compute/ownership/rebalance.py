# SPDX-License-Identifier: Apache-2.0
"""Rebalance: free nodes are pushed to the hosts that should hold them.

A *free node*, which has no instance and no claim, is pushed to its target (its
pin, or else the host that the hash ring names) by its present holder, and by
no other host: the holder writes ``ComputeNode.host``. A node with an instance
stays where it is, because Nova sends the requests for the instance there. An
instance that Nova never had counts for nothing: somebody else has deployed the
node, and no request of Nova depends on its holder.

Each worker runs a round about every second in a thread of its own; in each
round ``new_nodes`` also places the nodes that no host holds. A push that was
interrupted is repeated in a later round.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
from oslo_log import log as logging

from hashring.ring import Host, Ring
from ironic_compute.errors import GateShut
from ironic_compute.gate import Gate
from ironic_compute.journal.moves import (
    Cause,
    Kind,
    MoveLog,
    NoMoveLog,
    Reason,
)
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.held_nodes import HeldNodes, HeldVersion
from ironic_compute.nodes.pins import read_pin, set_pin, target_of
from ironic_compute.nodes.records import clear_new_mark
from ironic_compute.ownership.new_nodes import NewNodes
from ironic_compute.ownership.pacing import Pace, RowWriters
from ironic_compute.pool.foreign_hosts import ForeignHosts
from ironic_compute.pool.services import ServiceDirectory
from ironic_compute.pool.view import PoolView, RingStatus
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)

# Seconds between two rounds of a worker.
ROUND_INTERVAL_S = 1.0

# Number of rounds after which a node with a server in Nova but not in Ironic
# is checked again. A check takes two requests to Nova.
_RECHECK_ROUNDS = 60


@attrs.define(eq=False, repr=False, slots=False)
class Rebalancer:
    """Places new nodes and pushes free nodes.

    One thread calls ``run_round``; any thread may call ``follow_instance`` and
    ``push``.

    :param new_nodes: places the nodes that no host holds
    :param foreign: the hosts outside the pool that hold nodes of the pool
    :param notify_given: called with a host and the nodes it was given
    :param moves: notes each move
    """

    _held_nodes: HeldNodes
    _compute_nodes: ComputeNodes
    _services: ServiceDirectory
    _new_nodes: NewNodes
    _foreign: ForeignHosts
    _pool: PoolView
    _gate: Gate
    _pace: Pace
    _writers: RowWriters
    _notify_given: Callable[[Host, list[NodeId]], None]
    _moves: MoveLog = attrs.field(factory=NoMoveLog)

    def __attrs_post_init__(self) -> None:
        self._computed_for: tuple[Ring, HeldVersion] | None = None
        self._targets: dict[NodeId, Host] = {}
        self._with_server: set[NodeId] = set()
        self._rounds_count = 0

    def follow_instance(self, node: NodeId, host: Host) -> None:
        """Give a held node to the host that ``Instance.host`` names.

        Nova sends all RPC about a server to that host, so the node's row
        must name the same host. Blocks.
        """
        record = self._services.find_record(host)
        if record is None:
            return
        begun_s = self._moves.now_s()
        with self._held_nodes.locked_row(node) as row:
            if row is None:
                return
            clear_new_mark(row)
            if not self._compute_nodes.write_holder(row, host, record.id):
                return
            self._held_nodes.drop_node(node)
        self._moves.add(
            Kind.FOLLOW,
            Cause(Reason.SERVER),
            begun_s=begun_s,
            source=self._held_nodes.host,
            target=host,
            node=node,
        )
        LOG.info(
            'Gave node %(node)s to host %(host)s, where its server is',
            {'node': node, 'host': host},
        )
        self._notify_given(host, [node])

    def try_round(self) -> float:
        """Run one round, log its error, return the seconds until the next."""
        try:
            self.run_round()
        except Exception:
            LOG.exception('Could not push nodes; trying again')
        return ROUND_INTERVAL_S

    def run_round(self) -> None:
        """Place new nodes and push free ones, at most ``push_budget`` nodes.

        Does nothing while the gate is shut; blocks. While the ring is empty,
        because all hosts are disabled, this host holds what was given to it.
        """
        if not self._gate.is_open() or not self._services.is_read:
            # Without the records every host would seem to lack its Service
            # record.
            return
        self._new_nodes.place_nodes()
        status = self._pool.ring_status()
        if not status.ring.hosts or self._foreign.is_stock_compute_up():
            return
        if status.settled_for_s >= self._settle_s(status):
            self._push(status.ring)

    def _settle_s(self, status: RingStatus) -> float:
        """Return the age in seconds that a ring needs before pushes begin.

        It is longer if agents disagree, because a host that still has the
        previous ring would push a node back at once.
        """
        pace = self._pace
        if status.agreed:
            return pace.settle_s
        return max(pace.settle_s, pace.disagree_s)

    def _push(self, ring: Ring) -> None:
        self._rounds_count += 1
        if self._rounds_count % _RECHECK_ROUNDS == 0:
            self._with_server.clear()
        free = (n for n in self._find_misplaced(ring) if self._is_free(n))
        some = itertools.islice(free, self._pace.push_budget)
        moves = {node: self._targets[node] for node in some}
        given = self._writers.for_each(
            lambda node: self._push_one(node, moves[node], ring), moves
        )
        self._log_pushes([n for n in moves if given.get(n)], moves)

    def _find_misplaced(self, ring: Ring) -> Iterable[NodeId]:
        """Return the held nodes whose target is another host.

        The result is cached until the ring, the held nodes or a pin change, so
        that a round without a push costs the same with thousands of nodes. As
        an answer of nova-conductor may change a row, it is renewed each
        minute.
        """
        computed_for = (ring, self._held_nodes.version())
        is_old = self._rounds_count % _RECHECK_ROUNDS == 0
        if is_old or computed_for != self._computed_for:
            self._computed_for = computed_for
            rows = self._held_nodes.rows()
            here = (None, self._held_nodes.host)
            targets = ((n, target_of(rows[n], ring)) for n in sorted(rows))
            self._targets = {n: t for n, t in targets if t not in here}
        return self._targets

    def _is_free(self, node: NodeId) -> bool:
        return (
            node not in self._with_server
            and node not in self._held_nodes.unconfirmed_rows
            and self._held_nodes.is_pushable(node)
        )

    def _push_one(self, node: NodeId, target: Host, ring: Ring) -> bool:
        row, begun_s = self._held_nodes.row(node), self._moves.now_s()
        is_given = self._give(node, target, ring)
        if is_given:
            self._moves.add(
                Kind.PUSH,
                self._why_pushed(row, target, ring),
                begun_s=begun_s,
                source=self._held_nodes.host,
                target=target,
                node=node,
            )
            # At once: if this worker is killed, nobody else tells the target,
            # which then notices at its next audit.
            self._notify_given(target, [node])
        return is_given

    def _why_pushed(self, row: Any, target: Host, ring: Ring) -> Cause:
        pin = None if row is None else read_pin(row)
        if pin is not None and pin.host == target:
            return Cause(Reason.PIN, pin.by)
        if self._held_nodes.host not in ring.hosts:
            return Cause(Reason.DISABLED)
        return Cause(Reason.RING)

    def _give(self, node: NodeId, target: Host, ring: Ring) -> bool:
        """Push one free node; return whether the target holds it now.

        An operator may have pinned or unpinned it since the target was found.
        """
        record = self._services.find_record(target)
        return record is not None and self.push(
            node, target, record.id, lambda row: target_of(row, ring) == target
        )

    def push(
        self,
        node: NodeId,
        target: Host,
        service_id: int,
        is_wanted: Callable[[Any], bool],
        *,
        unpins: bool = False,
    ) -> bool:
        """Give a held node to another host, if it is free.

        Any thread may call; it blocks for some requests to Nova.

        :param service_id: the id of the target's Service record
        :param is_wanted: called with the locked row, before the other checks
        :param unpins: removes the pin of the node as well
        :returns: whether the target holds the node now
        """
        foreign = self._held_nodes.foreign_server(node)
        with self._held_nodes.locked_free_row(node, foreign) as row:
            if row is None or not is_wanted(row):
                return False
            if not self._is_ours_now(node, row):
                return False
            if foreign is not None and self._is_of_nova(node, foreign):
                return False
            if self._compute_nodes.list_instances_on(
                node, self._held_nodes.host
            ):
                # Nova has a server on the node; Ironic has none there.
                self._with_server.add(node)
                return False
            clear_new_mark(row)
            former = read_pin(row)
            if unpins:
                set_pin(row, None)
            try:
                return self._compute_nodes.write_holder(
                    row, target, service_id
                )
            except GateShut:
                # Nothing was sent. The next write of the row, for any other
                # reason, would else end the pin of a node that stays.
                set_pin(row, former)
                raise

    def _is_of_nova(self, node: NodeId, server: str) -> bool:
        """Ask Nova again whether it has a server, or had it once.

        Nova has the record of a server before its build is sent to a host, so
        before Ironic has the server. An error of Nova is raised.
        """
        is_known = bool(self._compute_nodes.read_servers([server]))
        if is_known:
            self._held_nodes.foreign_servers.forget(node)
        return is_known

    def _is_ours_now(self, node: NodeId, row: Any) -> bool:
        """Read the row again and return whether it still names this host.

        A write that arrived late may have made another host the holder.
        """
        current = self._compute_nodes.read_by_name(node)
        if current is None or current.host != self._held_nodes.host:
            # ``locked_free_row`` drops the node then.
            row.host = current and current.host
        return bool(row.host == self._held_nodes.host)

    def misplaced(self) -> Mapping[NodeId, Host]:
        """Return the nodes that another host should hold, and which.

        As of the last round that pushed nodes; it may name a node that is not
        held any more. Any thread may call it.
        """
        return self._targets

    def why_not_pushed(self, node: NodeId) -> str | None:
        """Return why a free node was not pushed in the last rounds, or None.

        A reason that stops all pushes comes first: no round checks then
        whether Nova still has the server. Any thread may call; does not block.
        """
        why_none = self._foreign.why_not_pushed()
        if why_none is not None or node not in self._with_server:
            return why_none
        return (
            f'Nova has a server on node {node}, and Ironic has none there; '
            f'the node stays until that server is deleted or is there again'
        )

    def _log_pushes(
        self, given: list[NodeId], moves: Mapping[NodeId, Host]
    ) -> None:
        for target in sorted({moves[node] for node in given}):
            nodes = [node for node in given if moves[node] == target]
            LOG.info(
                'Pushed %(count)d free nodes to host %(target)s',
                {'count': len(nodes), 'target': target},
            )
