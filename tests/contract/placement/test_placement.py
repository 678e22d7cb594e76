# SPDX-License-Identifier: Apache-2.0
"""The behaviour of Placement that the client and its fake share."""

import uuid

import pytest

from resource_tracker import errors
from resource_tracker.delta import (
    Create,
    PutAggregates,
    PutInventories,
    PutTraits,
)
from resource_tracker.provider import Inventory

GOLD, SILVER = 'CUSTOM_GOLD', 'CUSTOM_SILVER'
FREE = {GOLD: Inventory(GOLD, reserved=False).body()}
RESERVED = {GOLD: Inventory(GOLD, reserved=True).body()}
OTHER = {SILVER: Inventory(SILVER, reserved=False).body()}
CHANGES = [
    lambda node: PutInventories(node, RESERVED),
    lambda node: PutTraits(node, frozenset({'CUSTOM_A'})),
    lambda node: PutAggregates(node, frozenset({_new_uuid()})),
]


def _new_uuid():
    return str(uuid.uuid4())


def _generation(placement, node):
    return placement.read_provider(node).generation


def _write(placement, change):
    return placement.write(change, _generation(placement, change.uuid))


@pytest.fixture
def node(placement):
    """Return the uuid of a provider with one free unit."""
    made = _new_uuid()
    generation = placement.write(Create(made), 0)
    placement.write(PutInventories(made, FREE), generation)
    return made


def test_access_is_granted(placement):
    """A Placement that is reached and accepts the token raises nothing."""
    placement.check_access(60.0)


def test_new_provider_is_listed_and_read(placement, node):
    """The list has the generation of a provider, the read its inventory."""
    listed = placement.list_providers()[node]
    assert listed.name == node
    assert listed.generation == _generation(placement, node)
    assert set(placement.read_provider(node).inventories) == {GOLD}


def test_what_was_written_is_read_back(placement, node):
    """An inventory is read back as it was written."""
    assert dict(placement.read_provider(node).inventories[GOLD]) == FREE[GOLD]


def test_absent_provider_reads_as_none(placement):
    """A read of an absent provider returns None."""
    assert placement.read_provider(_new_uuid()) is None
    assert placement.read_provider_uuid(_new_uuid()) is None


def test_provider_is_found_by_uuid_and_by_name(placement, node):
    """A provider is found by its uuid and by its name."""
    uuid_of_old, name = _new_uuid(), _new_uuid()
    placement.make_provider(uuid_of_old, name)
    assert placement.read_provider_uuid(node) == node
    assert placement.read_provider_uuid(name) == uuid_of_old


def test_second_of_a_uuid_is_refused(placement, node):
    """A second provider with the same uuid is refused."""
    with pytest.raises(errors.ProviderExists):
        placement.write(Create(node), 0)


def test_second_of_a_name_is_refused(placement):
    """Bug 1714248: a provider with another's name is refused."""
    name = _new_uuid()
    placement.make_provider(_new_uuid(), name)
    with pytest.raises(errors.ProviderExists):
        placement.write(Create(name), 0)


@pytest.mark.parametrize('change', CHANGES)
def test_stale_generation_is_a_conflict(placement, node, change):
    """Each kind of write with an old generation is refused."""
    stale = _generation(placement, node)
    placement.write(change(node), stale)
    with pytest.raises(errors.GenerationConflict):
        placement.write(change(node), stale)


@pytest.mark.parametrize('change', CHANGES)
def test_write_that_is_not_allowed_is_not_sent(placement, node, change):
    """A write without a lease changes nothing."""
    before = placement.read_provider(node)

    def require():
        raise PermissionError

    with pytest.raises(PermissionError):
        placement.write(change(node), before.generation, require)
    assert placement.read_provider(node) == before


@pytest.mark.parametrize('change', CHANGES)
def test_write_answers_the_next_generation(placement, node, change):
    """A write returns the generation that the next write must send."""
    answered = _write(placement, change(node))
    assert answered == _generation(placement, node)
    for follow_up in CHANGES:
        answered = placement.write(follow_up(node), answered)


