# SPDX-License-Identifier: Apache-2.0
"""Nova's resource-tracker interface, the 24 names its manager calls.

Nova 32, 33 and 34 call the same names. Thirteen of them mean something on
bare metal and are answered from the holdings of this worker, in memory and
per node: no lock is shared between nodes and nothing here waits for a report,
a list or another build. The others belong to operations that bare metal does
not have; they refuse, or do nothing where Nova calls them on every path.
"""

from collections.abc import Mapping
from typing import Any, NoReturn

from nova import exception as nova_exception
from nova.compute import claims as nova_claims
from nova.compute import vm_states
from oslo_log import log as logging

from ironic_compute.batching import run_isolated
from ironic_compute.errors import IronicComputeError, NodeNotFound
from ironic_compute.ironic_api.client import IronicClient
from ironic_compute.nodes.compute_nodes import FAILED_BUILDS, ComputeNodes
from ironic_compute.nodes.held_nodes import HeldNodes
from resource_tracker.claims import ClaimBook
from resource_tracker.errors import NodeClaimed
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.provider import why_not_schedulable

LOG = logging.getLogger(__name__)


class NodeClaim(nova_claims.NopClaim):
    """A build's hold on one node; leaving it with an error gives it back."""

    def __init__(
        self, tracker: 'BareMetalTracker', instance: Any, node: NodeId
    ) -> None:
        super().__init__()
        self._tracker = tracker
        self._instance = instance
        self._node = node

    def abort(self) -> None:
        """Give the node back: the build has failed."""
        self._tracker.abort_instance_claim(self._instance, self._node)


