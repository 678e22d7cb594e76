# SPDX-License-Identifier: Apache-2.0
"""The second look: few requests, and nothing from in between."""

import dataclasses
from collections import Counter
from collections.abc import Callable

import pytest

from ironic_compute.fsck.snapshot import Row
from resource_tracker.delta import PutInventories, PutTraits
from resource_tracker.node import NodeId
from resource_tracker.provider import COMPUTE_NODE
from tests.unit.ironic_compute.fsck import clouds
from tests.unit.ironic_compute.fsck.test_look import C1, FREE, GOLD, Cloud


@pytest.fixture
def cloud() -> Cloud:
    """Some free nodes with which all is well."""
    return Cloud(12)


def _reserve(cloud: Cloud, node: NodeId, reserved: int = 1) -> None:
    generation = cloud.placement.providers[node].generation
    inventory = {GOLD: {**FREE, 'reserved': reserved}}
    cloud.placement.write(PutInventories(node, inventory), generation)


def _touch(cloud: Cloud, node: NodeId) -> None:
    """Raise the generation of a provider without any other change."""
    cloud.placement.providers[node].generation += 1


def _delete_server(cloud: Cloud, uuid: str, changed_at_s: float) -> None:
    cloud.nova.servers[uuid] = clouds.server(
        uuid=uuid, deleted=True, changed_at_s=changed_at_s
    )


def _requests(cloud: Cloud) -> Counter[str]:
    return Counter(cloud.placement.requests)


@pytest.mark.parametrize('count', [10, 300])
def test_findings_of_lists_cost_no_request_each(count: int) -> None:
    """Ten and three hundred cost the same."""
    cloud = Cloud(1500)
    for node in cloud.nodes[:count]:
        cloud.ironic.change(node, maintenance=True)
        cloud.nova.rows[node] = Row(node, node, C1)
    for node in cloud.nodes[-count:]:
        provider = cloud.placement.providers[node]
        write = PutTraits(node, frozenset())
        cloud.placement.write(write, provider.generation)
    cloud.placement.requests.clear()
    assert len(cloud.look()) == 2 * count
    assert _requests(cloud) == {'list': 2, 'offering': 2, 'with trait': 3}
    assert Counter(cloud.ironic.lists) == {'pool': 4}


def test_provider_that_is_not_offered_costs_one_request(cloud: Cloud) -> None:
    """It is read in the second look alone."""
    for node in cloud.nodes[:10]:
        _reserve(cloud, node)
    cloud.placement.requests.clear()
    found = {('usable-but-not-offered', node) for node in cloud.nodes[:10]}
    assert set(cloud.look()) == found
    assert _requests(cloud)['usages'] == 10
    assert len(cloud.placement.requests) == 4 + 10 + 2


def test_allocated_provider_costs_two_requests(cloud: Cloud) -> None:
    """Its usages say that somebody has it, and its allocations who."""
    node = cloud.nodes[0]
    cloud.placement.allocate(node, 'd', GOLD)
    _delete_server(cloud, 'd', 0.0)
    cloud.placement.requests.clear()
    assert cloud.look() == [('allocation-without-server', node)]
    assert _requests(cloud)['usages'] == 1
    assert _requests(cloud)['allocations'] == 1


@pytest.mark.parametrize(
    ('task_state', 'found'),
    [(None, ['allocation-of-shelved-server']), ('unshelving', [])],
)
def test_allocation_of_a_shelved_server_is_found(
    cloud: Cloud, task_state: str | None, found: list[str]
) -> None:
    """The lists show a node that is not offered, the second look why.

    An unshelve has the allocation before the server has a node.
    """
    node = cloud.nodes[0]
    cloud.placement.allocate(node, 's', GOLD)
    cloud.nova.servers['s'] = clouds.server(
        uuid='s',
        host=None,
        node=None,
        vm_state='shelved_offloaded',
        task_state=task_state,
        changed_at_s=0.0,
    )
    assert cloud.look() == [(check, node) for check in found]


