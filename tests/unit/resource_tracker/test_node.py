# SPDX-License-Identifier: Apache-2.0
"""Ironic's records, parsed once."""

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
    'owner': None,
    'lessee': None,
    'last_error': None,
    'fault': None,
    'reservation': None,
    'links': [],
}


def test_record_becomes_a_value():
    """Each field is there under its own name."""
    facts = NodeFacts.parse(RECORD)
    assert facts.uuid == NODE
    assert facts.traits == {'CUSTOM_GPU', 'HW_CPU_X86_VMX'}
    assert facts.properties['cpu_arch'] == 'x86_64'
    assert facts.conductor_group == 'hall-2'
    assert facts == NodeFacts.parse(dict(RECORD))


def test_record_of_an_older_ironic_has_defaults():
    """What an older Ironic does not show is taken as not set."""
    newer = {'shard', 'lessee', 'retired', 'owner', 'fault'}
    older = {k: v for k, v in RECORD.items() if k not in newer}
    assert NodeFacts.parse(older) == NodeFacts.parse(RECORD)


@pytest.mark.parametrize('name', [n for n in RECORD if n != 'uuid'])
def test_null_is_as_good_as_absent(name):
    """Ironic says null for what was never set."""
    without = {k: v for k, v in RECORD.items() if k != name}
    assert NodeFacts.parse({**RECORD, name: None}) == NodeFacts.parse(without)


def test_invented_state_is_kept_as_it_is():
    """A state of a newer Ironic is a fact, not an error."""
    facts = NodeFacts.parse({**RECORD, 'provision_state': 'dreaming'})
    assert facts.provision_state == 'dreaming'


def _parsed_twice(name):
    """What two records say that have equal texts in a field, not the same."""
    texts = [''.join(['2026-11-21', 'T03:00:00Z']) for _ in range(2)]
    assert texts[0] is not texts[1]
    return [getattr(NodeFacts.parse({**RECORD, name: t}), name) for t in texts]


@pytest.mark.parametrize('name', ['uuid', 'provision_state', 'owner', 'shard'])
def test_what_many_records_say_is_kept_once(name):
    """Thousands of nodes have a dozen states, and one owner or two."""
    one, other = _parsed_twice(name)
    assert one is other


@pytest.mark.parametrize(
    'name',
    ['name', 'updated_at', 'last_error', 'reservation', 'instance_uuid'],
)
def test_what_is_always_new_is_not_kept_for_ever(name):
    """Python may never let go of what is interned, so these are not."""
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
    """What cannot be read is named, and so is the node."""
    with pytest.raises(MalformedNode) as caught:
        NodeFacts.parse({**RECORD, name: value})
    assert caught.value.field == name
    assert name == 'uuid' or caught.value.node == NODE


@pytest.mark.parametrize('raw', [None, [], 'node', 7, {}])
def test_what_is_no_record_is_refused(raw):
    """Whatever comes in, only one kind of error comes out."""
    with pytest.raises(MalformedNode):
        NodeFacts.parse(raw)


def test_fields_follow_the_microversion():
    """An older Ironic is not asked for what it does not know."""
    assert 'conductor_group' in FIELDS
    assert not {'owner', 'retired', 'lessee', 'shard'} & set(FIELDS)
    assert 'retired' in fields_for((1, 61))
    assert 'lessee' not in fields_for((1, 64))
    assert 'lessee' in fields_for((1, 65))
    assert set(fields_for((1, 82))) - set(fields_for((1, 81))) == {'shard'}


def test_updated_at_is_never_asked_for():
    """Ironic refuses it in fields=; detailed records carry it anyway."""
    assert 'updated_at' not in fields_for((1, 200))
    parsed = NodeFacts.parse({**RECORD, 'updated_at': '2026-11-21T03:00:00Z'})
    assert parsed.updated_at == '2026-11-21T03:00:00Z'
