# SPDX-License-Identifier: Apache-2.0
"""Reports of nodes to Placement, real and fake; old bugs by number."""

import dataclasses
import uuid

import pytest

from resource_tracker.delta import Create, PutInventories
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.provider import (
    Aggregates,
    Inventory,
    Situation,
    wanted_provider,
)
from resource_tracker.provider_state import ProviderState
from resource_tracker.provider_sync import ProviderSync
from tests.fakes.clock import ManualClock
from tests.fakes.placement import FakePlacement

GOLD, SILVER = 'CUSTOM_GOLD', 'CUSTOM_SILVER'
DISABLED = 'COMPUTE_STATUS_DISABLED'
SCHEDULER_ASKS = f'COMPUTE_NODE,OWNER_NOVA,!{DISABLED}'


def free_node():
    """Return a node that can take a build."""
    return NodeFacts(
        uuid=NodeId(str(uuid.uuid4())),
        resource_class='gold',
        provision_state='available',
        power_state='power on',
        traits=frozenset({'CUSTOM_GPU'}),
    )


class Daemon:
    """A worker without a disk cache; a new one has no memory."""

    def __init__(self, placement):
        self._placement = placement
        self._provider_sync = ProviderSync(placement, ManualClock())
        self._states = {}

    def report(self, facts, **situation):
        """Report a node; return the outcome."""
        state = self._states.setdefault(facts.uuid, ProviderState())
        return self._provider_sync.sync(
            wanted_provider(facts, Situation(**situation)),
            state,
            lambda: None,
        )

    def apply_claim(self, facts, generation):
        """Apply the claim of a build, as the reconciler does."""
        self._states[facts.uuid].apply_allocation(generation)


@pytest.fixture
def daemon(placement):
    """Return a worker that has reported nothing."""
    return Daemon(placement)


def changed(facts, **fields):
    """Return a node with other values in these fields."""
    return dataclasses.replace(facts, **fields)


def sent(placement, *words):
    """Return the requests that contain one of these words."""
    return [r for r in placement.requests if any(w in r for w in words)]


def test_bug_1796920_only_the_custom_class_is_reported(placement, daemon):
    """A node has only its resource class, so flavors of VMs do not fit."""
    facts = changed(
        free_node(), properties={'cpus': 64, 'memory_mb': 1, 'local_gb': 1}
    )
    daemon.report(facts)
    assert set(placement.read_provider(facts.uuid).inventories) == {GOLD}


def test_bug_1796920_classes_of_a_former_driver_go(placement):
    """Classes that an old Nova reported are removed."""
    facts = free_node()
    virtual = {'VCPU': Inventory('VCPU', reserved=False).body()}
    generation = placement.write(Create(facts.uuid), 0)
    placement.write(PutInventories(facts.uuid, virtual), generation)
    Daemon(placement).report(facts)
    assert set(placement.read_provider(facts.uuid).inventories) == {GOLD}


def test_bug_1796920_but_not_while_they_are_allocated(placement):
    """Classes that an old Nova reported stay while they are allocated."""
    facts, consumer = free_node(), str(uuid.uuid4())
    virtual = {'VCPU': Inventory('VCPU', reserved=False).body()}
    generation = placement.write(Create(facts.uuid), 0)
    placement.write(PutInventories(facts.uuid, virtual), generation)
    placement.allocate(facts.uuid, consumer, 'VCPU')
    assert Daemon(placement).report(facts).kept == {'VCPU'}
    assert set(placement.read_provider(facts.uuid).inventories) == {'VCPU'}


def test_bug_1974070_node_in_use_or_cleaning_is_reserved(placement, daemon):
    """A node is reserved from its deploy until it is cleaned."""
    facts = free_node()
    daemon.report(facts)
    placement.allocate(facts.uuid, str(uuid.uuid4()), GOLD)
    in_use = changed(facts, instance_uuid='i', provision_state='active')
    assert daemon.report(in_use).writes_count == 1
    cleaning = changed(facts, provision_state='cleaning')
    assert daemon.report(cleaning).writes_count == 0
    reserved = placement.read_provider(facts.uuid).inventories[GOLD][
        'reserved'
    ]
    assert reserved == 1


def test_bug_1771577_cleaned_node_is_free_again(placement, daemon):
    """A node costs one write when it is reserved, and one when it is freed."""
    facts = free_node()
    daemon.report(changed(facts, provision_state='cleaning'))
    assert daemon.report(facts).writes_count == 1
    assert (
        placement.read_provider(facts.uuid).inventories[GOLD]['reserved'] == 0
    )