def test_few_nodes_are_read_by_themselves(cloud: Cloud) -> None:
    """One node is read anew, and a second one makes it a list."""
    cloud.ironic.change(cloud.nodes[0], maintenance=True)
    cloud.look()
    assert cloud.ironic.lists == ['pool', 'node']
    cloud.ironic.change(cloud.nodes[1], maintenance=True)
    cloud.ironic.lists.clear()
    cloud.look()
    assert cloud.ironic.lists == ['pool', 'pool']


def test_allocation_of_an_earlier_look_is_confirmed_by_the_generation(
    cloud: Cloud,
) -> None:
    """The provider was not written meanwhile, so it was there before."""
    node = cloud.nodes[0]
    cloud.placement.allocate(node, 'unknown', GOLD)
    waits: list[float] = []
    cloud.on_wait = lambda: waits.append(1.0)
    assert cloud.look() == [('allocation-of-unknown-consumer', node)]
    assert len(waits) == 1


def test_provider_that_was_written_meanwhile_is_looked_at_again(
    cloud: Cloud,
) -> None:
    """What lasts until a third look is found."""
    node = cloud.nodes[0]
    cloud.placement.allocate(node, 'unknown', GOLD)
    waits: list[float] = []

    def wait() -> None:
        waits.append(1.0)
        _touch(cloud, node)

    cloud.on_wait = wait
    assert cloud.look() == [('allocation-of-unknown-consumer', node)]
    assert len(waits) == 2


def test_allocation_that_came_between_the_looks_and_goes_is_not_found(
    cloud: Cloud,
) -> None:
    """A build had the node at the first look, another has it at the second."""
    node = cloud.nodes[0]
    cloud.placement.allocate(node, 'first', GOLD)

    def take_over() -> None:
        cloud.placement.deallocate(node, 'first')
        cloud.placement.allocate(node, 'second', GOLD)

    steps: list[Callable[[], None]] = [
        take_over,
        lambda: cloud.placement.deallocate(node, 'second'),
    ]
    cloud.on_wait = lambda: steps.pop(0)()
    assert cloud.look() == []


def test_server_that_was_just_deleted_keeps_its_allocation_for_a_while(
    cloud: Cloud,
) -> None:
    """Nova removes the allocation after the server, and then none is left."""
    node = cloud.nodes[0]
    cloud.placement.allocate(node, 's', GOLD)
    steps: list[Callable[[], None]] = [
        lambda: _delete_server(cloud, 's', 3e9),
        lambda: cloud.placement.deallocate(node, 's'),
    ]
    cloud.on_wait = lambda: steps.pop(0)()
    assert cloud.look() == []
    assert steps == []


def test_allocation_that_a_delete_leaves_behind_is_found(cloud: Cloud) -> None:
    """The server was deleted between two looks, so a third one decides."""
    node = cloud.nodes[0]
    cloud.placement.allocate(node, 's', GOLD)
    cloud.on_wait = lambda: _delete_server(cloud, 's', 3e9)
    assert cloud.look() == [('allocation-without-server', node)]


def test_reservation_that_came_between_the_looks_is_not_reported_at_once(
    cloud: Cloud,
) -> None:
    """A build had the node at the first look; the daemon has reserved it."""
    node = cloud.nodes[0]
    cloud.placement.allocate(node, 's', GOLD)

    def fail_build() -> None:
        cloud.placement.deallocate(node, 's')
        _reserve(cloud, node)

    steps: list[Callable[[], None]] = [
        fail_build,
        lambda: _reserve(cloud, node, reserved=0),
    ]
    cloud.on_wait = lambda: steps.pop(0)()
    assert cloud.look() == []


def test_build_that_takes_a_node_during_the_second_look_is_none(
    cloud: Cloud,
) -> None:
    """The node was free when it was read, and is not when it is listed."""
    node = cloud.nodes[0]
    cloud.placement.allocate(node, 'first', GOLD)
    kinds: list[str] = []

    def take(kind: str, uuid: str) -> None:
        kinds.append(kind)
        if kinds[-2:] == ['usages', 'offering']:
            cloud.placement.allocate(node, 'second', GOLD)

    cloud.placement.on_request = take
    ends = iter(('first', 'second'))
    cloud.on_wait = lambda: cloud.placement.deallocate(node, next(ends))
    assert cloud.look() == []
    assert list(ends) == []


