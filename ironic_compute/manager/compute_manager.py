# SPDX-License-Identifier: Apache-2.0
"""Nova's ComputeManager for a worker that serves one host.

The RPC surface is Nova's own. Replaced are: what happens at start (nothing
that grows with the number of nodes comes before RPC), the periodic task that
reports every node every minute, a build that reached the wrong host, and
everything Nova does for hypervisors that bare metal has not.

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
from oslo_log import log as logging

from ironic_compute import compat
from ironic_compute.driver.driver import IronicComputeDriver
from ironic_compute.manager import forwarding, stale_messages
from ironic_compute.manager.periodic_tasks import DISABLED_TASKS, PeriodicTasks
from ironic_compute.manager.tracker import BareMetalTracker
from ironic_compute.manager.unsupported import UnsupportedOperations
from ironic_compute.recovery.failures import TaskFailures
from ironic_compute.recovery.in_progress import InProgress, wait_until_idle
from ironic_compute.recovery.interrupted_deploys import InterruptedDeploys
from ironic_compute.recovery.interrupted_tasks import InterruptedTasks
from ironic_compute.recovery.loop import RecoveryLoop
from ironic_compute.recovery.lost_builds import LostBuilds
from ironic_compute.recovery.stray_instances import StrayInstances
from ironic_compute.worker import gated_writes
from ironic_compute.worker.components import Components
from resource_tracker.node import NodeId

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

_SHIM = 'ironic_compute_shim'
_STOPPING_IDLE_S = 60.0
# What is left of the time for stopping, for what Nova cleans up.
_CLEANUP_S = 5.0


def _make_driver_loadable() -> str:
    """Give our driver a name that Nova's loader accepts.

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
    PeriodicTasks, UnsupportedOperations, stale_messages.DropsStaleMessages
):
    """What answers RPC for one host.

    :param parts: everything the worker is made of, not started yet
    """

    def __init__(
        self, *args: Any, components: Components, **kwargs: Any
    ) -> None:
        self._components = components
        self.rpc_gating = components.rpc_gating
        super().__init__(_make_driver_loadable(), *args, **kwargs)
        gated_writes.gate_placement(self.reportclient, components.gate)
        self.driver.set_up(
            components.client, components.node_cache, components.feed
        )
        self.rt = BareMetalTracker(
            self.host,
            components.held_nodes,
            components.claims,
            components.compute_nodes,
            components.client,
            self.reportclient,
            confirm_timeout_s=2 * CONF.ironic_compute.confirm_s,
        )
        self.in_progress = InProgress()
        self._recovery_loop = self._make_recovery_loop(components)
        self.additional_endpoints.append(components.peer_endpoint)

    def _make_recovery_loop(self, components: Components) -> RecoveryLoop:
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
                self.in_progress,
                components.clock,
                options.unfinished_s,
            ),
            StrayInstances(
                components.held_nodes,
                components.compute_nodes,
                components.rebalancer.follow_instance,
                self.driver.free_node,
                self.in_progress,
                deleted_action=CONF.running_deleted_instance_action,
            ),
            LostBuilds(
                components.held_nodes,
                failures,
                self._nodes_allocated,
                self.in_progress,
                options.lost_build_s,
            ),
            components.gate,
            components.clock,
            interval_s=options.upkeep_interval_s,
            queue_s=options.unfinished_s,
            lost_s=options.lost_build_s,
            anew_s=options.audit_interval_s,
        )

    # Start and stop

    def init_host(self, service_ref: Any) -> None:
        """Prepare to serve; nothing here grows with nodes or servers."""
        nova.conf.neutron.register_dynamic_opts(CONF)
        nova.conf.devices.register_dynamic_opts(CONF)
        self._components.check_service_record(service_ref)
        self.driver.init_host(host=self.host)
        self.init_virt_events()

    def pre_start_hook(self, service_ref: Any) -> None:
        """Say that the host is up, and learn which nodes it holds."""
        service_ref.report_count += 1
        service_ref.save()
        self.service_ref = service_ref
        self.rt.set_service_ref(service_ref)
        self._components.load_held_nodes(
            service_ref, self.driver.capabilities_as_traits()
        )

    def post_start_hook(self) -> None:
        """RPC is served: start everything else behind it."""
        super().post_start_hook()
        self._components.start()
        self._recovery_loop.start()

    def graceful_shutdown(self, timeout: float | None = None) -> None:
        """Let what is at work come to an end, or to where Ironic does it.

        :param timeout: in seconds; Nova 33 does not say it, and would sleep
            for all of it
        """
        if timeout is None:
            timeout = CONF.manager_shutdown_timeout
        timeout_s = max(0.0, timeout - _CLEANUP_S)
        has_drained = wait_until_idle(
            self._is_busy, self._components.clock, timeout_s
        )
        count = len(self.in_progress.threads_by_server())
        if count and has_drained:
            LOG.info(
                'Leaving %(count)d servers that wait for Ironic to the next '
                'worker',
                {'count': count},
            )
            self._components.leave()
        elif not (has_drained or self._components.gate.is_open()):
            # What waits at the gate may wait for ever, and so would we.
            LOG.warning(
                'Leaving what waits for the lease, which is not in force, to '
                'the next worker'
            )
            self._components.leave()
        self.cleanup_host()

    def _is_busy(self) -> bool:
        """Say whether anything is at work that does not wait for Ironic."""
        waiting = self.driver.list_waiting_threads()
        at_work = self.in_progress.threads_by_server()
        return any(threads - waiting for threads in at_work.values()) or any(
            server not in at_work for server in compat.list_served(self)
        )

    def cleanup_host(self) -> None:
        """Stop what :meth:`post_start_hook` started."""
        self._recovery_loop.stop()
        self._components.stop()
        super().cleanup_host()

    def _free_build(self, context: Any, instance: Any) -> None:
        """Free what an interrupted build had taken; the row is not saved."""
        self._cleanup_allocated_networks(context, instance, None)
        self.driver.free_node_of(instance)
        self._let_go(context, instance)

    def _free_node(self, context: Any, instance: Any) -> None:
        """Free the node of a server that stays shelved, as Nova would.

        Its ports and volumes remain its own; the row is not saved.
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
        self._let_go(context, instance)

    def _let_go(self, context: Any, instance: Any) -> None:
        """End what Nova says of a server that is off its node."""
        self.reportclient.delete_allocation_for_instance(
            context, instance.uuid, force=True
        )
        node = instance.node
        self._nil_out_instance_obj_host_and_node(instance)
        if node is not None:
            self.rt.update_usage(context, instance, node)

    def _nodes_allocated(self, context: Any, server: str) -> list[NodeId]:
        """Return the nodes that Placement has given to a server.

        The call's older sister answers "none" when Placement fails.
        """
        found = self.reportclient.get_allocs_for_consumer(context, server)
        return [NodeId(node) for node in found['allocations']]

    # Builds

    def build_and_run_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Build a server here, or send it on to the holder of its node."""
        properties = kwargs.get('filter_properties') or {}
        host = self._goes_on_to(context, kwargs.get('node'), properties)
        if host is not None:
            kwargs['filter_properties'] = properties
            return self.compute_rpcapi.build_and_run_instance(
                context, instance, host, *args, **kwargs
            )
        return super().build_and_run_instance(
            context, instance, *args, **kwargs
        )

    def unshelve_instance(
        self,
        context: Any,
        instance: Any,
        image: Any,
        filter_properties: Any,
        node: Any,
        request_spec: Any,
        accel_uuids: Any,
    ) -> Any:
        """Build a shelved server anew, here or where its node is held."""
        properties = filter_properties or {}
        host = self._goes_on_to(context, node, properties)
        if host is not None:
            return self.compute_rpcapi.unshelve_instance(
                context,
                instance,
                host,
                request_spec,
                image=image,
                filter_properties=properties,
                node=node,
                accel_uuids=accel_uuids,
            )
        rest = image, properties, node, request_spec, accel_uuids
        return super().unshelve_instance(context, instance, *rest)

    def _goes_on_to(
        self, context: Any, name: str | None, properties: dict[str, Any]
    ) -> str | None:
        """Return the host that a build has to go on to, if any.

        :param name: of the node that the scheduler chose, if it did
        :param properties: travel with the build
        """
        if (
            name is None
            or self._components.held_nodes.row(NodeId(name)) is not None
        ):
            return None
        node = NodeId(name)
        try:
            host = forwarding.next_host(context, node, self.host, properties)
            if host is None:
                self._components.new_nodes.hold_if_ours(node)
        except Exception as exc:
            # Nobody would hear of an error here; the claim fails, and the
            # conductor takes an alternate.
            LOG.warning(
                'Could not find out who holds node %(node)s: %(error)s',
                {'node': node, 'error': exc},
            )
            return None
        return host

    def _unshelve_instance(
        self,
        context: Any,
        instance: Any,
        image: Any,
        filter_properties: Any,
        node: Any,
        *args: Any,
    ) -> Any:
        """Build a shelved server anew, on a node that is known at once.

        Nova attaches volumes before it claims, and asks the driver by what
        Cinder shall know the machine.
        """
        with self.driver.assume_node(instance, node):
            return super()._unshelve_instance(
                context, instance, image, filter_properties, node, *args
            )

    # The host as a whole

    def _get_nodename(self, instance: Any, refresh: bool = False) -> Any:
        """Return any held node: Nova asks when none was named."""
        for node in self.rt.compute_nodes:
            return node
        raise nova_exception.ComputeHostNotFound(host=self.host)

    def _update_compute_provider_status(
        self, context: Any, enabled: bool
    ) -> None:
        """Show on all nodes' providers whether the host is enabled."""
        self._components.set_disabled(not enabled)
        # The others look, too, as soon as our ring is another than theirs.
        self._components.read_services_soon()

    def _error_out_instances_whose_build_was_interrupted(
        self, *args: Any, **kwargs: Any
    ) -> None:
        """Never: such a build may be another daemon's, still under way."""

    def _destroy_evacuated_instances(
        self, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """Bare metal is never evacuated."""
        return {}

    # Periodic tasks

    def periodic_tasks(
        self, context: Any, raise_on_error: bool = False
    ) -> float:
        """Run what is due; return when to come again, in seconds.

        A Nova 34 that is stopping returns nothing, which its own looping
        call then logs as a crash.
        """
        idle_s = super().periodic_tasks(context, raise_on_error)
        return _STOPPING_IDLE_S if idle_s is None else idle_s

    def update_available_resource(
        self, context: Any, startup: bool = False
    ) -> None:
        """Report what is not reported yet; Nova calls it at odd places."""
        self._components.held_nodes.report_all_nodes()

    def _sync_instance_power_state(
        self,
        context: Any,
        db_instance: Any,
        vm_power_state: Any,
        use_slave: bool = False,
    ) -> None:
        """Compare with Ironic's power state of now, never with a list's.

        Acting on a stale state stopped healthy servers (bug 1815791).
        """
        if vm_power_state != db_instance.power_state:
            vm_power_state = self.driver.get_info(
                db_instance, use_cache=False
            ).state
        super()._sync_instance_power_state(
            context, db_instance, vm_power_state, use_slave=use_slave
        )


compat.rebind_periodics(IronicComputeManager, disabled=DISABLED_TASKS)