def test_bug_1751472_1710141_inventory_in_use_survives_anything(
    placement, daemon
):
    """A new class, or none, does not remove an allocated class."""
    facts, consumer = free_node(), str(uuid.uuid4())
    daemon.report(facts)
    placement.allocate(facts.uuid, consumer, GOLD)
    silver = changed(facts, resource_class='silver', instance_uuid='i')
    for odd in (silver, changed(silver, resource_class=None)):
        assert daemon.report(odd).kept == {GOLD}
        held = placement.read_provider(facts.uuid).inventories
        assert {k: v['reserved'] for k, v in held.items()} == {GOLD: 1}
    placement.deallocate(facts.uuid, consumer)
    assert not daemon.report(changed(silver, instance_uuid=None)).kept
    held = placement.read_provider(facts.uuid).inventories
    assert {k: v['reserved'] for k, v in held.items()} == {SILVER: 0}


def test_bug_1751472_nothing_is_tried_that_would_drop_it(placement, daemon):
    """No write is sent that would remove an allocated class."""
    facts = free_node()
    daemon.report(facts)
    placement.allocate(facts.uuid, str(uuid.uuid4()), GOLD)
    reserved = changed(facts, instance_uuid='i')
    daemon.report(reserved)
    placement.requests.clear()
    daemon.report(changed(reserved, resource_class='silver'))
    assert not sent(placement, 'Put', 'PUT')


def test_bug_1714248_take_over_makes_and_deletes_nothing(placement, daemon):
    """A node that changes its host keeps its provider and allocation."""
    nodes = [free_node() for _ in range(5)]
    for facts in nodes:
        daemon.report(facts)
        placement.allocate(facts.uuid, facts.uuid, GOLD)
    placement.requests.clear()
    taker = Daemon(placement)
    for facts in nodes:
        taker.report(changed(facts, instance_uuid=facts.uuid))
    assert not sent(placement, 'POST', 'DELETE', 'Create', 'delete')
    for facts in nodes:
        assert placement.read_consumers(facts.uuid) == {facts.uuid}


def test_bug_1714248_provider_of_another_uuid_is_taken_over(placement):
    """A provider with the node's name and another uuid is used."""
    facts, old_uuid = free_node(), str(uuid.uuid4())
    placement.make_provider(old_uuid, facts.uuid)
    placement.requests.clear()
    Daemon(placement).report(facts)
    assert not sent(placement, 'POST', 'DELETE', 'Create', 'delete')
    assert set(placement.read_provider(old_uuid).inventories) == {GOLD}
    assert placement.read_provider(facts.uuid) is None


def test_bug_1714248_provider_of_another_name_is_taken_over(placement):
    """A provider with the node's uuid is used, and keeps its name."""
    facts = free_node()
    placement.make_provider(facts.uuid, 'rack-7-node-3')
    Daemon(placement).report(facts)
    assert set(placement.read_provider(facts.uuid).inventories) == {GOLD}


def test_provider_made_meanwhile_is_taken_over(placement, daemon):
    """A provider that another host has just created is used."""
    seen = free_node()
    daemon.report(seen)  # From here on the worker has the list of providers.
    facts = free_node()
    Daemon(placement).report(facts)
    daemon.report(changed(facts, maintenance=True))
    assert (
        placement.read_provider(facts.uuid).inventories[GOLD]['reserved'] == 1
    )


def test_provider_deleted_by_an_operator_comes_back(placement, daemon):
    """A provider that an operator deleted is created again."""
    facts = free_node()
    daemon.report(facts)
    placement.delete_provider(facts.uuid)
    daemon.report(changed(facts, maintenance=True))
    assert set(placement.read_provider(facts.uuid).inventories) == {GOLD}


def test_t1_scheduler_of_nova_34_finds_the_node(real):
    """The scheduler of Nova 34 finds the node by its OWNER_NOVA trait."""
    facts, daemon = free_node(), Daemon(real)
    daemon.report(facts)
    assert real.candidates(GOLD, SCHEDULER_ASKS) == {facts.uuid}
    daemon.report(changed(facts, maintenance=True))
    assert real.candidates(GOLD, SCHEDULER_ASKS) == set()


def test_t1_owner_nova_is_left_out_for_an_older_placement():
    """OWNER_NOVA is left out where an older Placement does not have it."""
    placement = FakePlacement()
    placement.standard_traits -= {'OWNER_NOVA'}
    facts, daemon = free_node(), Daemon(placement)
    daemon.report(facts)
    assert 'COMPUTE_NODE' in placement.read_provider(facts.uuid).traits
    assert Daemon(placement).report(facts).writes_count == 0


def test_t6_first_report_of_a_taker_shows_its_own_host(placement, daemon):
    """A new host removes the trait of a disabled host from its nodes."""
    facts = free_node()
    daemon.report(facts, disabled=True)
    assert DISABLED in placement.read_provider(facts.uuid).traits
    Daemon(placement).report(facts, disabled=False)
    assert DISABLED not in placement.read_provider(facts.uuid).traits


