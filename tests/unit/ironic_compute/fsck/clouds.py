# SPDX-License-Identifier: Apache-2.0
"""A small cloud in which nothing is wrong, as a snapshot.

Two hosts, c1 and c2; a free node on c1, and a node with a server on c2.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from hashring.ring import Host
from ironic_compute.fsck.snapshot import (
    Aggregate,
    Flavor,
    OtherNodes,
    Placement,
    PoolHosts,
    ProviderDetails,
    Row,
    Server,
    Service,
    Snapshot,
)
from resource_tracker.delta import KnownProvider
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.provider import COMPUTE_NODE, COMPUTE_STATUS_DISABLED

C1, C2, C9 = map(Host, ('c1', 'c2', 'c9'))
FREE = NodeId('f0000000-0000-0000-0000-000000000001')
USED = NodeId('a0000000-0000-0000-0000-000000000002')
OTHER = NodeId('b0000000-0000-0000-0000-000000000003')
SERVER = '50000000-0000-0000-0000-000000000004'
STRANGER = '60000000-0000-0000-0000-000000000005'
GOLD, GPU = 'CUSTOM_GOLD', 'CUSTOM_GPU'
NOW_S = 1_000_000.0


def facts(node: NodeId, **fields: Any) -> NodeFacts:
    """Return a node in Ironic, available unless told."""
    return NodeFacts(
        **{
            'uuid': node,
            'resource_class': 'gold',
            'provision_state': 'available',
            'power_state': 'power on',
            'traits': frozenset({GPU}),
            **fields,
        }
    )


def server(**fields: Any) -> Server:
    """Return a server that is on its node, and rests there."""
    return Server(
        **{
            'deleted': False,
            'host': C2,
            'vm_state': 'active',
            'task_state': None,
            'uuid': SERVER,
            'node': USED,
            'changed_at_s': NOW_S - 7200.0,
            **fields,
        }
    )


def details(
    node: NodeId, *consumers: str, **inventories: int
) -> ProviderDetails:
    """Return a provider that was read by itself.

    :param inventories: what is reserved of each class
    """
    return ProviderDetails.of(
        KnownProvider(
            node,
            generation=1,
            inventories={
                name: {'total': 1, 'reserved': reserved}
                for name, reserved in inventories.items()
            },
        ),
        frozenset(consumers),
    )


PLACEMENT = Placement(
    names={FREE: FREE, USED: USED, 'aa': 'a-hypervisor'},
    offered={GOLD: frozenset({FREE})},
    with_trait={
        COMPUTE_NODE: frozenset({FREE, USED, 'aa'}),
        COMPUTE_STATUS_DISABLED: frozenset(),
        GPU: frozenset({FREE, USED}),
    },
)

CLEAN = Snapshot(
    now_s=NOW_S,
    pool=PoolHosts(
        frozenset({C1, C2}), frozenset({C1, C2}), {C1: 'r', C2: 'r'}
    ),
    nodes={
        FREE: facts(FREE),
        USED: facts(USED, instance_uuid=SERVER, provision_state='active'),
    },
    all_nodes=OtherNodes({FREE: GOLD, USED: GOLD}, {GOLD: frozenset({GPU})}),
    rows=(Row(FREE, FREE, C1), Row(USED, USED, C2)),
    servers={SERVER: server()},
    services={C1: Service(), C2: Service()},
    mapped=frozenset({C1, C2}),
    aggregates=(Aggregate('rack', frozenset({C1, C2}), 'zone'),),
    flavors=(Flavor('bm.gold', GOLD, frozenset({GPU})),),
    placement=PLACEMENT,
)
DEEP = dataclasses.replace(
    CLEAN,
    placement=dataclasses.replace(
        PLACEMENT,
        details={
            FREE: details(FREE, CUSTOM_GOLD=0),
            USED: details(USED, SERVER, CUSTOM_GOLD=1),
        },
    ),
)


def change(snapshot: Snapshot, **fields: Any) -> Snapshot:
    """Return a snapshot with other fields."""
    return dataclasses.replace(snapshot, **fields)


def with_node(node: NodeId, **fields: Any) -> Snapshot:
    """Return the clean cloud with a node that differs, or is added."""
    known = CLEAN.nodes.get(node, facts(node))
    changed = dataclasses.replace(known, **fields)
    return change(CLEAN, nodes={**CLEAN.nodes, node: changed})


def with_servers(*servers: Server, base: Snapshot = CLEAN) -> Snapshot:
    """Return a cloud with these servers."""
    return change(base, servers={each.uuid: each for each in servers})


def with_placement(base: Snapshot = CLEAN, **fields: Any) -> Snapshot:
    """Return a cloud whose Placement differs."""
    placement = dataclasses.replace(base.placement, **fields)
    return change(base, placement=placement)


def with_traits(
    traits: Mapping[str, frozenset[str]], base: Snapshot = CLEAN
) -> Snapshot:
    """Return a cloud whose providers have other traits."""
    known = base.placement.with_trait
    return with_placement(base, with_trait={**known, **traits})


def with_details(*read: ProviderDetails, base: Snapshot = DEEP) -> Snapshot:
    """Return a cloud in which some providers were read and differ."""
    found = {each.uuid: each for each in read}
    return with_placement(base, details={**base.placement.details, **found})
