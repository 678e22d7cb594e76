# SPDX-License-Identifier: Apache-2.0
"""Foreign hosts: hosts outside the pool that hold nodes of the pool.

A foreign host keeps its nodes; a warning names the host. Either the node came
from another pool, or a stock nova-compute serves the same nodes. The
rebalancer pushes no node while a stock nova-compute is up, because
nova-compute would take each pushed node back within a minute
(``_init_compute_node`` of Nova's resource tracker).
"""

from collections.abc import Callable

import attrs
from oslo_log import log as logging

from hashring.ring import Host
from ironic_compute.pool.services import ServiceDirectory
from ironic_compute.pool.view import PoolView
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False, slots=False)
class ForeignHosts:
    """The foreign hosts, found in the rows of the pool's nodes.

    Any thread may call ``note_holder``; one thread calls the other methods.

    :param is_ironic_compute: reads from a host whether ironic-compute serves
        it; None if it does not answer
    """

    _services: ServiceDirectory
    _pool: PoolView
    _is_ironic_compute: Callable[[Host], bool | None]

    def __attrs_post_init__(self) -> None:
        self._example: dict[Host, NodeId] = {}
        self._is_ours: dict[Host, bool | None] = {}
        self._logged: set[tuple[Host, bool]] = set()

    def clear(self) -> None:
        """Forget all hosts, because the rows of all nodes are read again."""
        self._example, self._is_ours = {}, {}

    def note_holder(self, host: Host, node: NodeId) -> None:
        """Record a host outside the pool that the row of a node names.

        Does nothing if the host belongs to the pool.
        """
        if host not in self._pool.known:
            self._example.setdefault(host, node)

    def is_stock_compute_up(self) -> bool:
        """Return whether a stock nova-compute serves nodes of the pool.

        Blocks for seconds, once for each host that does not answer.
        """
        holding = sorted(self._example.items())
        stock = [host for host, node in holding if self._is_stock(host, node)]
        return bool(stock)

    def _is_stock(self, host: Host, node: NodeId) -> bool:
        if host in self._pool.known:
            return False
        is_stock = self._services.is_up(host) and self._read(host) is False
        self._log_once(host, node, is_stock)
        return is_stock

    def _read(self, host: Host) -> bool | None:
        if host not in self._is_ours:
            self._is_ours[host] = self._is_ironic_compute(host)
        return self._is_ours[host]

    def _log_once(self, host: Host, node: NodeId, is_stock: bool) -> None:
        if (host, is_stock) in self._logged:
            return
        self._logged.add((host, is_stock))
        if is_stock:
            LOG.warning(
                'A nova-compute outside of this pool serves host %(host)s '
                'and holds node %(node)s of this pool; no free node is '
                'handed to another host while it runs',
                {'host': host, 'node': node},
            )
            return
        LOG.warning(
            'Host %(host)s is outside of this pool and holds node %(node)s, '
            'which stays there; if the node came from another pool, run '
            '"ironic-computectl node forget %(node)s" with the nova.conf of '
            'that pool',
            {'host': host, 'node': node},
        )
