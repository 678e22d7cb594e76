# SPDX-License-Identifier: Apache-2.0
"""Placing of new and orphaned nodes: which host gets a node of the pool.

A *new node* has no ComputeNode row. The ring target creates its row, once all
live agents have had the same ring for a while. An *orphan* has a row whose
host has no Service record in Nova; the ring target takes it over. A row of any
other host is left to that host; if that host is of another pool, the ring
target asks it for the node. ``rebalance`` calls this module in each round,
``manager`` for a node that a build names.
"""

import dataclasses
from collections.abc import Callable, Container, Iterable, Mapping, Set
from typing import Any

import attrs
from oslo_log import log as logging

from hashring.clock import Clock
from hashring.ring import Host
from ironic_compute.journal.moves import (
    Cause,
    Kind,
    MoveLog,
    NoMoveLog,
    Reason,
)
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.held_nodes import HeldNodes, HeldVersion
from ironic_compute.ownership.pacing import Pace, RowWriters
from ironic_compute.ownership.row_confirmation import RowConfirmation
from ironic_compute.ownership.unheld_nodes import UnheldNodes
from ironic_compute.pool.foreign_hosts import ForeignHosts
from ironic_compute.pool.services import ServiceDirectory
from ironic_compute.pool.view import PoolView
from resource_tracker.node import NodeFacts, NodeId

LOG = logging.getLogger(__name__)

# Number of nodes that are placed together: about as many as rows can be
# created in a second.
_SLICE_COUNT = 100
# Seconds after the read of a row, or of the Service of its host, after which
# it counts as stale.
_ROWS_VALID_S = 5.0
# Reading a page of all rows costs as much as reading this number of rows by
# name.
_NAMES_A_PAGE = 4
# More told nodes without a holder are read with one list, if that costs Ironic
# less: reading one node costs as much as this number of listed nodes.
_UNTAKEN_MAX = 100
_LISTED_A_READ = 32


@dataclasses.dataclass(frozen=True, slots=True)
class _RowsRead:
    """The rows of some nodes, as they were read at one moment."""

    rows: Mapping[NodeId, Any]
    read_at: HeldVersion
    began_at_s: float


class _HeldNow(Container[NodeId]):
    """The held nodes at each moment.

    A node that is held while all waiting lists are replaced is in none then.
    """

    def __init__(self, held_nodes: HeldNodes) -> None:
        self._held_nodes = held_nodes

    def __contains__(self, node: object) -> bool:
        return self._held_nodes.row(NodeId(str(node))) is not None


