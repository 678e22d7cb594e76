# SPDX-License-Identifier: Apache-2.0
"""Where changes of nodes come from: three sources, one sink.

Ironic's notifications say within a second that a node may have changed; the
delta list finds every few seconds what they missed; the full audit finds what
neither can see, deletions above all. A notification is a hint: the node is
read again, bursts as one. Nothing is ever inferred from an error: the sink
hears only of what was read well, and an Ironic that is down is said once.
"""

import re
import threading
from collections.abc import Mapping
from concurrent import futures
from typing import Any, Protocol

import oslo_messaging
from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute import errors
from ironic_compute.ironic import IronicClient
from resource_tracker.node import NodeFacts, NodeId

LOG = logging.getLogger(__name__)

_READERS = 4
# The first event says what is wanted, not what is: only ends count.
_WORTH_A_LOOK = re.compile(r'^baremetal\.node\..*\.(end|success|error)$')
_RETRY_LISTENER_S = 30.0
# A second of the watermark is read again: stamps are whole seconds, and
# rows become visible a little after their stamp.
_OVERLAP_LENGTH = len('2026-01-01T00:00:0')


class Sink(Protocol):
    """What is told of nodes; called from several threads."""

    def observe(self, facts: NodeFacts) -> None:
        """Take in one node as it is now."""

    def audited(self, nodes: Mapping[NodeId, NodeFacts]) -> None:
        """Take in all nodes of the pool, read without an error."""


class Feed:
    """Read changes until stopped.

    :param sink: its errors are logged and end nothing
    :param host: names this worker's queue of notifications
    """

    def __init__(
        self,
        conf: Any,
        client: IronicClient,
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
        self._dirty: set[str] = set()
        self._reading: set[str] = set()
        self._lock = threading.Lock()
        self._readers = futures.ThreadPoolExecutor(
            _READERS, thread_name_prefix='reader'
        )
        self._watermark: str | None = None
        self._seen: dict[NodeId, NodeFacts] = {}
        self._is_away = False
        self._listener: Any = None

    def start(self) -> None:
        """Start reading, with a full audit first."""
        for target, name in (
            (self._keep_auditing, 'audit'),
            (self._keep_reading_delta, 'delta'),
            (self._keep_listening, 'notifications'),
        ):
            threading.Thread(target=target, name=name, daemon=True).start()

    def stop(self) -> None:
        """Read nothing more."""
        self._stopping.set()
        self._readers.shutdown(wait=False, cancel_futures=True)
        if self._listener is not None:
            self._listener.stop()

    # One node

    def poke(self, node: str) -> None:
        """Read a node again soon; calls in a burst count as one."""
        with self._lock:
            if node in self._reading or self._stopping.is_set():
                self._dirty.add(node)
                return
            self._reading.add(node)
        self._readers.submit(self._read, node)

    def _read(self, node: str) -> None:
        try:
            facts = self._client.node(node)
            if self._client.in_pool(facts):
                self._tell(facts)
        except errors.NodeNotFound:
            pass  # The audit is what notices that a node is gone.
        except errors.IronicComputeError as exc:
            LOG.debug('Could not read node: %(exc)s', {'exc': exc})
        finally:
            self._end_reading(node)

    def _end_reading(self, node: str) -> None:
        with self._lock:
            self._reading.discard(node)
            again = node in self._dirty
            self._dirty.discard(node)
        if again:
            self.poke(node)

    def _tell(self, facts: NodeFacts) -> None:
        try:
            self._sink.observe(facts)
        except Exception:
            LOG.exception(
                'Could not take in a change of node %(node)s',
                {'node': facts.uuid},
            )

    # All nodes, and those that changed lately

    def _keep_auditing(self) -> None:
        while not self._stopping.is_set():
            done = self._guarded(self._audit)
            self._stopping.wait(
                self._options.audit_interval_s
                if done
                else self._options.delta_interval_s
            )

    def _audit(self) -> None:
        nodes = {facts.uuid: facts for facts in self._client.nodes()}
        try:
            self._sink.audited(nodes)
        except Exception:
            LOG.exception('Could not take in a list of all nodes')

    def _keep_reading_delta(self) -> None:
        while not self._stopping.wait(self._options.delta_interval_s):
            self._guarded(self._read_delta)

    def _read_delta(self) -> None:
        changed = self._client.changed_since(self._watermark)
        latest = max((f.updated_at or '' for f in changed), default='')
        if latest:
            self._watermark = latest[:_OVERLAP_LENGTH]
        fresh = {facts.uuid: facts for facts in changed}
        news = [f for f in changed if self._seen.get(f.uuid) != f]
        self._seen = fresh
        for facts in news:
            if self._client.in_pool(facts):
                self._tell(facts)

    def _guarded(self, read: Any) -> bool:
        """Read; say once that Ironic is away, and once that it is back."""
        try:
            read()
        except errors.IronicComputeError as exc:
            if not self._is_away:
                LOG.warning(
                    'Ironic does not answer; keeping what is known and '
                    'trying again: %(error)s',
                    {'error': exc},
                )
            self._is_away = True
            return False
        except Exception:
            LOG.exception('Could not read changes from Ironic')
            return False
        if self._is_away:
            LOG.info('Ironic answers again')
        self._is_away = False
        return True

    # Notifications

    def _keep_listening(self) -> None:
        if not self._options.use_notifications:
            return
        while not self._stopping.is_set():
            try:
                self._listen()
                return
            except Exception as exc:
                LOG.warning(
                    "Could not listen to Ironic's notifications and will try "
                    'again; changes are seen through the delta list: '
                    '%(error)s',
                    {'error': exc},
                )
            self._stopping.wait(_RETRY_LISTENER_S)

    def _listen(self) -> None:
        transport = oslo_messaging.get_notification_transport(
            self._conf, url=self._options.notification_transport_url
        )
        targets = [
            oslo_messaging.Target(topic=topic)
            for topic in self._options.notification_topics
        ]
        self._listener = oslo_messaging.get_notification_listener(
            transport,
            targets,
            [_Endpoint(self)],
            executor=_executor(),
            pool=f'ironic-compute-{self._host}',
        )
        self._listener.start()


class _Endpoint:
    """What oslo.messaging calls for each notification."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def info(
        self,
        context: Any,
        publisher_id: str,
        event_type: str,
        payload: Mapping[str, Any],
        metadata: Any,
    ) -> None:
        """Take a notification for a hint to look at its node."""
        if not _WORTH_A_LOOK.match(event_type):
            return
        uuid = payload.get('ironic_object.data', {}).get('uuid')
        if uuid:
            self._feed.poke(uuid)

    error = info
    warn = info


def _executor() -> str:
    """Return how listeners run under Nova's choice of concurrency."""
    from nova import utils as nova_utils

    threads = nova_utils.concurrency_mode_threading()
    return 'threading' if threads else 'eventlet'
