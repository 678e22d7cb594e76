# SPDX-License-Identifier: Apache-2.0
"""The node feed: notifications, delta list and audit, delivered to one sink.

Ironic's notifications arrive within a second of a change. The delta list finds
the changes whose notification was lost, and the audit finds what neither can
show, deletions above all. The facts in a notification are delivered only if
they are later than all facts delivered before; in doubt the node is read
again, once for a burst of notifications. Nothing is derived from an error: the
sink gets only facts that were read without one, and an outage of Ironic is
logged once. Each worker has one feed, with threads of its own.
"""

import collections
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute import errors
from ironic_compute.batching import HalfTimePause, paced_chunks, run_isolated
from ironic_compute.feed.concurrent_reads import ConcurrentReads, ReadsSince
from ironic_compute.feed.delivered import Delivered
from ironic_compute.feed.notifications import (
    HEARERS_COUNT,
    Worth,
    new_listener,
)
from ironic_compute.feed.read_queue import ReadQueue
from ironic_compute.feed.redelivery import Redelivery
from ironic_compute.feed.watermark import Watermark
from ironic_compute.ironic_api import timestamps
from ironic_compute.ironic_api.reader import IronicReader
from resource_tracker.node import NodeFacts, NodeId

LOG = logging.getLogger(__name__)

_News = TypeVar('_News')

_RETRY_LISTENER_S = 30.0
_RETRY_AUDIT_MAX_S = 300.0


class Sink(Protocol):
    """What is told of nodes; called from several threads."""

    def node_changed(self, facts: NodeFacts) -> None:
        """Take in one node as it is now."""

    def node_left_pool(self, facts: NodeFacts) -> None:
        """Take in one node as it is now, if it is held though not ours."""

    def mark_missing(self, node: NodeId) -> None:
        """Take in that Ironic has no such node."""

    def is_held(self, node: NodeId) -> bool:
        """Say whether a node is held, of whatever pool."""

    def is_missing(self, node: NodeId) -> bool:
        """Say whether Ironic had no such held node when last asked for it."""

    def mark_present(self, node: NodeId) -> None:
        """Take in that Ironic has a node when it is asked for it alone."""

    def audit_nodes(self, nodes: Mapping[NodeId, NodeFacts]) -> None:
        """Take in all nodes of the pool, read without an error."""


