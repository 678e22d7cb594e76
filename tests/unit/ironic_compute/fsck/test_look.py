# SPDX-License-Identifier: Apache-2.0
"""Two looks at a pool: few requests, and nothing that passes by itself."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from hashring.ring import Host
from ironic_compute import catalogue
from ironic_compute.fsck.look import Looker
from ironic_compute.fsck.placement_reader import PlacementReader
from ironic_compute.fsck.snapshot import PoolHosts, Row, Server, Service
from resource_tracker.delta import Create, PutInventories, PutTraits
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.provider import COMPUTE_NODE
from tests.fakes.clock import ManualClock
from tests.fakes.ironic import FakeIronic
from tests.fakes.placement import FakePlacement
from tests.unit.ironic_compute.fsck import clouds

C1 = clouds.C1
GOLD = 'CUSTOM_GOLD'
FREE = {'total': 1, 'reserved': 0}


class Ironic(FakeIronic):
    """An Ironic that counts its lists."""

    def __init__(self) -> None:
        super().__init__()
        self.lists: list[str] = []
        self.shows_all = True

    def list_nodes(self, limit: int) -> tuple[Any, ...]:
        """List the nodes of the pool."""
        self.lists += ['pool'] * (len(self.nodes) // limit + 1)
        return tuple(filter(self.is_in_pool, self.nodes.values()))

    def is_in_pool(self, facts: NodeFacts) -> bool:
        """Return whether a node has no conductor group."""
        return not facts.conductor_group

    def read_node(self, node: str) -> NodeFacts:
        """Read a node."""
        self.lists.append('node')
        return super().read_node(node)

    def list_nodes_of_all_pools(self) -> Any:
        """List all nodes."""
        self.lists.append('all')
        return super().list_nodes_of_all_pools()

    def can_list_all_nodes(self) -> bool:
        """Return what the test says."""
        return self.shows_all


class Nova:
    """A Nova in memory, with the methods of ``NovaReader``."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.servers: dict[str, Server] = {}
        self.deletes: set[str] = set()
        self.read_by_uuid: list[str] = []

    def read_rows(self) -> tuple[Row, ...]:
        """Return all rows."""
        return tuple(self.rows.values())

    def read_rows_by_uuid(self, uuids: Iterable[str]) -> tuple[Row, ...]:
        """Return some rows."""
        wanted = set(uuids)
        return tuple(r for r in self.rows.values() if r.uuid in wanted)

    def read_servers(self, hosts: Iterable[Host]) -> dict[str, Server]:
        """Return the servers of some hosts, and those without one."""
        wanted = {None, *hosts}
        return {
            u: s
            for u, s in self.servers.items()
            if s.host in wanted and not s.deleted
        }

    def read_servers_by_uuid(self, uuids: Iterable[str]) -> dict[str, Server]:
        """Return servers, also deleted ones."""
        wanted = sorted(uuids)
        self.read_by_uuid += wanted
        return {u: self.servers[u] for u in wanted if u in self.servers}

    def read_deletes(self, servers: Iterable[Server]) -> dict[str, Server]:
        """Return servers with what is known of their deletes."""
        return {
            s.uuid: dataclasses.replace(
                s, is_delete_unfinished=s.uuid in self.deletes
            )
            for s in servers
        }

    def read_services(self) -> dict[Host, Service]:
        """Return one host."""
        return {C1: Service()}

    def read_mapped(self) -> frozenset[Host]:
        """Return one host."""
        return frozenset({C1})

    def read_aggregates(self) -> None:
        """Have no access."""

    def read_flavors(self) -> None:
        """Have no access."""


class Cloud:
    """A pool of one host; ``on_wait`` is what happens between two looks."""

    def __init__(self, nodes_count: int = 3) -> None:
        self.ironic, self.nova = Ironic(), Nova()
        self.placement = FakePlacement()
        self.notes: list[str] = []
        self.nodes = [NodeId(f'n{number:05}') for number in range(nodes_count)]
        for node in self.nodes:
            self.enroll(node)
        self.on_wait: Callable[[], None] = lambda: None

    def enroll(self, node: NodeId) -> None:
        """Add a node to all three services."""
        self.ironic.add(uuid=node)
        self.nova.rows[node] = Row(node, node, C1)
        self.offer(node)

    def offer(self, node: NodeId) -> None:
        """Create the provider of a free node."""
        generation = self.placement.write(Create(node), 0)
        traits = frozenset({COMPUTE_NODE})
        generation = self.placement.write(PutTraits(node, traits), generation)
        self.placement.write(PutInventories(node, {GOLD: FREE}), generation)
        self.placement.requests.clear()

    def look(self, *, is_deep: bool = False) -> list[tuple[str, str]]:
        """Look twice; return the names of checks, and their nodes."""
        cloud = self

        class Clock(ManualClock):
            """A clock whose sleep lets things happen."""

            def sleep(self, seconds: float) -> None:
                cloud.on_wait()

        nova: Any = self.nova
        placement: Any = self.placement
        looker = Looker(
            self.ironic,
            nova,
            PlacementReader(placement, self.notes.append, is_deep),
            lambda: PoolHosts(frozenset({C1}), frozenset({C1})),
            Clock(),
            self.notes.append,
            is_deep=is_deep,
        )
        found = looker.look_twice(30.0).findings
        return [(f.check.name, str(f.subject.node)) for f in found]


@pytest.fixture
def cloud() -> Cloud:
    """Three free nodes with which all is well."""
    return Cloud()


