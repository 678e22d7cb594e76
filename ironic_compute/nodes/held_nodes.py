# SPDX-License-Identifier: Apache-2.0
"""Held nodes of this host: row, facts, claim; nodes that Ironic does not find.

A host holds a node when the node's ComputeNode row names that host. The feed
delivers a node's facts, ``manager`` claims nodes for builds, ``ownership``
adds and drops nodes. Each change of a held node is written to its row and
submitted to Placement from here, and from nowhere else. No method reads
Ironic. One object lives as long as the worker process; any thread may call.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NewType, Protocol

import attrs
from nova import exception as nova_exception
from oslo_log import log as logging

from hashring.ring import Host
from ironic_compute.batching import run_isolated
from ironic_compute.nodes import records
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.foreign_servers import ForeignServers
from ironic_compute.nodes.node_cache import NodeCache
from ironic_compute.nodes.pins import read_pin
from ironic_compute.nodes.row_interning import intern_row
from ironic_compute.nodes.unconfirmed_rows import UnconfirmedRows
from resource_tracker.claims import ClaimBook
from resource_tracker.errors import NodeClaimed
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.provider import Aggregates, Situation

LOG = logging.getLogger(__name__)

# The consumer that claims a node while the node is given to another host.
_HANDOVER = 'handover'


# A logical clock, advanced when a node is added or dropped. A row that was
# read before the drop of its node is stale and must not add the node again.
HeldVersion = NewType('HeldVersion', int)


class Reporter(Protocol):
    """The writer of nodes to Placement (``resource_tracker.Reconciler``)."""

    def submit(self, facts: NodeFacts, situation: Situation) -> None:
        """Have a node written to Placement; replaces what waits for it."""

    def withdraw_node(self, node: NodeId, row_id: str) -> None:
        """Reserve the inventory of a node, so that no build comes to it."""

    def forget_node(self, node: NodeId) -> None:
        """Write nothing more for a node."""


@dataclasses.dataclass(frozen=True, slots=True)
class HostStatus:
    """The facts of the host that show on the providers of its nodes."""

    service_id: int | None = None
    disabled: bool = False
    capability_traits: frozenset[str] = frozenset()
    aggregates: Aggregates | None = None
    traits_of_capabilities: frozenset[str] = frozenset()


@dataclasses.dataclass(slots=True)
class _Held:
    """One held node: its row, and the lock of the thread that writes it."""

    row: Any
    lock: contextlib.AbstractContextManager[Any]
    since: HeldVersion


@attrs.define(eq=False, repr=False, slots=False)
class HeldNodes:
    """The held nodes of one host; any thread may call.

    No lock is held during a request except the lock of the node that the
    request is about.

    :param unconfirmed_rows: the held nodes that get no build yet
    :param on_unheld: called with the facts of a node that is not held, or
        was dropped because its row may name another host
    :param new_lock: makes the lock of one node
    """

    host: Host
    _compute_nodes: ComputeNodes
    _node_cache: NodeCache
    _claims: ClaimBook
    _reporter: Reporter
    unconfirmed_rows: UnconfirmedRows
    _on_unheld: Callable[[NodeFacts], None]
    _new_lock: Callable[[], contextlib.AbstractContextManager[Any]] = (
        threading.Lock
    )

    def __attrs_post_init__(self) -> None:
        self.host_status = HostStatus()
        self._held: dict[NodeId, _Held] = {}
        # With the number of each mark.
        self._missing: dict[NodeId, int] = {}
        self._marks_count = 0
        self.foreign_servers = ForeignServers()
        self._dropped: dict[NodeId, HeldVersion] = {}
        self._version = HeldVersion(0)
        self._lock = threading.Lock()

    # Which nodes are held

    def load_rows(self) -> None:
        """Read from Nova which nodes this host holds, when it starts."""
        read_at = self.version()
        self.add_rows(self._compute_nodes.list_by_host(self.host), read_at)

    def add_rows(self, rows: Iterable[Any], read_at: HeldVersion) -> None:
        """Hold the nodes of those rows that name this host.

        :param read_at: the version before the rows were read
        """
        with self._lock:
            for row in rows:
                if row.host == self.host:
                    self._add_row(row, read_at)

    def drop_nodes(
        self, nodes: Iterable[NodeId], read_at: HeldVersion
    ) -> None:
        """Drop nodes whose rows did not name this host when they were read.

        :param read_at: the version before the rows were read; a node that
            was added since is kept
        """
        with self._lock:
            held = {n: self._held[n] for n in nodes if n in self._held}
        for node in sorted(held):
            if held[node].since <= read_at:
                self.drop_node(node)

    def version(self) -> HeldVersion:
        """Return the version, to be taken before a row is read.

        It changes with the held nodes and with each pin.
        """
        with self._lock:
            return self._version

    def note_new_pin(self) -> None:
        """Change the version, because a pin was written or removed."""
        with self._lock:
            self._version = HeldVersion(self._version + 1)

    def row(self, node: NodeId) -> Any | None:
        """Return the row of a held node, None if the node is not held."""
        held = self._held.get(node)
        return held.row if held else None

    def rows(self) -> dict[NodeId, Any]:
        """Return the rows of all held nodes, by node."""
        with self._lock:
            return {node: held.row for node, held in self._held.items()}

    def add_node(
        self,
        row: Any,
        facts: NodeFacts | None,
        read_at: HeldVersion,
        *,
        created: bool = False,
    ) -> None:
        """Hold a node; a node whose row is new gets no build yet.

        :param read_at: the version before the row was read; a node that was
            dropped since is not held
        :param created: this worker created the row just now; the row is
            unconfirmed, however long the creation took
        """
        with self._lock:
            self._add_row(row, read_at)
            if created and records.node_of_row(row) in self._held:
                self.unconfirmed_rows.add(records.node_of_row(row))
        if facts is not None:
            self.accept_facts(facts)

    def _add_row(self, row: Any, read_at: HeldVersion) -> None:
        node = records.node_of_row(row)
        if node in self._held or self._dropped.get(node, 0) > read_at:
            return  # A held row is written only by the owner of its lock.
        self._version = HeldVersion(self._version + 1)
        self.unconfirmed_rows.add_if_new(row)
        held = _Held(intern_row(row), self._new_lock(), self._version)
        self._held[node] = held

    def confirm_row(self, node: NodeId, current: Any | None) -> None:
        """Allow builds on a node whose new row was read again.

        The node stays unconfirmed if it cannot be reported, and is dropped
        if the row names another host.

        :param current: the row as it was read just now; None: it is gone
        """
        with self.locked_row(node) as row:
            if row is None:
                return
            if current is None or current.host != self.host:
                self.drop_node(node)
                return
            self.unconfirmed_rows.discard(node)
        try:
            self.report_node(node)
        except Exception:
            with self._lock:
                if node in self._held:
                    self.unconfirmed_rows.add(node)
            raise

    def drop_node(self, node: NodeId) -> None:
        """Hold a node no longer; nothing more is written for the node."""
        with self._lock:
            self._held.pop(node, None)
            self.unconfirmed_rows.discard(node)
            self._missing.pop(node, None)
            self.foreign_servers.forget(node)
            self._version = HeldVersion(self._version + 1)
            self._dropped[node] = self._version
        self._reporter.forget_node(node)
        self._node_cache.remove_node(node)

    def _drop_unsure(self, node: NodeId) -> None:
        """Drop a node whose row may name another host.

        ``on_unheld`` gets the node, so that its row is read again.
        """
        facts = self.facts(node)
        self.drop_node(node)
        if facts is not None:
            self._on_unheld(facts)

    @contextlib.contextmanager
    def locked_row(self, node: NodeId) -> Iterator[Any | None]:
        """Yield the row of a held node, with the node's lock held.

        No other thread writes the row or reports the node meanwhile. Yields
        None if the node is not held, or if a request that gave the node away
        had no answer, so that its holder is not certain.
        """
        while (held := self._held.get(node)) is not None:
            with held.lock:
                if self._held.get(node) is not held:
                    continue  # It was dropped while this thread waited.
                is_sure = held.row.host == self.host
                if not is_sure:
                    self._drop_unsure(node)
                yield held.row if is_sure else None
                if node not in self._held:  # ``drop_node`` takes no lock.
                    self._reporter.forget_node(node)
                return
        yield None

    @contextlib.contextmanager
    def locked_free_row(
        self, node: NodeId, foreign: str | None = None
    ) -> Iterator[Any | None]:
        """Yield the row of a free node so that the body can give it away.

        Yields None if the node is not free. Meanwhile nothing is written for
        the node and no build claims it. The node is dropped if the body has
        made another host the holder.

        :param foreign: a server with which the node counts as free, because
            it is none of Nova's
        """
        with self.locked_row(node) as row:
            if row is None or not self._block_claims(node):
                yield None
                return
            try:
                yield row if self._has_at_most(node, foreign) else None
                if row.host != self.host:
                    self.drop_node(node)
            finally:  # Before another thread reports the node again.
                self._claims.release(node, _HANDOVER)

    def _block_claims(self, node: NodeId) -> bool:
        try:
            self._claims.claim(node, _HANDOVER)
        except NodeClaimed:
            return False
        return True

    def restore_pin(self, node: NodeId) -> None:
        """Write the pin of a held node again, as this worker knows it.

        A request of a former worker, which nova-conductor has carried out
        late, may have changed it in the database. Blocks.
        """
        with self.locked_row(node) as row:
            if row is None:
                return
            self._compute_nodes.write_pin(row, read_pin(row))
        LOG.info(
            'Wrote the pin of node %(node)s again, which a late request had '
            'changed',
            {'node': node},
        )

    # Facts from Ironic

    def facts(self, node: NodeId) -> NodeFacts | None:
        """Return the newest facts of a held node, None before the first."""
        return self._node_cache.facts(node)

    def is_unread(self, node: NodeId) -> bool:
        """Return whether Ironic has not answered for a held node yet.

        A new worker has the rows of its nodes before their facts.
        """
        return self.facts(node) is None and not self.is_missing(node)

    def update_facts(self, facts: NodeFacts) -> bool:
        """Store the facts of a held node, and report the node.

        :returns: False if the node is not held; nothing is done then
        """
        with self._lock:
            # Locked, because ``drop_node`` in another thread would else remove
            # the facts from the cache before they are stored there.
            if facts.uuid not in self._held:
                return False
            self._node_cache.update_facts(facts)
        self.report_node(facts.uuid)
        return True

    def accept_facts(self, facts: NodeFacts) -> None:
        """Update a held node; give an unheld node to ``on_unheld``."""
        if not self.update_facts(facts):
            self._on_unheld(facts)

    def mark_missing(self, node: NodeId) -> None:
        """Allow no build on a held node that Ironic answered 404 for.

        Ironic may be wrong. Therefore nothing is removed, and
        ``mark_present`` takes the mark off. A list does not take it off,
        because the list may be older than the 404.
        """
        with self.locked_row(node) as row:
            if row is None or node in self._missing:
                return
            with self._lock:
                self._marks_count += 1
                self._missing[node] = self._marks_count
            self._reporter.withdraw_node(node, records.incarnation_of(row))
        LOG.warning(
            'Ironic has no node %(node)s any more: no build is sent to it, '
            'and its records are removed if a later read does not find it '
            'either',
            {'node': node},
        )

    def is_missing(self, node: NodeId) -> bool:
        """Return whether a held node is marked as missing in Ironic."""
        return node in self._missing

    def missing_mark(self, node: NodeId) -> int | None:
        """Return the mark of a missing node; one after a find is another."""
        return self._missing.get(node)

    def mark_present(self, node: NodeId) -> None:
        """Take the mark of a missing node off: Ironic returned the node.

        Only for a request about this one node; a list may be too old.
        """
        with self._lock:
            self._missing.pop(node, None)

    def has_servers(self) -> bool:
        """Return whether Ironic shows an instance on any held node."""
        facts = map(self.facts, self.rows())
        return any(each and each.instance_uuid for each in facts)

    # Claims of builds

    def is_free(self, node: NodeId) -> bool:
        """Return whether a held node has no instance and no claim."""
        return self._is_bare(node) and self._claims.consumer(node) is None

    def _is_bare(self, node: NodeId) -> bool:
        """Return whether Ironic shows a node without an instance."""
        return self._has_at_most(node, None)

    def _has_at_most(self, node: NodeId, server: str | None) -> bool:
        """Return whether Ironic shows a node with no other instance."""
        facts = self.facts(node)
        return facts is not None and facts.instance_uuid in (None, server)

    def foreign_server(self, node: NodeId) -> str | None:
        """Return the server on a node that Nova never had, or None."""
        return self.foreign_servers.find(self.facts(node))

    def is_pushable(self, node: NodeId) -> bool:
        """Return whether neither a server of Nova nor a build has a node."""
        has_none = self._has_at_most(node, self.foreign_server(node))
        return has_none and self._claims.consumer(node) is None

    def list_idle_claims(self) -> list[tuple[NodeId, str]]:
        """List claims of nodes on which Ironic shows no instance.

        :returns: pairs of a node and the uuid of the server that claims it
        """
        return [
            (node, consumer)
            for node, consumer in self._claims.consumers().items()
            if consumer != _HANDOVER and self._is_bare(node)
        ]

    def release_claim(self, node: NodeId, consumer: str) -> None:
        """Remove the claim of a build that has ended; report the node."""
        self._claims.release(node, consumer)
        self.report_node(node)

    def consumer(self, node: NodeId) -> str | None:
        """Return the server whose build has claimed a node, or None."""
        return self._claims.consumer(node)

    # Reports

    def report_node(self, node: NodeId) -> None:
        """Write a held node to its row, then submit it to Placement.

        The row is written only if it has changed. Blocks during that write.
        """
        with self.locked_row(node) as row:
            facts = self.facts(node)
            if row is None or facts is None or node in self._missing:
                return
            if self._update_row(row, facts):
                self._reporter.submit(facts, self.situation(node))

    def report_all_nodes(self) -> None:
        """Report each held node, because the host's status has changed.

        The next audit reports a node that cannot be reported now.
        """
        for node in self.rows():
            run_isolated(node, self.report_node, node)

    def situation(self, node: NodeId) -> Situation:
        """Return the facts from outside Ironic that decide about builds."""
        row, status = self.row(node), self.host_status
        return Situation(
            row_id='' if row is None else records.incarnation_of(row),
            claim=self._claims.claim_of(node),
            confirmed=node not in self.unconfirmed_rows,
            disabled=status.disabled,
            capability_traits=status.capability_traits,
            aggregates=status.aggregates,
            traits_of_capabilities=status.traits_of_capabilities,
        )

    def unclaimed_situation(self, node: NodeId) -> Situation:
        """Return the situation of a node as it would be without a claim."""
        return dataclasses.replace(self.situation(node), claim=None)

    def update_host_status(self, **changes: Any) -> None:
        """Change fields of the host's status, which show in Placement.

        If a value is new, all held nodes are written to Placement again.

        :param changes: fields of :class:`HostStatus` and their values
        """
        with self._lock:
            status = dataclasses.replace(self.host_status, **changes)
            changed = status != self.host_status
            self.host_status = status
        if changed:
            self.report_all_nodes()

    def _update_row(self, row: Any, facts: NodeFacts) -> bool:
        """Write the row if it has changed.

        :returns: False if the row names another host; the node is dropped
        """
        holder = None
        with contextlib.suppress(nova_exception.ComputeHostNotFound):
            self._compute_nodes.update_row(row, facts)
            holder = row.host
        if holder == self.host:
            return True
        LOG.warning(
            'Node %(node)s is held by %(holder)s now and was dropped',
            {'node': facts.uuid, 'holder': holder or 'nobody'},
        )
        self._drop_unsure(facts.uuid)
        return False
