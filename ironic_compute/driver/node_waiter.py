# SPDX-License-Identifier: Apache-2.0
"""Reads, retries and waits of all driver operations, with few requests.

All operations of the driver (build, teardown, power, rescue, console) use one
:class:`NodeWaiter`. It is the only place that repeats a request to Ironic.

A wait sleeps on the node cache, which the feed updates, so that hundreds of
waiting builds cost Ironic no requests of their own. A state in the cache ends
a wait only after a read of the node has confirmed it, because a list that
Ironic answered before our change may have put an older state into the cache.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import attrs
import nova.conf
from oslo_log import log as logging

from hashring import backoff
from hashring.clock import Clock
from ironic_compute import errors
from ironic_compute.driver import nova_errors
from ironic_compute.ironic_api.client import IronicClient
from ironic_compute.nodes.node_cache import NodeCache
from ironic_compute.waiting_threads import WaitingThreads
from resource_tracker.node import NodeFacts, NodeId

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

Result = TypeVar('Result')

_PAUSE_S = 1.0
# Seconds without a change in the node cache after which a waiting thread reads
# its node from Ironic. The feed reads held nodes, so for these the read
# matters only if the feed itself fails.
_HELD_REFRESH_S = 300.0
_UNHELD_REFRESH_S = 10.0


class Feed(Protocol):
    """The methods of ``NodeFeed`` that the driver calls."""

    def accept_read(self, facts: NodeFacts) -> None:
        """Accept a node that the driver has just read from Ironic."""

    def request_read(self, node: str) -> None:
        """Read a node as soon as possible; returns at once."""


@attrs.define(eq=False, repr=False, slots=False)
class NodeWaiter:
    """Reads nodes, retries requests and waits; any thread may call.

    :param feed: receives each node that is read here
    """

    client: IronicClient
    node_cache: NodeCache
    _feed: Feed
    clock: Clock

    def __attrs_post_init__(self) -> None:
        self.waiting_threads = WaitingThreads()

    def read_node(self, node: NodeId) -> NodeFacts:
        """Read a node from Ironic; repeat while Ironic is unavailable."""
        return self.retry(lambda: self.read_node_once(node))

    def read_node_once(self, node: NodeId) -> NodeFacts:
        """Read a node from Ironic with a single request.

        :raises errors.NodeNotFound: Ironic has no such node
        """
        try:
            return self.pass_to_feed(self.client.read_node(node))
        except errors.NodeNotFound:
            # The feed then reads the node as well and marks it as missing;
            # otherwise Nova's scheduler would choose it for the next build.
            self._feed.request_read(node)
            raise

    def try_read_node(self, node: NodeId) -> NodeFacts | None:
        """Read a node with a single request; return None if that fails.

        Used by callers that can go on without the answer. After a failure the
        feed reads the node as soon as Ironic answers again.

        :raises errors.NodeNotFound: Ironic has no such node
        """
        try:
            return self.read_node_once(node)
        except errors.NodeNotFound:
            raise
        except errors.IronicComputeError as exc:
            LOG.debug(
                'Could not read node %(node)s now: %(error)s',
                {'node': node, 'error': exc},
            )
            self._feed.request_read(node)
            return None

    def read_node_of(
        self,
        instance: Any,
        *,
        once: bool = False,
        longest_s: float = math.inf,
    ) -> NodeFacts:
        """Read the node of a server from Ironic, by the server's uuid.

        :param once: raise the first error, instead of repeating the request
            while Ironic is unavailable
        :param longest_s: see :meth:`retry`
        :raises nova_errors.NoNode: no node in Ironic has the server
        """
        read = functools.partial(
            self.client.read_node_of_instance, instance.uuid
        )
        facts = read() if once else self.retry(read, longest_s=longest_s)
        if facts is None:
            raise nova_errors.NoNode(
                f'Ironic has no node with server {instance.uuid} on it'
            )
        return facts

    def pass_to_feed(self, facts: NodeFacts) -> NodeFacts:
        """Give the feed the facts that Ironic has returned; return them."""
        self._feed.accept_read(facts)
        return facts

    def wait_until(
        self,
        node: NodeId,
        evaluate: Callable[[NodeFacts], Result | None],
        timeout_s: float,
        refresh_s: float | None = None,
        fresh: NodeFacts | None = None,
    ) -> Result:
        """Block until ``evaluate`` returns a result for the node; return it.

        :param evaluate: returns None while the wait must continue
        :param refresh_s: seconds without a change in the node cache after
            which the node is read from Ironic; None: 300 s for a held node, 10
            s for any other
        :param fresh: the node as Ironic has just returned it, which saves a
            read
        :raises errors.WaitTimeout: no result within ``timeout_s``
        :raises errors.NodeNotFound: Ironic has no such node any more
        """
        result = None if fresh is None else evaluate(fresh)
        if result is not None:
            return result
        deadline_s = self.clock.now_s() + timeout_s
        while True:
            left_s = deadline_s - self.clock.now_s()
            with self.waiting_threads.include_current():
                self._wait_on_cache(
                    node, evaluate, left_s, self._refresh_s(node, refresh_s)
                )
            result = self._read_and_evaluate(node, evaluate)
            if result is not None:
                return result
            if self.clock.now_s() >= deadline_s:
                raise errors.WaitTimeout(
                    f'Node {node} did not reach the expected state within '
                    f'{timeout_s:.0f} seconds'
                )
            self.clock.sleep(_PAUSE_S)

    def retry(
        self,
        act: Callable[[], Result],
        on: type | tuple[type, ...] = errors.Retriable,
        longest_s: float = math.inf,
    ) -> Result:
        """Call ``act`` and return its result; call it again after an error.

        Blocks for at most ``[ironic] api_max_retries`` times
        ``api_retry_interval`` seconds, plus the time of the first and the last
        call: the first one may wait for the lease.

        :param act: by default, a read, or a change that may be sent twice or
            that first checks whether it is done already
        :param on: the errors after which to call ``act`` again. For a change
            that must not be sent twice pass `errors.Untouched`: after such an
            error it is certain that Ironic did nothing
        :param longest_s: a shorter limit in seconds, for callers that can go
            on without a result
        :raises errors.IronicComputeError: the last error, when the time is up,
            or an error of another class than ``on``
        """
        interval_s = first_s = float(CONF.ironic.api_retry_interval)
        max_count = int(CONF.ironic.api_max_retries)
        budget_s = min(first_s * max_count, longest_s)
        deadline_s = self.clock.now_s() + longest_s
        retries_count = 0
        while True:
            try:
                return act()
            except errors.IronicComputeError as exc:
                now_s = self.clock.now_s()
                deadline_s = min(deadline_s, now_s + budget_s)
                is_late = now_s + interval_s > deadline_s
                is_last = is_late if budget_s else retries_count >= max_count
                if is_last or not isinstance(exc, on):
                    raise
            self.clock.sleep(interval_s)
            retries_count += 1
            interval_s = backoff.wait_s(
                first_s, retries_count, budget_s / 4 + 1
            )

    def _refresh_s(self, node: NodeId, refresh_s: float | None) -> float:
        """Return the seconds without a change after which a node is read."""
        if refresh_s is not None:
            return refresh_s
        is_held = self.node_cache.facts(node) is not None
        return _HELD_REFRESH_S if is_held else _UNHELD_REFRESH_S

    def _wait_on_cache(
        self,
        node: NodeId,
        evaluate: Callable[[NodeFacts], Result | None],
        timeout_s: float,
        refresh_s: float,
    ) -> None:
        """Block until ``evaluate`` gives a result for the cached facts."""
        try:
            self.node_cache.wait_for(
                node,
                lambda facts: evaluate(facts) is not None,
                max(timeout_s, 0.0),
                refresh=lambda: self.read_node_once(node),
                refresh_s=refresh_s,
            )
        except errors.NodeGone:
            # Only held nodes are in the cache, so Ironic may still have the
            # node.
            LOG.debug('Node %(node)s is not in the node cache', {'node': node})
        except errors.IronicRefused as exc:
            # The caller reads the node again, because an error of a read does
            # not show that the node has changed.
            LOG.debug('%(error)s', {'error': exc})

    def _read_and_evaluate(
        self, node: NodeId, evaluate: Callable[[NodeFacts], Result | None]
    ) -> Result | None:
        """Read the node and evaluate it; return None if the read fails."""
        try:
            facts = self.read_node_once(node)
        except errors.NodeNotFound:
            raise
        except errors.IronicComputeError:
            return None
        return evaluate(facts)


def wait_until_shown(
    waiter: NodeWaiter,
    node: NodeId,
    evaluate: Callable[[NodeFacts], Result | None],
    timeout_s: float,
    **options: Any,
) -> Result:
    """Wait as ``NodeWaiter.wait_until``; read the node once more at the end.

    Blocks for at most the time of ``NodeWaiter.retry`` longer.

    :raises errors.IronicUnavailable: Ironic is away, so whether the node has
        changed is not known; whoever waits for Ironic begins anew
    :raises errors.WaitTimeout: Ironic shows that it has not changed
    """
    try:
        return waiter.wait_until(node, evaluate, timeout_s, **options)
    except errors.WaitTimeout:
        result = evaluate(waiter.read_node(node))
        if result is None:
            raise
        return result
