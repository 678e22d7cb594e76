# SPDX-License-Identifier: Apache-2.0
"""The wanted state of a node's provider."""

import dataclasses

import pytest

from resource_tracker.errors import MalformedNode
from resource_tracker.node import NodeFacts, NodeId, fields_for
from resource_tracker.provider import Situation, wanted, why_not

NODE = NodeId('6f1d5c1e-0000-4000-8000-000000000001')
READY = NodeFacts(
    uuid=NODE,
    resource_class='gold.x-large',
    provision_state='available',
    power_state='power on',
    traits=frozenset({'CUSTOM_GPU'}),
)


def changed(**fields):
    """The ready node, but for these fields."""
    return dataclasses.replace(READY, **fields)


def test_ready_node_offers_one_unit_of_its_class():
    """A node that can take a build is one unreserved unit."""
    inventory = wanted(READY, Situation()).inventory
    assert inventory.resource_class == 'CUSTOM_GOLD_X_LARGE'
    assert inventory.body()['reserved'] == 0
    assert inventory.body()['total'] == 1


@pytest.mark.parametrize(
    ('facts', 'situation', 'phrase'),
    [
        (changed(maintenance=True), Situation(), 'maintenance'),
        (changed(retired=True), Situation(), 'retired'),
        (changed(instance_uuid='i'), Situation(), 'instance'),
        (changed(provision_state='cleaning'), Situation(), 'cleaning'),
        (changed(provision_state='invented'), Situation(), 'invented'),
        (changed(power_state='error'), Situation(), 'power state'),
        (changed(power_state=None), Situation(), 'unknown'),
        (READY, Situation(claimed=True), 'claimed'),
        (READY, Situation(confirmed=False), 'not confirmed'),
    ],
)
def test_node_that_cannot_take_a_build_is_reserved(facts, situation, phrase):
    """Bugs 1771577, 1974070: reserved, not withdrawn, and it says why."""
    assert wanted(facts, situation).inventory.reserved
    assert phrase in why_not(facts, situation)


def test_owner_changes_nothing():
    """A node that somebody owns or leases is offered like any other."""
    assert why_not(changed(owner='o', lessee='l'), Situation()) is None


def test_node_without_class_has_no_inventory():
    """Nothing can be asked of a node without a class."""
    assert wanted(changed(resource_class=None), Situation()).inventory is None


def test_traits_are_the_drivers_the_nodes_and_novas_own():
    """T1: without OWNER_NOVA the scheduler of nova 34 finds nothing."""
    situation = Situation(capability_traits=frozenset({'COMPUTE_RESCUE_BFV'}))
    assert wanted(READY, situation).traits == {
        'COMPUTE_NODE',
        'OWNER_NOVA',
        'CUSTOM_GPU',
        'COMPUTE_RESCUE_BFV',
    }


def test_disabled_host_shows_on_its_nodes():
    """T6: the trait follows the present holder's Service."""
    traits = wanted(READY, Situation(disabled=True)).traits
    assert 'COMPUTE_STATUS_DISABLED' in traits


def test_fields_follow_the_microversion():
    """An older Ironic is not asked for what it does not know."""
    assert 'shard' not in fields_for((1, 46))
    assert 'conductor_group' in fields_for((1, 46))
    assert 'shard' in fields_for((1, 82))


def test_record_is_parsed_once_and_unknown_fields_are_ignored():
    """What a newer Ironic adds harms nothing."""
    facts = NodeFacts.parse({'uuid': NODE, 'maintenance': True, 'new': 1})
    assert facts.uuid == NODE
    assert facts.maintenance


def test_record_without_uuid_is_malformed():
    """A record that names no node is refused by name."""
    with pytest.raises(MalformedNode):
        NodeFacts.parse({'name': 'x'})
