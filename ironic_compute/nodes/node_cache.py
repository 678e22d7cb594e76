# SPDX-License-Identifier: Apache-2.0
"""Node cache: the facts of the held nodes, and waits for a node to change.

The feed writes it; any thread may read. A deploy or a power action waits here
for its node, whichever source delivers the change, so that hundreds of waiting
builds cost Ironic no requests of their own. A waiting thread may pass a
function that reads its one node again if no change comes.
"""

import dataclasses
import threading
from collections.abc import Callable

from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute import errors
from ironic_compute.ironic_api import timestamps
from resource_tracker.node import NodeFacts, NodeId

LOG = logging.getLogger(__name__)

REFRESH_S = 10.0
# Wake at least this often: time-outs are counted on another clock than
# the one that a condition waits on.
_RECHECK_S = 1.0


class NodeCache:
    """The facts of the held nodes; any thread may call.

    :param clock: what time-outs are counted on
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._facts: dict[NodeId, NodeFacts] = {}
        self._by_instance: dict[str, NodeId] = {}
        self._lock = threading.RLock()
        self._waiting: dict[NodeId, list[threading.Condition]] = {}

    def update_facts(self, facts: NodeFacts) -> bool:
        """Take in newer facts of a node; older ones are ignored.

        Stamps are whole seconds, so facts of the same second count.

        :returns: whether anything is different now
        """
        with self._lock:
            known = self._facts.get(facts.uuid)
            if known is None:
                self._store(facts)
                return True
            if self._is_older(facts, known):
                return False
            facts = _stamped(facts, known)
            self._store(facts)
            return known != facts

    def _store(self, facts: NodeFacts) -> None:
        self._unlink_instance(self._facts.get(facts.uuid))
        if facts.instance_uuid is not None:
            self._by_instance[facts.instance_uuid] = facts.uuid
        self._facts[facts.uuid] = facts
        self._wake(facts.uuid)

    def _is_older(self, facts: NodeFacts, known: NodeFacts) -> bool:
        """Say whether facts are; no stamp of the future makes them so."""
        if facts.updated_at is None or known.updated_at is None:
            return False
        return facts.updated_at < known.updated_at and not timestamps.is_ahead(
            known.updated_at, self._clock.wall_s()
        )

    def _unlink_instance(self, facts: NodeFacts | None) -> None:
        """Forget a node's instance, unless it is on another node by now."""
        if facts is None or facts.instance_uuid is None:
            return
        if self._by_instance.get(facts.instance_uuid) == facts.uuid:
            del self._by_instance[facts.instance_uuid]

    def remove_node(self, node: NodeId) -> None:
        """Strike a node out."""
        with self._lock:
            self._unlink_instance(self._facts.pop(node, None))
            self._wake(node)

    def facts(self, node: NodeId) -> NodeFacts | None:
        """Return what Ironic last said of a node."""
        return self._facts.get(node)

    def list_nodes(self) -> tuple[NodeId, ...]:
        """Return all nodes in the book."""
        with self._lock:
            return tuple(self._facts)

    def find_by_instance(self, instance_uuid: str) -> NodeFacts | None:
        """Return the node that has an instance."""
        node = self._by_instance.get(instance_uuid)
        return None if node is None else self._facts.get(node)

    def wait_for(
        self,
        node: NodeId,
        predicate: Callable[[NodeFacts], bool],
        timeout_s: float | None = None,
        refresh: Callable[[], NodeFacts] | None = None,
        refresh_s: float = REFRESH_S,
    ) -> NodeFacts:
        """Block until a node is as wanted; return its facts then.

        A node that is not in the book is waited for too, by ``refresh``.

        :param timeout_s: None waits for ever
        :param refresh: reads the node anew, after ``refresh_s`` without news;
            what it returns is for this waiter alone
        :raises errors.WaitTimeout: it did not get there in time
        :raises errors.NodeGone: Ironic does not have it any more, or it was
            struck out and there is no ``refresh`` to ask
        """
        wait = _WaitState(self._clock.now_s(), timeout_s, refresh_s)
        while True:
            with self._lock:
                wait.accept_cached(self._facts.get(node), self._clock.now_s())
                if wait.facts is not None and predicate(wait.facts):
                    return wait.facts
                if not wait.is_dropped:
                    self._wait_for_change(node, min(_RECHECK_S, refresh_s))
            now_s = self._clock.now_s()
            if wait.is_over(now_s):
                raise errors.WaitTimeout(wait.timeout_message(node))
            if wait.is_dropped and refresh is None:
                raise errors.NodeGone(
                    f'Node {node} is not among the nodes of this host any more'
                )
            if refresh is not None and wait.needs_read(now_s):
                wait.facts = self._refresh(refresh) or wait.facts
                wait.note_read(now_s)

    def _wait_for_change(self, node: NodeId, timeout_s: float) -> None:
        """Wait until a node changes; nobody is woken for another one's sake.

        Of hundreds of deploys all would be, for each change of each.
        """
        changed = threading.Condition(self._lock)
        waiting = self._waiting.setdefault(node, [])
        waiting.append(changed)
        try:
            changed.wait(timeout_s)
        finally:
            waiting.remove(changed)
            if not waiting:
                del self._waiting[node]

    def _wake(self, node: NodeId) -> None:
        for changed in self._waiting.get(node, ()):
            changed.notify()

    def _refresh(self, refresh: Callable[[], NodeFacts]) -> NodeFacts | None:
        """Read a node anew; an Ironic that is away is waited for."""
        try:
            return refresh()
        except errors.NodeNotFound as exc:
            raise errors.NodeGone(str(exc)) from exc
        except errors.IronicComputeError as exc:
            if not isinstance(exc, errors.Retriable):
                raise
            LOG.debug('Could not read a node: %(exc)s', {'exc': exc})
            return None


class _WaitState:
    """What one waiter has seen, and when."""

    def __init__(
        self, started_s: float, timeout_s: float | None, refresh_s: float
    ) -> None:
        self.facts: NodeFacts | None = None
        self.is_dropped = False
        self._started_s = self._newest_s = started_s
        self._timeout_s = timeout_s
        self._refresh_s = refresh_s
        self._cached: NodeFacts | None = None

    def accept_cached(self, cached: NodeFacts | None, now_s: float) -> None:
        """Take in what the book says; news only if it says another thing."""
        self.is_dropped = cached is None and self._cached is not None
        if cached is not None and cached != self._cached:
            self.facts = cached
            self._newest_s = now_s
        self._cached = cached

    def note_read(self, now_s: float) -> None:
        """Note that the node has been read."""
        self.is_dropped = False
        self._newest_s = now_s

    def is_over(self, now_s: float) -> bool:
        """Say whether the time is up."""
        limit_s = self._timeout_s
        return limit_s is not None and now_s - self._started_s >= limit_s

    def needs_read(self, now_s: float) -> bool:
        """Say whether the node should be read again."""
        return self.is_dropped or now_s - self._newest_s >= self._refresh_s

    def timeout_message(self, node: NodeId) -> str:
        """Return one sentence for a wait that is over."""
        state = self.facts.provision_state if self.facts else 'unknown'
        return (
            f'Node {node} was not where it should be after '
            f'{self._timeout_s:g} s; its provision state is {state}'
        )


def _stamped(facts: NodeFacts, known: NodeFacts) -> NodeFacts:
    """Keep the stamp if the facts are of a list, which has none."""
    if facts.updated_at is not None:
        return facts
    return dataclasses.replace(facts, updated_at=known.updated_at)
