# SPDX-License-Identifier: Apache-2.0
"""What ``fsck``, ``node list``, ``host list`` and a ring cost in one process.

The answers of the services are made here and are not waited for, so that only
the processor time of our own code counts.
"""

import json
import time
from collections.abc import Callable
from typing import Any

from hashring.adoption import View
from hashring.group import Boot, Member
from hashring.opts import Timing
from hashring.pool import Pool
from hashring.ring import Host, Ring
from ironic_compute.cmd import host_views, node_views
from ironic_compute.fsck import checks
from ironic_compute.fsck.snapshot import (
    Placement,
    PoolHosts,
    Row,
    Server,
    Service,
    Snapshot,
)
from ironic_compute.paths.path_health import (
    CONDUCTOR,
    IRONIC,
    NEUTRON,
    PLACEMENT,
    RABBITMQ,
)
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.provider import COMPUTE_NODE, COMPUTE_STATUS_DISABLED

_CLASS = 'CUSTOM_BAREMETAL'
_NOW_S = 1e6
_PARSED = 10


def measure(hosts_count: int, nodes_count: int) -> dict[str, float | None]:
    """Return the processor seconds of each; every second node has a server.

    :raises RuntimeError: fsck finds something wrong
    """
    hosts = [Host(f'c{number + 1}') for number in range(hosts_count)]
    # Of a size that no other ring has had in this process.
    ring_s, ring = _time(lambda: Ring([*hosts, Host('new')]))
    nodes = [NodeId(f'n{number:035}') for number in range(nodes_count)]
    targets_s, _ = _time(lambda: [ring.target(node) for node in nodes])
    snapshot = _snapshot(hosts, nodes)
    fsck_s, findings = _time(lambda: checks.find(snapshot))
    if findings:
        raise RuntimeError(f'the pool should be clean: {findings[:3]}')
    held = {row.node: node_views.Held(row.host) for row in snapshot.rows}
    facts = snapshot.nodes.values()
    list_s, _ = _time(
        lambda: [*map(node_views.row, node_views.join(facts, held, hosts, {}))]
    )
    members = _settled_members(hosts)
    hosts_s, _ = _time(lambda: host_views.host_rows(members, {}))
    return {
        'ring_s': ring_s,
        'targets_s': targets_s,
        'fsck_s': fsck_s,
        'node_list_s': list_s,
        'host_list_s': hosts_s,
    }


def measure_records(hosts_count: int) -> dict[str, float]:
    """Return what the agents read of each other in a minute.

    Each agent reads the records of all agents with each heartbeat.
    """
    hosts = [
        Host(f'controller-{number:03}.example.org')
        for number in range(hosts_count)
    ]
    records = [json.dumps(m.capabilities()) for m in _settled_members(hosts)]
    reads_count = hosts_count * 60.0 / Timing().heartbeat_interval_s
    parse_s, _ = _time(
        lambda: [
            Member.parse(json.loads(record))
            for _ in range(_PARSED)
            for record in records
        ]
    )
    size = sum(map(len, records))
    return {
        'reads': reads_count,
        'records': reads_count * hosts_count,
        'bytes': size / hosts_count,
        'mb': reads_count * size / 1e6,
        'parse_s': reads_count * parse_s / _PARSED,
    }


def _settled_members(hosts: list[Host]) -> list[Member]:
    """Return the records of agents that have read each other's.

    An agent leaves out what agents before it publish, so they are made in the
    order of their hosts.
    """
    members: list[Member] = []
    for host in sorted(hosts):
        pool = Pool(host, hosts, 0.0, hosts)
        pool.update_members(View(tuple(members)), 0.0, in_force=True)
        known, mappings = pool.known_to_publish(), pool.mappings_to_publish()
        members.append(_member(host, known, mappings))
    return members


def _time(act: Callable[[], Any]) -> tuple[float, Any]:
    began_s = time.thread_time()
    value = act()
    return time.thread_time() - began_s, value


def _member(
    host: Host, known: tuple[Host, ...], mappings: tuple[Host, ...]
) -> Member:
    return Member(
        host,
        Boot(f'{0:032}'),
        machine=host,
        serving=(host,),
        with_servers=(host,),
        ring=f'{0:016}',
        known=known,
        version='2026.1.0',
        page=f'http://{host}:9999',
        confirmed_mappings=mappings,
        lease_term_s=15.0,
        seen_term_s=15.0,
        working_paths=(IRONIC, PLACEMENT, CONDUCTOR, RABBITMQ, NEUTRON),
    )


def _snapshot(hosts: list[Host], nodes: list[NodeId]) -> Snapshot:
    """Return a pool in which nothing is wrong."""
    holders = {n: hosts[i % len(hosts)] for i, n in enumerate(nodes)}
    servers = {
        f's{node}': Server(
            deleted=False,
            host=holders[node],
            vm_state='active',
            task_state=None,
            uuid=f's{node}',
            node=node,
            changed_at_s=_NOW_S - 7200.0,
        )
        for node in nodes[::2]
    }
    of_node = {server.node: uuid for uuid, server in servers.items()}
    known = frozenset(hosts)
    return Snapshot(
        now_s=_NOW_S,
        pool=PoolHosts(known, known, dict.fromkeys(hosts, 'ring')),
        nodes={node: _facts(node, of_node.get(node)) for node in nodes},
        rows=tuple(Row(node, node, host) for node, host in holders.items()),
        servers=servers,
        services={host: Service() for host in hosts},
        mapped=known,
        placement=Placement(
            names={node: node for node in nodes},
            offered={_CLASS: frozenset(nodes) - of_node.keys()},
            with_trait={
                COMPUTE_NODE: frozenset(nodes),
                COMPUTE_STATUS_DISABLED: frozenset(),
            },
        ),
    )


def _facts(node: NodeId, server: str | None) -> NodeFacts:
    return NodeFacts(
        node,
        resource_class='baremetal',
        provision_state='available' if server is None else 'active',
        power_state='power on',
        instance_uuid=server,
    )