class BareMetalTracker:
    """What ComputeManager knows as ``self.rt``; any thread may call.

    :param confirm_timeout_s: how long a build waits for its node's record to
        be read again, if that is new
    """

    def __init__(
        self,
        host: str,
        held_nodes: HeldNodes,
        claims: ClaimBook,
        compute_nodes: ComputeNodes,
        client: IronicClient,
        reportclient: Any,
        confirm_timeout_s: float = 0.0,
    ) -> None:
        self.host = host
        self.service_ref: Any = None
        self._confirm_timeout_s = confirm_timeout_s
        self._held_nodes = held_nodes
        self._claims = claims
        self._compute_nodes = compute_nodes
        self._client = client
        self._reportclient = reportclient

    # The host and its nodes

    @property
    def compute_nodes(self) -> Mapping[NodeId, Any]:
        """The rows of the held nodes by hypervisor_hostname."""
        return self._held_nodes.rows()

    def set_service_ref(self, service_ref: Any) -> None:
        """Take the Service record of this host."""
        self.service_ref = service_ref

    def get_node_by_name(self, nodename: str) -> Any:
        """Return the row of a held node.

        :raises nova.exception.ComputeHostNotFound: it is not held here
        """
        row = self._held_nodes.row(NodeId(nodename))
        if row is None:
            raise nova_exception.ComputeHostNotFound(host=nodename)
        return row

    def update_available_resource(
        self, context: Any, nodename: str, startup: bool = False
    ) -> None:
        """Report one node again, if it is not what Placement has."""
        self._held_nodes.report_node(NodeId(nodename))

    def clean_compute_node_cache(self, compute_nodes_in_db: Any) -> None:
        """Nothing is cached that the holdings do not keep right."""

    def remove_node(self, nodename: str) -> None:
        """Forget a node."""
        self._held_nodes.drop_node(NodeId(nodename))

    # Builds

    def instance_claim(
        self,
        context: Any,
        instance: Any,
        nodename: str,
        allocations: Any,
        limits: Any = None,
    ) -> NodeClaim:
        """Reserve a held, free node for a build.

        :raises nova.exception.ComputeResourcesUnavailable: it is not held,
            or cannot take a build now; the conductor takes an alternate
        """
        node = NodeId(nodename)
        # The worker before us has offered it, or no build would come.
        self._held_nodes.unconfirmed_rows.wait_confirmed(
            node, self._confirm_timeout_s
        )
        row = self._held_nodes.row(node)
        if row is None:
            raise nova_exception.ComputeResourcesUnavailable(
                reason=f'node {node} is not held by host {self.host}'
            )
        self._claim(node, instance.uuid, _generation(node, allocations))
        try:
            self._refuse_unfit(node)
            self._set_host(instance, row)
        except BaseException:
            # It may have been reported with the claim meanwhile.
            run_isolated(
                node, self._held_nodes.release_claim, node, instance.uuid
            )
            raise
        # No report: the allocation that led the build here keeps the node
        # from others, and a claim waits for nothing.
        return NodeClaim(self, instance, node)

    def _claim(
        self, node: NodeId, consumer: str, generation: int | None
    ) -> None:
        try:
            self._claims.claim(node, consumer, generation)
        except NodeClaimed as exc:
            raise nova_exception.ComputeResourcesUnavailable(
                reason=f'node {node} is in use by {exc.consumer}'
            ) from exc

    def _refuse_unfit(self, node: NodeId) -> None:
        facts = self._facts(node)
        reason = why_not_schedulable(
            facts, self._held_nodes.unclaimed_situation(node)
        )
        if reason is not None:
            raise nova_exception.ComputeResourcesUnavailable(
                reason=f'node {node} cannot take a build: {reason}'
            )

    def _facts(self, node: NodeId) -> NodeFacts:
        """Return what Ironic says of a held node.

        The first list after a start takes seconds with thousands of nodes,
        and the builds that have waited for us come before it.
        """
        facts = self._held_nodes.facts(node)
        if facts is None:
            try:
                facts = self._client.read_node(node)
            except IronicComputeError as exc:
                if isinstance(exc, NodeNotFound):
                    self._held_nodes.mark_missing(node)
                raise nova_exception.ComputeResourcesUnavailable(
                    reason=f'node {node} cannot take a build: {exc}'
                ) from exc
            self._held_nodes.mark_present(node)
            self._held_nodes.accept_facts(facts)
        return facts

    def _set_host(self, instance: Any, row: Any) -> None:
        instance.host = self.host
        instance.launched_on = self.host
        instance.node = row.hypervisor_hostname
        instance.compute_id = row.id
        instance.save()

    def abort_instance_claim(self, instance: Any, node: NodeId) -> None:
        """Take the instance off its node and give the node back."""
        try:
            instance.host = None
            instance.node = None
            instance.compute_id = None
            instance.save()
        finally:
            self._held_nodes.release_claim(node, instance.uuid)

    def update_usage(self, context: Any, instance: Any, nodename: str) -> None:
        """Something about an instance changed; drop the claim of a dead one.

        Nova calls this after a delete and after shelving, when Ironic has let
        go of the node; a shelved one has its host and node still.
        """
        node = NodeId(nodename)
        is_off = vm_states.allow_resource_removal(
            instance.vm_state, instance.task_state
        )
        if is_off or instance.host is None:
            self._claims.release(node, instance.uuid)
        self._held_nodes.report_node(node)

    def build_succeeded(self, nodename: str) -> None:
        """Forget a node's failed builds, and the claim.

        From here on the node's own ``instance_uuid`` keeps it.
        """
        node = NodeId(nodename)
        facts = self._held_nodes.facts(node)
        consumer = self._claims.consumer(node)
        if facts is not None and consumer and consumer == facts.instance_uuid:
            self._claims.release(node, consumer)
        self._count_failed(nodename, lambda count: 0)

    def build_failed(self, nodename: str) -> None:
        """Count a failed build for BuildFailureWeigher."""
        self._count_failed(nodename, lambda count: count + 1)

    def _count_failed(self, nodename: str, new: Any) -> None:
        with self._held_nodes.locked_row(NodeId(nodename)) as row:
            if row is not None:
                count = int((row.stats or {}).get(FAILED_BUILDS) or 0)
                self._compute_nodes.write_failed_builds(row, new(count))

    # Rebuild, shelve

    def finish_evacuation(
        self, instance: Any, node: str, migration: Any
    ) -> None:
        """End a rebuild; Nova calls this after each one that succeeded."""
        row = self._held_nodes.row(NodeId(node))
        instance.host = self.host
        instance.node = node
        if row is not None:
            instance.compute_id = row.id
        instance.save()
        if migration is not None:
            migration.status = 'done'
            migration.save()

    def delete_allocation_for_evacuated_instance(
        self, context: Any, instance: Any, node: str, node_type: str = 'source'
    ) -> None:
        """Keep the allocation of a server whose rebuild failed.

        Nova calls this when any rebuild fails, also one in place (nova
        33, 34 ``rebuild_instance``); the server is still on its node then,
        and without its allocation the node would be offered to others.
        """
        if instance.node == node:
            return
        LOG.warning(
            'Kept the allocation of server %(server)s on node %(node)s: '
            'evacuation does not exist on bare metal',
            {'server': instance.uuid, 'node': node},
        )

    def delete_allocation_for_shelve_offloaded_instance(
        self, context: Any, instance: Any
    ) -> None:
        """Give up the allocation of a server that left its node."""
        self._reportclient.delete_allocation_for_instance(
            context, instance.uuid, force=True
        )

    # What bare metal cannot do

    def rebuild_claim(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse an evacuation."""
        _refuse('evacuate')

    def resize_claim(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse a resize or a cold migration, leaving the server as is."""
        raise nova_exception.InstanceFaultRollback(
            inner_exception=_unavailable('resize or migrate')
        )

    def live_migration_claim(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse a live migration."""
        _refuse('live-migrate')

    def drop_move_claim(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing, because no move is ever claimed."""

    drop_move_claim_at_source = drop_move_claim
    drop_move_claim_at_dest = drop_move_claim

    # PCI devices: on the interface-attach path of every driver

    def claim_pci_devices(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Claim nothing: a node is used whole."""
        return []

    def unclaim_pci_devices(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing, because no PCI device is ever claimed."""

    allocate_pci_devices_for_instance = unclaim_pci_devices
    free_pci_device_allocations_for_instance = unclaim_pci_devices
    free_pci_device_claims_for_instance = unclaim_pci_devices


def _generation(node: NodeId, allocations: Any) -> int | None:
    """Return the generation of a node's provider with a build's allocation.

    Nova has just asked Placement what is allocated to the server, and hands
    down the answer, or what it makes of an error.
    """
    if not isinstance(allocations, Mapping):
        return None
    generation = allocations.get(node, {}).get('generation')
    return generation if isinstance(generation, int) else None


def _unavailable(what: str) -> nova_exception.ComputeResourcesUnavailable:
    return nova_exception.ComputeResourcesUnavailable(
        reason=f'a bare metal server cannot {what}; boot a new one instead'
    )


def _refuse(what: str) -> NoReturn:
    raise _unavailable(what)
