# SPDX-License-Identifier: Apache-2.0
"""What this worker knows of its nodes, and who waits for them to change.

The feed writes, everybody reads. A deploy or a power action waits here for
the node it concerns, whatever brought the news, so hundreds of waiting builds
cost Ironic no request of their own. A waiter may bring a cheap re-read of its
one node for the case that no news comes at all.
"""

import threading
from collections.abc import Callable

from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute import errors
from resource_tracker.node import NodeFacts, NodeId

LOG = logging.getLogger(__name__)

REFRESH_S = 10.0


class Book:
    """The facts of the held nodes; any thread may call.

    :param clock: what time-outs are counted on
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._facts: dict[NodeId, NodeFacts] = {}
        self._by_instance: dict[str, NodeId] = {}
        self._changed = threading.Condition()

    def hold(self, facts: NodeFacts) -> None:
        """Enter a node."""
        with self._changed:
            self._enter(facts)

    def update(self, facts: NodeFacts) -> bool:
        """Take in newer facts of a node; older ones are ignored.

        Stamps are whole seconds, so facts of the same second count.

        :returns: whether anything is different now
        """
        with self._changed:
            known = self._facts.get(facts.uuid)
            if known is not None and _is_older(facts, known):
                return False
            self._enter(facts)
            return known != facts

    def _enter(self, facts: NodeFacts) -> None:
        known = self._facts.get(facts.uuid)
        if known is not None and known.instance_uuid is not None:
            self._by_instance.pop(known.instance_uuid, None)
        if facts.instance_uuid is not None:
            self._by_instance[facts.instance_uuid] = facts.uuid
        self._facts[facts.uuid] = facts
        self._changed.notify_all()

    def drop(self, node: NodeId) -> None:
        """Strike a node out."""
        with self._changed:
            facts = self._facts.pop(node, None)
            if facts is not None and facts.instance_uuid is not None:
                self._by_instance.pop(facts.instance_uuid, None)
            self._changed.notify_all()

    def facts(self, node: NodeId) -> NodeFacts | None:
        """Return what Ironic last said of a node."""
        return self._facts.get(node)

    def held(self) -> tuple[NodeId, ...]:
        """Return all nodes in the book."""
        with self._changed:
            return tuple(self._facts)

    def by_instance(self, instance_uuid: str) -> NodeFacts | None:
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

        :param timeout_s: None waits for ever
        :param refresh: reads the node anew, after ``refresh_s`` without news
        :raises errors.WaitTimeout: it did not get there in time
        :raises errors.NodeGone: Ironic does not have it any more
        """
        started_s = heard_s = self._clock.now_s()
        seen: NodeFacts | None = None
        while True:
            with self._changed:
                facts = self._facts.get(node)
                if facts is not None and facts != seen:
                    seen, heard_s = facts, self._clock.now_s()
                if seen is not None and predicate(seen):
                    return seen
                self._changed.wait(min(1.0, refresh_s))
            now_s = self._clock.now_s()
            if timeout_s is not None and now_s - started_s > timeout_s:
                raise errors.WaitTimeout(
                    f'Node {node} was not where it should be after '
                    f'{timeout_s:g} s; its provision state is '
                    f'{seen.provision_state if seen else "unknown"}'
                )
            if refresh is not None and now_s - heard_s >= refresh_s:
                seen, heard_s = self._refreshed(refresh, seen), now_s

    def _refreshed(
        self, refresh: Callable[[], NodeFacts], seen: NodeFacts | None
    ) -> NodeFacts | None:
        """Read a node anew; an Ironic that is away is waited for."""
        try:
            facts = refresh()
        except errors.NodeNotFound as exc:
            raise errors.NodeGone(str(exc)) from exc
        except errors.IronicComputeError as exc:
            LOG.debug('Could not read a node anew: %(exc)s', {'exc': exc})
            return seen
        with self._changed:
            if facts.uuid in self._facts:
                self._enter(facts)
        return facts


def _is_older(facts: NodeFacts, known: NodeFacts) -> bool:
    """ISO 8601 stamps of one service sort as text."""
    return (
        facts.updated_at is not None
        and known.updated_at is not None
        and facts.updated_at < known.updated_at
    )
