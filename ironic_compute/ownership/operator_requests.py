# SPDX-License-Identifier: Apache-2.0
"""What an operator says of a host, when nobody else is left to say it.

A pool whose state files are lost does not know a host any more whose own
agent is gone, and Nova cannot tell it from a host of another pool. And where
Nova may not be asked whether a host is mapped, nobody knows it but he who has
mapped it. A worker looks whether the order makes sense and passes it on to
its agent, which writes it down and tells the other agents.
"""

from collections.abc import Callable, Iterable

from oslo_log import log as logging

from hashring.clock import Clock
from hashring.ring import Host
from hashring.workers import HostAdded, MappingConfirmed
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.records import node_of
from ironic_compute.pool.host_mappings import Mapped
from ironic_compute.pool.services import ServiceDirectory
from ironic_compute.pool.view import PoolView
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)

_WAIT_S = 0.5
_WAITS_MAX = 20


class OperatorRequests:
    """Any thread may call; a call blocks for seconds.

    Each order returns None when it is carried out, or is so already, or else
    a sentence that says why not.

    :param make_directory: what looks at Nova's Service records; each order
        has one of its own, which one thread uses
    :param is_ironic_compute: reads from a host whether ironic-compute serves
        it; None if it does not answer
    :param list_nodes: lists the nodes of the pool
    :param read_mapping: asks Nova whether a host is mapped
    :param send_to_agent: passes an order on to the agent; it may be lost
    """

    def __init__(
        self,
        pool: PoolView,
        compute_nodes: ComputeNodes,
        clock: Clock,
        *,
        make_directory: Callable[[], ServiceDirectory],
        is_ironic_compute: Callable[[Host], bool | None],
        list_nodes: Callable[[], Iterable[NodeId]],
        read_mapping: Callable[[Host], Mapped],
        send_to_agent: Callable[[HostAdded | MappingConfirmed], None],
    ) -> None:
        self._pool = pool
        self._compute_nodes = compute_nodes
        self._clock = clock
        self._make_directory = make_directory
        self._is_ironic_compute = is_ironic_compute
        self._list_nodes = list_nodes
        self._read_mapping = read_mapping
        self._send_to_agent = send_to_agent

    def adopt_host(self, host: Host) -> str | None:
        """Make a host known in this pool, so that it is served again."""
        if host in self._pool.known:
            return None
        why_not = self._is_no_orphan(host) or self._is_elsewhere(host)
        if why_not is not None:
            return why_not
        return self._pass_on(HostAdded(host), lambda: self._pool.known)

    def confirm_mapping(self, host: Host) -> str | None:
        """Take a host for mapped, where Nova does not tell."""
        if host not in self._pool.known:
            return (
                f'Host {host} is not known in this pool; "ironic-computectl '
                f'host list" shows who is'
            )
        match self._read_mapping(host):
            case Mapped.YES:
                return None
            case Mapped.NO:
                return (
                    f'Nova says that host {host} is not mapped to a cell; '
                    f'run: nova-manage cell_v2 discover_hosts --by-service'
                )
            case Mapped.UNREADABLE | Mapped.NO_ANSWER:
                return self._pass_on(
                    MappingConfirmed(host),
                    lambda: self._pool.mapping_confirmed,
                )

    def _is_no_orphan(self, host: Host) -> str | None:
        """Say why a host needs nobody to take it over, if that is so."""
        directory = self._make_directory()
        directory.read_records()
        if directory.find_record(host) is None:
            return (
                f'Nova has no Service record of a nova-compute on host '
                f'{host}: see "openstack compute service list"'
            )
        if not directory.is_up(host):
            return None
        match self._is_ironic_compute(host):
            case True:
                return f'A daemon of another pool serves host {host}'
            case False:
                return (
                    f'A nova-compute that is not ours serves host {host}; '
                    f'stop it first'
                )
            case None:
                return (
                    f'Host {host} is up, says Nova, but does not answer; ask '
                    f'again when Nova takes it for down'
                )

    def _is_elsewhere(self, host: Host) -> str | None:
        """Say that a host is of another pool, if its nodes are."""
        held = {node_of(row) for row in self._compute_nodes.of_host(host)}
        if not held or held & set(self._list_nodes()):
            return None
        return (
            f'Host {host} holds {len(held)} nodes and none of them is in '
            f'this pool (conductor group and shard): give the order with the '
            f'nova.conf of its own'
        )

    def _pass_on(
        self,
        order: HostAdded | MappingConfirmed,
        heeded: Callable[[], Iterable[Host]],
    ) -> str | None:
        """Tell the agent until it shows that it has heard."""
        for _ in range(_WAITS_MAX):
            self._send_to_agent(order)
            self._clock.sleep(_WAIT_S)
            if order.host in heeded():
                LOG.info(
                    "By an operator's order host %(host)s is %(what)s",
                    {'host': order.host, 'what': _WHAT[type(order)]},
                )
                return None
        return (
            f'The agent was told of host {order.host} and has not shown yet '
            f'that it heard; see "ironic-computectl host list"'
        )


_WHAT = {HostAdded: 'known in this pool', MappingConfirmed: 'taken for mapped'}
