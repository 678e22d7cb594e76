# SPDX-License-Identifier: Apache-2.0
"""Departures: nodes that have left this pool go to the pool that wants them.

When an operator changes the conductor group or shard of a node in Ironic, the
node is in another pool. The ring target in that pool asks the holder for it,
about every half minute (``pool.foreign_hosts``). The holder alone writes: it
pushes a free node and evicts a node with a server. Before that it reads the
node from Ironic by its uuid. The node is given away only if it is in the pool
that asks, and not in this one; nothing follows from an error or a list. A node
that cannot go now, for example because its server has a task, is tried again
for as long as it is asked for. A node that no pool asks for stays.
"""

import dataclasses
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import attrs
from oslo_log import log as logging

from hashring.clock import Clock
from hashring.ring import Host
from ironic_compute.errors import GateShut
from ironic_compute.gate import Gate, without_waiting
from ironic_compute.ironic_api.client import IronicClient
from ironic_compute.ironic_api.node_pool import NodePool, why_not_in_pool
from ironic_compute.journal.moves import (
    Cause,
    Kind,
    MoveLog,
    NoMoveLog,
    Reason,
)
from ironic_compute.nodes.held_nodes import HeldNodes
from ironic_compute.ownership.eviction import (
    Evictor,
    Refused,
    Terms,
    answered,
)
from ironic_compute.ownership.pacing import RowWriters
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)

# Seconds until a node that could not go is tried again, and seconds between
# two rounds while others have not been tried yet.
RETRY_S = 5.0
_NEXT_ROUND_S = 0.5
# Seconds between two rounds while nobody asks for a node.
_IDLE_S = 60.0
# Seconds for which a request counts. The asker repeats it sooner, unless it
# lacks hundreds of nodes, or is not the ring target any more.
VALID_S = 120.0
_CAUSE = Cause(Reason.POOL)


class Push(Protocol):
    """Gives a free node away; see ``rebalance.Rebalancer.push``."""

    def __call__(
        self,
        node: NodeId,
        target: Host,
        service_id: int,
        is_wanted: Callable[[Any], bool],
        *,
        unpins: bool = False,
    ) -> bool:
        """Return whether the target holds the node now."""


@dataclasses.dataclass(frozen=True, slots=True)
class Asker:
    """A host of another pool that asks for nodes.

    :param pool: the nodes of its pool in Ironic
    """

    host: Host
    pool: NodePool


@dataclasses.dataclass(frozen=True, slots=True)
class _Request:
    asker: Asker
    until_s: float
    tried_s: float


