# SPDX-License-Identifier: Apache-2.0
"""A driver on an Ironic in memory.

Work that Ironic does by itself is done when the driver has looked what came of
its request, so tests wait for nothing.
"""

import dataclasses
from typing import Any

import nova.conf
from nova import objects
from nova.network import model as network_model

from hashring.clock import ManualClock
from ironic_compute.driver.driver import IronicComputeDriver
from ironic_compute.nodes.node_cache import NodeCache
from resource_tracker.node import NodeFacts
from tests.fakes.ironic import NODE, FakeIronic

objects.register_all()
# Nova looks for its files beside the configuration files: there are none.
nova.conf.CONF([], default_config_files=[], default_config_dirs=[])

SERVER = '22222222-2222-2222-2222-222222222222'
OTHER = '33333333-3333-3333-3333-333333333333'
VIF = '44444444-4444-4444-4444-444444444444'


@dataclasses.dataclass
class Bench:
    """A driver on an Ironic in memory."""

    ironic: FakeIronic
    driver: IronicComputeDriver
    node_cache: NodeCache
    clock: ManualClock

    def spawn(self, server: Any, **kwargs: Any) -> None:
        """Build a server the way Nova does."""
        self.driver.prepare_for_spawn(server)
        self.driver.spawn(
            None,
            server,
            image(),
            None,
            None,
            {},
            network_info=network(),
            **kwargs,
        )


class FakeFeed:
    """The feed: Ironic goes on when the driver has acted and looked."""

    def __init__(self, ironic: FakeIronic, node_cache: NodeCache) -> None:
        self._ironic = ironic
        self._node_cache = node_cache
        self._calls_count = 0

    def take(self, facts: NodeFacts) -> None:
        """See Feed."""
        self._node_cache.update(facts)
        if len(self._ironic.calls) > self._calls_count:
            self._calls_count = len(self._ironic.calls)
            self.poke(facts.uuid)

    def poke(self, node: str) -> None:
        """See Feed."""
        self._ironic.settle(node)
        if node in self._ironic.nodes:
            self._node_cache.update(self._ironic.nodes[node])


def bench(**node: Any) -> Bench:
    """Make a driver whose Ironic has one node, which is held."""
    ironic, clock = FakeIronic(), ManualClock()
    ironic.add(**node)
    node_cache = NodeCache(clock)
    for facts in ironic.nodes.values():
        node_cache.hold(facts)

    driver = IronicComputeDriver(None)
    driver.set_up(ironic, node_cache, FakeFeed(ironic, node_cache), clock)
    return Bench(ironic, driver, node_cache, clock)


def on(ironic: Any, bench: Bench) -> Bench:
    """Put another Ironic between a bench's driver and its own."""
    feed = FakeFeed(bench.ironic, bench.node_cache)
    bench.driver.set_up(ironic, bench.node_cache, feed, bench.clock)
    return dataclasses.replace(bench, ironic=ironic)


def network() -> network_model.NetworkInfo:
    """Make a network with one VIF."""
    return network_model.NetworkInfo([network_model.VIF(id=VIF)])


def image() -> Any:
    """Make an image as Nova hands it to a driver."""
    return objects.ImageMeta.from_dict(
        {'id': 'img', 'properties': {'traits_required': []}}
    )


def server(**fields: Any) -> Any:
    """Make a server that was scheduled to the node."""
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
    return objects.Instance(**values)
