# SPDX-License-Identifier: Apache-2.0
"""The nodes this worker holds, each with its row, its facts, its claim.

A node is held when its ComputeNode row names our host. Everything that is
known of a held node meets here and leaves as one report to Placement, so this
is the only place that decides what a change means. It is fed by ``feed`` and
never asks Ironic by itself.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NewType

from nova import exception as nova_exception
from oslo_log import log as logging

from hashring.clock import Clock
from hashring.ring import Host
from ironic_compute.batching import run_isolated
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.node_cache import NodeCache
from ironic_compute.nodes.records import is_new, node_of, which
from ironic_compute.nodes.reporter import Reporter
from ironic_compute.nodes.row_interning import compact
from resource_tracker.claims import ClaimBook
from resource_tracker.errors import NodeClaimed
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.provider import Aggregates, Situation

LOG = logging.getLogger(__name__)

# The consumer that stands in the claim book while a node changes hands.
_HANDOVER = 'handover'


# Counts what was taken up and dropped: what was read before a node left says
# nothing of it any more.
Moment = NewType('Moment', int)


@dataclasses.dataclass(frozen=True, slots=True)
class HostStatus:
    """What of the host itself shows on the providers of its nodes."""

    service_id: int | None = None
    disabled: bool = False
    capability_traits: frozenset[str] = frozenset()
    aggregates: Aggregates | None = None
    traits_of_capabilities: frozenset[str] = frozenset()


@dataclasses.dataclass(slots=True)
class _Held:
    """One held node: its row, and who may write it now."""

    row: Any
    writing: contextlib.AbstractContextManager[Any]
    since: Moment


class HeldNodes:
    """The held nodes of one host; any thread may call.

    No lock is held across a request but that of the one node it is about.
    ``on_stranger`` is called with the facts of each node that is not held.

    :param new_s: so old a row is not new any more, whoever created it: no
        request to create it can still be carried out
    :param new_lock: makes the lock of a node
    """

    def __init__(
        self,
        host: Host,
        compute_nodes: ComputeNodes,
        node_cache: NodeCache,
        claims: ClaimBook,
        reporter: Reporter,
        clock: Clock,
        new_s: float,
        new_lock: Callable[
            [], contextlib.AbstractContextManager[Any]
        ] = threading.Lock,
    ) -> None:
        self.host = host
        self.status = HostStatus()
        self._compute_nodes = compute_nodes
        self._node_cache = node_cache
        self._claims = claims
        self._reporter = reporter
        self._clock = clock
        self._new_s = new_s
        self._new_lock = new_lock
        self._held: dict[NodeId, _Held] = {}
        self._unconfirmed: set[NodeId] = set()
        self._denied: set[NodeId] = set()
        self._left: dict[NodeId, Moment] = {}
        self._moment = Moment(0)
        self._lock = threading.Lock()
        self._settled = threading.Condition(self._lock)
        self.on_stranger: Callable[[NodeFacts], None] = lambda facts: None

    def load(self) -> None:
        """Read from Nova which nodes this host holds: when it starts."""
        read_at = self.moment()
        self.gain(self._compute_nodes.of_host(self.host), read_at)

    def gain(self, rows: Iterable[Any], read_at: Moment) -> None:
        """Hold nodes whose rows, as they were read, are ours."""
        with self._lock:
            for row in rows:
                if row.host == self.host:
                    self._enter(row, read_at)

    def lose(self, nodes: Iterable[NodeId], read_at: Moment) -> None:
        """Drop nodes whose rows, as they were read, are not ours."""
        with self._lock:
            held = {n: self._held[n] for n in nodes if n in self._held}
        for node in sorted(held):
            if held[node].since <= read_at:
                self.drop(node)

    def moment(self) -> Moment:
        """Return a mark: to be taken before a row is read that may be held."""
        with self._lock:
            return self._moment

    def row(self, node: NodeId) -> Any | None:
        """Return the row of a held node."""
        held = self._held.get(node)
        return held.row if held else None

    def rows(self) -> dict[NodeId, Any]:
        """Return the rows of all held nodes, by node."""
        with self._lock:
            return {node: held.row for node, held in self._held.items()}

    def facts(self, node: NodeId) -> NodeFacts | None:
        """Return what Ironic last said of a held node."""
        return self._node_cache.facts(node)

    def hold(
        self,
        row: Any,
        facts: NodeFacts | None,
        read_at: Moment,
        *,
        created: bool = False,
    ) -> None:
        """Count a node as held; one whose row is new is not offered yet.

        :param read_at: before the row was read; nothing is done for a node
            that has left us since
        :param created: by us just now: it is new, however long that took
        """
        with self._lock:
            self._enter(row, read_at)
            if created:
                self._unconfirmed |= {node_of(row)} & self._held.keys()
        if facts is not None:
            self.observe(facts)

    def _enter(self, row: Any, read_at: Moment) -> None:
        node = node_of(row)
        if node in self._held or self._left.get(node, 0) > read_at:
            return  # Who writes a held row has its lock, and no other.
        self._moment = Moment(self._moment + 1)
        held = _Held(compact(row), self._new_lock(), self._moment)
        self._held[node] = held
        if is_new(row, self._clock.wall_s() - self._new_s):
            self._unconfirmed.add(node)

    def confirm(self, node: NodeId, current: Any | None) -> None:
        """Offer a new node whose row was read again as ours.

        If that fails, it is as unconfirmed as before.

        :param current: the row as it was read just now; None: it is gone
        """
        with self.still(node) as row:
            if row is None:
                return
            if current is None or current.host != self.host:
                self.drop(node)
                return
            with self._lock:
                self._unconfirmed.discard(node)
                self._settled.notify_all()
        try:
            self.report(node)
        except Exception:
            with self._lock:
                self._unconfirmed |= {node} & self._held.keys()
            raise

    def unconfirmed(self) -> frozenset[NodeId]:
        """Return the new nodes whose row was not read again yet."""
        with self._lock:
            return frozenset(self._unconfirmed)

    def await_confirmed(self, node: NodeId, timeout_s: float) -> None:
        """Block as long as a node is new, or for this time."""
        with self._settled:
            self._settled.wait_for(
                lambda: node not in self._unconfirmed, timeout_s
            )

    def drop(self, node: NodeId) -> None:
        """Stop counting a node as held; nothing is written for it again."""
        with self._lock:
            self._held.pop(node, None)
            self._unconfirmed.discard(node)
            self._settled.notify_all()
            self._denied.discard(node)
            self._moment = Moment(self._moment + 1)
            self._left[node] = self._moment
        self._reporter.forget_node(node)
        self._node_cache.drop(node)

    def _look_anew(self, node: NodeId) -> None:
        """Drop a node that is perhaps not held: its row will say."""
        facts = self.facts(node)
        self.drop(node)
        if facts is not None:
            self.on_stranger(facts)

    @contextlib.contextmanager
    def still(self, node: NodeId) -> Iterator[Any | None]:
        """Yield a held node's row; nothing is reported of it meanwhile.

        None if it is not held; or perhaps not any more, because a request
        that gave it away had no answer.
        """
        while (held := self._held.get(node)) is not None:
            with held.writing:
                if self._held.get(node) is not held:
                    continue  # It left while we waited.
                is_sure = held.row.host == self.host
                if not is_sure:
                    self._look_anew(node)
                yield held.row if is_sure else None
                if node not in self._held:  # ``drop`` waits for no lock.
                    self._reporter.forget_node(node)
                return
        yield None

    @contextlib.contextmanager
    def leaving(self, node: NodeId) -> Iterator[Any | None]:
        """Give a free node away: yields its row, None if it is not free.

        Meanwhile nothing is written for it, and no build claims it. Given to
        another host by the body, it is not held any more.
        """
        with self.still(node) as row:
            if row is None or not self._block_claims(node):
                yield None
                return
            try:
                yield row if self._is_bare(node) else None
                if row.host != self.host:
                    self.drop(node)
            finally:  # Before anybody reports the node again.
                self._claims.release(node, _HANDOVER)

    def _block_claims(self, node: NodeId) -> bool:
        try:
            self._claims.claim(node, _HANDOVER)
        except NodeClaimed:
            return False
        return True

    def observe(self, facts: NodeFacts) -> None:
        """Take in what Ironic says of any node of the pool."""
        if not self.renew(facts):
            self.on_stranger(facts)

    def renew(self, facts: NodeFacts) -> bool:
        """Take in what Ironic says of a node, of whatever pool, if held."""
        if facts.uuid not in self._held:
            return False
        if self._node_cache.facts(facts.uuid) is None:
            self._node_cache.hold(facts)
        else:
            self._node_cache.update(facts)
        self.report(facts.uuid)
        return True

    def deny(self, node: NodeId) -> None:
        """Offer a held node no more: Ironic says that there is none.

        Ironic may be wrong: nothing is removed, and ``found`` takes it back.
        A list does not: it may be older.
        """
        with self.still(node) as row:
            if row is None or node in self._denied:
                return
            with self._lock:
                self._denied.add(node)
            self._reporter.withdraw_node(node)
        LOG.warning(
            'Ironic has no node %(node)s any more: no build is sent to it, '
            'and its records are removed if the next audit does not find it '
            'either',
            {'node': node},
        )

    def is_denied(self, node: NodeId) -> bool:
        """Say whether a held node is one that Ironic has denied."""
        return node in self._denied

    def found(self, node: NodeId) -> None:
        """Take a denial back: Ironic was asked for this node alone."""
        with self._lock:
            self._denied.discard(node)

    def is_free(self, node: NodeId) -> bool:
        """Say whether a held node has no instance and no claim."""
        return self._is_bare(node) and self._claims.consumer(node) is None

    def _is_bare(self, node: NodeId) -> bool:
        """Say whether Ironic shows a node, and no instance on it."""
        facts = self.facts(node)
        return facts is not None and facts.instance_uuid is None

    def idle_claims(self) -> list[tuple[NodeId, str]]:
        """Return builds that have a node which has no instance in Ironic."""
        return [
            (node, consumer)
            for node, consumer in self._claims.consumers().items()
            if consumer != _HANDOVER and self._is_bare(node)
        ]

    def release(self, node: NodeId, consumer: str) -> None:
        """Strike out the claim of a build that is no more."""
        self._claims.release(node, consumer)
        self.report(node)

    def report(self, node: NodeId) -> None:
        """Make Nova's row and Placement say what we know of a held node."""
        with self.still(node) as row:
            facts = self.facts(node)
            if row is None or facts is None or node in self._denied:
                return
            if self._describe(row, facts):
                self._reporter.submit(facts, self.situation(node))

    def report_all(self) -> None:
        """Report each held node: something of the host has changed.

        One that cannot be is reported by the next audit.
        """
        for node in self.rows():
            run_isolated(node, self.report, node)

    def situation(self, node: NodeId) -> Situation:
        """Return what besides Ironic decides how a node is offered."""
        row = self.row(node)
        return Situation(
            row_id='' if row is None else which(row),
            claim=self._claims.claim_of(node),
            confirmed=node not in self._unconfirmed,
            disabled=self.status.disabled,
            capability_traits=self.status.capability_traits,
            aggregates=self.status.aggregates,
            traits_of_capabilities=self.status.traits_of_capabilities,
        )

    def unclaimed_situation(self, node: NodeId) -> Situation:
        """Return the situation as it would be without a claim."""
        return dataclasses.replace(self.situation(node), claim=None)

    def change_status(self, **changes: Any) -> None:
        """Take over what is new of the host; then report all its nodes."""
        with self._lock:
            status = dataclasses.replace(self.status, **changes)
            changed = status != self.status
            self.status = status
        if changed:
            self.report_all()

    def _describe(self, row: Any, facts: NodeFacts) -> bool:
        """Write the row if need be; False if the node turned out not ours."""
        holder = None
        with contextlib.suppress(nova_exception.ComputeHostNotFound):
            self._compute_nodes.describe(row, facts)
            holder = row.host
        if holder == self.host:
            return True
        LOG.warning(
            'Node %(node)s is held by %(holder)s now and was dropped',
            {'node': facts.uuid, 'holder': holder or 'nobody'},
        )
        self._look_anew(facts.uuid)
        return False
