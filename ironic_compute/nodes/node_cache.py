# SPDX-License-Identifier: Apache-2.0
"""Node cache: the facts of the held nodes, and waits for a node to change.

The feed writes it; any thread may read. A deploy or a power action waits here
for its node, whichever source delivers the change, so that hundreds of waiting
builds cost Ironic no requests of their own. A waiting thread passes a function
that reads its one node again if no change comes.
"""

import dataclasses
import threading
from collections.abc import Callable

from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute import errors
from resource_tracker.node import NodeFacts, NodeId

LOG = logging.getLogger(__name__)

# A waiter wakes at least this often, because a condition measures its time-out
# with another clock than this class.
_RECHECK_S = 1.0


class NodeCache:
    """The newest facts of the held nodes; any thread may call.

    :param clock: measures the time-outs of ``wait_for``
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._facts: dict[NodeId, NodeFacts] = {}
        self._by_instance: dict[str, NodeId] = {}
        self._lock = threading.RLock()
        self._waiting: dict[NodeId, list[threading.Condition]] = {}

    def update_facts(self, facts: NodeFacts) -> bool:
        """Store the facts of a node unless they are older; wake its waiters.

        Facts are older if their read began earlier. Ironic's ``updated_at``
        does not decide, because the clocks of its conductors differ and may
        be set back. Facts of a notification were not read: they replace what
        is stored, because ``feed.delivered`` has decided that they are new,
        and they are ordered like the read before them.

        :returns: whether the stored facts have changed
        """
        with self._lock:
            known = self._facts.get(facts.uuid)
            if known is None:
                self._store(facts)
                return True
            if _is_older(facts, known):
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

    def _unlink_instance(self, facts: NodeFacts | None) -> None:
        """Remove a node's instance, unless another node has it by now."""
        if facts is None or facts.instance_uuid is None:
            return
        if self._by_instance.get(facts.instance_uuid) == facts.uuid:
            del self._by_instance[facts.instance_uuid]

    def remove_node(self, node: NodeId) -> None:
        """Remove a node that is no longer held; wake its waiters."""
        with self._lock:
            self._unlink_instance(self._facts.pop(node, None))
            self._wake(node)

    def facts(self, node: NodeId) -> NodeFacts | None:
        """Return the newest facts of a node; None if it is not held."""
        return self._facts.get(node)

    def list_nodes(self) -> tuple[NodeId, ...]:
        """Return all nodes in the cache."""
        with self._lock:
            return tuple(self._facts)

    def find_by_instance(self, instance_uuid: str) -> NodeFacts | None:
        """Return the held node that has an instance; None if none has it."""
        node = self._by_instance.get(instance_uuid)
        return None if node is None else self._facts.get(node)

    def wait_for(
        self,
        node: NodeId,
        predicate: Callable[[NodeFacts], bool],
        timeout_s: float,
        refresh: Callable[[], NodeFacts],
        refresh_s: float,
    ) -> NodeFacts:
        """Block until the facts of a node satisfy ``predicate``.

        The node need not be in the cache; it is then waited for with
        ``refresh`` alone.

        :param refresh: reads the node from Ironic. It is called after
            ``refresh_s`` without a change, and at once if the node is removed
            from the cache. This method does not store its result.
        :returns: the first facts that satisfy ``predicate``
        :raises errors.WaitTimeout: the time ``timeout_s`` is over
        :raises errors.NodeGone: ``refresh`` raised ``errors.NodeNotFound``
        :raises errors.IronicComputeError: another error of ``refresh``, unless
            it is ``errors.Retriable``
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
            if wait.needs_read(now_s):
                wait.facts = self._refresh(refresh) or wait.facts
                wait.note_read(now_s)

    def _wait_for_change(self, node: NodeId, timeout_s: float) -> None:
        """Block until a node changes or ``timeout_s`` is over.

        Each waiter has a condition of its own. With a shared one, each change
        of a node would wake the waiters of hundreds of other nodes.
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
        """Read a node for ``wait_for``; None after an error that may pass."""
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
    """The facts that one waiter has of its node, and their age.

    ``facts`` come from the cache or from a read. ``is_dropped`` is True if
    the node was removed from the cache and has not been read since.
    """

    def __init__(
        self, started_s: float, timeout_s: float, refresh_s: float
    ) -> None:
        self.facts: NodeFacts | None = None
        self.is_dropped = False
        self._started_s = self._newest_s = started_s
        self._timeout_s = timeout_s
        self._refresh_s = refresh_s
        self._cached: NodeFacts | None = None

    def accept_cached(self, cached: NodeFacts | None, now_s: float) -> None:
        """Take the facts from the cache, if they changed since the last call.

        Otherwise ``facts`` stay as they are: they may come from a read that
        is newer than the cache.
        """
        self.is_dropped = cached is None and self._cached is not None
        if cached is not None and cached != self._cached:
            self.facts = cached
            self._newest_s = now_s
        self._cached = cached

    def note_read(self, now_s: float) -> None:
        """Record that a read of the node was tried."""
        self.is_dropped = False
        self._newest_s = now_s

    def is_over(self, now_s: float) -> bool:
        """Return whether the time-out has passed."""
        return now_s - self._started_s >= self._timeout_s

    def needs_read(self, now_s: float) -> bool:
        """Return whether the node must be read from Ironic now."""
        return self.is_dropped or now_s - self._newest_s >= self._refresh_s

    def timeout_message(self, node: NodeId) -> str:
        """Return the text of the error for a wait that timed out."""
        state = self.facts.provision_state if self.facts else 'unknown'
        return (
            f'Node {node} was not where it should be after '
            f'{self._timeout_s:g} s; its provision state is {state}'
        )


def _is_older(facts: NodeFacts, known: NodeFacts) -> bool:
    """Return whether the read of ``facts`` began before the one of ``known``.

    False if it is not known when one of them began.
    """
    if facts.read_at_s is None or known.read_at_s is None:
        return False
    return facts.read_at_s < known.read_at_s


def _stamped(facts: NodeFacts, known: NodeFacts) -> NodeFacts:
    """Return ``facts`` with the known times where they have none.

    The facts of a full list have no ``updated_at``, those of a notification
    no ``read_at_s``.
    """
    if facts.updated_at is None:
        facts = dataclasses.replace(facts, updated_at=known.updated_at)
    if facts.read_at_s is None:
        facts = dataclasses.replace(facts, read_at_s=known.read_at_s)
    return facts
