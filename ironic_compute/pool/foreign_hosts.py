# SPDX-License-Identifier: Apache-2.0
"""Foreign hosts: hosts outside the pool that hold nodes of the pool.

Either the node came from another pool, or a stock nova-compute serves the same
nodes. A host of another pool is asked for the node, and gives it away when it
can (``ownership.departures``). Nobody but the holder changes it, so the node
stays if no ironic-compute serves that host; a warning names the host. The
rebalancer pushes no node while a stock nova-compute is up, because
nova-compute would take each pushed node back within a minute
(``_init_compute_node`` of Nova's resource tracker).
"""

import enum
from collections.abc import Callable, Sequence

import attrs
from oslo_log import log as logging

from hashring.ring import Host
from ironic_compute.pool.services import ServiceDirectory
from ironic_compute.pool.view import PoolView
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)

# Rounds of the rebalancer, of about a second each, after which a host that did
# not answer is asked again who serves it. That takes five seconds.
_SILENT_ROUNDS = 60


class Answer(enum.Enum):
    """What a foreign host answers to a request for nodes."""

    RECEIVED = 'received'
    UNKNOWN = 'unknown'
    """Its daemon is of an older release, or it is no ironic-compute."""
    NONE = 'none'


@attrs.define(eq=False, repr=False, slots=False)
class ForeignHosts:
    """The foreign hosts, found in the rows of the pool's nodes.

    Any thread may call ``note_holder``, ``want_node``, ``gives_nodes`` and
    ``why_not_pushed``, which do not block; one thread calls the other methods.

    :param is_ironic_compute: reads from a host whether ironic-compute serves
        it; None if it does not answer
    :param request_nodes: asks a host for some of its nodes
    """

    _services: ServiceDirectory
    _pool: PoolView
    _is_ironic_compute: Callable[[Host], bool | None]
    _request_nodes: Callable[[Host, Sequence[NodeId]], Answer]

    def __attrs_post_init__(self) -> None:
        self._example: dict[Host, NodeId] = {}
        self._wanted: dict[Host, list[NodeId]] = {}
        self._is_ours: dict[Host, bool | None] = {}
        self._too_old: set[Host] = set()
        self._rounds_count = 0
        # Never cleared: a host that once gave nodes can do so again.
        self._giving: set[Host] = set()
        self._logged: set[tuple[Host, str]] = set()
        # Those that were up in the last round.
        self._stock: tuple[Host, ...] = ()

    def clear(self) -> None:
        """Forget all hosts, because the rows of all nodes are read again."""
        self._example, self._is_ours, self._too_old = {}, {}, set()

    def note_holder(self, host: Host, node: NodeId) -> None:
        """Record a host outside the pool that the row of a node names.

        Does nothing if the host belongs to the pool.
        """
        if host not in self._pool.known:
            self._example.setdefault(host, node)

    # Nodes of another pool

    def want_node(self, host: Host, node: NodeId) -> None:
        """Have the next ``send_requests`` ask a foreign host for a node."""
        self._wanted.setdefault(host, []).append(node)

    def send_requests(self) -> None:
        """Ask each foreign host for the nodes that this host should hold.

        Blocks for seconds, for each host that does not answer. What was not
        received is wanted again when the rows of these nodes are read again.
        """
        wanted, self._wanted = self._wanted, {}
        for host, nodes in sorted(wanted.items()):
            if self._may_be_asked(host):
                self._ask(host, sorted(nodes))

    def _may_be_asked(self, host: Host) -> bool:
        is_up = self._services.is_up(host)
        return is_up and host not in self._too_old and self._read(host) is True

    def _ask(self, host: Host, nodes: Sequence[NodeId]) -> None:
        answer = self._request_nodes(host, nodes)
        if answer is Answer.UNKNOWN:
            self._too_old.add(host)
            self._log_once(host, nodes[0], _TOO_OLD)
        elif answer is Answer.RECEIVED:
            self._giving.add(host)

    def gives_nodes(self, host: Host) -> bool:
        """Return whether a foreign host has received a request for nodes."""
        return host in self._giving

    # Stock nova-computes

    def is_stock_compute_up(self) -> bool:
        """Return whether a stock nova-compute serves nodes of the pool.

        Blocks for seconds, now and then, for each host that does not answer.
        """
        self._rounds_count += 1
        if self._rounds_count % _SILENT_ROUNDS == 0:
            # It may have been started again just then, or be hung.
            answers = self._is_ours.items()
            self._is_ours = {h: a for h, a in answers if a is not None}
        holding = sorted(self._example.items())
        stock = [host for host, node in holding if self._is_stock(host, node)]
        self._stock = tuple(stock)
        return bool(stock)

    def why_not_pushed(self) -> str | None:
        """Return why no free node was pushed in the last round, or None."""
        stock = self._stock
        if not stock:
            return None
        return (
            f'A nova-compute outside of this pool serves host {stock[0]}, '
            f'which holds nodes of this pool; no free node goes to another '
            f'host while it runs'
        )

    def _is_stock(self, host: Host, node: NodeId) -> bool:
        if host in self._pool.known:
            return False
        is_ours = self._read(host) if self._services.is_up(host) else None
        if is_ours is None:
            self._log_once(host, node, _SILENT)
        elif not is_ours:
            self._log_once(host, node, _STOCK)
        return is_ours is False

    def _read(self, host: Host) -> bool | None:
        if host not in self._is_ours:
            self._is_ours[host] = self._is_ironic_compute(host)
        return self._is_ours[host]

    def _log_once(self, host: Host, node: NodeId, message: str) -> None:
        if (host, message) not in self._logged:
            self._logged.add((host, message))
            LOG.warning(message, {'host': host, 'node': node})


_STOCK = (
    'A nova-compute outside of this pool serves host %(host)s and holds node '
    '%(node)s of this pool; no free node is handed to another host while it '
    'runs'
)
_SILENT = (
    'Host %(host)s is outside of this pool and holds node %(node)s of this '
    'pool, and no daemon answers there; the node stays there until one does'
)
_TOO_OLD = (
    'Host %(host)s is outside of this pool and holds node %(node)s of this '
    'pool; its daemon is of an older release, which gives no node to another '
    'pool, so the node stays there until that daemon is upgraded'
)
