# SPDX-License-Identifier: Apache-2.0
"""What users and operators ask for while the daemons lack a right.

Each request is prepared and undone with all rights.
"""

import contextlib
import itertools
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from openstack.exceptions import SDKException

from onemachine import registry
from onemachine.chaos.scenarios import HOSTS
from onemachine.chaos.stage import Stage
from onemachine.chaos.volumes import connect_nodes
from onemachine.computes import Computes
from onemachine.night.accounts import rabbitmqctl
from onemachine.progress import wait_until
from onemachine.volumes import create_volumes

# Rule -> what is asked for while it is missing; see Requests.
REQUESTS: Mapping[str, str] = {
    'baremetal:node:set_power_state': 'reboot',
    'baremetal:node:inject_nmi': 'dump',
    'baremetal:node:get_console': 'console',
    'baremetal:node:set_console_state': 'screen',
    'baremetal:node:vif:list': 'detach',
    'baremetal:node:vif:detach': 'detach',
    'baremetal:port:list_all': 'describe',
    'baremetal:portgroup:list_all': 'describe',
    'baremetal:volume:delete': 'disconnect',
    'placement:resource_providers:create': 'enroll',
    'placement:resource_providers:delete': 'withdraw',
    'placement:resource_providers:inventories:list': 'enroll',
    'placement:resource_providers:inventories:update': 'enroll',
    'placement:resource_providers:traits:list': 'enroll',
    'placement:resource_providers:traits:update': 'enroll',
    'placement:resource_providers:aggregates:list': 'enroll',
    'placement:resource_providers:aggregates:update': 'aggregate',
    'placement:resource_providers:usages': 'withdraw',
    'placement:resource_providers:allocations:list': 'withdraw',
    'placement:resource_classes:update': 'name',
    'placement:traits:list': 'trait',
    'placement:traits:update': 'trait',
    'placement:allocations:delete': 'delete',
    'update_port:binding:profile': 'release',
    'delete_port': 'lose',
    'get_floatingip': 'float',
    'volume:get': 'keep',
    'volume:attachment_delete': 'abandon',
    'volume:delete': 'abandon',
}
# What a daemon needs to start and to find what was left undone.
LOG_MAX_S: Mapping[str, float] = {'lose': 180.0, 'abandon': 180.0}
_OUTSIDE = {
    'provider_network_type': 'vlan',
    'provider_physical_network': 'physnet',
    'provider_segmentation_id': 150,
}


