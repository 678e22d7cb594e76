# SPDX-License-Identifier: Apache-2.0
"""Nova's virt driver for Ironic: the methods that nova-compute calls.

Nova's ComputeManager creates one driver in each worker and calls it from many
threads. Each method translates our errors into Nova's and leaves the work to
another module of this package. Only methods that Nova 33 or 34 calls for bare
metal are here; for all others, Nova's base class raises NotImplementedError.
``*args`` and ``**kwargs`` accept the arguments that a later Nova adds.
"""

import contextlib
from typing import Any

import nova.conf
from nova import exception as nova_exception
from nova.virt import driver as nova_driver

from hashring.clock import Clock
from ironic_compute.driver import power
from ironic_compute.driver.build_request import BuildRequest
from ironic_compute.driver.cancellations import Cancellations
from ironic_compute.driver.config_drive_hooks import ConfigDriveHooks
from ironic_compute.driver.console import Console
from ironic_compute.driver.deploy import Deploy
from ironic_compute.driver.network import Network
from ironic_compute.driver.node_waiter import Feed, NodeWaiter
from ironic_compute.driver.nova_errors import (
    as_nova_build_errors,
    as_nova_errors,
)
from ironic_compute.driver.power import Power
from ironic_compute.driver.queries import Queries
from ironic_compute.driver.rebuild import Rebuild
from ironic_compute.driver.rescue import Rescue
from ironic_compute.driver.teardown import Teardown
from ironic_compute.driver.volumes import Volumes, list_volumes
from ironic_compute.ironic_api.client import IronicClient
from ironic_compute.nodes.node_cache import NodeCache
from resource_tracker.node import NodeId

CONF = nova.conf.CONF

_IMAGE_TYPES = ('ami', 'qcow2', 'raw')