@attrs.define(eq=False, repr=False, slots=False)
class Departures:
    """Gives nodes of one host to hosts of other pools.

    Any thread may call ``request_nodes``, which does not block; one thread
    calls ``try_round``, which does.

    :param push: gives a free node away
    :param hold_if_ours: holds a node if its row names this host
    :param request_read: makes the feed read a node from Ironic soon
    :param notify_given: called with a host and the nodes it was given
    :param wake: makes the next round begin now
    :param budget: nodes that are given away in one round
    :param moves: notes each free node that was given away
    """

    _held_nodes: HeldNodes
    _client: IronicClient
    _evictor: Evictor
    _push: Push
    _hold_if_ours: Callable[[NodeId], None]
    _request_read: Callable[[NodeId], None]
    _notify_given: Callable[[Host, list[NodeId]], None]
    _gate: Gate
    _clock: Clock
    _writers: RowWriters
    _budget: int
    _wake: Callable[[], None]
    _moves: MoveLog = attrs.field(factory=NoMoveLog)

    def __attrs_post_init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[NodeId, _Request] = {}
        self._refused: dict[NodeId, str] = {}

    def request_nodes(self, nodes: Iterable[NodeId], asker: Asker) -> None:
        """Have nodes given to a host of the pool that they are in now."""
        until_s = self._clock.now_s() + VALID_S
        with self._lock:
            for node in nodes:
                former = self._requests.get(node)
                tried_s = -math.inf if former is None else former.tried_s
                self._requests[node] = _Request(asker, until_s, tried_s)
        self._wake()

    def find_asker(self, node: NodeId, host: Host) -> Asker | None:
        """Return who asks for a node, if it is this host; None otherwise."""
        found = self._requests.get(node)
        is_host = found is not None and found.asker.host == host
        return found.asker if found is not None and is_host else None

    def try_round(self) -> float:
        """Run a round, log its error, return the seconds until the next."""
        try:
            return self.run_round()
        except Exception:
            LOG.exception('Could not give nodes to other pools; trying again')
        return RETRY_S

    def run_round(self) -> float:
        """Give away what can go now; return the seconds until the next."""
        if not self._gate.is_open():
            return RETRY_S
        due = self._take_due()
        self._writers.for_each(
            lambda node: self._try_give(node, due[node]), due
        )
        if len(due) == self._budget:
            return _NEXT_ROUND_S
        return RETRY_S if self._requests else _IDLE_S

    def _take_due(self) -> Mapping[NodeId, Asker]:
        """Return the nodes to give now; those tried longest ago come first."""
        now_s = self._clock.now_s()
        with self._lock:
            for node in [
                n for n, r in self._requests.items() if r.until_s <= now_s
            ]:
                self._forget(node)
            due = sorted(
                (request.tried_s, node)
                for node, request in self._requests.items()
                if now_s - request.tried_s >= RETRY_S
            )
            some = [node for _, node in itertools.islice(due, self._budget)]
            for node in some:
                self._requests[node] = dataclasses.replace(
                    self._requests[node], tried_s=now_s
                )
            return {node: self._requests[node].asker for node in some}

    def _forget(self, node: NodeId) -> None:
        self._requests.pop(node, None)
        self._refused.pop(node, None)

    def _try_give(self, node: NodeId, asker: Asker) -> None:
        try:
            self._give(node, asker)
        except (Refused, GateShut) as exc:
            self._log_refusal(node, asker, str(exc))
            return
        with self._lock:
            self._forget(node)

    def _give(self, node: NodeId, asker: Asker) -> None:
        """Give a node away, unless this host does not hold it.

        :raises Refused: it cannot go now
        """
        if self._held_nodes.row(node) is None:
            # A free node may have been pushed here after it left the pool; no
            # list of the pool contains it.
            self._hold_if_ours(node)
            if self._held_nodes.row(node) is None:
                return
        facts = self._held_nodes.facts(node)
        if facts is None:
            self._request_read(node)
            raise Refused(f'Node {node} has not been read from Ironic yet')
        if facts.instance_uuid in (
            None,
            self._held_nodes.foreign_server(node),
        ):
            self._give_free(node, asker)
        else:
            terms = Terms(other_pool=asker.pool)
            self._evictor.evict(node, asker.host, terms, cause=_CAUSE)

    def _give_free(self, node: NodeId, asker: Asker) -> None:
        if node in self._held_nodes.unconfirmed_rows:
            raise Refused(f'The record of node {node} is not confirmed yet')
        begun_s = self._moves.now_s()
        with without_waiting():
            service_id = self._evictor.check_takes_nodes(
                asker.host, asker.pool
            )
            is_given = self._push(
                node,
                asker.host,
                service_id,
                lambda row: self._has_left_for(node, asker),
                unpins=True,
            )
        if not is_given:
            raise Refused(f'Node {node} is not free, or not held here')
        self._moves.add(
            Kind.PUSH,
            _CAUSE,
            begun_s=begun_s,
            source=self._held_nodes.host,
            target=asker.host,
            node=node,
        )
        LOG.info(
            'Gave free node %(node)s to host %(host)s of its new pool',
            {'node': node, 'host': asker.host},
        )
        self._notify_given(asker.host, [node])

    def _has_left_for(self, node: NodeId, asker: Asker) -> bool:
        """Read a node; return whether it is free in the pool that asks.

        It is, too, if Nova never had the server on it.

        :raises Refused: it is in another pool, or Ironic did not answer
        """
        facts = answered(lambda: self._client.read_node(node))
        why_not = why_not_in_pool(self._client.pool, facts, asker.pool)
        if why_not is not None:
            raise Refused(why_not)
        foreign = self._held_nodes.foreign_server(node)
        return facts.instance_uuid in (None, foreign)

    def _log_refusal(self, node: NodeId, asker: Asker, reason: str) -> None:
        with self._lock:
            if self._refused.get(node) == reason:
                return
            self._refused[node] = reason
        LOG.info(
            'Node %(node)s stays here for now, although host %(host)s of its '
            'new pool asks for it: %(reason)s',
            {'node': node, 'host': asker.host, 'reason': reason},
        )