@pytest.mark.parametrize('change', CHANGES)
def test_write_to_an_absent_provider_is_refused(placement, change):
    """A write to a deleted provider raises ``ProviderNotFound``."""
    with pytest.raises(errors.ProviderNotFound):
        placement.write(change(_new_uuid()), 0)


def test_allocation_raises_the_generation(placement, node):
    """A write with the generation before an allocation is refused."""
    stale = _generation(placement, node)
    placement.allocate(node, _new_uuid(), GOLD)
    with pytest.raises(errors.GenerationConflict):
        placement.write(PutInventories(node, OTHER), stale)


def test_end_of_an_allocation_leaves_the_generation(placement, node):
    """The end of an allocation does not change the generation."""
    consumer = _new_uuid()
    placement.allocate(node, consumer, GOLD)
    before = _generation(placement, node)
    placement.deallocate(node, consumer)
    assert _generation(placement, node) == before


def test_inventory_in_use_can_be_reserved(placement, node):
    """Bug 1974070: an allocated inventory can be reserved in full."""
    placement.allocate(node, _new_uuid(), GOLD)
    _write(placement, PutInventories(node, RESERVED))
    assert placement.read_provider(node).inventories[GOLD]['reserved'] == 1


@pytest.mark.parametrize('inventories', [OTHER, {}])
def test_inventory_in_use_cannot_go(placement, node, inventories):
    """Bug 1751472: an allocated inventory cannot be removed."""
    placement.allocate(node, _new_uuid(), GOLD)
    with pytest.raises(errors.ProviderInUse):
        _write(placement, PutInventories(node, inventories))


def test_what_is_in_use_can_be_read(placement, node):
    """Allocated classes and their consumers can be read."""
    assert placement.read_classes_in_use(node) == frozenset()
    consumer = _new_uuid()
    placement.allocate(node, consumer, GOLD)
    assert placement.read_classes_in_use(node) == {GOLD}
    assert placement.read_consumers(node) == {consumer}


def test_use_is_read_with_the_generation(placement, node):
    """An allocation raises it, and a class without one shows as unused."""
    usages, before = placement.read_usages(node)
    assert usages == {GOLD: 0}
    consumer = _new_uuid()
    placement.allocate(node, consumer, GOLD)
    usages, after = placement.read_usages(node)
    assert usages == {GOLD: 1}
    assert placement.read_provider_allocations(node) == ({consumer}, after)
    assert after > before


def test_provider_in_use_cannot_be_deleted(placement, node):
    """A provider can be deleted only without an allocation."""
    free = _new_uuid()
    placement.write(Create(free), 0)
    placement.delete_provider(free)
    placement.delete_provider(free)
    assert placement.read_provider(free) is None
    placement.allocate(node, _new_uuid(), GOLD)
    with pytest.raises(errors.ProviderInUse):
        placement.delete_provider(node)


def test_traits_of_a_newer_library_are_left_out(placement, node):
    """A standard trait that Placement lacks is left out of a write."""
    traits = frozenset({'COMPUTE_NODE', 'HW_FROM_THE_FUTURE', 'CUSTOM_ODD'})
    usable = placement.supported_traits(traits)
    assert usable == {'COMPUTE_NODE', 'CUSTOM_ODD'}
    with pytest.raises(errors.PlacementRefused):
        _write(placement, PutTraits(node, traits))
    _write(placement, PutTraits(node, usable))
    assert placement.read_provider(node).traits == usable


def test_trait_that_an_upgrade_adds_is_found(placement, node):
    """A trait that was left out is returned once Placement has it."""
    traits = frozenset({'COMPUTE_NODE', 'HW_FROM_THE_FUTURE'})
    placement.supported_traits(traits)
    assert placement.read_new_traits() == frozenset()
    placement.add_standard_trait('HW_FROM_THE_FUTURE')
    assert placement.supported_traits(traits) == {'COMPUTE_NODE'}
    assert placement.read_new_traits() == {'HW_FROM_THE_FUTURE'}
    assert placement.read_new_traits() == frozenset()
    _write(placement, PutTraits(node, traits))
    assert placement.read_provider(node).traits == traits


