# SPDX-License-Identifier: Apache-2.0
"""Checks of allocations, on the providers that were read by themselves.

Placement has no list of allocations; it returns those of one provider, or
those of one consumer.
"""

from collections import defaultdict
from collections.abc import Iterator

from nova.compute import vm_states

from hashring.ring import Host
from ironic_compute import catalogue
from ironic_compute.fsck.findings import Finding, Subject
from ironic_compute.fsck.server_checks import servers_at_rest
from ironic_compute.fsck.snapshot import Server, Snapshot
from ironic_compute.recovery.decisions import (
    Neglect,
    RestingServer,
    find_neglect,
)
from resource_tracker.node import NodeId


def check_consumers(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that each consumer is the server of the node.

    The finding has the host that can mend it: that of the server, or of the
    node if the server is deleted.
    """
    hosts = snapshot.holders()
    for node, details in snapshot.details_by_node():
        for consumer in sorted(details.consumers):
            server = snapshot.servers.get(consumer)
            found = _of_consumer(node, consumer, server, snapshot)
            if found is not None:
                check, text = found
                yield Finding(
                    check,
                    Subject(
                        node=node,
                        server=consumer,
                        host=_host_of(server) or hosts.get(node),
                    ),
                    f'Placement has an allocation of {consumer} on node '
                    f'{node}, {text}',
                )


def _of_consumer(
    node: NodeId, consumer: str, server: Server | None, snapshot: Snapshot
) -> tuple[catalogue.Check, str] | None:
    if server is None:
        if snapshot.nodes[node].instance_uuid == consumer:
            return None  # A user of Ironic beside Nova, as the manual has it.
        return catalogue.ALLOCATION_OF_UNKNOWN, 'which is no server of Nova'
    if server.deleted:
        return (
            catalogue.ALLOCATION_WITHOUT_SERVER,
            'which is a server that Nova has deleted',
        )
    is_elsewhere = server.node is not None and server.node != node
    if is_elsewhere and server.task_state is None:
        return (
            catalogue.ALLOCATION_ON_OTHER_NODE,
            f'which is a server on node {server.node}',
        )
    if _is_shelved(server):
        return (
            catalogue.ALLOCATION_OF_SHELVED,
            'which is a server that is shelved and on no node',
        )
    return None


def _is_shelved(server: Server) -> bool:
    """Return whether a server has no node and looks for none."""
    is_off = server.vm_state == vm_states.SHELVED_OFFLOADED
    return is_off and server.task_state is None and server.node is None


def _host_of(server: Server | None) -> Host | None:
    if server is None or server.deleted or server.host is None:
        return None
    return Host(server.host)


def check_single(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that no consumer has allocations on two nodes."""
    nodes: dict[str, set[NodeId]] = defaultdict(set)
    for node, details in snapshot.details_by_node():
        for consumer in details.consumers:
            nodes[consumer].add(node)
    for consumer, on in sorted(nodes.items()):
        if len(on) > 1:
            yield Finding(
                catalogue.ALLOCATION_ON_TWO_NODES,
                Subject(
                    server=consumer,
                    host=_host_of(snapshot.servers.get(consumer)),
                ),
                f'Placement has allocations of {consumer} on nodes '
                f'{", ".join(sorted(on))}',
            )


def check_servers(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that each server on a node has its allocation there."""
    read = dict(snapshot.details_by_node())
    for server, node in servers_at_rest(snapshot):
        if node not in read:
            continue
        resting = RestingServer(
            server.vm_state,
            server.task_state,
            has_allocation=server.uuid in read[node].consumers,
        )
        if find_neglect(resting) is Neglect.NO_ALLOCATION:
            yield Finding(
                catalogue.SERVER_WITHOUT_ALLOCATION,
                Subject(node=node, server=server.uuid, host=_host_of(server)),
                f'Server {server.uuid} is on node {node}, and Placement has '
                f'no allocation of it there',
            )