def test_server_that_is_deleted_while_it_is_compared_lacks_nothing(
    cloud: Cloud,
) -> None:
    """It is read after its allocation, which goes last."""
    node = cloud.nodes[0]
    cloud.ironic.change(node, instance_uuid='a', provision_state='active')
    _reserve(cloud, node)
    for uuid in 'ab':
        cloud.nova.servers[uuid] = clouds.server(uuid=uuid, host=C1, node=node)
    cloud.placement.providers[node].allocations['a'] = GOLD

    def delete(kind: str, uuid: str) -> None:
        if kind == 'allocations':
            _delete_server(cloud, 'b', 3e9)

    assert ('server-without-allocation', node) in cloud.look()
    cloud.placement.on_request = delete
    assert cloud.look() == []


def test_wrong_class_that_no_list_shows_is_found(cloud: Cloud) -> None:
    """The provider has a class that no node of the pool has."""
    node = cloud.nodes[0]
    generation = cloud.placement.providers[node].generation
    odd = PutInventories(node, {'CUSTOM_ODD': FREE})
    cloud.placement.write(odd, generation)
    assert cloud.look() == [('wrong-resource-class', node)]


def test_class_that_changes_in_both_services_is_none(cloud: Cloud) -> None:
    """The list of the former class is read again, too."""
    node, other = cloud.nodes[:2]
    cloud.ironic.change(other, resource_class='silver')
    silver = {'CUSTOM_SILVER': FREE}
    provider = cloud.placement.providers[other]
    provider.inventories = dict(silver)
    cloud.ironic.change(node, resource_class='silver')

    def report() -> None:
        generation = cloud.placement.providers[node].generation
        cloud.placement.write(PutInventories(node, silver), generation)

    assert cloud.look() == [('wrong-resource-class', node)]
    cloud.on_wait = report
    assert cloud.look() == []


def test_trait_that_comes_late_is_none(cloud: Cloud) -> None:
    """The list of a trait that a finding names is read again."""
    node = cloud.nodes[0]
    cloud.ironic.change(node, traits=frozenset({'CUSTOM_X'}))
    assert cloud.look() == [('trait-missing', node)]
    traits = frozenset({COMPUTE_NODE, 'CUSTOM_X'})

    def report() -> None:
        generation = cloud.placement.providers[node].generation
        cloud.placement.write(PutTraits(node, traits), generation)

    cloud.on_wait = report
    assert cloud.look() == []


@pytest.mark.parametrize('count', [1, 3])
def test_record_and_provider_that_come_late_are_none(
    cloud: Cloud, count: int
) -> None:
    """A daemon takes nodes while the command waits."""
    nodes = cloud.nodes[:count]
    rows = [cloud.nova.rows.pop(node) for node in nodes]
    for node in nodes:
        del cloud.placement.providers[node]
    assert cloud.look() == [('node-without-record', node) for node in nodes]

    def take() -> None:
        for row in rows:
            cloud.nova.rows[row.node] = row
            cloud.offer(row.node)

    cloud.on_wait = take
    assert cloud.look() == []


@pytest.mark.parametrize('count', [1, 3])
def test_node_that_is_deleted_in_nova_as_well_is_none(
    cloud: Cloud, count: int
) -> None:
    """Its record and its provider go while the command waits."""
    nodes = cloud.nodes[:count]
    for node in nodes:
        del cloud.ironic.nodes[node]
    assert cloud.look() == [('record-without-node', node) for node in nodes]

    def remove() -> None:
        for node in nodes:
            del cloud.nova.rows[node]
            del cloud.placement.providers[node]

    cloud.on_wait = remove
    assert cloud.look() == []


@pytest.mark.parametrize('count', [1, 3])
def test_node_that_is_enrolled_again_is_none(cloud: Cloud, count: int) -> None:
    """The nodes that were missing are read again."""
    nodes = cloud.nodes[:count]
    gone = {str(node): cloud.ironic.nodes.pop(node) for node in nodes}
    cloud.on_wait = lambda: cloud.ironic.nodes.update(gone)
    assert cloud.look() == []