class IronicComputeDriver(nova_driver.ComputeDriver):
    """Nova's virt driver for Ironic.

    Nova calls the constructor. The ComputeManager then calls :meth:`set_up`
    before any other method. Any thread may call the other methods.
    """

    capabilities = {  # noqa: RUF012 (Nova's class attribute)
        **dict.fromkeys(nova_driver.ComputeDriver.capabilities, False),
        'supports_attach_interface': True,
        **{f'supports_image_type_{name}': True for name in _IMAGE_TYPES},
    }
    # Nova reads this attribute; True means that nodes may move between hosts.
    rebalances_nodes = True

    def __init__(self, virtapi: Any, read_only: bool = False) -> None:
        super().__init__(virtapi)

    def set_up(
        self,
        client: IronicClient,
        node_cache: NodeCache,
        feed: Feed,
        clock: Clock,
        hooks: ConfigDriveHooks | None = None,
    ) -> None:
        """Create the parts of the driver.

        :param client: sends the requests to Ironic
        :param node_cache: the worker's copy of the nodes that it holds
        :param feed: receives each node that the driver reads
        :param hooks: change the contents of config drives
        """
        self._waiter = waiter = NodeWaiter(client, node_cache, feed, clock)
        self._network = Network(waiter)
        self._power = Power(waiter)
        self._volumes = Volumes(waiter, self._power)
        self._teardown = Teardown(waiter, self._network, self._volumes)
        self._cancellations = Cancellations()
        self._deploy = Deploy(
            waiter,
            self._network,
            self._volumes,
            self._teardown,
            self._cancellations,
            hooks or ConfigDriveHooks(),
        )
        self.repeat_read = self._deploy.repeat_read
        self._rebuild = Rebuild(waiter, self._deploy)
        self._rescue = Rescue(waiter)
        self._console = Console(waiter)
        self._queries = Queries(waiter)
        self.read_power = self._queries.read_power

    def init_host(self, host: str) -> None:
        """Do nothing, because the worker starts its own threads."""

    def list_waiting_threads(self) -> frozenset[int]:
        """Return the idents of the threads that only wait for Ironic.

        A worker that stops does not wait for these threads, because the next
        worker of the host can wait for the same node.
        """
        return self._waiter.waiting_threads.idents()

    # Builds

    def prepare_for_spawn(self, instance: Any) -> None:
        """Reserve the node, before Nova allocates the networks.

        :raises ComputeResourcesUnavailable: the node cannot be reserved; Nova
            tries another node
        """
        with as_nova_errors(
            instance, nova_exception.ComputeResourcesUnavailable
        ):
            self._deploy.reserve_node(NodeId(instance.node), instance)

    def prepare_networks_before_block_device_mapping(
        self, instance: Any, network_info: Any
    ) -> None:
        """Attach the VIFs of a server that has volumes.

        :raises ComputeResourcesUnavailable: a VIF cannot be attached; Nova
            tries another node
        """
        with as_nova_errors(
            instance, nova_exception.ComputeResourcesUnavailable
        ):
            self._deploy.prepare_for_volumes(instance, network_info)

    def clean_networks_preparation(
        self, instance: Any, network_info: Any
    ) -> None:
        """Do nothing: Nova calls :meth:`failed_spawn_cleanup` next."""

    def failed_spawn_cleanup(self, instance: Any) -> None:
        """Free the node that :meth:`prepare_for_spawn` reserved."""
        self.free_node_of(instance)

    def spawn(
        self,
        context: Any,
        instance: Any,
        image_meta: Any,
        injected_files: Any,
        admin_password: Any,
        allocations: Any,
        network_info: Any = None,
        block_device_info: Any = None,
        **kwargs: Any,
    ) -> None:
        """Build a server; block until its node is active.

        :raises InstanceDeployFailure: Nova tries another node
        :raises BuildAbortException: the image is bad, so Nova ends the build
        :raises UnexpectedDeletingTaskStateError: the user deleted the server
        """
        with as_nova_build_errors(instance):
            self._deploy.spawn(
                BuildRequest(
                    context,
                    instance,
                    image_meta,
                    injected_files,
                    admin_password,
                    network_info,
                    list_volumes(block_device_info),
                )
            )

    def rebuild(
        self,
        context: Any,
        instance: Any,
        image_meta: Any,
        injected_files: Any,
        admin_password: Any,
        allocations: Any,
        bdms: Any,
        detach_block_devices: Any,
        attach_block_devices: Any,
        network_info: Any = None,
        preserve_ephemeral: bool = False,
        **kwargs: Any,
    ) -> None:
        """Deploy a server's node again; block until the node is active."""
        with as_nova_build_errors(instance):
            self._rebuild.rebuild(
                BuildRequest(
                    context,
                    instance,
                    image_meta,
                    injected_files,
                    admin_password,
                    network_info,
                ),
                bdms,
                preserve_ephemeral,
            )

    def wait_for_deploy(self, instance: Any, node: str) -> None:
        """Block until Ironic has deployed the node of a server.

        The recovery of interrupted builds calls this method.

        :raises errors.DeployFailed: Ironic could not deploy the node
        :raises nova_errors.Cancelled: the user deleted the server
        """
        self._deploy.wait_until_active(instance, NodeId(node))

    def cancel_build(
        self, server: str
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the build of a server ends soon.

        The handler of a delete enters it before it waits for the lock of the
        server, which the build holds.

        :param server: the uuid of the server
        """
        return self._cancellations.cancel(server)

    def is_build_cancelled(self, server: str) -> bool:
        """Return whether the delete of a server has arrived here."""
        return self._cancellations.is_cancelled(server)

    def free_node_of(self, instance: Any) -> None:
        """Free the node of a server; success if no node has the server.

        May be called again after a failure.
        """
        with as_nova_errors(instance):
            self._teardown.free_node_of(instance)

    def free_node(self, node: NodeId, instance_uuid: str) -> None:
        """Free a node if it still has this server.

        Used for a server that Nova does not have on this host. May be called
        again after a failure.

        :raises errors.IronicComputeError: the node still has the server
        """
        self._teardown.free_node(node, instance_uuid)

    def destroy(
        self,
        context: Any,
        instance: Any,
        network_info: Any,
        block_device_info: Any = None,
        destroy_disks: bool = True,
        destroy_secrets: bool = True,
        **kwargs: Any,
    ) -> None:
        """Remove a server from its node; Ironic then cleans the disks."""
        with as_nova_errors(instance):
            self._teardown.free_node_of(instance)

    def cleanup(self, context: Any, instance: Any, *args: Any) -> None:
        """Do nothing, because :meth:`destroy` removes everything."""

    # Power

    def reboot(
        self,
        context: Any,
        instance: Any,
        network_info: Any,
        reboot_type: str,
        **kwargs: Any,
    ) -> None:
        """Reboot a server.

        :param reboot_type: ``SOFT`` lets the operating system reboot first;
            ``HARD`` uses the power control of the machine
        """
        with as_nova_errors(instance, nova_exception.InstanceRebootFailure):
            self._power.reboot(instance, reboot_type)

    def power_off(
        self, instance: Any, timeout: int = 0, retry_interval: int = 0
    ) -> None:
        """Switch a server off.

        :param timeout: seconds in which the operating system may shut down;
            0 cuts the power at once
        """
        with as_nova_errors(instance, nova_exception.InstancePowerOffFailure):
            self._power.power_off(instance, timeout)

    def power_on(
        self,
        context: Any,
        instance: Any,
        network_info: Any,
        block_device_info: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Switch a server on.

        Nova also passes accelerators and shares, which bare metal lacks.
        """
        with as_nova_errors(instance, nova_exception.InstancePowerOnFailure):
            self._power.power_on(instance)

    def power_update_event(
        self, instance: Any, target_power_state: str
    ) -> None:
        """Save the power state from a power-update event of Ironic."""
        power.save_power_state(instance, target_power_state)

    def trigger_crash_dump(self, instance: Any) -> None:
        """Send a non-maskable interrupt to the machine of a server."""
        with as_nova_errors(instance, nova_exception.NovaException):
            self._power.inject_nmi(instance)

    def rescue(
        self,
        context: Any,
        instance: Any,
        network_info: Any,
        image_meta: Any,
        rescue_password: str,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Boot the rescue ramdisk of the node; Nova's image is not used."""
        with as_nova_errors(instance, nova_exception.InstanceRescueFailure):
            self._rescue.rescue(instance, rescue_password)

    def why_no_rescue(self, instance: Any) -> str | None:
        """Return why a server cannot be rescued; None if it can."""
        return self._rescue.find_obstacle(instance)

    def is_rescue_begun(self, instance: Any) -> bool:
        """Return whether Ironic rescues, or has rescued, a server's node."""
        return self._rescue.is_begun(instance)

    def unrescue(self, context: Any, instance: Any, **kwargs: Any) -> None:
        """Leave the rescue ramdisk and boot the server's own system."""
        with as_nova_errors(instance, nova_exception.InstanceUnRescueFailure):
            self._rescue.unrescue(instance)

    # Networks and volumes

    def network_binding_host_id(self, context: Any, instance: Any) -> None:
        """Return None, because Ironic binds the Neutron ports itself."""

    def manages_network_binding_host_id(self) -> bool:
        """Return True: Ironic sets the binding host of the ports."""
        return True

    def plug_vifs(self, instance: Any, network_info: Any) -> None:
        """Do nothing: the build attached the VIFs, and they stay attached.

        Nova calls this method for each server when a worker starts.
        """

    def unplug_vifs(self, instance: Any, network_info: Any) -> None:
        """Detach these VIFs from the node of a server."""
        with as_nova_errors(instance):
            node = self._waiter.read_node_of(instance).uuid
            self._network.detach_vifs(node, network_info)

    def attach_interface(
        self, context: Any, instance: Any, image_meta: Any, vif: Any
    ) -> None:
        """Attach one VIF to a running server."""
        with as_nova_errors(
            instance, nova_exception.VirtualInterfacePlugException
        ):
            self._network.attach_soon(instance, vif)

    def detach_interface(self, context: Any, instance: Any, vif: Any) -> None:
        """Detach one VIF from a running server."""
        with as_nova_errors(
            instance, nova_exception.VirtualInterfacePlugException
        ):
            node = self._waiter.read_node_of(instance).uuid
            self._network.detach_vifs(node, [vif])

    def get_volume_connector(self, instance: Any) -> dict[str, Any]:
        """Return the identifiers by which Cinder exports volumes to a node."""
        with as_nova_errors(instance):
            return self._volumes.read_connector(instance)

    def why_no_attach(self, instance: Any) -> str | None:
        """Return why a running server takes no volume; None if it does."""
        return self._volumes.why_no_attach(instance)

    def why_no_detach(self, instance: Any, volume_id: str) -> str | None:
        """Return why a volume cannot be detached; None if it can."""
        return self._volumes.why_no_detach(instance, volume_id)

    def attach_volume(
        self,
        context: Any,
        connection_info: Any,
        instance: Any,
        mountpoint: str,
        encryption: Any = None,
        **kwargs: Any,
    ) -> None:
        """Leave it to the system on the server to log in to the volume."""
        with as_nova_errors(instance, nova_exception.NovaException):
            self._volumes.check_encryption(encryption)

    def detach_volume(
        self,
        context: Any,
        connection_info: Any,
        instance: Any,
        mountpoint: str,
        encryption: Any = None,
    ) -> None:
        """Delete the Ironic volume target of a volume, if it has one."""
        volume_id = connection_info['serial']  # Nova adds it.
        with as_nova_errors(instance, nova_exception.NovaException):
            self._volumes.detach_volume(instance, volume_id)

    def assume_node(
        self, instance: Any, node: str
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the driver assumes a server is on a node.

        Used before Nova claims the node, when the Instance does not name the
        node yet.
        """
        return self._volumes.assume_node(instance.uuid, NodeId(node))

    # Consoles

    def get_serial_console(self, context: Any, instance: Any) -> Any:
        """Enable the serial console of a server; return its address."""
        with as_nova_errors(instance):
            return self._console.open_serial(instance)

    def get_vnc_console(self, context: Any, instance: Any) -> Any:
        """Enable the VNC console of a server; return its address."""
        with as_nova_errors(instance):
            return self._console.open_vnc(instance)

    # Queries of servers and nodes

    def get_info(self, instance: Any, use_cache: bool = True) -> Any:
        """Return the power state of a server.

        :param use_cache: the state in the node cache is new enough
        """
        with as_nova_errors(instance, nova_exception.VirtDriverNotReady):
            return self._queries.read_info(instance, use_cache)

    def instance_exists(self, instance: Any) -> bool:
        """Return whether a node in Ironic has the server."""
        with as_nova_errors(instance, nova_exception.VirtDriverNotReady):
            return self._queries.instance_exists(instance)

    def list_instances(self) -> list[str]:
        """Return the names of the servers on the held nodes."""
        return self._queries.list_instance_names()

    def list_instance_uuids(self) -> list[str]:
        """Return the uuids of the servers on the held nodes."""
        return self._queries.list_instance_uuids()

    def get_num_instances(self) -> int:
        """Return the number of servers on the held nodes."""
        return len(self._queries.list_instance_uuids())

    def get_available_nodes(self, refresh: bool = False) -> list[str]:
        """Return the uuids of the held nodes."""
        return self._queries.list_nodes()

    def get_nodenames_by_uuid(self, refresh: bool = False) -> dict[str, str]:
        """Return the held nodes; the name of a node is its uuid."""
        return {node: node for node in self._queries.list_nodes()}

    def node_is_available(self, nodename: str) -> bool:
        """Return whether this host holds a node."""
        return self._queries.is_node_held(nodename)

    def is_node_deleted(self, nodename: str) -> bool:
        """Return whether Ironic has no such node; sends a request."""
        with as_nova_errors(None, nova_exception.VirtDriverNotReady):
            return self._queries.is_node_deleted(nodename)

    def get_host_ip_addr(self) -> str:
        """Return the IP address of this machine (``[DEFAULT] my_ip``)."""
        return str(CONF.my_ip)
