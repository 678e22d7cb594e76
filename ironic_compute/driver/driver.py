# SPDX-License-Identifier: Apache-2.0
"""What Nova's compute manager calls; everything is done elsewhere.

Each method is one that Nova 33 and 34 call on bare metal. What is not here
is not possible on bare metal, and Nova's base class says so. Arguments that
a later Nova adds are taken and ignored.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import nova.conf
from nova import exception as nova_exception
from nova.virt import driver as nova_driver

from hashring.clock import Clock, SystemClock
from ironic_compute.driver import power
from ironic_compute.driver.console import Console
from ironic_compute.driver.deploy import Deploy, Order
from ironic_compute.driver.network import Network
from ironic_compute.driver.node_waiter import News, NodeWaiter
from ironic_compute.driver.nova_errors import build_door, door
from ironic_compute.driver.power import Power
from ironic_compute.driver.queries import Queries
from ironic_compute.driver.rebuild import Rebuild
from ironic_compute.driver.rescue import Rescue
from ironic_compute.driver.teardown import Teardown
from ironic_compute.driver.volumes import Volumes, mapping_of
from ironic_compute.ironic_api.client import IronicClient
from ironic_compute.nodes.node_cache import NodeCache
from resource_tracker.node import NodeId

CONF = nova.conf.CONF

_IMAGE_TYPES = ('ami', 'qcow2', 'raw')


class IronicComputeDriver(nova_driver.ComputeDriver):
    """Nova's virt driver for Ironic; :meth:`attach` comes before all else."""

    capabilities = {  # noqa: RUF012 (Nova's class attribute)
        **dict.fromkeys(nova_driver.ComputeDriver.capabilities, False),
        'supports_attach_interface': True,
        **{f'supports_image_type_{name}': True for name in _IMAGE_TYPES},
    }
    rebalances_nodes = True

    def __init__(self, virtapi: Any, read_only: bool = False) -> None:
        super().__init__(virtapi)

    def attach(
        self,
        client: IronicClient,
        node_cache: NodeCache,
        news: News,
        clock: Clock | None = None,
    ) -> None:
        """Give the driver what it works with."""
        self._waiter = waiter = NodeWaiter(
            client, node_cache, news, clock or SystemClock()
        )
        self._network = Network(waiter)
        self._power = Power(waiter)
        self._volumes = Volumes(waiter, self._power)
        self._teardown = Teardown(waiter, self._network, self._volumes)
        self._deploy = Deploy(
            waiter, self._network, self._volumes, self._teardown
        )
        self._rebuild = Rebuild(waiter, self._deploy)
        self._rescue = Rescue(waiter)
        self._console = Console(waiter)
        self._info = Queries(waiter)

    def init_host(self, host: str) -> None:
        """Start nothing: the worker's parts are started elsewhere."""

    def waiting(self) -> frozenset[int]:
        """Return the threads that do nothing but wait for Ironic."""
        return self._waiter.waits.threads()

    # Builds

    def prepare_for_spawn(self, instance: Any) -> None:
        """Reserve the node, before networks are built.

        :raises ComputeResourcesUnavailable: Nova tries another node
        """
        with door(instance, nova_exception.ComputeResourcesUnavailable):
            self._deploy.reserve(NodeId(instance.node), instance)

    def failed_spawn_cleanup(self, instance: Any) -> None:
        """Give the node back."""
        self.abandon(instance)

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
        """Build a server; returns when its node is active."""
        with build_door(instance):
            self._deploy.spawn(
                self._order(
                    context,
                    instance,
                    image_meta,
                    injected_files,
                    admin_password,
                    network_info,
                    mapping_of(block_device_info),
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
        """Deploy a server's node anew."""
        with build_door(instance):
            self._rebuild.rebuild(
                self._order(
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
        """Block until Ironic has deployed a node; raises our errors."""
        self._deploy.wait(instance, NodeId(node))

    def abandon(self, instance: Any) -> None:
        """Free the node of a build that will not end; repeatable."""
        with door(instance):
            self._teardown.destroy(instance)

    def free(self, node: NodeId, instance_uuid: str) -> None:
        """Free a node of a server that Nova has not here; repeatable."""
        self._teardown.free(node, instance_uuid)

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
        """Get a server off its node; Ironic cleans the disks."""
        with door(instance):
            self._teardown.destroy(instance)

    def cleanup(self, context: Any, instance: Any, *args: Any) -> None:
        """Clean nothing up: :meth:`destroy` leaves nothing behind."""

    def _order(
        self,
        context: Any,
        instance: Any,
        image_meta: Any,
        files: Any,
        password: Any,
        network_info: Any,
        volumes: Sequence[Any] = (),
    ) -> Order:
        return Order(
            context=context,
            instance=instance,
            image_meta=image_meta,
            files=files,
            password=password,
            network_info=network_info,
            volumes=volumes,
            metadata=self.get_instance_driver_metadata(instance, network_info),
        )

    # Power

    def reboot(
        self,
        context: Any,
        instance: Any,
        network_info: Any,
        reboot_type: str,
        **kwargs: Any,
    ) -> None:
        """Reboot, softly or hard."""
        with door(instance, nova_exception.InstanceRebootFailure):
            self._power.reboot(instance, reboot_type)

    def power_off(
        self, instance: Any, timeout: int = 0, retry_interval: int = 0
    ) -> None:
        """Switch off; with a time-out, softly first."""
        with door(instance, nova_exception.InstancePowerOffFailure):
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
        """Switch on; accelerators and shares are not bare metal's."""
        with door(instance, nova_exception.InstancePowerOnFailure):
            self._power.power_on(instance)

    def power_update_event(
        self, instance: Any, target_power_state: str
    ) -> None:
        """Write down a power state that Ironic reports through Nova."""
        power.update(instance, target_power_state)

    def trigger_crash_dump(self, instance: Any) -> None:
        """Send a non-maskable interrupt."""
        with door(instance, _failed):
            node = self._waiter.node_of(instance).uuid
            self._waiter.patiently(
                lambda: self._waiter.client.inject_nmi(node)
            )

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
        """Boot the rescue ramdisk; Ironic has its own image for it."""
        with door(instance, nova_exception.InstanceRescueFailure):
            self._rescue.rescue(instance, rescue_password)

    def why_no_rescue(self, instance: Any) -> str | None:
        """Return why a server cannot be rescued; None: it can."""
        return self._rescue.why_not(instance)

    def unrescue(self, context: Any, instance: Any, **kwargs: Any) -> None:
        """Boot the server's own system again."""
        with door(instance, nova_exception.InstanceUnRescueFailure):
            self._rescue.unrescue(instance)

    # Networks and volumes

    def network_binding_host_id(self, context: Any, instance: Any) -> None:
        """Leave ports unbound: Ironic binds them when it is time."""

    def manages_network_binding_host_id(self) -> bool:
        """Say that Ironic binds ports."""
        return True

    def plug_vifs(self, instance: Any, network_info: Any) -> None:
        """Plug nothing: VIFs are attached by a build, and stay."""

    def unplug_vifs(self, instance: Any, network_info: Any) -> None:
        """Detach VIFs."""
        with door(instance):
            node = self._waiter.node_of(instance).uuid
            self._network.detach(node, network_info)

    def attach_interface(
        self, context: Any, instance: Any, image_meta: Any, vif: Any
    ) -> None:
        """Attach one VIF to a running server."""
        with door(instance, _interface_error):
            node = self._waiter.node_of(instance).uuid
            self._network.attach(node, [vif])

    def detach_interface(self, context: Any, instance: Any, vif: Any) -> None:
        """Detach one VIF from a running server."""
        with door(instance, _interface_error):
            node = self._waiter.node_of(instance).uuid
            self._network.detach(node, [vif])

    def get_volume_connector(self, instance: Any) -> dict[str, Any]:
        """Return by what Cinder knows the machine."""
        with door(instance):
            return self._volumes.connector(instance)

    def destined(
        self, instance: Any, node: str
    ) -> contextlib.AbstractContextManager[None]:
        """Know the node of a server that Nova has not claimed yet."""
        return self._volumes.destined(instance.uuid, NodeId(node))

    # Consoles

    def get_serial_console(self, context: Any, instance: Any) -> Any:
        """Return where the serial console is."""
        with door(instance):
            return self._console.serial(instance)

    def get_vnc_console(self, context: Any, instance: Any) -> Any:
        """Return where the graphical console is."""
        with door(instance):
            return self._console.vnc(instance)

    # Questions

    def get_info(self, instance: Any, use_cache: bool = True) -> Any:
        """Return a server's power state."""
        with door(instance, _not_ready):
            return self._info.info(instance, use_cache)

    def instance_exists(self, instance: Any) -> bool:
        """Say whether Ironic has the server."""
        with door(instance, _not_ready):
            return self._info.exists(instance)

    def list_instances(self) -> list[str]:
        """Return the names of the servers on held nodes."""
        return self._info.instance_names()

    def list_instance_uuids(self) -> list[str]:
        """Return the servers on held nodes."""
        return self._info.instance_uuids()

    def get_num_instances(self) -> int:
        """Return how many servers are on held nodes."""
        return len(self._info.instance_uuids())

    def get_available_nodes(self, refresh: bool = False) -> list[str]:
        """Return the held nodes."""
        return self._info.nodes()

    def get_nodenames_by_uuid(self, refresh: bool = False) -> dict[str, str]:
        """Return the held nodes; a node's name is its uuid."""
        return {node: node for node in self._info.nodes()}

    def node_is_available(self, nodename: str) -> bool:
        """Say whether this host serves a node."""
        return self._info.is_held(nodename)

    def is_node_deleted(self, nodename: str) -> bool:
        """Say whether a node is gone from Ironic."""
        with door(None, _not_ready):
            return self._info.is_deleted(nodename)

    def get_host_ip_addr(self) -> str:
        """Return the address of this machine."""
        address: str = CONF.my_ip
        return address


def _interface_error(reason: str) -> Exception:
    error: Exception = nova_exception.VirtualInterfacePlugException(reason)
    return error


def _not_ready(reason: str) -> Exception:
    error: Exception = nova_exception.VirtDriverNotReady(reason)
    return error


def _failed(reason: str) -> Exception:
    error: Exception = nova_exception.NovaException(reason)
    return error