class NodeFeed:
    """Read changes until stopped.

    :param conf: Nova's, with our group ``ironic_compute``
    :param sink: its errors are logged and end nothing
    :param host: names this worker's queue of notifications
    """

    def __init__(
        self,
        conf: Any,
        client: IronicReader,
        sink: Sink,
        clock: Clock,
        *,
        host: str,
    ) -> None:
        self._conf = conf
        self._options = conf.ironic_compute
        self._client = client
        self._sink = sink
        self._clock = clock
        self._host = host
        self._stopping = threading.Event()
        self._read_queue = ReadQueue(self._read)
        self._watermark = Watermark(clock)
        self._newer = ConcurrentReads()
        self._told = Delivered()
        self._redelivery = Redelivery()
        self._foreign: set[str] = set()
        self._outage = _Outage()
        self._listener: Any = None
        self._news_since_s = 0.0

    def start(self) -> None:
        """Start reading, with a full audit first."""
        self._news_since_s = self._clock.wall_s() - timestamps.SKEW_S
        self._read_queue.start()
        for target, name in (
            (self._keep_auditing, 'audit'),
            (self._keep_reading_delta, 'delta'),
            (self._keep_listening, 'notifications'),
        ):
            threading.Thread(target=target, name=name, daemon=True).start()

    def stop(self) -> None:
        """Read nothing more."""
        self._stopping.set()
        self._read_queue.stop()
        if self._listener is not None:
            self._listener.stop()

    # One node

    def _hear(self, record: Mapping[str, Any], worth: Worth) -> None:
        """Take in what a notification tells, or read the node.

        With a hundred deploys under way Ironic takes seconds to answer, and
        each of them would ask it five times; those of other pools, too.
        """
        if self._is_foreign(record, worth):
            return
        shows_all = worth is Worth.ALL or not self._client.has_shard
        if worth is Worth.HINT or not (self._believe(record) and shows_all):
            self.request_read(record['uuid'])

    def _is_foreign(self, record: Mapping[str, Any], worth: Worth) -> bool:
        """Say whether a node was another pool's when read, and is still.

        No record has a shard, but most work of Ironic's changes none.
        """
        node = record['uuid']
        if node not in self._foreign or self._sink.is_held(node):
            return False
        group = record.get('conductor_group')
        if worth is not Worth.SAVED or self._client.has_shard or group is None:
            return worth is Worth.ALL
        return not self._client.is_in_group(group)

    def _believe(self, record: Mapping[str, Any]) -> bool:
        """Tell what a record says that is not known; False: it is in doubt."""
        if self._told.knows(record):
            return True
        facts = self._told.heard(record)
        return facts is not None and self._tell(facts)

    def accept_read(self, facts: NodeFacts) -> None:
        """Take in a node that was read, by whomever, just now."""
        if not self._sink.is_missing(facts.uuid) and self._told.read(facts):
            self._tell(facts)
        else:
            self.request_read(facts.uuid)

    def request_read(self, node: str) -> None:
        """Read a node again soon; calls in a burst count as one."""
        self._read_queue.add(node)

    def _read(self, node: str) -> None:
        try:
            facts = self._client.read_node(node)
        except errors.NodeNotFound:
            # That it is to be removed is for the audit to say.
            self._deny(NodeId(node))
            return
        except errors.IronicComputeError as exc:
            LOG.debug('Could not read node: %(exc)s', {'exc': exc})
            return
        # One thread at a time reads a node here, so no denial is newer.
        self._sink.mark_present(facts.uuid)
        self.accept_read(facts)

    def _deny(self, node: NodeId) -> None:
        self._told.forget(node)
        self._newer.deny(node)
        self._foreign.discard(node)
        self._try(node, self._sink.mark_missing, node)

    def _tell(self, facts: NodeFacts) -> bool:
        """Tell the sink of a node of our pool; return whether it took it in.

        One of another pool may be held all the same.
        """
        node = facts.uuid
        if not self._client.is_in_pool(facts):
            # Notifications say no shard: what they say later is not enough.
            self._told.forget(node)
            self._foreign.add(node)
            self._try(node, self._sink.node_left_pool, facts)
            return False
        self._foreign.discard(node)
        self._newer.add(facts)
        return self._try(node, self._sink.node_changed, facts)

    def _try(
        self, node: NodeId, tell: Callable[[_News], object], news: _News
    ) -> bool:
        """Tell the sink; what it cannot take in now is read again."""
        if not run_isolated(node, tell, news):
            self._told.forget(node)
            self._redelivery.failed(node)
            return False
        for other in self._redelivery.told(node):
            self.request_read(other)
        return True

    # All nodes, and those that changed lately

    def _keep_auditing(self) -> None:
        retry_s = 0.0
        while not self._stopping.is_set():
            if self._guarded(self._audit):
                retry_s, wait_s = 0.0, self._options.audit_interval_s
            else:
                retry_s = wait_s = self._audit_retry_s(retry_s)
            self._stopping.wait(wait_s)

    def _audit_retry_s(self, last_s: float) -> float:
        """Return when to try to read all nodes again, after it failed.

        An Ironic that is away says so at once. One that fails over the last
        of many pages has worked for nothing, and is spared.

        :param last_s: the wait before that failure; 0: it is the first
        """
        if not last_s or self._outage.is_whole:
            return float(self._options.delta_interval_s)
        longest_s = min(_RETRY_AUDIT_MAX_S, self._options.audit_interval_s)
        return min(2.0 * last_s, longest_s)

    def _audit(self) -> None:
        """Read all nodes; a node that was read since we began wins.

        A list has no stamps and takes seconds, so what it says of such a
        node may be old, and nothing would correct it.
        """
        is_first = self._watermark.since() is None
        if is_first:
            # Before all others those that changed lately: if anything is
            # not as Placement has it, it is among them.
            self._read_delta()
        with self._newer.since() as since:
            nodes = {facts.uuid: facts for facts in self._list(is_first)}
            self._hand_over(collections.ChainMap(since.facts, nodes))
            # The list may have shown them, and no other list would say that
            # they are gone since.
            for node in frozenset(since.denied):
                self._deny(node)

    def _list(self, hurry: bool) -> Sequence[NodeFacts]:
        """Read all nodes; builds ask the same Ironic and come before us."""
        started_s = self._clock.now_s()
        if hurry:
            nodes = self._client.list_nodes()
        else:
            nodes = self._client.list_nodes(rest=HalfTimePause(self._clock))
        LOG.debug(
            'Read %(count)d nodes in %(seconds).1f s',
            {
                'count': len(nodes),
                'seconds': self._clock.now_s() - started_s,
            },
        )
        return nodes

    def _hand_over(self, nodes: Mapping[NodeId, NodeFacts]) -> None:
        try:
            self._sink.audit_nodes(nodes)
        except Exception:
            LOG.exception('Could not process a list of all nodes')

    def _keep_reading_delta(self) -> None:
        while not self._stopping.wait(self._options.delta_interval_s):
            self._guarded(self._read_delta)

    def _read_delta(self) -> None:
        with self._newer.since() as since:
            changed = self._client.list_changed_nodes(self._watermark.since())
            for some in paced_chunks(changed, self._clock):
                for facts in some:
                    self._take_listed(facts, since)
        self._watermark.saw(
            max((f.updated_at or '' for f in changed), default='')
        )
        if (redelivery := self._redelivery.next()) is not None:
            self.request_read(redelivery)

    def _take_listed(self, facts: NodeFacts, since: ReadsSince) -> None:
        """Take in a node of a list, which may be older than what is known."""
        node = facts.uuid
        is_denied = node in since.denied or self._sink.is_missing(node)
        if is_denied or not self._told.listed(facts):
            self.request_read(node)
            return
        # Even if it is as we told it last: others read nodes, too, and it
        # may have gone there and back.
        self._tell(facts)

    def _guarded(self, read: Callable[[], None]) -> bool:
        """Read; say once that Ironic is away, and once that it is back."""
        try:
            read()
        except errors.IronicComputeError as exc:
            self._outage.began(read, exc)
            return False
        except Exception:
            LOG.exception('Could not read changes from Ironic')
            return False
        self._outage.ended(read)
        return True

    # Notifications

    def _keep_listening(self) -> None:
        if not self._options.use_notifications:
            return
        say = LOG.warning
        while not self._stopping.is_set():
            try:
                self._listen()
                return
            except Exception as exc:
                say(
                    "Could not listen to Ironic's notifications and will try "
                    'again; changes are seen through the delta list: '
                    '%(error)s',
                    {'error': exc},
                )
                say = LOG.debug
            self._stopping.wait(_RETRY_LISTENER_S)

    def _listen(self) -> None:
        listener = new_listener(
            self._conf, self._host, self._hear, self._news_since_s
        )
        # Blocks while the broker is away, and so would stop() before its end.
        listener.start(override_pool_size=HEARERS_COUNT)
        self._listener = listener
        if self._stopping.is_set():
            listener.stop()


class _Outage:
    """Which reads fail; said once when it begins and when all work again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failing: set[object] = set()

    @property
    def is_whole(self) -> bool:
        """Whether the list of all nodes and that of changes both fail."""
        return len(self._failing) > 1

    def began(self, read: object, exc: errors.IronicComputeError) -> None:
        """Note that a read failed."""
        with self._lock:
            say = LOG.debug if self._failing else LOG.warning
            self._failing.add(read)
        say(
            "Could not read Ironic's nodes; keeping what is known and trying "
            'again: %(error)s',
            {'error': exc},
        )

    def ended(self, read: object) -> None:
        """Note that a read worked."""
        with self._lock:
            if read not in self._failing:
                return
            self._failing.discard(read)
            is_over = not self._failing
        if is_over:
            LOG.info('Ironic answers again')
