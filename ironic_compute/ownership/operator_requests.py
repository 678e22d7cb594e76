# SPDX-License-Identifier: Apache-2.0
"""Requests of an operator: add or forget a host, confirm its mapping.

``ironic-computectl host adopt`` is needed for a host without an agent, in a
pool that has lost its state files: Nova's records do not contain the pool of a
host. ``host forget`` removes a host that is gone for good, so that no agent
adopts it any more. ``host mapped`` is needed if no worker has access to
host mappings. ``peer_rpc`` receives the requests. A worker checks them and
sends them to its agent, which stores them on disk and passes them to the other
agents.
"""

from collections.abc import Callable, Sequence

import attrs
from oslo_log import log as logging

from hashring.clock import Clock
from hashring.ring import Host
from hashring.workers import (
    HostAdded,
    HostForgotten,
    MappingConfirmed,
    OperatorRequest,
)
from ironic_compute import errors
from ironic_compute.ironic_api.reader import IronicReader
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.records import node_of_row
from ironic_compute.pool.host_mappings import Mapped
from ironic_compute.pool.services import ServiceDirectory
from ironic_compute.pool.view import PoolView
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)

_WAIT_S = 0.5
_WAITS_MAX = 20
# Seconds in which the nodes of a host are read. The command waits for an
# answer for 30 s, of which the agent may need ten.
_READS_MAX_S = 15.0


