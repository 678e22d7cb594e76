# SPDX-License-Identifier: Apache-2.0
"""Parsing of Ironic's node records."""

import pytest

from resource_tracker.errors import MalformedNode
from resource_tracker.node import FIELDS, NodeFacts, fields_for
from tests.unit.resource_tracker.nodes import NODE

# As Ironic 39 answers GET /v1/nodes?fields=… at microversion 1.95.
RECORD = {
    'uuid': NODE,
    'name': 'rack-7-node-3',
    'resource_class': 'gold',
    'provision_state': 'available',
    'target_provision_state': None,
    'power_state': 'power off',
    'target_power_state': None,
    'maintenance': False,
    'retired': False,
    'instance_uuid': None,
    'traits': ['CUSTOM_GPU', 'HW_CPU_X86_VMX'],
    'properties': {'cpu_arch': 'x86_64', 'capabilities': 'boot_mode:uefi'},
    'conductor_group': 'hall-2',
    'shard': None,
    'parent_node': None,
    'owner': None,
    'lessee': None,
    'last_error': None,
    'fault': None,
    'reservation': None,
    'links': [],
}


def test_record_becomes_a_value():
    """Each field of a record has its value under its own name."""
    facts = NodeFacts.parse(RECORD)
    assert facts.uuid == NODE
    assert facts.traits == {'CUSTOM_GPU', 'HW_CPU_X86_VMX'}
    assert facts.properties['cpu_arch'] == 'x86_64'
    assert facts.conductor_group == 'hall-2'
    assert facts == NodeFacts.parse(dict(RECORD))


def test_record_of_an_older_ironic_has_defaults():
    """A field that an older Ironic does not have gets its default."""
    newer = {'parent_node', 'shard', 'lessee', 'retired', 'owner', 'fault'}
    older = {k: v for k, v in RECORD.items() if k not in newer}
    assert NodeFacts.parse(older) == NodeFacts.parse(RECORD)


@pytest.mark.parametrize('name', [n for n in RECORD if n != 'uuid'])
def test_null_is_as_good_as_absent(name):
    """A field with the value null gets its default."""
    without = {k: v for k, v in RECORD.items() if k != name}
    assert NodeFacts.parse({**RECORD, name: None}) == NodeFacts.parse(without)


def test_invented_state_is_kept_as_it_is():
    """An unknown provision state of a newer Ironic is kept."""
    facts = NodeFacts.parse({**RECORD, 'provision_state': 'dreaming'})
    assert facts.provision_state == 'dreaming'


def _parsed_twice(name):
    """Parse two records that have equal but distinct texts in a field."""
    texts = [''.join(['2026-11-21', 'T03:00:00Z']) for _ in range(2)]
    assert texts[0] is not texts[1]
    return [getattr(NodeFacts.parse({**RECORD, name: t}), name) for t in texts]


@pytest.mark.parametrize('name', ['uuid', 'provision_state', 'owner', 'shard'])
def test_values_that_many_nodes_share_are_interned(name):
    """States, classes and owners are interned, as many nodes share them."""
    one, other = _parsed_twice(name)
    assert one is other


@pytest.mark.parametrize(
    'name',
    ['name', 'updated_at', 'last_error', 'reservation', 'instance_uuid'],
)
def test_values_that_differ_for_each_node_are_not_interned(name):
    """Values that differ for each node are not interned.

    Python may never free an interned text.
    """
    one, other = _parsed_twice(name)
    assert one == other
    assert one is not other


@pytest.mark.parametrize(
    ('name', 'value'),
    [
        ('uuid', None),
        ('uuid', ''),
        ('uuid', 7),
        ('maintenance', 'False'),
        ('traits', 'CUSTOM_A'),
        ('traits', [None]),
        ('properties', 'cpu_arch'),
        ('conductor_group', 3),
        ('provision_state', {}),
    ],
)
def test_unusable_record_is_refused_by_field(name, value):
    """The error names the node and the first field that cannot be used."""
    with pytest.raises(MalformedNode) as caught:
        NodeFacts.parse({**RECORD, name: value})
    assert caught.value.field == name
    assert name == 'uuid' or caught.value.node == NODE


@pytest.mark.parametrize('raw', [None, [], 'node', 7, {}])
def test_value_that_is_not_a_record_is_refused(raw):
    """Any value that is not a record raises the same type of error."""
    with pytest.raises(MalformedNode):
        NodeFacts.parse(raw)


def test_fields_follow_the_microversion():
    """An older Ironic is requested only for fields that it has."""
    assert 'conductor_group' in FIELDS
    assert not {'owner', 'retired', 'lessee', 'shard'} & set(FIELDS)
    assert 'retired' in fields_for((1, 61))
    assert 'lessee' not in fields_for((1, 64))
    assert 'lessee' in fields_for((1, 65))
    assert set(fields_for((1, 82))) - set(fields_for((1, 81))) == {'shard'}


def test_updated_at_is_never_requested():
    """updated_at is not requested, because Ironic refuses it in fields=."""
    assert 'updated_at' not in fields_for((1, 200))
    parsed = NodeFacts.parse({**RECORD, 'updated_at': '2026-11-21T03:00:00Z'})
    assert parsed.updated_at == '2026-11-21T03:00:00Z'
