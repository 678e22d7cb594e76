# SPDX-License-Identifier: Apache-2.0
"""Nova's ComputeManager for a worker, which serves one host.

The RPC interface is Nova's own. The manager replaces Nova's start, whose time
grows with the number of nodes; the periodic update of all nodes in Placement;
the handlers of a build, which forward a build to the holder of its node; and
everything that Nova does only for hypervisors.

The method resolution order is that of the bases. ForwardsBuilds comes before
all handlers, because it forwards a build to another host before any other
class handles the message. DropsStaleMessages comes after them, because most of
its methods call Nova's handlers directly: a handler of a later class would be
bypassed. UnsupportedOperations therefore precedes DropsStaleMessages, so that
it can refuse a rebuild or a rescue before Nova handles it, and follows
WaitingAttachments, because Cinder is told of a refusal. RepeatedDeploys
precedes DropsStaleMessages, too, because it puts a server back before its
message would count as stale. PeriodicTasks overrides the power sync and the
reclaim, and RefusedRebuilds and those after DropsStaleMessages only a step of
Nova's build, rebuild, delete, shelving, unshelving or rescue, so their places
among these classes do not matter.

Importing this module freezes the intervals of Nova's periodic tasks, so it
must be imported after the configuration was read; entry points name it as a
string.
"""

import sys
import types
from typing import Any

import nova.conf
from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states
from oslo_concurrency import lockutils
from oslo_log import log as logging

from hashring.ring import Host
from ironic_compute import compat
from ironic_compute.driver.config_drive_hooks import load_hooks
from ironic_compute.driver.driver import IronicComputeDriver
from ironic_compute.manager import allocation_deletes, volume_deletes
from ironic_compute.manager.attachments import WaitingAttachments
from ironic_compute.manager.build_forwarding import ForwardsBuilds
from ironic_compute.manager.confirmed_rpcapi import ConfirmedComputeAPI
from ironic_compute.manager.deletes import RepeatedDeletes
from ironic_compute.manager.deployed_servers import KeepsDeployedServers
from ironic_compute.manager.failed_unshelves import FreesFailedUnshelves
from ironic_compute.manager.misdirected_messages import MessageForwarder
from ironic_compute.manager.network_refusals import NamesNetworkRefusals
from ironic_compute.manager.new_volumes import NamesNewVolumes, name_volumes
from ironic_compute.manager.periodic_tasks import DISABLED_TASKS, PeriodicTasks
from ironic_compute.manager.refused_rebuilds import RefusedRebuilds
from ironic_compute.manager.repeated_deploys import RepeatedDeploys
from ironic_compute.manager.rescheduling import FreshCandidates
from ironic_compute.manager.rescues import RepeatedRescues
from ironic_compute.manager.shelving import RepeatedShelving
from ironic_compute.manager.tracker import BareMetalTracker
from ironic_compute.manager.unsupported import UnsupportedOperations
from ironic_compute.nodes import records
from ironic_compute.ownership import peer_endpoints
from ironic_compute.recovery.decisions import is_active
from ironic_compute.recovery.failures import TaskFailures
from ironic_compute.recovery.in_progress import InProgress, wait_until_idle
from ironic_compute.recovery.interrupted_deploys import (
    InterruptedDeploys,
    are_ports_gone,
    find_started_deploy,
)
from ironic_compute.recovery.interrupted_tasks import InterruptedTasks
from ironic_compute.recovery.loop import RecoveryLoop
from ironic_compute.recovery.lost_builds import LostBuilds
from ironic_compute.recovery.lost_hosts import LostHosts
from ironic_compute.recovery.neglected_servers import NeglectedServers
from ironic_compute.recovery.requested_repairs import RequestedRepairs
from ironic_compute.recovery.stray_instances import StrayInstances
from ironic_compute.worker import gated_writes
from ironic_compute.worker.components import Components
from ironic_compute.worker.server_moves import ServerMoves
from resource_tracker.node import NodeId

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

_SHIM = 'ironic_compute_shim'
# The seconds of the shutdown timeout that are left for Nova's own cleanup.
_CLEANUP_S = 5.0


def _make_driver_loadable() -> str:
    """Return a name for our driver that Nova's driver loader accepts.

    Nova loads drivers from below ``nova.virt`` only
    (``nova.virt.driver.load_compute_driver``).
    """
    name = f'nova.virt.{_SHIM}'
    if name not in sys.modules:
        module = types.ModuleType(name)
        module.Driver = IronicComputeDriver  # type: ignore[attr-defined]
        sys.modules[name] = module
    return f'{_SHIM}.Driver'


