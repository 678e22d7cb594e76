# SPDX-License-Identifier: Apache-2.0
"""The wanted provider of a node."""

import pytest

from resource_tracker.claims import Claim
from resource_tracker.provider import (
    Aggregates,
    Situation,
    wanted_provider,
    why_not_schedulable,
)
from tests.unit.resource_tracker.nodes import GOLD, NODE, READY, changed


def test_ready_node_offers_one_unit_of_its_class():
    """A node that can take a build has one unreserved unit of its class."""
    inventory = wanted_provider(READY, Situation()).inventory
    assert inventory.resource_class == GOLD
    assert inventory.body() == {
        'total': 1,
        'reserved': 0,
        'min_unit': 1,
        'max_unit': 1,
        'step_size': 1,
        'allocation_ratio': 1.0,
    }


def test_provider_is_the_node():
    """The provider has the uuid of the node."""
    assert wanted_provider(READY, Situation()).uuid == NODE


@pytest.mark.parametrize(
    ('facts', 'situation', 'phrase'),
    [
        (changed(maintenance=True), Situation(), 'in maintenance'),
        (changed(retired=True), Situation(), 'retired'),
        (changed(parent_node='m-1'), Situation(), 'part of machine m-1'),
        (changed(instance_uuid='i-1'), Situation(), 'instance i-1'),
        (changed(provision_state='cleaning'), Situation(), 'cleaning'),
        (changed(provision_state='invented'), Situation(), 'invented'),
        (changed(provision_state=None), Situation(), 'provision state'),
        (changed(power_state='error'), Situation(), 'power state is error'),
        (changed(power_state=None), Situation(), 'power state is unknown'),
        (READY, Situation(claim=Claim('server')), 'claimed'),
    ],
)
def test_node_that_cannot_take_a_build_is_reserved(facts, situation, phrase):
    """Bugs 1771577, 1974070: a node that is not ready is reserved."""
    inventory = wanted_provider(facts, situation).inventory
    assert inventory.body()['reserved'] == inventory.body()['total']
    assert phrase in why_not_schedulable(facts, situation)


@pytest.mark.parametrize(
    'facts',
    [
        changed(owner='o', lessee='l'),
        changed(power_state='power off'),
        changed(last_error='the last deploy failed', reservation='conductor'),
    ],
)
def test_node_that_is_owned_off_or_locked_is_not_reserved(facts):
    """An owner, power off, an old error or a short lock reserve nothing."""
    assert why_not_schedulable(facts, Situation()) is None
    assert wanted_provider(facts, Situation()) == wanted_provider(
        READY, Situation()
    )


def test_disabled_host_reserves_nothing():
    """A disabled host sets only a trait; its nodes are not reserved."""
    provider = wanted_provider(READY, Situation(disabled=True))
    assert not provider.inventory.reserved
    assert 'COMPUTE_STATUS_DISABLED' in provider.traits


@pytest.mark.parametrize('name', [None, ''])
def test_node_without_class_has_no_inventory(name):
    """A node without a resource class has no inventory."""
    facts = changed(resource_class=name)
    assert wanted_provider(facts, Situation()).inventory is None
    assert 'resource_class' in why_not_schedulable(facts, Situation())


@pytest.mark.parametrize(
    ('name', 'normalised'),
    [
        ('baremetal', 'CUSTOM_BAREMETAL'),
        ('gold-2.x large', 'CUSTOM_GOLD_2_X_LARGE'),
        ('CUSTOM_GOLD', 'CUSTOM_CUSTOM_GOLD'),
        ('VCPU', 'CUSTOM_VCPU'),
        ('größe', 'CUSTOM_GR_E'),
    ],
)
def test_class_is_normalised_as_flavors_have_it(name, normalised):
    """A resource class is normalised as by Nova's own Ironic driver."""
    nova_utils = pytest.importorskip('nova.utils')
    inventory = wanted_provider(
        changed(resource_class=name), Situation()
    ).inventory
    assert inventory.resource_class == normalised
    assert nova_utils.normalize_rc_name(name) == normalised


def test_traits_are_the_drivers_the_nodes_and_novas_own():
    """T1: the traits include OWNER_NOVA, which Nova 34 requires."""
    situation = Situation(capability_traits=frozenset({'COMPUTE_RESCUE_BFV'}))
    assert wanted_provider(READY, situation).traits == {
        'COMPUTE_NODE',
        'OWNER_NOVA',
        'CUSTOM_GPU',
        'COMPUTE_RESCUE_BFV',
    }


def test_aggregates_are_left_to_others_unless_given():
    """Without given aggregates the provider's aggregates stay as they are."""
    assert wanted_provider(READY, Situation()).aggregates is None
    given = Situation(aggregates=Aggregates())
    assert wanted_provider(READY, given).aggregates == Aggregates()


@pytest.mark.parametrize(
    ('capabilities', 'traits'),
    [
        ('boot_mode:uefi,rack:7', {'CUSTOM_BOOT_MODE_UEFI'}),
        ('rack:7, boot_mode: uefi ', {'CUSTOM_BOOT_MODE_UEFI'}),
        ({'boot_mode': 'bios'}, {'CUSTOM_BOOT_MODE_BIOS'}),
        ('rack:7', set()),
        ('boot_mode', set()),
        ('boot_mode:a:b', set()),
        (None, set()),
    ],
)
def test_chosen_capabilities_are_traits_too(capabilities, traits):
    """The capabilities that an option names become traits as well."""
    facts = changed(properties={'capabilities': capabilities})
    plain = wanted_provider(facts, Situation())
    chosen = wanted_provider(
        facts, Situation(traits_of_capabilities=frozenset({'boot_mode'}))
    )
    assert chosen.traits - plain.traits == traits