@pytest.mark.parametrize('is_deep', [False, True])
def test_clean_pool_is_looked_at_once(cloud: Cloud, is_deep: bool) -> None:
    """Nothing is waited for if nothing was found."""
    cloud.on_wait = lambda: pytest.fail('waited')
    assert cloud.look(is_deep=is_deep) == []
    assert cloud.notes == []


def test_large_pool_costs_twenty_requests_at_most() -> None:
    """No request is made for each node."""
    cloud = Cloud(5000)
    assert cloud.look() == []
    assert len(cloud.placement.requests) <= 20
    assert cloud.ironic.lists == ['pool'] * 6
    assert cloud.nova.read_by_uuid == []


def test_what_is_gone_at_the_second_look_is_not_reported(
    cloud: Cloud,
) -> None:
    """A node goes into maintenance, and Placement hears of it later."""
    node = cloud.nodes[0]
    cloud.ironic.change(node, maintenance=True)

    def reserve() -> None:
        generation = cloud.placement.providers[node].generation
        taken = {GOLD: {'total': 1, 'reserved': 1}}
        cloud.placement.write(PutInventories(node, taken), generation)

    assert cloud.look() == [('offered-but-unusable', node)]
    cloud.on_wait = reserve
    assert cloud.look() == []


def test_what_began_after_the_first_look_is_not_reported(
    cloud: Cloud,
) -> None:
    """Only what both looks have found lasts."""
    first, second = cloud.nodes[:2]
    cloud.ironic.change(first, maintenance=True)
    cloud.on_wait = lambda: cloud.ironic.change(second, maintenance=True)
    assert cloud.look() == [('offered-but-unusable', first)]


def test_allocation_behind_a_node_that_is_not_offered_is_named(
    cloud: Cloud,
) -> None:
    """The list shows that something is odd, the details show what."""
    lost, building = cloud.nodes[:2]
    server = clouds.server(
        uuid='s', host=C1, node=building, vm_state='building'
    )
    cloud.nova.servers = {
        's': dataclasses.replace(server, changed_at_s=2e9),
        'd': clouds.server(uuid='d', deleted=True),
    }
    cloud.placement.allocate(lost, 'd', GOLD)
    cloud.placement.allocate(building, 's', GOLD)
    assert cloud.look() == [('allocation-without-server', lost)]


def test_provider_that_vanishes_while_it_is_read_is_left_out(
    cloud: Cloud,
) -> None:
    """The details of the others are read on."""
    gone, reserved = cloud.nodes[:2]
    for node in (gone, reserved):
        generation = cloud.placement.providers[node].generation
        cloud.placement.write(PutInventories(node, {}), generation)

    def vanish(kind: str, uuid: str) -> None:
        if kind == 'usages':
            cloud.placement.providers.pop(gone, None)

    cloud.placement.on_request = vanish
    assert cloud.look() == [('usable-but-not-offered', reserved)]


def test_node_that_is_not_in_the_pool_is_looked_for_in_all_pools(
    cloud: Cloud,
) -> None:
    """It was deleted, or has another conductor group."""
    gone, moved = cloud.nodes[:2]
    del cloud.ironic.nodes[gone]
    cloud.ironic.change(moved, conductor_group='rack')
    assert cloud.look() == [
        ('record-without-node', gone),
        ('node-of-other-pool', moved),
    ]
    cloud.ironic.shows_all = False
    assert cloud.look() == []
    assert 'not show us all nodes' in cloud.notes[0]


@pytest.mark.parametrize('is_gone', [False, True])
def test_task_on_a_node_that_left_the_pool_is_not_judged(
    cloud: Cloud, is_gone: bool
) -> None:
    """Its host keeps the node until the deploy has ended."""
    node = cloud.nodes[0]
    build = clouds.server(
        host=C1, node=node, vm_state='building', task_state='spawning'
    )
    cloud.nova.servers[build.uuid] = build
    cloud.ironic.change(
        node,
        instance_uuid=build.uuid,
        provision_state='deploying',
        reservation='conductor-1',
        conductor_group='other',
    )
    if is_gone:
        del cloud.ironic.nodes[node]
    names = {name for name, _ in cloud.look()}
    assert ('node-of-other-pool' in names) is not is_gone
    assert ('task-without-progress' in names) is is_gone


def test_deep_look_reads_each_provider_and_delete(cloud: Cloud) -> None:
    """These show in no list."""
    node, other = cloud.nodes[:2]
    cloud.ironic.change(node, instance_uuid='s', provision_state='active')
    cloud.ironic.attached[other].append('v1')
    cloud.nova.servers['s'] = clouds.server(uuid='s', host=C1, node=node)
    generation = cloud.placement.providers[node].generation
    taken = {GOLD: {'total': 1, 'reserved': 1}}
    cloud.placement.write(PutInventories(node, taken), generation)
    cloud.nova.deletes.add('s')
    assert cloud.look() == []
    assert set(cloud.look(is_deep=True)) == {
        (catalogue.SERVER_WITHOUT_ALLOCATION.name, node),
        (catalogue.UNFINISHED_DELETE.name, node),
        (catalogue.VIF_LEFT_BEHIND.name, other),
    }


def test_rare_classes_and_traits_are_left_to_a_deep_look() -> None:
    """A list costs a request for each of them; what is left out is said."""
    cloud = Cloud(12)
    for number, node in enumerate(cloud.nodes):
        cloud.ironic.change(node, traits=frozenset({f'CUSTOM_T{number}'}))
    assert len({node for _, node in cloud.look()}) == 7
    assert 'the 5 traits that' in cloud.notes[0]
    assert len(cloud.look(is_deep=True)) == 12
