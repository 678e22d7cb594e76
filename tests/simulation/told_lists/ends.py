# SPDX-License-Identifier: Apache-2.0
"""What must hold at the end of a walk.

Each node of the pool is held by its ring target alone, with Ironic's facts,
and is offered by it. Nothing is left of a node that Ironic has not. No node
waits for a holder. Each worker has begun with a list of its own.
"""

import dataclasses
from collections.abc import Iterator, Mapping

from hashring.ring import Host, Ring
from resource_tracker.node import NodeFacts, NodeId
from tests.simulation.told_lists.worker import Worker
from tests.unit.ironic_compute.hosts import Cloud

Workers = Mapping[Host, Worker]


def find_broken(cloud: Cloud, workers: Workers) -> Iterator[str]:
    """Yield a sentence for each thing that is not as it must be."""
    for node, holders in cloud.holders().items():
        yield from _find_in_node(cloud, workers, NodeId(node), holders)
    for row in cloud.nova.rows.values():
        # The former node of a host without a Service is nobody's concern.
        is_live = not row.deleted and row.host in cloud.nova.services
        if is_live and row.node not in cloud.nodes:
            yield f'the row of {row.node} is left, of {row.host}'
    for worker in workers.values():
        yield from _find_in_worker(cloud, worker)


def _find_in_node(
    cloud: Cloud, workers: Workers, node: NodeId, holders: list[Host]
) -> Iterator[str]:
    target = Ring(workers).target(node)
    if cloud.nodes[node].conductor_group:
        if len(holders) > 1:
            yield f'{node} of another pool is held by {holders}'
    elif target is None or holders != [target]:
        yield f'{node} is held by {holders}, not by {target}'
    else:
        yield from _find_in_holder(cloud, workers[target], node)


def _find_in_holder(
    cloud: Cloud, holder: Worker, node: NodeId
) -> Iterator[str]:
    """Yield what is wrong with a node of the pool in its holder."""
    row = cloud.nova.live_row(node)
    if row is None or row.host != holder.host:
        yield f'the row of {node} is {row}, not of {holder.host}'
    known = holder.owner.held_nodes.facts(node)
    if known is None or _timeless(known) != _timeless(cloud.nodes[node]):
        yield f'{holder.host} does not know {node} as it is in Ironic'
    offered_by = cloud.providers.get(node)
    if offered_by != holder.host:
        yield f'{node} is offered by {offered_by}, not by {holder.host}'


def _timeless(facts: NodeFacts) -> NodeFacts:
    return dataclasses.replace(facts, read_at_s=None, updated_at=None)


def _find_in_worker(cloud: Cloud, worker: Worker) -> Iterator[str]:
    for node in worker.owner.held_nodes.rows().keys() - cloud.nodes.keys():
        yield f'{worker.host} holds {node}, which Ironic has not'
    if not worker.owner.unheld.is_settled():
        yield f'a node still waits for a holder in {worker.host}'
    if not worker.ironic.lists_count:
        yield f'{worker.host} has read no list of its own'
