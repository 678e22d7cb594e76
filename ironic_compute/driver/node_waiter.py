# SPDX-License-Identifier: Apache-2.0
"""How every operation reads a node, says it acted on it, and waits for it.

Waiting sleeps on the worker's book, which the feed keeps fresh; what the
book says is believed only after one read of Ironic, because a list that was
under way while we acted may have put an older state into the book.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import nova.conf
from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute import errors
from ironic_compute.driver import nova_errors
from ironic_compute.ironic_api.client import IronicClient
from ironic_compute.nodes.node_cache import NodeCache
from resource_tracker.node import NodeFacts, NodeId

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

Verdict = TypeVar('Verdict')

_PAUSE_S = 1.0
# Without news of a node that the feed reads for us, and of another. The first
# is for the case that the feed itself is broken.
_HELD_S = 300.0
_NOT_HELD_S = 10.0


class News(Protocol):
    """What hears of the nodes that the driver reads (``NodeFeed``)."""

    def take(self, facts: NodeFacts) -> None:
        """Take in what a node was just now."""

    def poke(self, node: str) -> None:
        """Read a node again soon."""


class Waits:
    """Which threads do nothing but wait for Ironic; any thread may call."""

    def __init__(self) -> None:
        self._threads: set[int] = set()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Be one of them."""
        me = threading.get_ident()
        self._threads.add(me)
        try:
            yield
        finally:
            self._threads.discard(me)

    def threads(self) -> frozenset[int]:
        """Return them as they are now."""
        return frozenset(self._threads.copy())


class NodeWaiter:
    """What all operations of the driver share."""

    def __init__(
        self,
        client: IronicClient,
        node_cache: NodeCache,
        news: News,
        clock: Clock,
    ) -> None:
        self.client = client
        self.node_cache = node_cache
        self.clock = clock
        self._news = news
        self.waits = Waits()

    def read(self, node: NodeId) -> NodeFacts:
        """Return the node as Ironic has it now."""
        try:
            return self.take(self.client.node(node))
        except errors.NodeNotFound:
            # The feed tells everybody, or more builds come to it.
            self._news.poke(node)
            raise

    def look(self, node: NodeId) -> NodeFacts:
        """Return the node as Ironic has it now, if need be after a while."""
        return self.asked(lambda: self.read(node))

    def asked(self, ask: Callable[[], Verdict]) -> Verdict:
        """Ask something that changes nothing, until there is an answer."""
        return self.patiently(ask, errors.Retriable)

    def find(self, instance: Any) -> NodeFacts | None:
        """Return the node that Ironic has this server on, now."""
        return self.client.node_of_instance(instance.uuid)

    def node_of(self, instance: Any, *, at_once: bool = False) -> NodeFacts:
        """Return the node that Ironic has this server on, now.

        :param at_once: an Ironic that is away is an error at once
        :raises faults.NoNode: Ironic knows of none
        """
        find = functools.partial(self.find, instance)
        facts = find() if at_once else self.asked(find)
        if facts is None:
            raise nova_errors.NoNode(
                f'Ironic has no node with server {instance.uuid} on it'
            )
        return facts

    def take(self, facts: NodeFacts) -> NodeFacts:
        """Note what Ironic answered when we changed something on a node."""
        self._news.take(facts)
        return facts

    def glance(self, node: NodeId) -> NodeFacts | None:
        """Return the node as Ironic has it now, if it says so at once.

        For whoever has changed something, or hears nothing: the feed reads
        the node as soon as Ironic answers.

        :raises errors.NodeNotFound: Ironic has the node no more
        """
        try:
            return self.read(node)
        except errors.NodeNotFound:
            raise
        except errors.IronicComputeError as exc:
            LOG.debug(
                'Could not read node %(node)s now: %(error)s',
                {'node': node, 'error': exc},
            )
            self._news.poke(node)
            return None

    def until(
        self,
        node: NodeId,
        verdict: Callable[[NodeFacts], Verdict | None],
        timeout_s: float,
        refresh_s: float | None = None,
        seen: NodeFacts | None = None,
    ) -> Verdict:
        """Block until ``verdict`` says something about the node.

        A held node costs Ironic nothing meanwhile: the feed's list, which is
        one for all nodes, brings the news.

        :param refresh_s: read the node after so long without news
        :param seen: the node as it was read just now
        :param verdict: returns None while there is nothing to say
        :raises errors.WaitTimeout: it said nothing for ``timeout_s``
        :raises errors.NodeNotFound: Ironic has the node no more
        """
        result = None if seen is None else verdict(seen)
        if result is not None:
            return result
        deadline_s = self.clock.now_s() + timeout_s
        while True:
            left_s = deadline_s - self.clock.now_s()
            with self.waits.waiting():
                self._sleep(
                    node, verdict, left_s, self._patience_s(node, refresh_s)
                )
            result = self._judge(node, verdict)
            if result is not None:
                return result
            if self.clock.now_s() >= deadline_s:
                raise errors.WaitTimeout(
                    f'Node {node} did not get where it was sent within '
                    f'{timeout_s:.0f} seconds'
                )
            self.clock.sleep(_PAUSE_S)

    def patiently(
        self,
        act: Callable[[], Verdict],
        repeat: type | tuple[type, ...] = errors.Untouched,
    ) -> Verdict:
        """Do something, again and again while Ironic is busy with the node.

        Nothing else repeats a change. Bounded by ``[ironic] api_max_retries``
        times ``api_retry_interval`` seconds, however long one attempt takes.

        :param repeat: errors after which ``act`` may be done again; one that
            looks first whether it is done already takes `errors.Retriable`
        :raises errors.Retriable: Ironic was still busy at the end
        """
        interval_s = float(CONF.ironic.api_retry_interval)
        left_count = int(CONF.ironic.api_max_retries)
        budget_s = interval_s * left_count
        deadline_s = self.clock.now_s() + budget_s
        while True:
            try:
                return act()
            except errors.IronicComputeError as exc:
                is_late = self.clock.now_s() + interval_s > deadline_s
                is_last = is_late if budget_s else left_count <= 0
                if is_last or not isinstance(exc, repeat):
                    raise
            left_count -= 1
            self.clock.sleep(interval_s)
            interval_s = min(interval_s * 2, budget_s / 4 + 1)

    def _patience_s(self, node: NodeId, refresh_s: float | None) -> float:
        """Return how long to go without news before a node is read."""
        if refresh_s is not None:
            return refresh_s
        is_held = self.node_cache.facts(node) is not None
        return _HELD_S if is_held else _NOT_HELD_S

    def _sleep(
        self,
        node: NodeId,
        verdict: Callable[[NodeFacts], Verdict | None],
        timeout_s: float,
        refresh_s: float,
    ) -> None:
        """Wait until the book looks as if there were something to say."""
        try:
            self.node_cache.wait_for(
                node,
                lambda facts: verdict(facts) is not None,
                max(timeout_s, 0.0),
                refresh=lambda: self.read(node),
                refresh_s=refresh_s,
            )
        except errors.NodeGone:
            # Not held here (any more); Ironic may know it all the same.
            LOG.debug('Node %(node)s is not in the book', {'node': node})
        except errors.IronicRefused as exc:
            # It refuses to be asked: that says nothing of the node.
            LOG.debug('%(error)s', {'error': exc})

    def _judge(
        self, node: NodeId, verdict: Callable[[NodeFacts], Verdict | None]
    ) -> Verdict | None:
        """Ask Ironic itself; one that gives no good answer says nothing."""
        try:
            return verdict(self.read(node))
        except errors.NodeNotFound:
            raise
        except errors.IronicComputeError:
            return None