class Requests:
    """What users and operators ask for; each is undone with all rights."""

    def __init__(self, stage: Stage, computes: Computes) -> None:
        self._stage, self._computes = stage, computes
        self._content = stage.content
        self._compute = stage.content.cloud.compute
        self._metal = stage.content.metal
        self._count = len(self._content.nodes())
        self._numbers = itertools.count()
        (self._kept,) = self._content.boot_all(['kept'], 180)

    @contextlib.contextmanager
    def ask(self, name: str) -> Iterator[Callable[[], None]]:
        """Prepare a request; yield what sends it, and undo it at the end."""
        with getattr(self, f'_{name}')() as send:
            yield send

    @contextlib.contextmanager
    def _boot(self) -> Iterator[Callable[[], None]]:
        name = f'right-{next(self._numbers)}'
        yield lambda: self._content.create_servers([name]) and None
        self._delete_others()

    @contextlib.contextmanager
    def _describe(self) -> Iterator[Callable[[], None]]:
        """Boot a server with a config drive, which has its networks."""
        name = f'right-{next(self._numbers)}'
        create = self._content.create_servers
        yield lambda: create([name], config_drive=True) and None
        self._delete_others()

    @contextlib.contextmanager
    def _delete(self) -> Iterator[Callable[[], None]]:
        (server,) = self._content.boot_all(['doomed'], 180)
        yield lambda: self._compute.delete_server(server.id)
        self._delete_others()

    @contextlib.contextmanager
    def _release(self) -> Iterator[Callable[[], None]]:
        """Delete a server whose port was there before it."""
        cloud = self._content.cloud
        network = cloud.network.find_network(registry.NETWORK).id
        port = cloud.network.create_port(network_id=network)
        (doomed,) = self._content.create_servers(['doomed'], port=port.id)
        self._content.await_active(doomed.id)
        yield lambda: self._compute.delete_server(doomed.id)
        self._delete_others()
        cloud.network.delete_port(port.id)

    @contextlib.contextmanager
    def _detach(self) -> Iterator[Callable[[], None]]:
        """Detach the port of a server on a node whose ports Ironic knows."""
        with self._flat_nodes():
            (doomed,) = self._content.boot_all(['doomed'], 180)
            (port,) = self._compute.server_interfaces(doomed.id)
            detach = self._compute.delete_server_interface
            yield lambda: detach(port, server=doomed.id)
            self._delete_others()

    @contextlib.contextmanager
    def _flat_nodes(self) -> Iterator[None]:
        """Have Ironic attach ports to all nodes but one in the block.

        The one has the server that is kept. A server that failed without a
        right may still be on another one, where the next is then built.
        """
        free = self._others()
        wait_until('the nodes free', lambda: self._are_free(free), 300)
        try:
            for node in free:
                self._metal.update_node(node, network_interface='flat')
            yield
        finally:
            wait_until('the nodes free', lambda: self._are_free(free), 300)
            for node in free:
                self._metal.update_node(node, network_interface='noop')

    def _others(self) -> set[str]:
        """Return all nodes but that of the kept server."""
        kept = self._content.server(self._kept.id).hypervisor_hostname
        return self._content.nodes().keys() - {kept}

    def _are_free(self, names: Collection[str]) -> bool:
        nodes = self._content.nodes()
        return all(
            nodes[name].provision_state == 'available'
            and not nodes[name].reservation
            for name in names
        )

    @contextlib.contextmanager
    def _disconnect(self) -> Iterator[Callable[[], None]]:
        """Delete a server whose node is connected to a volume."""
        (doomed,) = self._content.boot_all(['doomed'], 180)
        node = self._content.server(doomed.id).hypervisor_hostname
        target = self._metal.create_volume_target(
            node_id=node,
            volume_id=str(uuid.uuid4()),
            volume_type='iscsi',
            boot_index=0,
            properties={},
        )
        yield lambda: self._compute.delete_server(doomed.id)
        self._delete_others()
        # Ironic deletes no target of a node that has power.
        self._set_power(node, 'power off')
        self._metal.delete_volume_target(target)
        self._set_power(node, 'power on')

    def _set_power(self, node: str, target: str) -> None:
        self._metal.set_node_power_state(node, target, wait=True, timeout=120)

    @contextlib.contextmanager
    def _lose(self) -> Iterator[Callable[[], None]]:
        """Lose the delete of a server that has booted from an image."""
        (doomed,) = self._content.boot_all(['doomed'], 180)
        with self._lost_delete(doomed) as send:
            yield send

    @contextlib.contextmanager
    def _abandon(self) -> Iterator[Callable[[], None]]:
        """Lose the delete of a server that has booted from a volume."""
        with self._lost_delete(self._boot_from_volume()) as send:
            yield send

    @contextlib.contextmanager
    def _keep(self) -> Iterator[Callable[[], None]]:
        """Have a server with a volume, for which the check asks Cinder."""
        self._boot_from_volume()
        yield lambda: None
        self._delete_others()

    def _boot_from_volume(self) -> Any:
        """Return a server; its volume is deleted together with it."""
        connect_nodes(self._stage)
        volumes = create_volumes(self._content.cloud, 1)
        (asked,) = self._content.create_from_volumes(
            ['doomed'], volumes, delete_on_termination=True
        )
        return self._content.await_active(asked.id)

    @contextlib.contextmanager
    def _lost_delete(self, doomed: Any) -> Iterator[Callable[[], None]]:
        """Start the daemons after RabbitMQ has lost a delete.

        It is then done without the token of the user who asked for it.
        """
        layout = self._stage.cloud.layout
        host = self._content.server(doomed.id).compute_host
        self._stage.running.stop(HOSTS)
        try:
            self._compute.delete_server(doomed.id)
            rabbitmqctl(layout, 'purge_queue', f'compute.{host}')
            yield lambda: self._computes.start_agents(HOSTS)
        finally:
            self._computes.start_agents(HOSTS)
        self._delete_others()

    @contextlib.contextmanager
    def _float(self) -> Iterator[Callable[[], None]]:
        """Reboot a server with a floating address: Nova looks at its ports."""
        with contextlib.ExitStack() as stack:
            self._make_floating_ip(stack)
            yield lambda: self._content.request_reboot(self._kept)
            self._content.await_rebooted(self._kept)

    def _make_floating_ip(self, stack: contextlib.ExitStack) -> None:
        """Give the kept server a floating address until the stack ends."""
        neutron = self._content.cloud.network
        inside = neutron.find_network(registry.NETWORK).id
        outside = neutron.create_network(is_router_external=True, **_OUTSIDE)
        stack.callback(neutron.delete_network, outside)
        neutron.create_subnet(
            network_id=outside.id, ip_version=4, cidr='198.51.100.0/24'
        )
        router = neutron.create_router(
            external_gateway_info={'network_id': outside.id}
        )
        stack.callback(neutron.delete_router, router)
        port = neutron.create_port(network_id=inside).id
        neutron.add_interface_to_router(router, port_id=port)
        stack.callback(
            neutron.remove_interface_from_router, router, port_id=port
        )
        (kept,) = neutron.ports(device_id=self._kept.id)
        address = neutron.create_ip(
            floating_network_id=outside.id, port_id=kept.id
        )
        stack.callback(neutron.delete_ip, address)

    def _delete_others(self) -> None:
        others = [s for s in self._content.servers() if s.name != 'kept']
        for server in others:
            with contextlib.suppress(SDKException):
                self._compute.delete_server(server.id)
        self._content.await_gone(others, 240)

    @contextlib.contextmanager
    def _reboot(self) -> Iterator[Callable[[], None]]:
        yield lambda: self._content.request_reboot(self._kept)

        def is_idle() -> bool:
            return self._content.server(self._kept.id).task_state is None

        wait_until('the reboot to end', is_idle, 240)
        self._content.reboot([self._kept])

    @contextlib.contextmanager
    def _dump(self) -> Iterator[Callable[[], None]]:
        yield lambda: self._compute.trigger_server_crash_dump(self._kept.id)

    @contextlib.contextmanager
    def _console(self) -> Iterator[Callable[[], None]]:
        def send() -> None:
            with contextlib.suppress(SDKException):
                self._compute.create_console(self._kept.id, 'serial')

        yield send

    @contextlib.contextmanager
    def _screen(self) -> Iterator[Callable[[], None]]:
        """Ask for a graphical console, which has to be switched on."""

        def send() -> None:
            with contextlib.suppress(SDKException):
                self._compute.create_console(self._kept.id, 'novnc')

        yield send

    @contextlib.contextmanager
    def _enroll(self) -> Iterator[Callable[[], None]]:
        yield lambda: self._content.enroll(self._count + 1)
        self._withdraw_one()

    def _withdraw_one(self) -> None:
        self._content.withdraw(self._count)

        def is_gone() -> bool:
            held = self._content.holders()
            return set(held) <= set(self._content.nodes())

        wait_until('the node gone from Nova', is_gone, 300, 2.0)

    @contextlib.contextmanager
    def _withdraw(self) -> Iterator[Callable[[], None]]:
        self._content.enroll(self._count + 1)
        free = self._others()

        def are_offered() -> bool:
            return free <= self._content.schedulable()

        wait_until('the new node offered', are_offered, 300, 2.0)
        yield lambda: self._content.withdraw(self._count)
        self._withdraw_one()

    @contextlib.contextmanager
    def _trait(self) -> Iterator[Callable[[], None]]:
        node, number = self._free(), next(self._numbers)
        yield lambda: self._metal.add_node_trait(node, f'CUSTOM_R{number}')
        self._metal.remove_node_trait(node, f'CUSTOM_R{number}')

    @contextlib.contextmanager
    def _name(self) -> Iterator[Callable[[], None]]:
        node, number = self._free(), next(self._numbers)
        kept = node.resource_class
        update = self._metal.update_node
        yield (
            lambda: update(node.id, resource_class=f'right-{number}') and None
        )
        update(node.id, resource_class=kept)

    @contextlib.contextmanager
    def _aggregate(self) -> Iterator[Callable[[], None]]:
        made = self._compute.create_aggregate(
            name=f'right-{next(self._numbers)}'
        )
        add = self._compute.add_host_to_aggregate
        # Nova refuses a host without nodes, which one may be with so few.
        hosts = set(self._content.holders().values())
        yield lambda: [add(made, host) for host in hosts] and None
        for host in hosts:
            self._compute.remove_host_from_aggregate(made, host)
        self._compute.delete_aggregate(made)

    def _free(self) -> Any:
        nodes = self._content.nodes().values()
        return min((n for n in nodes if not n.instance_id), key=lambda n: n.id)