@attrs.define(eq=False, repr=False, slots=False)
class NewNodes:
    """Places the nodes that no host holds; one thread calls ``place_nodes``.

    Any thread may call the other methods.

    :param unheld: the nodes whose rows are to be read
    :param foreign: the hosts outside the pool that rows name
    :param request_read: makes the feed read a node from Ironic again soon
    :param request_audit: makes the feed read all nodes soon
    :param moves: notes each orphan that this host takes
    """

    _unheld: UnheldNodes
    _held_nodes: HeldNodes
    _compute_nodes: ComputeNodes
    _services: ServiceDirectory
    _foreign: ForeignHosts
    _pool: PoolView
    _clock: Clock
    _pace: Pace
    _writers: RowWriters
    _request_read: Callable[[NodeId], None]
    _request_audit: Callable[[], None]
    _moves: MoveLog = attrs.field(factory=NoMoveLog)

    def __attrs_post_init__(self) -> None:
        self._confirmation = RowConfirmation(
            self._held_nodes,
            self._compute_nodes,
            self._pool,
            self._clock,
            self._writers,
            self._pace.confirm_s,
        )
        self._legacy_nodes: frozenset[NodeId] | None = None
        # The hosts of the pool that had a Service record in the last pass.
        self._live_hosts: frozenset[Host] = frozenset()

    def reset_from_list(self, nodes: Mapping[NodeId, NodeFacts]) -> None:
        """Make the rows of all listed nodes due for the next pass.

        :param nodes: the list of all nodes of the pool that an audit has read
        """
        self._unheld.reset_from_list(nodes, _HeldNow(self._held_nodes))

    def check_listed(self, names: Set[NodeId]) -> None:
        """Make the rows of listed nodes due for the next pass.

        :param names: the list of all nodes of the pool that another worker has
            read, while no node waited here
        """
        self._unheld.check_listed(names, _HeldNow(self._held_nodes))

    def hold_if_ours(self, node: NodeId) -> None:
        """Read the row of one node, and hold the node if it names this host.

        Blocks. Used for a build that arrives before ``place_nodes`` reads the
        row.
        """
        was_waiting = self._unheld.facts(node) is not None
        read_at = self._held_nodes.version()
        row = self._read_row(node)
        if row is None or row.host != self._held_nodes.host:
            return
        self._held_nodes.add_node(row, None, read_at)
        # It is not another host's any more; the message of that may be lost.
        self._unheld.forget_holder(node)
        facts = self._unheld.facts(node)
        if facts is not None:
            self._held_nodes.accept_facts(facts)
            if self._held_nodes.row(node) is not None:
                # A later pass would replace newer facts by these.
                self._unheld.pop_due(node)
        elif was_waiting:
            # It may have been marked missing during the read of the row.
            self._request_read(node)

    def _read_row(self, node: NodeId) -> Any | None:
        found = self._compute_nodes.list_by_nodes([node]).get(node)
        return found or self._compute_nodes.read_by_name(node)

    def place_nodes(self) -> None:
        """Read the rows that are due; create, take or leave each node.

        Also confirms new rows. Blocks; call it only while the gate is open.
        """
        now_s = self._clock.now_s()
        due = self._unheld.take_due(self._pool.ring_status(), now_s)
        if self._unheld.is_first_pass():
            # Not when the list comes: it may be amid a round, which would
            # know of no foreign host then.
            self._foreign.clear()
        if due:
            self._place_all(due)
            self._foreign.send_requests()
        self._notice_lost_host()
        self._read_untaken()
        self._confirmation.confirm_due_rows()

    def _place_all(self, due: Mapping[NodeId, NodeFacts]) -> None:
        """Place nodes; create the missing rows in slices of 100.

        Because of the slices, the first new nodes are confirmed before the
        last ones are created, and each row is created soon after it was found
        missing.
        """
        left = set(due)
        try:
            read = self._read_rows(due)
            without_row = left - read.rows.keys()
            new = {node for node in without_row if self._may_take(node)}
            self._legacy_nodes = self._list_legacy_nodes(without_row)
            left -= self._place_some(due, left - new, read)
            nodes = sorted(new)
            for start in range(0, len(nodes), _SLICE_COUNT):
                some = nodes[start : start + _SLICE_COUNT]
                read = self._read_rows(some) if start else read
                left -= self._place_some(due, some, read)
                self._confirmation.confirm_due_rows()
        finally:
            self._unheld.put_back({node: due[node] for node in left})

    def _notice_lost_host(self) -> None:
        """Have the rows of other hosts' nodes read if a host has gone.

        Nova deletes the rows of a host together with its Service record, and
        sends no message. Nobody would hold these nodes until the next audit.
        """
        find = self._services.find_record
        live = frozenset(host for host in self._pool.known if find(host))
        if self._live_hosts - live:
            self._unheld.recheck_of_pool()
        self._live_hosts = live

    def _read_untaken(self) -> None:
        """Have each told node read that no other host of the pool holds.

        The feed then adds its facts, and a later pass places it.
        """
        unread = self._unheld.take_unread()
        try:
            untaken = self._find_untaken(unread)
        except Exception:
            self._unheld.put_back_unread(unread)
            raise
        is_dear = len(untaken) * _LISTED_A_READ > len(unread)
        if is_dear and len(untaken) > _UNTAKEN_MAX:
            self._request_audit()
            return
        for node in untaken:
            self._unheld.forget_holder(node)
            self._request_read(node)

    def _find_untaken(self, nodes: Set[NodeId]) -> list[NodeId]:
        """Return those nodes that no other host of the pool holds."""
        rows = self._compute_nodes.list_by_nodes(nodes) if nodes else {}
        untaken = []
        for node in sorted(nodes):
            row = rows.get(node)
            if row is None and self._unheld.must_find_by_name(node):
                row = self._compute_nodes.read_by_name(node)
            if not self._is_of_pool(row and row.host):
                untaken.append(node)
        return untaken

    def _is_of_pool(self, holder: str | None) -> bool:
        """Return whether the holder of a node is another host of the pool.

        It tells this host when it gives the node to it.
        """
        if holder is None or holder == self._held_nodes.host:
            return False
        is_live = self._services.find_record(Host(holder)) is not None
        return is_live and holder in self._pool.known

    def _read_rows(self, nodes: Iterable[NodeId]) -> _RowsRead:
        read_at, now_s = self._held_nodes.version(), self._clock.now_s()
        return _RowsRead(
            self._compute_nodes.list_by_nodes(nodes), read_at, now_s
        )

    def _place_some(
        self,
        due: Mapping[NodeId, NodeFacts],
        nodes: Iterable[NodeId],
        read: _RowsRead,
    ) -> set[NodeId]:
        """Place nodes in parallel; return those without an error."""
        placed = self._writers.for_each(
            lambda node: self._place(due[node], read), sorted(nodes)
        )
        return set(placed)

    def _list_legacy_nodes(
        self, nodes: Iterable[NodeId]
    ) -> frozenset[NodeId] | None:
        """Return the nodes whose row has another uuid than the node.

        Only a Nova older than 18 created such rows, so the result stays valid
        for the whole pass.

        :returns: None if it is cheaper to read the rows of ``nodes`` by name
        """
        count = sum(1 for node in nodes if self._needs_name(node))
        pages_max = count // _NAMES_A_PAGE
        if not pages_max:
            return None
        return self._compute_nodes.list_legacy_nodes(pages_max)

    def _place(self, facts: NodeFacts, read: _RowsRead) -> None:
        """Hold, leave, create or take one node, as its row requires."""
        row = read.rows.get(facts.uuid) or self._legacy_row(facts.uuid)
        holder = Host(row.host) if row is not None and row.host else None
        service_id = self._held_nodes.host_status.service_id
        if holder == self._held_nodes.host:
            self._hold(row, facts, read.read_at)
        elif holder is not None and self._services.find_record(holder):
            self._leave(facts, holder)
        elif service_id is None or not self._may_take(facts.uuid):
            self._unheld.set_unplaced(facts)
        elif row is None:
            self._create(facts, read, service_id)
        else:
            self._take_orphan(row, facts, read.read_at, service_id)

    def _leave(self, facts: NodeFacts, holder: Host) -> None:
        """Leave a node to its holder; ask a host of another pool for it."""
        self._foreign.note_holder(holder, facts.uuid)
        in_pool = holder in self._pool.known
        if not in_pool and self._is_wanted(facts.uuid):
            self._foreign.want_node(holder, facts.uuid)
        self._unheld.set_held_elsewhere(facts, in_pool=in_pool)

    def _legacy_row(self, node: NodeId) -> Any | None:
        """Read the row of a node by name, since its uuid may be another.

        Done before each creation of a row, because otherwise the node could
        get two rows and two holders (bugs 1771806, 1798172). Also done for a
        node that no host has taken between two audits.
        """
        if not self._needs_name(node):
            return None
        is_legacy = self._legacy_nodes is None or node in self._legacy_nodes
        row = self._compute_nodes.read_by_name(node) if is_legacy else None
        if row is None:
            self._unheld.set_found_no_row(node)
        return row

    def _needs_name(self, node: NodeId) -> bool:
        return self._unheld.must_find_by_name(node) or self._may_take(node)

    def _may_take(self, node: NodeId) -> bool:
        """Return whether this host is the ring target and all agents agree."""
        status = self._pool.ring_status()
        return (
            status.agreed
            and status.ring.target(node) == self._held_nodes.host
            and self._held_nodes.host_status.service_id is not None
        )

    def _is_wanted(self, node: NodeId) -> bool:
        return self._unheld.is_placing(node) and self._may_take(node)

    def _hold(
        self,
        row: Any,
        facts: NodeFacts,
        read_at: HeldVersion,
        *,
        created: bool = False,
    ) -> None:
        """Hold a node; store its facts unless it was marked missing meanwhile.

        A node that was marked missing is read again, because nothing else
        would read it before the next audit, and the 404 may have been wrong.
        So is one that a build has held before: the feed has delivered it to
        ``HeldNodes`` since, so the facts here may be old, and those of a
        notification would replace newer ones.

        The facts are removed from the waiting lists, because the feed delivers
        a held node to ``HeldNodes`` only. Facts left in a list would get old,
        and a later pass would replace newer ones by them.
        """
        was_read = self._held_nodes.facts(facts.uuid) is not None
        self._held_nodes.add_node(row, None, read_at, created=created)
        newest = self._unheld.pop_due(facts.uuid) or facts
        # A thread that marks the node missing after this check marks it in
        # ``HeldNodes``, because the node is held now.
        if self._unheld.is_placing(facts.uuid) and not was_read:
            self._held_nodes.accept_facts(newest)
        else:
            self._request_read(facts.uuid)

    def _create(
        self, facts: NodeFacts, read: _RowsRead, service_id: int
    ) -> None:
        row = self._compute_nodes.create_row(
            facts,
            self._held_nodes.host,
            service_id,
            lambda: self._may_create(facts.uuid, read),
        )
        if row is not None:
            self._hold(row, facts, read.read_at, created=True)
            LOG.info('Took new node %(node)s', {'node': facts.uuid})
        elif self._is_wanted(facts.uuid):
            # The read of the rows was too long ago, so the next pass repeats
            # it.
            self._unheld.add(facts)
        else:
            self._unheld.set_unplaced(facts)

    def _may_create(self, node: NodeId, read: _RowsRead) -> bool:
        """Return whether no other host can have a confirmed row of a node.

        Only the ring target creates a row, and only if all agents agree. The
        result is True if all agents have had the present ring since the row
        was found missing, and if that was so recently that a row created under
        an earlier ring cannot be confirmed yet.
        """
        read_ago_s = self._clock.now_s() - read.began_at_s
        valid_s = max(self._pace.confirm_s, _ROWS_VALID_S)
        return (
            self._is_wanted(node)
            and (self._pool.ring_status().agreed_for_s or 0.0) >= read_ago_s
            and read_ago_s <= valid_s
        )

    def _take_orphan(
        self, row: Any, facts: NodeFacts, read_at: HeldVersion, service_id: int
    ) -> None:
        if facts.instance_uuid is not None:
            # The Instance record names the same host. Changing only the row
            # would separate the node from its server; that needs an evict.
            LOG.warning(
                'Node %(node)s has an instance and its host %(holder)s has '
                'no Service record; start a daemon of that name again',
                {'node': facts.uuid, 'holder': row.host},
            )
            return
        former, asked_at_s = row.host, self._clock.now_s()
        begun_s = self._moves.now_s()

        def is_wanted() -> bool:
            # If the read was longer ago, a daemon of that host may have come
            # back since, and have built a server on the node.
            read_ago_s = self._clock.now_s() - asked_at_s
            return self._is_wanted(facts.uuid) and read_ago_s <= _ROWS_VALID_S

        orphan = self._read_orphan(facts.uuid, former)
        if orphan is not None and self._compute_nodes.take_row(
            orphan, self._held_nodes.host, service_id, is_wanted
        ):
            self._hold(orphan, facts, read_at)
            self._moves.add(
                Kind.TAKE,
                Cause(Reason.HOST_DELETED),
                begun_s=begun_s,
                source=former,
                target=self._held_nodes.host,
                node=facts.uuid,
            )
            LOG.info(
                'Took node %(node)s of host %(holder)s, whose record Nova '
                'has deleted',
                {'node': facts.uuid, 'holder': former},
            )
        else:
            # The row is read again when the ring changes, or after 10 s.
            self._unheld.set_unplaced(facts)

    def _read_orphan(self, node: NodeId, former: Host) -> Any | None:
        """Read the row of an orphan again; None if it is one no longer.

        The rows of a pass may have been read minutes ago, and another host
        may have taken the node since.
        """
        if self._services.read_exists(former):
            return None
        row = self._read_row(node)
        return row if row is not None and row.host == former else None
