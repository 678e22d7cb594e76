# SPDX-License-Identifier: Apache-2.0
"""The writes that turn a known provider into the wanted one."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resource_tracker.delta import (
    Create,
    KnownProvider,
    PutAggregates,
    PutInventories,
    PutTraits,
    after_write,
    new_provider,
    plan_writes,
)
from resource_tracker.provider import (
    COMPUTE_STATUS_DISABLED,
    Aggregates,
    Inventory,
    WantedProvider,
    withdrawn_provider,
)
from tests.unit.resource_tracker.nodes import NODE

A, B = 'CUSTOM_A', 'CUSTOM_B'
OURS = frozenset({'CUSTOM_OURS'})


def _wanted(name=A, *, reserved=False, traits=OURS, aggregates=None):
    inventory = name and Inventory(name, reserved)
    return WantedProvider(NODE, inventory, frozenset(traits), aggregates)


def _known(name=A, **fields):
    inventories = {name: Inventory(name, reserved=False).body()}
    return KnownProvider(
        NODE, 7, **{'inventories': inventories, 'traits': OURS, **fields}
    )


def _kinds(writes):
    return [type(write) for write in writes]


def test_equal_is_no_write():
    """A provider that is as wanted needs no write."""
    assert plan_writes(_known(), _wanted()) == ()


def test_fields_that_placement_adds_are_no_difference():
    """Fields that a newer Placement adds to an inventory are ignored."""
    body = {**Inventory(A, reserved=False).body(), 'new': 1}
    assert plan_writes(_known(inventories={A: body}), _wanted()) == ()


def test_new_node_is_described_before_it_is_offered():
    """A new provider gets its traits and aggregates before its inventory.

    Otherwise the scheduler could choose a node by incomplete traits.
    """
    aggregates = Aggregates(member=frozenset({'g'}))
    writes = plan_writes(None, _wanted(aggregates=aggregates))
    assert _kinds(writes) == [Create, PutTraits, PutAggregates, PutInventories]


def test_withdrawn_node_is_reserved_before_it_is_described():
    """A node that cannot take a build is reserved before other writes."""
    writes = plan_writes(
        _known(), _wanted(reserved=True, traits={'CUSTOM_NEW'})
    )
    assert _kinds(writes) == [PutInventories, PutTraits]


def test_all_inventories_of_a_deleted_node_are_reserved():
    """All inventories of a deleted node are reserved; the rest stays.

    A deleted node without a provider gets none.
    """
    known = _known(in_use=frozenset({A}), traits={'CUSTOM_FOREIGN'})
    (write,) = plan_writes(known, withdrawn_provider(NODE), our_traits=OURS)
    assert write == PutInventories(
        NODE, {A: Inventory(A, reserved=True).body()}
    )
    assert (
        plan_writes(after_write(known, write, 8), withdrawn_provider(NODE))
        == ()
    )
    assert plan_writes(None, withdrawn_provider(NODE)) == ()


def test_only_differences_are_written():
    """One difference causes one write."""
    assert _kinds(plan_writes(_known(), _wanted(traits={'CUSTOM_NEW'}))) == [
        PutTraits
    ]
    assert _kinds(plan_writes(_known(), _wanted(reserved=True))) == [
        PutInventories
    ]


def test_foreign_trait_stays_and_ours_goes():
    """Unwanted traits that we set are removed; traits of others stay."""
    known = _known(traits=OURS | {'CUSTOM_FOREIGN'})
    (write,) = plan_writes(
        known, _wanted(traits={'CUSTOM_NEW'}), our_traits=OURS
    )
    assert write.traits == {'CUSTOM_NEW', 'CUSTOM_FOREIGN'}


@pytest.mark.parametrize(
    'trait', [COMPUTE_STATUS_DISABLED, 'COMPUTE_IMAGE_TYPE_QCOW2']
)
def test_t6_trait_of_computes_is_removed_even_if_its_setter_is_unknown(trait):
    """A node would stay disabled, or offered for an excluded image type.

    Only compute services set these traits.
    """
    known = _known(traits=OURS | {trait})
    (write,) = plan_writes(known, _wanted())
    assert write.traits == OURS


def test_writes_go_to_the_provider_that_is_known():
    """A provider whose uuid is not the node's keeps its uuid."""
    known = dataclasses.replace(_known(), uuid='old', aggregates=frozenset())
    wanted = _wanted(
        B,
        traits={'CUSTOM_NEW'},
        aggregates=Aggregates(member=frozenset({'g'})),
    )
    assert {write.uuid for write in plan_writes(known, wanted)} == {'old'}


