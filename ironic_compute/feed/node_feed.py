# SPDX-License-Identifier: Apache-2.0
"""The node feed: notifications, delta list and audit, delivered to one sink.

Ironic's notifications arrive within a second of a change. The delta list finds
the changes whose notification was lost, and the audit finds what neither can
show, deletions above all. Neither list is read while another worker tells what
it has, and all of it was delivered; see ``shared_reads``. The facts in a
notification are delivered only if they are later than all facts delivered
before; in doubt the node is read again, once for a burst of notifications.
Nothing is derived from an error: the sink gets only facts that were read
without one, and an outage of Ironic is logged once. Each worker has one feed,
with threads of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute import errors
from ironic_compute.batching import paced_chunks, run_isolated
from ironic_compute.feed.audit_schedule import AuditSchedule
from ironic_compute.feed.concurrent_reads import (
    ConcurrentReads,
    NewestFacts,
    RecordedReads,
)
from ironic_compute.feed.delivered import Delivered
from ironic_compute.feed.listening import Listening, NewListener
from ironic_compute.feed.notifications import Quality, new_listener
from ironic_compute.feed.outage import Outage
from ironic_compute.feed.paced_list import list_nodes
from ironic_compute.feed.read_queue import ReadQueue
from ironic_compute.feed.redelivery import Redelivery
from ironic_compute.feed.shared_reads import Heard, ReadsAlone, SharedReads
from ironic_compute.feed.sink import Sink
from ironic_compute.feed.watermark import Watermark
from ironic_compute.ironic_api.reader import IronicReader
from ironic_compute.loop_thread import Loop, LoopThread, NewLoop
from ironic_compute.nodes.changes_read import ChangesRead, fingerprint
from ironic_compute.nodes.listed_nodes import ListPart, ToldLists
from resource_tracker.node import NodeFacts, NodeId

LOG = logging.getLogger(__name__)

# A told list that shows more held nodes otherwise is not used: one list costs
# Ironic less than so many reads.
_DIFFERING_MAX = 100


@attrs.define(eq=False, repr=False, slots=False)
class NodeFeed:
    """Reads the changes of Ironic's nodes and delivers them, until stopped.

    :param conf: Nova's options, with the group ``ironic_compute``
    :param sink: receives the changes. If it raises an exception, the feed logs
        the exception and reads the node again later.
    :param host: the queue of this worker's notifications is named after it
    :param new_loop: makes the loops that read Ironic and start the listener
    :param new_listener: makes the listener, like ``notifications``
    :param shared: tells other workers what was read, and who reads
    """

    _conf: Any
    _client: IronicReader
    _sink: Sink
    _clock: Clock
    _host: str
    _new_loop: NewLoop = LoopThread
    _new_listener: NewListener = new_listener
    _shared: SharedReads = attrs.field(factory=ReadsAlone)

    def __attrs_post_init__(self) -> None:
        self._options = self._conf.ironic_compute
        self._interval_s = float(self._options.delta_interval_s)
        self._read_queue = ReadQueue(self._read, self._new_loop)
        self._watermark = Watermark(self._clock)
        self._concurrent_reads = ConcurrentReads()
        self._delivered = Delivered()
        self._heard = Heard()
        self._redelivery = Redelivery()
        # Nodes of this host that Ironic answered 404 for, maybe in error.
        self._missing = Redelivery()
        # Nodes that belonged to another pool when they were read last.
        self._outside_pool: set[str] = set()
        self._outage = Outage()
        self._told_lists = ToldLists()
        self._schedule = AuditSchedule(
            self._clock,
            float(self._options.audit_interval_s),
            self._interval_s,
            self._shared.is_reader,
            self._host,
        )
        self._make_sources()

    def _make_sources(self) -> None:
        self._audit_loop = self._new_loop('audit', self._try_audit, 0.0)
        self._delta_loop = self._new_loop(
            'delta', self._try_delta, self._interval_s
        )
        self._sources: list[Loop | Listening] = [
            self._audit_loop,
            self._delta_loop,
        ]
        if self._options.use_notifications:
            listening = Listening(
                self._conf,
                self._clock,
                self._host,
                self._accept_notification,
                self._new_loop,
                self._new_listener,
            )
            self._sources.append(listening)

    def start(self) -> None:
        """Start the threads of the feed; the audit reads all nodes first."""
        self._read_queue.start()
        for source in self._sources:
            source.start()

    def stop(self) -> None:
        """Stop reading. A read in progress is still delivered."""
        for source in self._sources:
            source.stop()
        self._read_queue.stop()

    # One node

    def _accept_notification(
        self, record: Mapping[str, Any], quality: Quality
    ) -> None:
        """Deliver the node in a notification, or request a read of the node.

        Reads are avoided because Ironic takes seconds to answer while it
        deploys a hundred nodes, and each deploy sends five notifications, as
        do the deploys of all other pools.
        """
        if self._is_outside_pool(record, quality):
            return
        if quality is Quality.DELETED:
            self._sink.note_deleted(NodeId(record['uuid']))
        is_unusable = quality in (Quality.UNUSABLE, Quality.DELETED)
        may_lack_shard = quality is Quality.NO_SHARD and self._client.has_shard
        if is_unusable or not self._deliver_record(record) or may_lack_shard:
            self.request_read(record['uuid'])

    def _is_outside_pool(
        self, record: Mapping[str, Any], quality: Quality
    ) -> bool:
        """Return whether a node was in another pool when read, and still is.

        False in doubt, and for a node that this host holds: the node is then
        processed like a node of this pool.
        """
        node = record['uuid']
        if node not in self._outside_pool or self._sink.is_held(node):
            return False
        if quality is Quality.NO_SHARD and not self._client.has_shard:
            group = record.get('conductor_group')
            return group is not None and not self._client.is_in_group(group)
        # A complete record comes from an action that moves no node to another
        # pool.
        return quality is Quality.COMPLETE

    def _deliver_record(self, record: Mapping[str, Any]) -> bool:
        """Deliver a notification's record unless it was delivered before.

        :returns: False if it was not delivered, because it may be stale, the
            sink could not process it, or the node is in another pool
        """
        if self._delivered.is_unchanged(record):
            return True
        facts = self._delivered.accept_notification(record)
        return facts is not None and self._deliver(facts)

    def accept_read(self, facts: NodeFacts) -> None:
        """Deliver a node that any part of the worker has just read.

        If the answer may be stale, the node is read again instead. Any thread
        may call; blocks while the sink processes the node.
        """
        is_missing = self._sink.is_missing(facts.uuid)
        if not is_missing and self._delivered.accept_read(facts):
            self._deliver(facts)
        else:
            self.request_read(facts.uuid)

    def request_read(self, node: str) -> None:
        """Read a node soon in another thread; a burst of calls is one read."""
        self._read_queue.add(node)

    def request_audit(self) -> None:
        """Read all nodes now, in the thread of the audit."""
        self._schedule.request()
        self._audit_loop.wake()

    def _read(self, node: str) -> None:
        """Read a node and deliver it; called by the read queue's threads."""
        try:
            facts = self._client.read_node(node)
        except errors.NodeNotFound:
            # Nothing is removed yet, because the 404 may be wrong.
            self._deliver_missing(NodeId(node))
            return
        except errors.IronicComputeError as exc:
            LOG.debug('Could not read node: %(exc)s', {'exc': exc})
            self._redelivery.add_failed(NodeId(node))
            return
        # The read queue reads a node in one thread at a time, so no 404 of
        # this node can be newer than this answer.
        self._sink.mark_present(facts.uuid)
        for other in self._missing.mark_delivered(facts.uuid):
            self.request_read(other)
        self.accept_read(facts)

    def _deliver_missing(self, node: NodeId) -> None:
        """Deliver that Ironic answered 404 for a node."""
        self._delivered.forget_node(node)
        self._concurrent_reads.mark_missing(node)
        self._outside_pool.discard(node)
        self._call_sink(node, self._sink.mark_missing, node)
        if self._sink.is_missing(node):
            self._missing.add_failed(node)
        else:
            self._missing.discard(node)

    def _deliver(self, facts: NodeFacts) -> bool:
        """Deliver the facts of a node, whatever its pool.

        :returns: whether the node is in this pool and the sink processed it
        """
        node = facts.uuid
        if not self._client.is_in_pool(facts):
            # A later notification of this node lacks the shard, so its record
            # must not be delivered without a read.
            self._delivered.forget_node(node)
            self._concurrent_reads.mark_left(node)
            self._outside_pool.add(node)
            self._call_sink(node, self._sink.node_left_pool, facts)
            return False
        self._outside_pool.discard(node)
        self._concurrent_reads.add(facts)
        return self._call_sink(node, self._sink.node_changed, facts)

    def _call_sink(
        self, node: NodeId, deliver: Callable[[Any], object], payload: object
    ) -> bool:
        """Call a method of the sink; return whether it succeeded.

        After a failure the node waits in the redelivery queue. After a success
        that ends a failure, all nodes of that queue are read again.
        """
        if not run_isolated(node, deliver, payload):
            self._delivered.forget_node(node)
            self._redelivery.add_failed(node)
            return False
        for other in self._redelivery.mark_delivered(node):
            self.request_read(other)
        return True

    # Audit and delta list

    def accept_listed(self, part: ListPart) -> None:
        """Accept a part of another worker's list; any thread may call."""
        if self._told_lists.add(part):
            self._schedule.note_told()
            self._audit_loop.wake()

    def _try_audit(self) -> float:
        """Audit all nodes if it is time; return the seconds until the next.

        Or until the next try, after an error.
        """
        told = self._told_lists.take() if self._schedule.take_told() else None
        if told is not None and self._may_use(told):
            self._call_audit(self._sink.audit_told, told)
            self._delivered.forget_unlisted(told.keys())
        elif self._schedule.is_due():
            self._schedule.begin()
            if not self._try_read(self._audit):
                is_total = self._outage.is_total
                return self._schedule.note_failure(is_total=is_total)
        else:
            return self._schedule.wait_s()
        self._schedule.note_done()
        return self._schedule.wait_s()

    def _may_use(self, told: Mapping[NodeId, str]) -> bool:
        """Return whether a list of another worker is as good as an own one.

        The first list of a worker is its own, as it has no facts before. So is
        the one after an outage, which shows that Ironic answers again.
        """
        if not self._schedule.may_use_told() or self._outage.is_on:
            return False
        count = self._sink.count_differing(told)
        if count is None or count > _DIFFERING_MAX:
            self._schedule.note_doubt()
            return False
        return True

    def _audit(self) -> None:
        """Read all nodes; reads of single nodes made meanwhile replace them.

        The list takes seconds and has no time stamps. Its entry for a node
        that was read meanwhile may be stale, and nothing would correct it
        later.

        :raises errors.IronicComputeError: the list could not be read
        """
        is_first = self._watermark.since() is None
        if is_first:
            # Nodes that changed lately are the most likely ones to differ
            # from Placement, so they are read before the full list.
            self._read_delta()
            self._schedule.begin()  # The list below is what it has requested.
        began_s = self._clock.now_s()
        with self._concurrent_reads.record() as reads:
            listed = list_nodes(self._client, self._clock, is_first=is_first)
            self._shared.tell_all(began_s, listed)
            newest = NewestFacts(reads, listed)
            self._call_audit(self._sink.audit_nodes, newest)
            self._delivered.forget_unlisted(newest.keys())
            # They may have been delivered just before a read found that they
            # left, and no list of this pool would correct that.
            for node in sorted(newest.left()):
                self.request_read(node)
            # The list may have contained these nodes although they are gone,
            # and no later list would correct that.
            for node in frozenset(reads.missing):
                self._deliver_missing(node)

    @staticmethod
    def _call_audit(
        audit: Callable[[Mapping[NodeId, Any]], None],
        nodes: Mapping[NodeId, Any],
    ) -> None:
        try:
            audit(nodes)
        except Exception:
            LOG.exception('Could not process a list of all nodes')

    def accept_changes(self, read: ChangesRead) -> None:
        """Accept what another worker has read; any thread may call.

        Before the first audit has begun, it is of no use.
        """
        if self._watermark.since() is not None:
            self._heard.add(read)
            self._delta_loop.wake()

    def _try_delta(self) -> float:
        """Read a delta list if needed; return the seconds until the next."""
        heard = self._heard.take()
        if self._shared.is_reader() or self._outage.is_on:
            # Only an own list shows that Ironic answers again.
            heard = []
        if heard and all(map(self._deliver_again, heard)):
            self._read_waiting()
        else:
            self._try_read(self._read_delta)
        return self._shared.silence_s if heard else self._interval_s

    def _deliver_again(self, read: ChangesRead) -> bool:
        """Deliver again what another worker has read, if all of it is known.

        As after a read: another thread may have delivered a different state
        in between (A, B, A). A node is read if the sink still has another
        state, because the read of that one was sent later. Ironic may have
        carried it out earlier.

        :returns: False if this worker has to read the list itself
        """
        since = self._watermark.since() or ''
        if read.since > since or read.fingerprints is None:
            return False
        found = [self._find(*told) for told in read.fingerprints.items()]
        if None in found:
            return False
        for facts in filter(None, found):
            node = facts.uuid
            is_taken = self._call_sink(node, self._sink.node_changed, facts)
            if is_taken and not self._sink.is_stored(facts):
                self.request_read(node)
        self._watermark.cover(read.next_since)
        return True

    def _find(self, node: NodeId, wanted: str) -> NodeFacts | None:
        """Return the facts delivered last; None if they are others."""
        facts = self._delivered.facts(node)
        if facts is None or self._sink.is_missing(node):
            return None
        return facts if fingerprint(facts) == wanted else None

    def _read_delta(self) -> None:
        """Read and deliver the nodes that changed since the watermark.

        Then request the reads that wait.

        :raises errors.IronicComputeError: the list could not be read
        """
        began_s, since = self._clock.now_s(), self._watermark.since()
        try:
            changed = self._deliver_delta(since)
        except errors.TooManyChanges as exc:
            # An audit reads the nodes that the list lacks. Until the watermark
            # moves again, the list would lack the same nodes.
            if self._watermark.advance_to(exc.newest, began_s):
                LOG.warning('%(exc)s; reading all nodes', {'exc': exc})
                self.request_audit()
        else:
            newest = max((f.updated_at or '' for f in changed), default='')
            self._watermark.advance_to(newest, began_s)
            self._tell(since, changed)
            if since is None and newest:
                # The pool had no nodes, and without a watermark a list has one
                # page: the first nodes may be more than that.
                self.request_audit()
        self._read_waiting()

    def _tell(self, since: str | None, changed: Sequence[NodeFacts]) -> None:
        """Tell the other workers what a delta list has shown."""
        next_since = self._watermark.since()
        if since is not None and next_since is not None:
            self._shared.tell(ChangesRead.of(since, next_since, changed))

    def _read_waiting(self) -> None:
        """Request a read of the next node that was not delivered.

        And of the next one that Ironic did not find.
        """
        for waiting in (self._redelivery, self._missing):
            if (node := waiting.next_node()) is not None:
                self.request_read(node)

    def _deliver_delta(self, since: str | None) -> Sequence[NodeFacts]:
        """Read a delta list, deliver it, and return it."""
        with self._concurrent_reads.record() as reads:
            changed = self._client.list_changed_nodes(since)
            for some in paced_chunks(changed, self._clock):
                for facts in some:
                    self._accept_listed(facts, reads)
        return changed

    def _accept_listed(self, facts: NodeFacts, reads: RecordedReads) -> None:
        """Deliver a node of the delta list; read it again if it may be stale.

        :param reads: the single nodes read since the list was requested
        """
        node = facts.uuid
        is_gone = node in reads.missing or node in reads.left
        is_unclear = is_gone or self._sink.is_missing(node)
        if is_unclear or not self._delivered.accept_listed(facts):
            self.request_read(node)
            return
        # Deliver even if unchanged: another thread may have delivered a
        # different state in between (A, B, A).
        self._deliver(facts)

    def _try_read(self, read: Callable[[], None]) -> bool:
        """Call ``read`` and log its error; return whether it succeeded.

        An outage of Ironic is logged once, and its end is logged once.
        """
        try:
            read()
        except errors.IronicComputeError as exc:
            self._outage.note_failure(read, exc)
            return False
        except Exception:
            LOG.exception('Could not read changes from Ironic')
            return False
        self._outage.note_success(read)
        return True
