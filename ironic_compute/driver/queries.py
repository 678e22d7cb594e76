# SPDX-License-Identifier: Apache-2.0
"""What Nova asks about servers and nodes: answered from the book.

Only held nodes are told of. Ironic is asked where the caller wants the
truth, or where the book has no answer.
"""

from typing import Any

from nova import context as nova_context
from nova import objects
from nova.compute import power_state
from nova.virt import hardware

from ironic_compute import errors
from ironic_compute.driver.node_waiter import NodeWaiter
from ironic_compute.ironic_api.states import PowerState
from resource_tracker.node import NodeFacts, NodeId

_NOVA_POWER = {
    PowerState.ON: power_state.RUNNING,
    PowerState.REBOOT: power_state.RUNNING,
    PowerState.OFF: power_state.SHUTDOWN,
    PowerState.ERROR: power_state.NOSTATE,
    PowerState.UNKNOWN: power_state.NOSTATE,
}


class Queries:
    """Read-only questions."""

    def __init__(self, waiter: NodeWaiter) -> None:
        self._waiter = waiter
        self._node_cache = waiter.node_cache

    def info(self, instance: Any, use_cache: bool) -> Any:
        """Return a server's power state as Nova's ``InstanceInfo``.

        Nova asks for the truth before and after each operation, which must
        not fail because Ironic is away for a minute.

        :param use_cache: the book will do, and an answer is wanted at once
        :raises faults.NoNode: Ironic has no node with the server on it
        """
        facts = (
            self._node_cache.by_instance(instance.uuid) if use_cache else None
        )
        if facts is None:
            facts = self._waiter.node_of(instance, at_once=use_cache)
        return hardware.InstanceInfo(state=nova_power(facts))

    def exists(self, instance: Any) -> bool:
        """Say whether Ironic has a node with the server on it."""
        return self._waiter.find(instance) is not None

    def instance_uuids(self) -> list[str]:
        """Return the servers on the held nodes."""
        facts = (
            self._node_cache.facts(node) for node in self._node_cache.held()
        )
        return [f.instance_uuid for f in facts if f and f.instance_uuid]

    def instance_names(self) -> list[str]:
        """Return the names of those servers that Nova knows."""
        uuids = self.instance_uuids()
        if not uuids:
            return []
        found = objects.InstanceList.get_by_filters(
            nova_context.get_admin_context(), {'uuid': uuids}
        )
        return [instance.name for instance in found]

    def nodes(self) -> list[str]:
        """Return the held nodes."""
        return [str(node) for node in self._node_cache.held()]

    def is_held(self, node: str) -> bool:
        """Say whether this host serves a node."""
        return self._node_cache.facts(NodeId(node)) is not None

    def is_deleted(self, node: str) -> bool:
        """Say whether a node is gone from Ironic, which is asked."""
        try:
            self._waiter.read(NodeId(node))
        except errors.NodeNotFound:
            return True
        return False


def nova_power(facts: NodeFacts) -> int:
    """Return Nova's number for a node's power state."""
    state: int = _NOVA_POWER[PowerState.parse(facts.power_state)]
    return state