def test_nothing_is_requested_without_an_unknown_trait(placement):
    """Without an unknown trait no request is sent."""
    placement.supported_traits(frozenset({'COMPUTE_NODE', 'CUSTOM_ODD'}))
    placement.requests.clear()
    assert placement.read_new_traits() == frozenset()
    assert placement.requests == []


def test_same_traits_again_leave_the_generation(placement, node):
    """A write of the same traits does not change the generation."""
    change = PutTraits(node, frozenset({'CUSTOM_A'}))
    first = _write(placement, change)
    assert placement.write(change, first) == first


def test_same_inventory_again_raises_the_generation(placement, node):
    """A write of the same inventory makes earlier writes conflicts."""
    before = _generation(placement, node)
    assert _write(placement, PutInventories(node, FREE)) > before
    late = PutInventories(node, RESERVED)
    with pytest.raises(errors.GenerationConflict):
        placement.write(late, before)


def test_names_are_made_once(real):
    """A class or trait that this process created is not created again."""
    for _ in range(2):
        made = _new_uuid()
        generation = real.write(Create(made), 0)
        generation = real.write(PutInventories(made, FREE), generation)
        real.write(PutTraits(made, frozenset({'CUSTOM_A'})), generation)
    assert real.requests.count(f'PUT /resource_classes/{GOLD}') == 1
    assert real.requests.count('PUT /traits/CUSTOM_A') == 1


def test_name_that_an_operator_removed_is_created_again(real):
    """A name that an operator deleted is created again."""
    made = _new_uuid()
    change = PutTraits(made, frozenset({'CUSTOM_A'}))
    real.write(change, real.write(Create(made), 0))
    real.delete_trait(made, 'CUSTOM_A')
    with pytest.raises(errors.NameVanished):
        _write(real, change)
    _write(real, change)
    assert real.read_provider(made).traits == {'CUSTOM_A'}


def test_write_that_can_never_work_is_refused(real):
    """A body that Placement rejects twice raises ``PlacementRefused``.

    The first time raises ``NameVanished``, because a class of the body may
    have been deleted; the next try creates it again.
    """
    made = _new_uuid()
    absurd = {GOLD: {**FREE[GOLD], 'reserved': 2}}
    generation = real.write(Create(made), 0)
    real.write(PutInventories(made, FREE), generation)
    for kind in (errors.NameVanished, errors.PlacementRefused):
        with pytest.raises(kind):
            _write(real, PutInventories(made, absurd))


def test_lost_allocation_can_be_put_back_while_nothing_is_reserved(real):
    """The manual names these steps for a node in use, which is reserved."""
    node, server = _new_uuid(), _new_uuid()
    generation = real.write(Create(node), 0)
    real.write(PutInventories(node, RESERVED), generation)
    with pytest.raises(errors.PlacementError, match='answered 409'):
        real.allocate(node, server, GOLD)
    _write(real, PutInventories(node, FREE))
    real.allocate(node, server, GOLD)
    _write(real, PutInventories(node, RESERVED))
    assert set(real.read_allocations(server)) == {node}


def test_free_units_are_listed_by_class(placement, node):
    """A provider is listed until its unit is reserved or allocated."""
    other = _new_uuid()
    generation = placement.write(Create(other), 0)
    taken = {GOLD: {**FREE[GOLD], 'reserved': 1}}
    placement.write(PutInventories(other, taken), generation)
    assert placement.list_offering(GOLD) >= {node}
    assert other not in placement.list_offering(GOLD)
    placement.allocate(node, _new_uuid(), GOLD)
    assert node not in placement.list_offering(GOLD)
    assert placement.list_offering('CUSTOM_NOBODY_HAS_IT') == frozenset()


def test_providers_are_listed_by_trait(placement, node):
    """A trait that does not exist has no provider, and is no error."""
    generation = _generation(placement, node)
    placement.write(PutTraits(node, frozenset({'CUSTOM_LISTED'})), generation)
    assert placement.list_with_trait('CUSTOM_LISTED') == {node}
    assert placement.list_with_trait('CUSTOM_NOBODY_HAS_IT') == frozenset()
