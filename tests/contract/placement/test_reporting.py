# SPDX-License-Identifier: Apache-2.0
"""Nodes reported to Placement, ours and the real one: old bugs by number."""

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
    """A node that can take a build."""
    return NodeFacts(
        uuid=NodeId(str(uuid.uuid4())),
        resource_class='gold',
        provision_state='available',
        power_state='power on',
        traits=frozenset({'CUSTOM_GPU'}),
    )


class Daemon:
    """One life of a daemon: it forgets all when the next one starts."""

    def __init__(self, placement):
        self._placement = placement
        self._provider_sync = ProviderSync(placement, ManualClock())
        self._states = {}

    def report(self, facts, **situation):
        """Report a node; return what became of it."""
        state = self._states.setdefault(facts.uuid, ProviderState())
        return self._provider_sync.sync(
            wanted_provider(facts, Situation(**situation)),
            state,
            lambda: None,
        )

    def apply_claim(self, facts, generation):
        """Take note, as the reconciler does, that a build has a node."""
        self._states[facts.uuid].apply_allocation(generation)


@pytest.fixture
def daemon(placement):
    """The first daemon."""
    return Daemon(placement)


def changed(facts, **fields):
    """The same node, but for these fields."""
    return dataclasses.replace(facts, **fields)


def sent(placement, *words):
    """The requests sent that have one of these words in them."""
    return [r for r in placement.requests if any(w in r for w in words)]


def test_bug_1796920_only_the_custom_class_is_reported(placement, daemon):
    """A flavor of a virtual machine must not fit a bare metal node."""
    facts = changed(
        free_node(), properties={'cpus': 64, 'memory_mb': 1, 'local_gb': 1}
    )
    daemon.report(facts)
    assert set(placement.read_provider(facts.uuid).inventories) == {GOLD}


def test_bug_1796920_classes_of_a_former_driver_go(placement):
    """What an old Nova reported of a node is taken away."""
    facts = free_node()
    virtual = {'VCPU': Inventory('VCPU', reserved=False).body()}
    generation = placement.write(Create(facts.uuid), 0)
    placement.write(PutInventories(facts.uuid, virtual), generation)
    Daemon(placement).report(facts)
    assert set(placement.read_provider(facts.uuid).inventories) == {GOLD}


def test_bug_1796920_but_not_while_they_are_allocated(placement):
    """A server from before custom classes keeps what it was given."""
    facts, consumer = free_node(), str(uuid.uuid4())
    virtual = {'VCPU': Inventory('VCPU', reserved=False).body()}
    generation = placement.write(Create(facts.uuid), 0)
    placement.write(PutInventories(facts.uuid, virtual), generation)
    placement.allocate(facts.uuid, consumer, 'VCPU')
    assert Daemon(placement).report(facts).kept == {'VCPU'}
    assert set(placement.read_provider(facts.uuid).inventories) == {'VCPU'}


def test_bug_1974070_node_in_use_or_cleaning_is_reserved(placement, daemon):
    """Between the end of an allocation and ``available`` nothing is free."""
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
    """One write when the node can take a build, one when it cannot."""
    facts = free_node()
    daemon.report(changed(facts, provision_state='cleaning'))
    assert daemon.report(facts).writes_count == 1
    assert (
        placement.read_provider(facts.uuid).inventories[GOLD]['reserved'] == 0
    )


def test_bug_1751472_1710141_inventory_in_use_survives_anything(
    placement, daemon
):
    """Neither another class nor none drops a class that is allocated."""
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
    """What is in use is asked first: no PUT is left to chance."""
    facts = free_node()
    daemon.report(facts)
    placement.allocate(facts.uuid, str(uuid.uuid4()), GOLD)
    reserved = changed(facts, instance_uuid='i')
    daemon.report(reserved)
    placement.requests.clear()
    daemon.report(changed(reserved, resource_class='silver'))
    assert not sent(placement, 'Put', 'PUT')


def test_bug_1714248_take_over_makes_and_deletes_nothing(placement, daemon):
    """Nodes that change hands keep provider and allocation."""
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
    """A provider made before Nova gave node and provider one uuid."""
    facts, old_uuid = free_node(), str(uuid.uuid4())
    placement.make_provider(old_uuid, facts.uuid)
    placement.requests.clear()
    Daemon(placement).report(facts)
    assert not sent(placement, 'POST', 'DELETE', 'Create', 'delete')
    assert set(placement.read_provider(old_uuid).inventories) == {GOLD}
    assert placement.read_provider(facts.uuid) is None


def test_bug_1714248_provider_of_another_name_is_taken_over(placement):
    """The uuid is what counts; the name stays as somebody chose it."""
    facts = free_node()
    placement.make_provider(facts.uuid, 'rack-7-node-3')
    Daemon(placement).report(facts)
    assert set(placement.read_provider(facts.uuid).inventories) == {GOLD}