@attrs.define(eq=False, repr=False, slots=False)
class OperatorRequests:
    """Checks the requests of an operator and sends them to the agent.

    Any thread may call; a call blocks for up to 10 s, ``adopt_host`` for up to
    25 s, plus the time of some requests to Nova and of one to Ironic. It
    returns None if the request was carried out, now or earlier, and otherwise
    a sentence with the reason.

    :param make_directory: makes a reader of Nova's Service records; one for
        each call, because only one thread may use it
    :param is_ironic_compute: reads from a host whether ironic-compute serves
        it; None if it does not answer
    :param read_mapping: reads from Nova whether a host is mapped
    :param send_to_agent: sends a message to the agent; it may be lost
    """

    _pool: PoolView
    _compute_nodes: ComputeNodes
    _clock: Clock
    _ironic: IronicReader
    _make_directory: Callable[[], ServiceDirectory]
    _is_ironic_compute: Callable[[Host], bool | None]
    _read_mapping: Callable[[Host], Mapped]
    _send_to_agent: Callable[[OperatorRequest], None]

    def adopt_host(self, host: Host) -> str | None:
        """Add a host to this pool, so that one of its agents adopts it."""
        if host in self._pool.known:
            return None
        why_not = self._why_served(host) or self._why_elsewhere(host)
        if why_not is not None:
            return why_not
        return self._send(HostAdded(host), lambda: host in self._pool.known)

    def confirm_mapping(self, host: Host) -> str | None:
        """Count a host as mapped, unless Nova has answered that it is not."""
        if host not in self._pool.known:
            return (
                f'Host {host} is not a host of this pool; "ironic-computectl '
                f'host list" shows its hosts'
            )
        match self._read_mapping(host):
            case Mapped.YES:
                return None
            case Mapped.NO:
                return (
                    f'Host {host} is not mapped to a cell in Nova; '
                    f'run: nova-manage cell_v2 discover_hosts --by-service'
                )
            case Mapped.UNREADABLE | Mapped.NO_ANSWER:
                return self._send(
                    MappingConfirmed(host),
                    lambda: host in self._pool.confirmed_mappings,
                )

    def forget_host(self, host: Host) -> str | None:
        """Remove a host from this pool; it must have no node and no server.

        The command has checked that no agent of this host runs.
        """
        if host not in self._pool.known:
            return None
        why_not = self._why_in_ring(host) or self._why_in_use(host)
        if why_not is not None:
            return why_not
        return self._send(
            HostForgotten(host), lambda: host not in self._pool.known
        )

    def _why_in_ring(self, host: Host) -> str | None:
        """Return a sentence if an agent may still give a host nodes."""
        status = self._pool.ring_status()
        if host in status.ring.hosts:
            return (
                f'Host {host} still gets nodes; run: ironic-computectl host '
                f'drain {host} --wait'
            )
        if not status.agreed:
            return (
                'The daemons of this pool do not agree on their hosts yet; '
                'try again in a minute'
            )
        return None

    def _why_in_use(self, host: Host) -> str | None:
        nodes_count = len(self._compute_nodes.list_by_host(host))
        if nodes_count:
            return (
                f'Host {host} holds {nodes_count} nodes; run: '
                f'ironic-computectl host drain {host} --wait'
            )
        servers_count = len(self._compute_nodes.list_servers_of_host(host))
        if servers_count:
            return (
                f'Host {host} has {servers_count} servers in Nova; delete '
                f'them first (openstack server list --all-projects --host '
                f'{host})'
            )
        return None

    def _why_served(self, host: Host) -> str | None:
        """Return why no agent may adopt a host; None if one may.

        A host may not be adopted if it is up, or if it has no Service record.
        """
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
                    f'A nova-compute outside of this pool serves host {host}; '
                    f'stop it first'
                )
            case None:
                return (
                    f'Host {host} is up in Nova but does not answer; try '
                    f'again when it is down in Nova'
                )

    def _why_elsewhere(self, host: Host) -> str | None:
        """Return a sentence if a host belongs to another pool, else None.

        A host belongs to another pool if it holds nodes and none of them is in
        this pool. They are read one by one, because the list of a large pool
        takes longer than the command waits for an answer.
        """
        rows = self._compute_nodes.list_by_host(host)
        held = sorted({node_of_row(row) for row in rows})
        count = self._count_outside(held)
        if not held or count is None:
            return None
        none = 'none of them'
        if count < len(held):
            none = (
                f'none of the {count} that were read in {_READS_MAX_S:.0f} s'
            )
        return (
            f'Host {host} holds {len(held)} nodes and {none} is in this pool '
            f'(conductor group and shard): run the command with the '
            f"nova.conf of the host's own pool"
        )

    def _count_outside(self, nodes: Sequence[NodeId]) -> int | None:
        """Read nodes until one is in this pool, or for 15 s.

        :returns: None if one is, else the number of nodes that were read
        """
        until_s = self._clock.now_s() + _READS_MAX_S
        count = 0
        for node in nodes:
            if self._clock.now_s() >= until_s:
                break
            if self._is_in_pool(node):
                return None
            count += 1
        return count

    def _is_in_pool(self, node: NodeId) -> bool:
        """Read from Ironic whether a node is in this pool.

        The row of a stock nova-compute for other hardware names a machine.
        That may also be the name of a node.
        """
        try:
            facts = self._ironic.read_node(node)
        except errors.IronicForbidden:
            raise
        except (errors.NodeNotFound, errors.IronicRefused):
            return False
        return facts.uuid == node and self._ironic.is_in_pool(facts)

    def _send(
        self,
        message: OperatorRequest,
        is_applied: Callable[[], bool],
    ) -> str | None:
        """Send a message to the agent until its view of the pool shows it.

        :param is_applied: returns whether the view shows that the request was
            carried out
        """
        for _ in range(_WAITS_MAX):
            self._send_to_agent(message)
            self._clock.sleep(_WAIT_S)
            if is_applied():
                LOG.info(
                    'An operator declared host %(host)s %(what)s',
                    {'host': message.host, 'what': _WHAT[type(message)]},
                )
                return None
        return (
            f'The request for host {message.host} was sent to the agent and '
            f'is not carried out yet; see "ironic-computectl host list"'
        )


_WHAT = {
    HostAdded: 'a host of this pool',
    HostForgotten: 'gone for good',
    MappingConfirmed: 'mapped to a cell',
}