@pytest.mark.parametrize('name', [B, None])
def test_class_in_use_is_kept_and_reserved(name):
    """Bug 1751472: while a class is allocated, no new class is offered."""
    known = _known(in_use=frozenset({A}))
    (write,) = plan_writes(known, _wanted(name))
    assert {k: v['reserved'] for k, v in write.inventories.items()} == {A: 1}


def test_all_of_a_large_inventory_is_reserved():
    """An inventory of an old driver with 64 units is reserved as a whole."""
    body = {**Inventory('VCPU', reserved=False).body(), 'total': 64}
    known = _known(inventories={'VCPU': body}, in_use=frozenset({'VCPU'}))
    (write,) = plan_writes(known, _wanted())
    assert write.inventories['VCPU']['reserved'] == 64


def test_two_classes_in_use_both_stay():
    """Two classes that are allocated are both kept and reserved."""
    both = {n: Inventory(n, reserved=False).body() for n in (A, B)}
    known = _known(inventories=both, in_use=frozenset({A, B}))
    (write,) = plan_writes(known, _wanted(B, reserved=True))
    assert {k: v['reserved'] for k, v in write.inventories.items()} == {
        A: 1,
        B: 1,
    }


def test_aggregates_of_others_stay():
    """Aggregates of the host are set and removed; those of others stay."""
    known = _known(aggregates=frozenset({'left', 'foreign'}))
    aggregates = Aggregates(
        member=frozenset({'joined'}), managed=frozenset({'joined', 'left'})
    )
    wanted = _wanted(aggregates=aggregates)
    (write,) = plan_writes(known, wanted)
    assert write.aggregates == {'joined', 'foreign'}
    assert plan_writes(after_write(known, write, 8), wanted) == ()


_NAMES = st.sampled_from([A, B, 'VCPU'])
_TRAITS = st.frozensets(
    st.sampled_from([COMPUTE_STATUS_DISABLED, 'CUSTOM_1', 'CUSTOM_2'])
)
_WANTED = st.builds(
    _wanted,
    st.one_of(st.none(), _NAMES),
    reserved=st.booleans(),
    traits=_TRAITS,
    aggregates=st.one_of(
        st.none(),
        st.builds(
            Aggregates,
            member=st.frozensets(st.sampled_from('gh')),
            managed=st.frozensets(st.sampled_from('ghi')),
        ),
    ),
)
_BODIES = st.builds(lambda r: Inventory(A, r).body(), st.booleans())
_KNOWN = st.one_of(
    st.none(),
    st.builds(
        lambda inventories, used, **rest: KnownProvider(
            NODE,
            7,
            inventories=inventories,
            in_use=frozenset(used & inventories.keys()),
            **rest,
        ),
        st.dictionaries(_NAMES, _BODIES),
        st.frozensets(_NAMES),
        traits=_TRAITS,
        aggregates=st.frozensets(st.sampled_from('ghij')),
    ),
)


@settings(deadline=None)
@given(_KNOWN, _WANTED, _TRAITS)
def test_any_plan_ends_where_nothing_is_left_to_do(known, wanted, our_traits):
    """After one pass nothing is left to write, for any two states.

    Allocated classes and traits of others are kept.
    """
    now = known or new_provider(NODE)
    for write in plan_writes(known, wanted, our_traits):
        now = after_write(now, write, now.generation + 1)
    assert plan_writes(now, wanted, our_traits | wanted.traits) == ()
    assert wanted.traits <= now.traits
    assert set(now.inventories) >= (now.in_use or set())
    if known is not None:
        foreign = known.traits - our_traits - {COMPUTE_STATUS_DISABLED}
        assert foreign <= now.traits


@settings(deadline=None)
@given(_KNOWN, _WANTED, _TRAITS)
def test_no_step_of_a_plan_offers_a_machine_twice(known, wanted, our_traits):
    """After each write at most one inventory is not reserved."""
    now = known or new_provider(NODE)
    for write in plan_writes(known, wanted, our_traits):
        now = after_write(now, write, now.generation + 1)
        if isinstance(write, PutInventories):
            free = [r for r in now.inventories.values() if not r['reserved']]
            assert len(free) <= 1