def test_provider_made_meanwhile_is_taken_over(placement, daemon):
    """Two holders of one moment: the second finds what the first made."""
    seen = free_node()
    daemon.report(seen)  # From here on the daemon knows what there is.
    facts = free_node()
    Daemon(placement).report(facts)
    daemon.report(changed(facts, maintenance=True))
    assert (
        placement.read_provider(facts.uuid).inventories[GOLD]['reserved'] == 1
    )


def test_provider_deleted_behind_our_back_comes_back(placement, daemon):
    """An operator who deletes the wrong provider has it again."""
    facts = free_node()
    daemon.report(facts)
    placement.delete_provider(facts.uuid)
    daemon.report(changed(facts, maintenance=True))
    assert set(placement.read_provider(facts.uuid).inventories) == {GOLD}


def test_t1_scheduler_of_nova_34_finds_the_node(real):
    """Without OWNER_NOVA its pre-filter finds no candidate at all."""
    facts, daemon = free_node(), Daemon(real)
    daemon.report(facts)
    assert real.candidates(GOLD, SCHEDULER_ASKS) == {facts.uuid}
    daemon.report(changed(facts, maintenance=True))
    assert real.candidates(GOLD, SCHEDULER_ASKS) == set()


def test_t1_older_placement_is_not_told_of_owner_nova():
    """A name it does not know must not fail the write of all others."""
    placement = FakePlacement()
    placement.standard_traits -= {'OWNER_NOVA'}
    facts, daemon = free_node(), Daemon(placement)
    daemon.report(facts)
    assert 'COMPUTE_NODE' in placement.read_provider(facts.uuid).traits
    assert Daemon(placement).report(facts).writes_count == 0


def test_t6_first_report_of_a_taker_shows_its_own_host(placement, daemon):
    """The trait of a disabled host does not travel with its nodes."""
    facts = free_node()
    daemon.report(facts, disabled=True)
    assert DISABLED in placement.read_provider(facts.uuid).traits
    Daemon(placement).report(facts, disabled=False)
    assert DISABLED not in placement.read_provider(facts.uuid).traits


def test_bug_1784705_nodes_do_not_leak_into_each_other(placement, daemon):
    """What is said of one node changes nothing of another."""
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
    """What others set is theirs, in each life of ours."""
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
    """A trait that went while nobody looked cannot be told from others'."""
    facts = free_node()
    daemon.report(facts)
    Daemon(placement).report(changed(facts, traits=frozenset()))
    assert 'CUSTOM_GPU' in placement.read_provider(facts.uuid).traits


def test_aggregates_of_the_host_come_and_go(placement, daemon):
    """Those that we answer for follow the host; others' are left alone."""
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
    """A daemon that cannot read Nova's aggregates removes none."""
    facts, aggregate = free_node(), str(uuid.uuid4())
    daemon.report(facts)
    placement.add_aggregate(facts.uuid, aggregate)
    placement.requests.clear()
    daemon.report(facts, disabled=True)
    assert not sent(placement, 'ggregates')
    assert placement.read_aggregates(facts.uuid)[0] == {aggregate}


def test_new_node_costs_three_requests(real):
    """POST, traits, inventory; names and the list of all are known."""
    daemon = Daemon(real)
    daemon.report(free_node())
    real.requests.clear()
    daemon.report(free_node())
    assert [r.split()[0] for r in real.requests] == ['POST', 'PUT', 'PUT']
    assert real.requests[-1].endswith(
        'inventories'
    )  # Described, then offered.


@pytest.mark.parametrize(
    ('tell', 'requests'),
    [
        (None, ['PUT inv', 'GET inv', 'GET tra', 'GET agg', 'PUT inv']),
        (
            lambda seen: None,
            ['GET inv', 'GET tra', 'GET agg', 'PUT inv'],
        ),
        (lambda seen: seen, ['PUT inv']),
    ],
    ids=['by a conflict', 'by a claim', 'by what Nova saw'],
)
def test_first_change_after_a_build(real, tell, requests):
    """Its allocation raised the generation; a claim saves the conflict."""
    facts, managed = free_node(), frozenset({str(uuid.uuid4())})
    aggregates = Aggregates(member=managed, managed=managed)
    daemon = Daemon(real)
    daemon.report(facts, aggregates=aggregates)
    consumer = str(uuid.uuid4())
    real.allocate(facts.uuid, consumer, GOLD)
    seen = real.read_allocations(consumer)[facts.uuid]['generation']
    real.requests.clear()
    if tell is not None:
        daemon.apply_claim(facts, tell(seen))
    taken = changed(facts, instance_uuid='i', provision_state='deploying')
    daemon.report(taken, aggregates=aggregates)
    assert [_short(r) for r in real.requests] == requests


def _short(request):
    method, url = request.split()
    return f'{method} {url.rpartition("/")[2][:3]}'