def test_bug_1784705_nodes_do_not_leak_into_each_other(placement, daemon):
    """The report of one node does not change another node."""
    one, other = free_node(), free_node()
    for facts in (one, other):
        daemon.report(facts)
    before = placement.read_provider(other.uuid)
    daemon.report(
        changed(
            one,
            instance_uuid='i',
            resource_class='silver',
            traits=frozenset({'CUSTOM_ODD'}),
        )
    )
    assert placement.read_provider(other.uuid) == before
    placement.requests.clear()
    assert daemon.report(other).writes_count == 0
    assert not placement.requests


def test_trait_of_somebody_else_stays(placement, daemon):
    """Traits of other clients stay, before and after a restart."""
    facts = free_node()
    daemon.report(facts)
    placement.add_trait(facts.uuid, 'CUSTOM_RACK_7')
    bare = changed(facts, traits=frozenset())
    daemon.report(bare, disabled=True)
    traits = placement.read_provider(facts.uuid).traits
    assert traits == {'COMPUTE_NODE', 'OWNER_NOVA', DISABLED, 'CUSTOM_RACK_7'}
    Daemon(placement).report(bare)
    assert 'CUSTOM_RACK_7' in placement.read_provider(facts.uuid).traits


def test_without_a_memory_no_custom_trait_is_removed(placement, daemon):
    """Without a disk cache all custom traits count as foreign."""
    facts = free_node()
    daemon.report(facts)
    Daemon(placement).report(changed(facts, traits=frozenset()))
    assert 'CUSTOM_GPU' in placement.read_provider(facts.uuid).traits


def test_aggregates_of_the_host_come_and_go(placement, daemon):
    """The aggregates of the host are set and removed; others stay."""
    facts = free_node()
    ours, foreign = str(uuid.uuid4()), str(uuid.uuid4())
    managed = frozenset({ours})
    member = Aggregates(member=managed, managed=managed)
    daemon.report(facts)
    placement.add_aggregate(facts.uuid, foreign)
    daemon.report(facts, aggregates=member)
    assert placement.read_aggregates(facts.uuid)[0] == {ours, foreign}
    assert daemon.report(facts, aggregates=member).writes_count == 0
    daemon.report(facts, aggregates=Aggregates(managed=managed))
    assert placement.read_aggregates(facts.uuid)[0] == {foreign}


def test_aggregates_are_left_to_others_unless_given(placement, daemon):
    """Without known host aggregates no aggregate is removed."""
    facts, aggregate = free_node(), str(uuid.uuid4())
    daemon.report(facts)
    placement.add_aggregate(facts.uuid, aggregate)
    placement.requests.clear()
    daemon.report(facts, disabled=True)
    assert not sent(placement, 'ggregates')
    assert placement.read_aggregates(facts.uuid)[0] == {aggregate}


def test_new_node_costs_three_requests(real):
    """A new node costs three requests, if names and list are known."""
    daemon = Daemon(real)
    daemon.report(free_node())
    real.requests.clear()
    daemon.report(free_node())
    assert [r.split()[0] for r in real.requests] == ['POST', 'PUT', 'PUT']
    assert real.requests[-1].endswith('inventories')


@pytest.mark.parametrize(
    ('generation_of', 'requests'),
    [
        (None, ['PUT inv', 'GET inv', 'GET tra', 'GET agg', 'PUT inv']),
        (
            lambda seen: None,
            ['GET inv', 'GET tra', 'GET agg', 'PUT inv'],
        ),
        (lambda seen: seen, ['PUT inv']),
    ],
    ids=['by a conflict', 'by a claim', 'by a claim with its generation'],
)
def test_first_change_after_a_build(real, generation_of, requests):
    """A claim of a build prevents the conflict of the next write."""
    facts, managed = free_node(), frozenset({str(uuid.uuid4())})
    aggregates = Aggregates(member=managed, managed=managed)
    daemon = Daemon(real)
    daemon.report(facts, aggregates=aggregates)
    consumer = str(uuid.uuid4())
    real.allocate(facts.uuid, consumer, GOLD)
    seen = real.read_allocations(consumer)[facts.uuid]['generation']
    real.requests.clear()
    if generation_of is not None:
        daemon.apply_claim(facts, generation_of(seen))
    taken = changed(facts, instance_uuid='i', provision_state='deploying')
    daemon.report(taken, aggregates=aggregates)
    assert [_short(r) for r in real.requests] == requests


def _short(request):
    method, url = request.split()
    return f'{method} {url.rpartition("/")[2][:3]}'
