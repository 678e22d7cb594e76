# SPDX-License-Identifier: Apache-2.0
"""Nova's resource-tracker interface: build claims and node usage.

Nova's compute manager calls the 24 names of this class as ``self.rt``; Nova
32, 33 and 34 call the same names. Thirteen have a meaning on bare metal and
use the held nodes of this worker, in memory and node by node: no lock is
shared between nodes, and no call waits for a write to Placement, a list of
nodes or another build. The other names belong to operations that bare metal
does not have; they refuse, or do nothing where Nova calls them on every path.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import attrs
from nova import exception as nova_exception
from nova.compute import claims as nova_claims
from nova.compute import vm_states
from oslo_log import log as logging

from ironic_compute import delivery
from ironic_compute.batching import run_isolated
from ironic_compute.errors import IronicComputeError, NodeNotFound
from ironic_compute.ironic_api.client import IronicClient
from ironic_compute.nodes.compute_nodes import FAILED_BUILDS, ComputeNodes
from ironic_compute.nodes.held_nodes import HeldNodes
from ironic_compute.waiting_threads import WaitingThreads
from resource_tracker.claims import ClaimBook
from resource_tracker.errors import NodeClaimed
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.provider import why_not_schedulable

LOG = logging.getLogger(__name__)

# An unshelve waits for so long, again and again.
_WAIT_S = 60.0


RepeatRead = Callable[[Any, Callable[[], NodeFacts]], NodeFacts]


def _read_once(instance: Any, read: Callable[[], NodeFacts]) -> NodeFacts:
    return read()


class NodeClaim(nova_claims.NopClaim):
    """A build's claim on one node, used in a ``with`` statement.

    The end of the block releases the claim. After an exception the server
    loses its host and node as well, unless its delete has ended the build:
    recovery finds an interrupted delete by the host.
    """

    def __init__(
        self, tracker: 'BareMetalTracker', instance: Any, node: NodeId
    ) -> None:
        super().__init__()
        self._tracker = tracker
        self._instance = instance
        self._node = node

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        if isinstance(exc, nova_exception.UnexpectedDeletingTaskStateError):
            self._tracker.release_node(self._node, self._instance.uuid)
            return
        if exc_type is None:
            # Nova does not say that an unshelve has succeeded.
            self._tracker.release_deployed(self._node)
        super().__exit__(exc_type, exc, traceback)

    def abort(self) -> None:
        """Release the claim, because the build has failed."""
        self._tracker.abort_instance_claim(self._instance, self._node)


@attrs.define(eq=False, repr=False, slots=False)
class BareMetalTracker:
    """The resource tracker of a ComputeManager; any thread may call.

    :param request_read: makes the feed read a node from Ironic again soon
    :param confirm_timeout_s: seconds for which a build waits until a new row
        of its node is confirmed
    :param repeat_read: calls a read of Ironic for the build of an Instance,
        again while Ironic is unavailable
    """

    host: str
    _held_nodes: HeldNodes
    _claims: ClaimBook
    _compute_nodes: ComputeNodes
    _client: IronicClient
    _reportclient: Any
    _request_read: Callable[[NodeId], None]
    _confirm_timeout_s: float = 0.0
    _repeat_read: RepeatRead = _read_once

    def __attrs_post_init__(self) -> None:
        self.service_ref: Any = None
        self._waiting_threads = WaitingThreads()

    # The host and its nodes

    @property
    def compute_nodes(self) -> Mapping[NodeId, Any]:
        """Return the rows of the held nodes by hypervisor_hostname."""
        return self._held_nodes.rows()

    def set_service_ref(self, service_ref: Any) -> None:
        """Set the Service record of this host."""
        self.service_ref = service_ref

    def get_node_by_name(self, nodename: str) -> Any:
        """Return the row of a held node.

        :raises nova.exception.ComputeHostNotFound: this host does not hold
            the node
        """
        row = self._held_nodes.row(NodeId(nodename))
        if row is None:
            raise nova_exception.ComputeHostNotFound(host=nodename)
        return row

    def update_available_resource(
        self, context: Any, nodename: str, startup: bool = False
    ) -> None:
        """Write the present state of a held node to Placement."""
        self._held_nodes.report_node(NodeId(nodename))

    def clean_compute_node_cache(self, compute_nodes_in_db: Any) -> None:
        """Do nothing, because the held nodes are the only cache."""

    def remove_node(self, nodename: str) -> None:
        """Remove a node from the held nodes."""
        self._held_nodes.drop_node(NodeId(nodename))

    # Builds

    def keep_node(self, node: NodeId, consumer: str) -> bool:
        """Keep a held node from being pushed, until its build claims it.

        Waits while the node is pushed. The claim of another consumer is left
        as it is, so :meth:`instance_claim` refuses the build then.

        :returns: False if this host does not hold the node
        """
        with self._held_nodes.locked_row(node) as row:
            if row is not None:
                with contextlib.suppress(NodeClaimed):
                    self._claims.claim(node, consumer)
            return row is not None

    def release_node(self, node: NodeId, consumer: str) -> None:
        """Release a node that was kept for a build which has failed."""
        self._held_nodes.release_claim(node, consumer)

    def wait_confirmed(self, node: NodeId) -> None:
        """Block until the row of a node is confirmed or the node not held."""
        while node in self._held_nodes.unconfirmed_rows:
            self._wait_confirmed(node, _WAIT_S)

    def _wait_confirmed(self, node: NodeId, timeout_s: float) -> None:
        """Block until a row is confirmed, not held, or the time is over.

        The thread counts as waiting meanwhile, if RabbitMQ gives its message
        to the next worker of the host.
        """
        is_kept = delivery.current() is not None
        waiting = self._waiting_threads.include_current()
        with waiting if is_kept else contextlib.nullcontext():
            self._held_nodes.unconfirmed_rows.wait_confirmed(node, timeout_s)

    def list_waiting_threads(self) -> frozenset[int]:
        """Return the idents of the threads that wait for a new row.

        A worker that stops leaves these builds to the next worker, because
        a row can be unconfirmed for a minute after each start.
        """
        return self._waiting_threads.idents()

    def instance_claim(
        self,
        context: Any,
        instance: Any,
        nodename: str,
        allocations: Any,
        limits: Any = None,
    ) -> NodeClaim:
        """Claim a held, free node for a build.

        Blocks for at most ``confirm_timeout_s``, the reads of a node that is
        unfit or unknown by what the feed has delivered, and one write of the
        Instance.

        :raises nova.exception.ComputeResourcesUnavailable: the node is not
            held, or cannot take a build now; the conductor tries an alternate
            node
        :raises nova.exception.UnexpectedDeletingTaskStateError: the server was
            deleted while the build waited for Ironic
        """
        node = NodeId(nodename)
        # A row may be unconfirmed here although the previous worker of this
        # host had confirmed it and offered the node. Therefore the build waits
        # instead of being refused.
        self._wait_confirmed(node, self._confirm_timeout_s)
        self._held_row(node)
        self._claim(node, instance.uuid, _generation(node, allocations))
        try:
            self._check_schedulable(instance, node)
            self._set_host(instance, self._held_row(node))
        except BaseException:
            # Placement may show the claim already; releasing it writes the
            # node to Placement again.
            run_isolated(
                node, self._held_nodes.release_claim, node, instance.uuid
            )
            raise
        # The claim is not written to Placement here, because the build's
        # allocation already keeps other builds off the node.
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

    def _held_row(self, node: NodeId) -> Any:
        row = self._held_nodes.row(node)
        if row is None:
            raise nova_exception.ComputeResourcesUnavailable(
                reason=f'node {node} is not held by host {self.host}'
            )
        return row

    def _check_schedulable(self, instance: Any, node: NodeId) -> None:
        """Refuse a node that cannot take a build, by what Ironic says now.

        The feed hears of a change seconds later, and a refused unshelve fails:
        only a build is tried on another node.
        """
        facts = self._held_nodes.facts(node)
        if facts is None or self._unfit_reason(instance, facts) is not None:
            facts = self._read_facts(instance, node, facts)
        reason = self._unfit_reason(instance, facts)
        if reason is not None:
            raise nova_exception.ComputeResourcesUnavailable(
                reason=f'node {node} cannot take a build: {reason}'
            )

    def _unfit_reason(self, instance: Any, facts: NodeFacts) -> str | None:
        situation = self._held_nodes.unclaimed_situation(facts.uuid)
        if facts.instance_uuid == instance.uuid:
            # A killed worker made this reservation; the driver goes on with
            # it.
            facts = dataclasses.replace(facts, instance_uuid=None)
        return why_not_schedulable(facts, situation)

    def _read_facts(
        self, instance: Any, node: NodeId, known: NodeFacts | None
    ) -> NodeFacts:
        """Return newer facts of a held node than the known ones, if any.

        After a start, the first list of thousands of nodes takes seconds, and
        builds that waited in the queue arrive before it ends. If Ironic is
        away as well, the build waits: refused, it would lose one node after
        another until none is left.
        """

        def read() -> NodeFacts:
            facts = self._held_nodes.facts(node)
            if facts is None or facts == known:
                return self._client.read_node(node)
            # The feed has delivered the node since the last try.
            return facts

        try:
            facts = self._repeat_read(instance, read)
        except IronicComputeError as exc:
            if isinstance(exc, NodeNotFound):
                self._held_nodes.mark_missing(node)
                # The 404 may be wrong: the feed reads the node until it
                # is found or removed.
                self._request_read(node)
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
        # nova-conductor may carry this request out late, when the server is
        # built on another host or has been built on another node. It has no
        # task then, as before its build, but another VM state.
        instance.save(
            expected_vm_state=[instance.vm_state],
            expected_task_state=[instance.task_state],
        )

    def abort_instance_claim(self, instance: Any, node: NodeId) -> None:
        """Clear the host and node of an Instance and release its claim.

        They stay if the server has got another task since, because that may
        be its build on another host.

        :raises nova.exception.UnexpectedDeletingTaskStateError: the server is
            to be deleted, and keeps its host
        """
        try:
            instance.host = None
            instance.node = None
            instance.compute_id = None
            instance.save(expected_task_state=[instance.task_state])
        except nova_exception.UnexpectedDeletingTaskStateError:
            raise
        except nova_exception.UnexpectedTaskStateError as exc:
            LOG.debug(
                'Did not clear the host of server %(server)s: %(error)s',
                {'server': instance.uuid, 'error': exc},
            )
        finally:
            self._held_nodes.release_claim(node, instance.uuid)

    def update_usage(self, context: Any, instance: Any, nodename: str) -> None:
        """Release the claim of a server that has left its node.

        Nova calls this method after a delete and after shelving, when Ironic
        has freed the node. The Instance of a shelved server still has its host
        and node then.
        """
        node = NodeId(nodename)
        is_off = vm_states.allow_resource_removal(
            instance.vm_state, instance.task_state
        )
        if is_off or instance.host is None:
            self._claims.release(node, instance.uuid)
        self._held_nodes.report_node(node)

    def release_deployed(self, node: NodeId) -> None:
        """Release the claim of a server that Ironic shows on the node.

        From now on the node's ``instance_uuid`` keeps other builds off.
        """
        facts = self._held_nodes.facts(node)
        if facts is not None and facts.instance_uuid is not None:
            self._claims.release(node, facts.instance_uuid)

    def build_succeeded(self, nodename: str) -> None:
        """Reset a node's count of failed builds and release its claim."""
        self.release_deployed(NodeId(nodename))
        self._update_failed_builds(nodename, lambda count: 0)

    def build_failed(self, nodename: str) -> None:
        """Count a failed build for BuildFailureWeigher."""
        self._update_failed_builds(nodename, lambda count: count + 1)

    def _update_failed_builds(self, nodename: str, update: Any) -> None:
        with self._held_nodes.locked_row(NodeId(nodename)) as row:
            if row is not None:
                count = int((row.stats or {}).get(FAILED_BUILDS) or 0)
                self._compute_nodes.write_failed_builds(row, update(count))

    # Rebuild, shelve

    def finish_evacuation(
        self, instance: Any, node: str, migration: Any
    ) -> None:
        """Save the host and node of an Instance after a rebuild.

        After a rebuild in place they are the same. Nothing is saved then,
        because Nova would put the server to ERROR if the save failed.
        """
        row = self._held_nodes.row(NodeId(node))
        found: dict[str, Any] = {'host': self.host, 'node': node}
        if row is not None:
            found['compute_id'] = row.id
        if any(getattr(instance, name) != found[name] for name in found):
            instance.update(found)
            instance.save()
        if migration is not None:
            migration.status = 'done'
            migration.save()

    def delete_allocation_for_evacuated_instance(
        self, context: Any, instance: Any, node: str, node_type: str = 'source'
    ) -> None:
        """Keep the allocation of a server whose rebuild failed.

        Nova calls this method also after a failed rebuild in place (Nova 33
        and 34, ``rebuild_instance``). The server is still on its node then,
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
        """Delete the allocation of a server that has left its node."""
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
        """Claim nothing, because a server has all devices of its node."""
        return []

    def unclaim_pci_devices(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing, because no PCI device is ever claimed."""

    allocate_pci_devices_for_instance = unclaim_pci_devices
    free_pci_device_allocations_for_instance = unclaim_pci_devices
    free_pci_device_claims_for_instance = unclaim_pci_devices


def _generation(node: NodeId, allocations: Any) -> int | None:
    """Return the provider generation in a build's allocations, if any.

    :param allocations: Placement's answer as Nova passes it on; after an
        error of Placement it may be of any type
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