class IronicComputeManager(
    ForwardsBuilds,
    PeriodicTasks,
    WaitingAttachments,
    UnsupportedOperations,
    RefusedRebuilds,
    RepeatedDeploys,
    RepeatedDeletes,
    NamesNewVolumes,
    RepeatedShelving,
    RepeatedRescues,
    NamesNetworkRefusals,
    FreesFailedUnshelves,
    KeepsDeployedServers,
):
    """Nova's ComputeManager for one host and its held nodes.

    :param components: the worker's objects, not started yet
    """

    def __init__(
        self, *args: Any, components: Components, **kwargs: Any
    ) -> None:
        self._components = components
        self.clock = components.clock
        self.rpc_gating = components.rpc_gating
        super().__init__(_make_driver_loadable(), *args, **kwargs)
        self.compute_rpcapi = ConfirmedComputeAPI(self.clock)
        self.compute_task_api = FreshCandidates(
            self.reportclient,
            self.compute_rpcapi,
            self.volume_api,
            components.gate,
            self.clock,
        )
        gated_writes.gate_placement(
            self.reportclient, components.gate, components.nova_placement
        )
        allocation_deletes.repeat_deletes(self.reportclient, self.clock)
        volume_deletes.repeat_requests(self.volume_api, self.clock)
        name_volumes(self.volume_api, self.clock)
        self.driver.set_up(
            components.client,
            components.node_cache,
            components.feed,
            self.clock,
            load_hooks(CONF.ironic_compute.config_drive_hooks),
        )
        self.rt = BareMetalTracker(
            self.host,
            components.held_nodes,
            components.claims,
            components.compute_nodes,
            components.client,
            self.reportclient,
            components.feed.request_read,
            confirm_timeout_s=2 * CONF.ironic_compute.confirm_s,
            repeat_read=self.driver.repeat_read,
        )
        self.in_progress = InProgress()
        strays = StrayInstances(
            components.held_nodes,
            components.compute_nodes,
            components.rebalancer.follow_instance,
            self.driver.free_node,
            LostHosts(components.held_nodes, components.client).restore,
            self.in_progress,
            deleted_action=CONF.running_deleted_instance_action,
        )
        self._recovery_loop = self._make_recovery_loop(components, strays)
        self._make_moves(components, strays)
        self.additional_endpoints += (
            components.peer_endpoint,
            components.feed_endpoint,
            peer_endpoints.HistoryEndpoint(components.journal.read_all),
            peer_endpoints.ChecksEndpoint(self._recovery_loop.check_now),
            peer_endpoints.DirtyNodesEndpoint(
                components.reconciler.dirty_nodes
            ),
        )

    def _make_moves(
        self, components: Components, strays: StrayInstances
    ) -> None:
        """Make what moves servers, and what forwards messages about them."""
        messages = InProgress()
        self.forwarder = MessageForwarder(
            self.host,
            self._find_other_holder,
            strays.follow_server,
            messages.shared,
            self.in_progress.with_message,
            self.clock,
        )
        self.server_moves = ServerMoves(
            components,
            messages,
            self.in_progress,
            lockutils.lock,
            strays.recheck,
        )
        self.additional_endpoints += self.server_moves.endpoints

    def _make_recovery_loop(
        self, components: Components, strays: StrayInstances
    ) -> RecoveryLoop:
        failures = TaskFailures(self._free_build, self._free_node)
        deploys = InterruptedDeploys(
            components.client, self.driver, failures, self.network_api
        )
        options = CONF.ironic_compute
        return RecoveryLoop(
            InterruptedTasks(
                self.host,
                self,
                components.client,
                self.driver,
                deploys,
                failures,
                self._find_other_holder,
                self.in_progress,
                components.clock,
                options.unfinished_s,
            ),
            strays,
            LostBuilds(
                components.held_nodes,
                failures,
                self.list_allocated_nodes,
                self.finish_delete,
                self.in_progress,
                components.clock,
                options.lost_build_s,
                count_lost=components.metrics.count_lost_build,
            ),
            NeglectedServers(
                self.host,
                self.list_allocated_nodes,
                self._has_ports,
                self.in_progress,
                components.clock,
                CONF.reclaim_instance_interval > 0,
            ),
            RequestedRepairs(
                components.held_nodes,
                components.client,
                self.reportclient,
                self.in_progress,
                components.feed.request_audit,
            ),
            components.gate,
            components.clock,
            components.reaches_rabbitmq,
            interval_s=options.upkeep_interval_s,
            queue_s=options.unfinished_s,
            lost_s=options.lost_build_s,
            recheck_s=options.audit_interval_s,
        )

    # Start and stop

    def init_host(self, service_ref: Any) -> None:
        """Prepare to serve; takes as long with one node as with thousands."""
        nova.conf.neutron.register_dynamic_opts(CONF)
        nova.conf.devices.register_dynamic_opts(CONF)
        self._components.check_service_record(service_ref)
        self.driver.init_host(host=self.host)
        self.init_virt_events()

    def pre_start_hook(self, service_ref: Any) -> None:
        """Report that the host is up, and read the rows of its held nodes."""
        service_ref.report_count += 1
        service_ref.save()
        self.service_ref = service_ref
        self.rt.set_service_ref(service_ref)
        self._components.load_held_nodes(
            service_ref, self.driver.capabilities_as_traits()
        )

    def post_start_hook(self) -> None:
        """Start the other threads of the worker; RPC is served now."""
        super().post_start_hook()
        self._components.start()
        self._recovery_loop.start()
        self.server_moves.start()

    def graceful_shutdown(self, timeout: float | None = None) -> None:
        """Block until the only busy threads are those that only wait.

        :param timeout: in seconds; Nova 33 passes none, and would itself sleep
            for the whole ``manager_shutdown_timeout``
        """
        # Messages wait in the queue for the next worker, and recovery would
        # take their builds for lost ones.
        self._recovery_loop.stop()
        self.server_moves.stop()
        if timeout is None:
            timeout = CONF.manager_shutdown_timeout
        timeout_s = max(0.0, timeout - _CLEANUP_S)
        has_drained = wait_until_idle(self._is_busy, self.clock, timeout_s)
        count = len(self.in_progress.threads_by_server())
        if count and has_drained:
            LOG.info(
                'Leaving %(count)d servers that wait for Ironic or a new node '
                'to the next worker',
                {'count': count},
            )
            self._components.leave()
        elif not (has_drained or self._components.gate.is_open()):
            # Without the lease, threads may wait at the gate for ever.
            LOG.warning(
                'Leaving the requests that wait for the lapsed lease to the '
                'next worker'
            )
            self._components.leave()
        self.cleanup_host()

    def _is_busy(self) -> bool:
        """Return whether any thread does more than wait."""
        waiting = self.driver.list_waiting_threads()
        waiting |= self.rt.list_waiting_threads()
        at_work = self.in_progress.threads_by_server()
        return any(threads - waiting for threads in at_work.values()) or any(
            server not in at_work for server in compat.list_served(self)
        )

    def cleanup_host(self) -> None:
        """Stop what :meth:`post_start_hook` started."""
        self._recovery_loop.stop()
        self.server_moves.stop()
        self._components.stop()
        super().cleanup_host()

    def _free_build(self, context: Any, instance: Any) -> None:
        """Free the ports, node and allocation of a build.

        The Instance is not saved.
        """
        self._cleanup_allocated_networks(context, instance, None)
        self.driver.free_node_of(instance)
        self._delete_allocation(context, instance)

    def _free_node(self, context: Any, instance: Any) -> None:
        """Free the node of a shelved server, as Nova's own shelving does.

        The server keeps its ports and volumes. The Instance is not saved.
        """
        vifs = self.network_api.get_instance_nw_info(context, instance)
        self.network_api.unbind_ports(
            context, [vif['id'] for vif in vifs], detach=False
        )
        self.driver.free_node_of(instance)
        bdms = objects.BlockDeviceMappingList.get_by_instance_uuid(
            context, instance.uuid
        )
        self._terminate_volume_connections(context, instance, bdms)
        self._delete_allocation(context, instance)

    def _nil_out_instance_obj_host_and_node(self, instance: Any) -> None:
        """Clear the host and node of a build that has failed.

        A server whose delete has arrived keeps them, because recovery finds
        an interrupted delete by the host. The Instance is not saved.
        """
        if not self.driver.is_build_cancelled(instance.uuid):
            super()._nil_out_instance_obj_host_and_node(instance)

    def _delete_allocation(self, context: Any, instance: Any) -> None:
        """Delete the allocation of a server that has left its node.

        Clears the host and node of the Instance, which is not saved, and
        releases the claim on the node.
        """
        self.reportclient.delete_allocation_for_instance(
            context, instance.uuid, force=True
        )
        node = instance.node
        self._nil_out_instance_obj_host_and_node(instance)
        if node is not None:
            self.rt.update_usage(context, instance, node)

    def undo_interrupted_build(
        self, context: Any, instance: Any, requested_networks: Any
    ) -> bool:
        """Undo a build that an earlier worker of this host has begun.

        The server keeps its allocation, so it can be built on the same node
        again. Volumes keep their attachments, which the build replaces.

        :returns: False if Ironic has taken the deploy over
        """
        if find_started_deploy(self._components.client, instance) is not None:
            return False
        LOG.info(
            'Building server %(server)s anew, because its worker has ended '
            'before Ironic had taken its build over',
            {'server': instance.uuid},
        )
        former = instance.task_state
        self._cleanup_allocated_networks(context, instance, requested_networks)
        self.driver.free_node_of(instance)
        self._nil_out_instance_obj_host_and_node(instance)
        instance.task_state = task_states.SCHEDULING
        # A delete that was requested meanwhile is not overwritten.
        instance.save(expected_task_state=[former])
        return True

    def has_active_node(self, instance: Any) -> bool:
        """Return whether the node of a server is active; reads Ironic."""
        client = self._components.client
        return is_active(client.read_node_of_instance(instance.uuid))

    def finish_shelving(self, context: Any, instance: Any) -> None:
        """Free all that a server has, and save it as shelved."""
        TaskFailures(self._free_build, self._free_node).leave_shelved(
            context, instance, 'its shelving was interrupted, and is finished'
        )

    def list_allocated_nodes(self, context: Any, server: str) -> list[NodeId]:
        """Return the nodes on which a server has an allocation."""
        # ``get_allocations_for_consumer`` returns none when Placement fails.
        found = self.reportclient.get_allocs_for_consumer(context, server)
        rows = self._components.held_nodes.rows()
        return records.nodes_of_providers(rows, found['allocations'])

    def finish_delete(self, context: Any, instance: Any) -> None:
        """Delete a server whose delete was accepted, but has not ended."""
        bdms = objects.BlockDeviceMappingList.get_by_instance_uuid(
            context, instance.uuid
        )
        self.terminate_instance(context, instance, bdms)

    def _find_other_holder(self, node: NodeId) -> Host | None:
        """Return the other host that holds a node and gives it away, or None.

        That is a host of this pool, or of the pool that the node came from.
        Waits while this host gives the node away. Blocks for two RPCs if this
        host does not hold the node.
        """
        components = self._components
        with components.held_nodes.locked_row(node) as row:
            if row is not None:
                return None
        components.new_nodes.hold_if_ours(node)
        row = components.compute_nodes.read_by_name(node)
        holder = None if row is None else Host(row.host)
        if holder is None or holder == self.host:
            return None
        gives = components.foreign.gives_nodes(holder)
        return holder if gives or holder in components.pool.known else None

    def _has_ports(self, instance: Any) -> bool:
        return not are_ports_gone(self.network_api, instance)

    # The host as a whole

    def _get_nodename(self, instance: Any, refresh: bool = False) -> Any:
        """Return the name of any held node.

        Nova calls this method for a request that names no node.
        """
        for node in self.rt.compute_nodes:
            return node
        raise nova_exception.ComputeHostNotFound(host=self.host)

    def _update_compute_provider_status(
        self, context: Any, enabled: bool
    ) -> None:
        """Set or remove the disabled trait of all held nodes' providers."""
        self._components.set_disabled(not enabled)
        # Our agent gets the change from this read and changes its ring. The
        # other agents' workers read the services when the rings differ.
        self._components.read_services_soon()

    def _error_out_instances_whose_build_was_interrupted(
        self, *args: Any, **kwargs: Any
    ) -> None:
        """Do nothing: Ironic may continue the build, see ``recovery``."""

    def _destroy_evacuated_instances(
        self, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """Return no server, because bare metal is never evacuated."""
        return {}

    def update_available_resource(
        self, context: Any, startup: bool = False
    ) -> None:
        """Write all held nodes to Placement.

        Nova calls this method after some operations.
        """
        self._components.held_nodes.report_all_nodes()


compat.rebind_periodics(IronicComputeManager, disabled=DISABLED_TASKS)
