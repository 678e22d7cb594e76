# SPDX-License-Identifier: Apache-2.0
"""Read-only queries of Nova: power states, servers and nodes of this host.

The answers come from the node cache, and so concern held nodes only. Ironic is
read where Nova needs the present state, or where the cache has no answer.
"""

from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import power_state
from nova.virt import hardware

from ironic_compute import errors
from ironic_compute.driver import nova_errors
from ironic_compute.driver.node_waiter import NodeWaiter
from ironic_compute.ironic_api.states import PowerState, ProvisionState
from resource_tracker.node import NodeFacts, NodeId

_NOVA_POWER = {
    PowerState.ON: power_state.RUNNING,
    PowerState.REBOOT: power_state.RUNNING,
    PowerState.OFF: power_state.SHUTDOWN,
    PowerState.ERROR: power_state.NOSTATE,
    PowerState.UNKNOWN: power_state.NOSTATE,
}


class Queries:
    """Answers Nova's queries; any thread may call."""

    def __init__(self, waiter: NodeWaiter) -> None:
        self._waiter = waiter
        self._node_cache = waiter.node_cache

    def read_info(self, instance: Any, use_cache: bool) -> Any:
        """Return a server's power state as Nova's ``InstanceInfo``.

        :param use_cache: return the state in the node cache; if it lacks the
            server, read Ironic once. False: read Ironic, and repeat during an
            outage, because Nova reads the state before and after each
            operation, which must not fail because of a short outage
        :raises nova_errors.NoNode: Ironic has no node with the server on it
        """
        facts = (
            self._node_cache.find_by_instance(instance.uuid)
            if use_cache
            else None
        )
        if facts is None:
            facts = self._waiter.read_node_of(instance, once=use_cache)
        return hardware.InstanceInfo(state=nova_power_state(facts))

    def read_power(self, instance: Any) -> tuple[int, bool]:
        """Read a server's power state from Ironic, for Nova's power sync.

        :returns: the state, and whether it is the server's own: while Ironic
            does something else with the node, it switches the power itself
        :raises InstanceNotFound: Ironic has no node with the server on it
        """
        with nova_errors.as_nova_errors(
            instance, nova_exception.VirtDriverNotReady
        ):
            facts = self._waiter.read_node_of(instance)
        state = ProvisionState.parse(facts.provision_state)
        return nova_power_state(facts), state is ProvisionState.ACTIVE

    def instance_exists(self, instance: Any) -> bool:
        """Return whether Ironic has a node with the server on it."""
        found = self._waiter.client.read_node_of_instance(instance.uuid)
        return found is not None

    def list_instance_uuids(self) -> list[str]:
        """Return the uuids of the servers on the held nodes."""
        facts = (
            self._node_cache.facts(node)
            for node in self._node_cache.list_nodes()
        )
        return [f.instance_uuid for f in facts if f and f.instance_uuid]

    def list_instance_names(self) -> list[str]:
        """Return the names of the servers on the held nodes.

        A server without a record in Nova is left out.
        """
        uuids = self.list_instance_uuids()
        if not uuids:
            return []
        found = objects.InstanceList.get_by_filters(
            nova_context.get_admin_context(), {'uuid': uuids}
        )
        return [instance.name for instance in found]

    def list_nodes(self) -> list[str]:
        """Return the uuids of the held nodes."""
        return [str(node) for node in self._node_cache.list_nodes()]

    def is_node_held(self, node: str) -> bool:
        """Return whether this host holds a node."""
        return self._node_cache.facts(NodeId(node)) is not None

    def is_node_deleted(self, node: str) -> bool:
        """Return whether Ironic has no such node; sends one request."""
        try:
            self._waiter.read_node_once(NodeId(node))
        except errors.NodeNotFound:
            return True
        return False


def nova_power_state(facts: NodeFacts) -> int:
    """Return the power state of a node as a number of ``nova.compute``."""
    state: int = _NOVA_POWER[PowerState.parse(facts.power_state)]
    return state
