# SPDX-License-Identifier: Apache-2.0
"""Checks of servers: Nova and Ironic agree where each one is, and it goes on.

The decisions are those by which the workers free nodes and end interrupted
tasks (``recovery.decisions``).
"""

from collections import defaultdict
from collections.abc import Iterator

from nova.compute import vm_states

from hashring.ring import Host
from ironic_compute import catalogue
from ironic_compute.fsck.findings import Finding, Subject
from ironic_compute.fsck.snapshot import Server, Snapshot
from ironic_compute.ironic_api.states import Meaning, ProvisionState
from ironic_compute.recovery.decisions import (
    Neglect,
    RestingServer,
    StrayState,
    find_neglect,
    is_resting,
    stray_state,
)
from resource_tracker.node import NodeFacts, NodeId

# A server without progress has not changed for this long. Ironic works on its
# node for hours, but then the node shows it.
_WITHOUT_PROGRESS_S = 900.0

# In these states Ironic works on a node in use. By default it waits half an
# hour for the rescue ramdisk.
_AT_WORK_IN_USE = frozenset(
    {
        ProvisionState.RESCUING,
        ProvisionState.RESCUEWAIT,
        ProvisionState.UNRESCUING,
        ProvisionState.SERVICING,
        ProvisionState.SERVICEWAIT,
    }
)

_STRAYS = {
    StrayState.NOT_IN_NOVA: (
        catalogue.UNKNOWN_SERVER,
        'Nova never had it',
    ),
    StrayState.DELETED: (catalogue.DELETED_SERVER, 'Nova has deleted it'),
    StrayState.BUILD_FAILED: (
        catalogue.FAILED_BUILD,
        'Nova has given its build up',
    ),
    StrayState.ON_OTHER_HOST: (
        catalogue.SERVER_ON_OTHER_HOST,
        'Nova has it on another host than the record of the node',
    ),
    StrayState.HOST_LOST: (
        catalogue.SERVER_WITHOUT_HOST,
        'Nova has no host for it',
    ),
}


def check_strays(snapshot: Snapshot) -> Iterator[Finding]:
    """Check the server that Ironic has on each node."""
    rows = snapshot.rows_by_node()
    users = _users(snapshot)
    for node, facts in snapshot.nodes.items():
        server = facts.instance_uuid
        if server is None or node not in rows:
            continue
        host = rows[node][0].host
        state = stray_state(snapshot.servers.get(server), host)
        if state is StrayState.NOT_IN_NOVA and (node, server) in users:
            continue
        if state in _STRAYS:
            check, why = _STRAYS[state]
            yield Finding(
                check,
                Subject(node=node, server=server, host=host),
                f'Ironic has server {server} on node {node}, and {why}',
            )


def _users(snapshot: Snapshot) -> frozenset[tuple[NodeId, str]]:
    """Return the nodes and consumers with an allocation.

    A user of Ironic beside Nova is expected to allocate its nodes.
    """
    return frozenset(
        (node, consumer)
        for node, details in snapshot.details_by_node()
        for consumer in details.consumers
    )


def servers_at_rest(snapshot: Snapshot) -> Iterator[tuple[Server, NodeId]]:
    """Yield the servers of the pool that are on a node and have no task."""
    for server in snapshot.servers.values():
        is_of_pool = server.host in snapshot.pool.known
        if is_of_pool and is_resting(server) and server.node is not None:
            yield server, server.node


def check_places(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that each server is on its node in Ironic."""
    places = {
        facts.instance_uuid: node
        for node, facts in snapshot.nodes.items()
        if facts.instance_uuid is not None
    }
    for server, node in servers_at_rest(snapshot):
        facts = snapshot.nodes.get(node)
        if facts is not None and facts.instance_uuid != server.uuid:
            yield _not_on_node(server, node, places.get(server.uuid))
        all_nodes = snapshot.all_nodes
        is_gone = all_nodes is not None and node not in all_nodes.nodes
        if facts is None and is_gone:
            yield Finding(
                catalogue.SERVER_WITHOUT_NODE,
                _subject(server, node),
                f'Nova has server {server.uuid} on node {node}, which Ironic '
                f'does not have',
            )


def _not_on_node(
    server: Server, node: NodeId, place: NodeId | None
) -> Finding:
    return Finding(
        catalogue.SERVER_NOT_ON_NODE,
        _subject(server, node),
        f'Nova has server {server.uuid} on node {node}, and Ironic has it on '
        f'{place or "no node of the pool"}',
    )


def check_sharing(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that no two servers are on one node."""
    by_node: dict[NodeId, list[Server]] = defaultdict(list)
    for server, node in servers_at_rest(snapshot):
        by_node[node].append(server)
    for node, servers in by_node.items():
        for server in servers if len(servers) > 1 else ():
            yield Finding(
                catalogue.TWO_SERVERS,
                _subject(server, node),
                f'Nova has server {server.uuid} on node {node}, and '
                f'{len(servers) - 1} more',
            )


def check_progress(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that each task of a server goes on."""
    for server in snapshot.servers.values():
        idle_s = snapshot.now_s - server.changed_at_s
        if not server.deleted and idle_s > _WITHOUT_PROGRESS_S:
            yield from _of_progress(server, snapshot)


def _of_progress(server: Server, snapshot: Snapshot) -> Iterator[Finding]:
    is_building = server.vm_state == vm_states.BUILDING
    if server.host is None:
        if is_building and server.requests_node:
            yield Finding(
                catalogue.LOST_BUILD,
                Subject(server=server.uuid),
                f'Server {server.uuid} is being built on no host',
            )
        return
    is_of_pool = server.host in snapshot.pool.known
    has_task = server.task_state is not None or is_building
    if is_of_pool and has_task and not _may_be_at_work(server.node, snapshot):
        yield Finding(
            catalogue.STUCK_TASK,
            _subject(server, server.node),
            f'Server {server.uuid} is {server.vm_state} with task '
            f'{server.task_state or "none"}, and nothing happens',
        )


def _may_be_at_work(node: NodeId | None, snapshot: Snapshot) -> bool:
    """Return whether Ironic may be working on a node.

    One of another pool is not read as a whole. Its host keeps it until the
    task has ended.
    """
    facts = None if node is None else snapshot.nodes.get(node)
    if facts is not None:
        return _is_at_work(facts)
    return snapshot.all_nodes is not None and node in snapshot.all_nodes.nodes


def _is_at_work(facts: NodeFacts) -> bool:
    """Return whether Ironic is working on a node."""
    state = ProvisionState.parse(facts.provision_state)
    is_busy = state.meaning in (Meaning.ON_ITS_WAY, Meaning.LEAVING)
    is_changing = state in _AT_WORK_IN_USE
    return is_busy or is_changing or facts.target_power_state is not None


def check_deletes(snapshot: Snapshot) -> Iterator[Finding]:
    """Check the servers whose actions were read for a delete."""
    for server in snapshot.servers.values():
        resting = RestingServer(
            server.vm_state, server.task_state, server.is_delete_unfinished
        )
        if not server.deleted and find_neglect(resting) is Neglect.DELETE:
            yield Finding(
                catalogue.UNFINISHED_DELETE,
                _subject(server, server.node),
                f'The delete of server {server.uuid} was accepted and never '
                f'done',
            )


def _subject(server: Server, node: NodeId | None) -> Subject:
    host = None if server.host is None else Host(server.host)
    return Subject(node=node, server=server.uuid, host=host)
