# SPDX-License-Identifier: Apache-2.0
"""Whether a node and its server can be moved now, by what was read. Pure.

Each reason is a sentence for the operator, with what to do.
"""

import dataclasses
from typing import Any

from nova.compute import vm_states

from hashring.ring import Host
from ironic_compute.ironic_api.states import ProvisionState
from ironic_compute.nodes.records import ServerRow
from resource_tracker.node import NodeFacts, NodeId

# With other VM states a periodic task of Nova may work on the server at any
# time: it offloads shelved servers and reclaims deleted ones.
_MOVABLE = frozenset(
    {vm_states.ACTIVE, vm_states.STOPPED, vm_states.RESCUED, vm_states.ERROR}
)
_P = ProvisionState
# In these states Ironic neither deploys nor removes a server, nor does it
# change the mode in which the server runs, until it gets a request. A node
# whose service has failed, or is held by an operator, may stay so for days.
_AT_REST = frozenset(
    {
        _P.ACTIVE,
        _P.DEPLOYFAIL,
        _P.ERROR,
        _P.RESCUE,
        _P.RESCUEFAIL,
        _P.SERVICEFAIL,
        _P.SERVICEHOLD,
        _P.UNRESCUEFAIL,
    }
)


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """What was read just before an eviction.

    :param facts: the node in Ironic
    :param why_not_in_pool: why the target's pool may not have the node
    :param instance: Nova's record of the server on it
    :param consumer: the server whose build has claimed the node
    """

    node: NodeId
    here: Host
    target: Host
    facts: NodeFacts
    why_not_in_pool: str | None
    instance: Any
    consumer: str | None


def why_not_movable(found: Found) -> str | None:
    """Return why a node and its server cannot be moved now, or None."""
    node, instance, facts = found.node, found.instance, found.facts
    if instance is None or facts.instance_uuid != instance.uuid:
        return f'Ironic and Nova differ about the server on node {node}'
    if (instance.host, instance.node) != (found.here, node):
        return (
            f'Server {instance.uuid} is on host {instance.host} and node '
            f'{instance.node} in Nova'
        )
    busy = _why_busy(instance.uuid, instance)
    if busy is not None:
        return busy
    if found.consumer not in (None, instance.uuid):
        return f'Server {found.consumer} is being built on node {node}'
    return why_node_stays(facts, found.why_not_in_pool)


def why_node_stays(
    facts: NodeFacts, why_not_in_pool: str | None
) -> str | None:
    """Return why a node with a server cannot be moved, or None.

    :param facts: the node in Ironic
    :param why_not_in_pool: why the target's pool may not have the node
    """
    if ProvisionState.parse(facts.provision_state) not in _AT_REST:
        return (
            f'Node {facts.uuid} is {facts.provision_state} in Ironic; try '
            f'again when that has ended'
        )
    return why_not_in_pool


def why_server_stays(
    server: str, row: ServerRow | None, here: Host
) -> str | None:
    """Return why a server cannot be moved, by its record alone, or None."""
    if row is None or row.deleted or row.host != here:
        return f'Server {server} is not on host {here} in Nova'
    return _why_busy(server, row)


def _why_busy(server: str, state: Any) -> str | None:
    if state.task_state is not None:
        return (
            f'Server {server} has task {state.task_state}; try again when it '
            f'has ended'
        )
    if state.vm_state not in _MOVABLE:
        return (
            f'Server {server} is {state.vm_state}; only a server that is '
            f'{", ".join(sorted(_MOVABLE))} is moved'
        )
    return None
