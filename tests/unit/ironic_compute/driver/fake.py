# SPDX-License-Identifier: Apache-2.0
"""A driver on an Ironic in memory, for the tests of the driver.

Ironic's own work (a deploy, a power action) ends as soon as the driver has
read the node after its request, so the tests need not wait. With the Ironic of
``timed`` it takes time.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import nova.conf
from nova import exception as nova_exception
from nova import objects
from nova.network import model as network_model

from ironic_compute.driver.build_request import BuildRequest
from ironic_compute.driver.driver import IronicComputeDriver
from ironic_compute.nodes.node_cache import NodeCache
from resource_tracker.node import NodeFacts
from tests.fakes.clock import ManualClock
from tests.fakes.ironic import NODE, FakeIronic

objects.register_all()
# Without these arguments Nova searches this machine for configuration files.
nova.conf.CONF([], default_config_files=[], default_config_dirs=[])

SERVER = '22222222-2222-2222-2222-222222222222'
OTHER = '33333333-3333-3333-3333-333333333333'
VIF = '44444444-4444-4444-4444-444444444444'


@dataclasses.dataclass
class Bench:
    """A driver, and the parts that it was set up with."""

    ironic: FakeIronic
    driver: IronicComputeDriver
    node_cache: NodeCache
    clock: ManualClock

    def prepare(self, server: Any, networks: Any) -> None:
        """Call the methods that Nova calls before it asks Cinder."""
        driver = self.driver
        try:
            driver.prepare_for_spawn(server)
            driver.prepare_networks_before_block_device_mapping(
                server, networks
            )
        except nova_exception.ComputeResourcesUnavailable:
            driver.clean_networks_preparation(server, networks)
            driver.failed_spawn_cleanup(server)
            raise

    def spawn(
        self, server: Any, volumes: Sequence[Any] = (), **kwargs: Any
    ) -> None:
        """Reserve the node and build the server, as Nova does.

        :param volumes: the volumes of the server
        """
        server.volumes = [volume._bdm_obj for volume in volumes]
        self.prepare(server, network())
        self.driver.spawn(
            None,
            server,
            image(),
            None,
            None,
            {},
            network_info=network(),
            block_device_info={'block_device_mapping': list(volumes)},
            **kwargs,
        )

    def rebuild(
        self, server: Any, destination: str = 'local', **kwargs: Any
    ) -> None:
        """Rebuild the server, as Nova does.

        :param destination: where the root disk is: ``local`` or ``volume``
        """
        root = objects.BlockDeviceMapping(
            boot_index=0, destination_type=destination, source_type='image'
        )
        self.driver.rebuild(
            None,
            server,
            image(),
            None,
            None,
            {},
            objects.BlockDeviceMappingList(objects=[root]),
            None,
            None,
            network_info=network(),
            **kwargs,
        )

    def is_free(self) -> bool:
        """Return whether nothing of the server is left on the node."""
        return (
            self.ironic.nodes[NODE].instance_uuid is None
            and not self.ironic.infos[NODE]
            and not self.ironic.attached[NODE]
        )


class FakeFeed:
    """A feed that lets Ironic end its work after a change and a read."""

    def __init__(self, ironic: FakeIronic, node_cache: NodeCache) -> None:
        self._ironic = ironic
        self._node_cache = node_cache
        self._calls_count = 0

    def accept_read(self, facts: NodeFacts) -> None:
        """Update the cache; end Ironic's work if the driver sent a change."""
        self._node_cache.update_facts(facts)
        if len(self._ironic.calls) > self._calls_count:
            self._calls_count = len(self._ironic.calls)
            self.request_read(facts.uuid)

    def request_read(self, node: str) -> None:
        """End Ironic's work on the node; update the cache."""
        self._ironic.settle(node)
        if node in self._ironic.nodes:
            self._node_cache.update_facts(self._ironic.nodes[node])


def bench(**node: Any) -> Bench:
    """Return a driver whose Ironic has one node, which is held.

    :param node: fields of the node that differ from an available node
    """
    ironic, clock = FakeIronic(), ManualClock()
    ironic.add(**node)
    node_cache = NodeCache(clock)
    for facts in ironic.nodes.values():
        node_cache.update_facts(facts)

    driver = IronicComputeDriver(None)
    driver.set_up(ironic, node_cache, FakeFeed(ironic, node_cache), clock)
    return Bench(ironic, driver, node_cache, clock)


def bench_with_server() -> Bench:
    """Return a driver whose node is active and has the server."""
    return bench(instance_uuid=SERVER, provision_state='active')


def on(ironic: Any, bench: Bench) -> Bench:
    """Return the bench with a driver that sends its requests to ``ironic``."""
    feed = FakeFeed(bench.ironic, bench.node_cache)
    bench.driver.set_up(ironic, bench.node_cache, feed, bench.clock)
    return dataclasses.replace(bench, ironic=ironic)


def network() -> network_model.NetworkInfo:
    """Return a network with one VIF."""
    return network_model.NetworkInfo([network_model.VIF(id=VIF)])


def image() -> Any:
    """Return an image as Nova passes it to a driver."""
    return objects.ImageMeta.from_dict(
        {'id': 'img', 'properties': {'traits_required': []}}
    )


class Volume(dict[str, Any]):
    """A volume as Nova passes it to a driver."""

    is_volume = True

    def __init__(
        self, boot_index: int | None = 0, volume_id: str = OTHER
    ) -> None:
        super().__init__(boot_index=boot_index)
        self._bdm_obj = objects.BlockDeviceMapping(
            boot_index=boot_index,
            destination_type='volume',
            volume_id=volume_id,
            connection_info='{"driver_volume_type": "iscsi", "data": {}}',
        )


class Server(objects.Instance):
    """A server whose volumes are not in Nova's database."""

    volumes: Sequence[Any] = ()

    def get_bdms(self) -> Sequence[Any]:
        """Return the block device mappings of the volumes."""
        return self.volumes


def server(**fields: Any) -> Any:
    """Return a server whose record names the node.

    :param fields: fields of the record that differ from the usual ones
    """
    flavor = objects.Flavor(
        name='gold',
        flavorid='1',
        memory_mb=1024,
        vcpus=2,
        root_gb=20,
        ephemeral_gb=0,
        swap=0,
        extra_specs={
            'trait:CUSTOM_FAST': 'required',
            'capabilities:boot_mode': 'uefi',
        },
    )
    values = {
        'uuid': SERVER,
        'node': NODE,
        'host': 'bm-1',
        'hostname': 'one',
        'display_name': 'one',
        'user_id': 'u',
        'project_id': 'p',
        'image_ref': 'img',
        'config_drive': '',
        'launched_at': None,
        'system_metadata': {},
        'flavor': flavor,
        'task_state': 'spawning',
        'vm_state': 'building',
        **fields,
    }
    return Server(**values)


class UnsavedServer(Server):
    """A server whose record is not saved and does not change."""

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Count the changes as saved."""
        self.obj_reset_changes()

    def refresh(self, *args: Any, **kwargs: Any) -> None:
        """Leave the record as it is."""


def unsaved_server(**fields: Any) -> Any:
    """Return a server like :func:`server`, whose record is not saved."""
    made = server(**fields)
    made.__class__ = UnsavedServer
    return made


def build_request(volumes: Sequence[Any] = ()) -> BuildRequest:
    """Return the arguments of a build of the server."""
    return BuildRequest(
        None, server(), image(), None, None, network(), volumes
    )
