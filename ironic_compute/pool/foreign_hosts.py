# SPDX-License-Identifier: Apache-2.0
"""Hosts that hold nodes of this pool and are not of it.

Such a host is told of and left alone: its rows are its own. Either the node
came from another pool, or a nova-compute that is none of ours works on this
one. That takes back each minute whatever is pushed (``_init_compute_node`` of
Nova's resource tracker), so nothing is pushed while it is up.
"""

from collections.abc import Callable

from oslo_log import log as logging

from hashring.ring import Host
from ironic_compute.pool.services import ServiceDirectory
from ironic_compute.pool.view import PoolView
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)


class ForeignHosts:
    """The foreign hosts of one pool, as far as their rows show them.

    ``note_holder`` may be called from any thread, the others from one.

    :param is_ironic_compute: reads from a host whether ironic-compute serves
        it; None if it does not answer
    """

    def __init__(
        self,
        services: ServiceDirectory,
        pool: PoolView,
        is_ironic_compute: Callable[[Host], bool | None],
    ) -> None:
        self._services = services
        self._pool = pool
        self._is_ironic_compute = is_ironic_compute
        self._example: dict[Host, NodeId] = {}
        self._answers: dict[Host, bool | None] = {}
        self._told: set[tuple[Host, bool]] = set()

    def clear(self) -> None:
        """Forget who holds what: a full list is looked at again."""
        self._example, self._answers = {}, {}

    def note_holder(self, host: Host, node: NodeId) -> None:
        """Remember that a row of a node of the pool names this host."""
        if host not in self._pool.known:
            self._example.setdefault(host, node)

    def is_stock_compute_up(self) -> bool:
        """Say whether a nova-compute that is not ours works on the pool."""
        holding = sorted(self._example.items())
        stock = [host for host, node in holding if self._is_stock(host, node)]
        return bool(stock)

    def _is_stock(self, host: Host, node: NodeId) -> bool:
        if host in self._pool.known:
            return False
        is_stock = self._services.is_up(host) and self._ask(host) is False
        self._tell_once(host, node, is_stock)
        return is_stock

    def _ask(self, host: Host) -> bool | None:
        if host not in self._answers:
            self._answers[host] = self._is_ironic_compute(host)
        return self._answers[host]

    def _tell_once(self, host: Host, node: NodeId, is_stock: bool) -> None:
        if (host, is_stock) in self._told:
            return
        self._told.add((host, is_stock))
        if is_stock:
            LOG.warning(
                'A nova-compute that is not ours serves host %(host)s and '
                'holds node %(node)s of this pool; no free node is handed to '
                'another host while it runs',
                {'host': host, 'node': node},
            )
            return
        LOG.warning(
            'Host %(host)s is not of this pool and holds node %(node)s of '
            'it, which stays there; if the node came from another pool, say '
            '"ironic-computectl node forget %(node)s" in that one',
            {'host': host, 'node': node},
        )