def test_orphan_that_is_deleted_meanwhile_is_none(cloud: Cloud) -> None:
    """The list of all providers is read again."""
    ghost = NodeId('ghost')
    cloud.offer(ghost)
    assert cloud.look() == [('provider-without-node', ghost)]
    cloud.on_wait = lambda: cloud.placement.delete_provider(ghost)
    assert cloud.look() == []


def test_server_that_goes_on_is_none(cloud: Cloud) -> None:
    """The servers that findings name are read again."""
    node = cloud.nodes[0]
    cloud.ironic.change(node, instance_uuid='s', provision_state='active')
    _reserve(cloud, node)
    cloud.placement.providers[node].allocations['s'] = GOLD
    stuck = clouds.server(
        uuid='s', host=C1, node=node, task_state='powering-off'
    )
    cloud.nova.servers['s'] = stuck
    assert cloud.look() == [('task-without-progress', node)]
    rested = dataclasses.replace(stuck, task_state=None)
    cloud.on_wait = lambda: cloud.nova.servers.update(s=rested)
    assert cloud.look() == []


def test_server_costs_one_request_to_placement(cloud: Cloud) -> None:
    """It should have an allocation, so this is what is read."""
    node = cloud.nodes[0]
    cloud.ironic.change(node, instance_uuid='s', provision_state='active')
    _reserve(cloud, node)
    cloud.placement.providers[node].allocations['s'] = GOLD
    _delete_server(cloud, 's', 0.0)
    cloud.placement.requests.clear()
    assert cloud.look() == [
        ('allocation-without-server', node),
        ('deleted-server-on-node', node),
    ]
    assert _requests(cloud)['allocations'] == 1
    assert _requests(cloud)['usages'] == 0


def test_build_that_gets_a_host_is_none(cloud: Cloud) -> None:
    """A server that is on no node is read again, too."""
    build = clouds.server(
        uuid='b',
        host=None,
        node=None,
        vm_state='building',
        requests_node=True,
    )
    cloud.nova.servers['b'] = build
    assert cloud.look() == [('lost-build', 'None')]
    ended = dataclasses.replace(build, vm_state='error')
    cloud.on_wait = lambda: cloud.nova.servers.update(b=ended)
    assert cloud.look() == []


def test_orphan_that_is_no_node_any_more_is_none(cloud: Cloud) -> None:
    """The list by which a provider looks like that of a node is read again."""
    ghost = NodeId('ghost')
    cloud.offer(ghost)

    def strip() -> None:
        generation = cloud.placement.providers[ghost].generation
        cloud.placement.write(PutTraits(ghost, frozenset()), generation)

    cloud.on_wait = strip
    assert cloud.look() == []


def test_user_of_ironic_beside_nova_is_none(cloud: Cloud) -> None:
    """Its allocation is read, and explains what has the node."""
    node = cloud.nodes[0]
    cloud.ironic.change(node, instance_uuid='m', provision_state='active')
    _reserve(cloud, node)
    assert cloud.look() == [('unknown-server-on-node', node)]
    cloud.placement.providers[node].allocations['m'] = GOLD
    assert cloud.look() == []


def test_many_users_of_ironic_beside_nova_are_none() -> None:
    """The allocation of each is read: it decides whether it is a user."""
    cloud = Cloud(300)
    for number, node in enumerate(cloud.nodes[:201]):
        user = f'm{number}'
        cloud.ironic.change(node, instance_uuid=user, provision_state='active')
        cloud.placement.allocate(node, user, GOLD)
    assert cloud.look() == []


def test_many_builds_that_wait_are_none() -> None:
    """The allocation of each is read, also if Ironic does not show it yet.

    With Nova's max_concurrent_builds in nova.conf, most of them wait.
    """
    cloud = Cloud(300)
    for number, node in enumerate(cloud.nodes[:201]):
        server = f's{number}'
        cloud.placement.allocate(node, server, GOLD)
        cloud.nova.servers[server] = clouds.server(
            uuid=server,
            host=C1,
            node=node,
            vm_state='building',
            task_state='spawning',
            changed_at_s=3e9,
        )
    assert cloud.look() == []
