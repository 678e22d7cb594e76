# SPDX-License-Identifier: Apache-2.0
"""Which notifications of Ironic are worth a look."""

import datetime

import pytest

from ironic_compute.feed.notifications import NodeEvents, Worth


@pytest.mark.parametrize(
    ('event_type', 'is_heard'),
    [
        ('baremetal.node.provision_set.success', True),
        ('baremetal.node.update.end', True),
        ('baremetal.node.power_set.error', True),
        ('baremetal.node.update.start', False),
        ('baremetal.port.update.end', False),
        ('compute.instance.update', False),
    ],
)
def test_only_ends_of_node_events_count(event_type, is_heard):
    """A start says what is wanted, not what is."""
    heard = []
    payload = {'ironic_object.data': {'uuid': 'n1'}}
    events = NodeEvents(lambda record, _: heard.append(record), 0.0)
    events.info({}, 'p', event_type, payload, {})
    assert heard == ([{'uuid': 'n1'}] if is_heard else [])


@pytest.mark.parametrize(
    ('event', 'worth'),
    [
        ('provision_set.end', Worth.ALL),
        ('provision_set.error', Worth.ALL),
        ('power_set.success', Worth.ALL),
        ('power_state_corrected.success', Worth.ALL),
        ('update.end', Worth.SAVED),
        ('maintenance_set.end', Worth.SAVED),
        ('provision_setup.end', Worth.SAVED),
        ('update.error', Worth.HINT),
        ('maintenance_set.error', Worth.HINT),
        ('delete.end', Worth.HINT),
    ],
)
def test_not_every_record_is_the_node(event, worth):
    """Some show what was never saved, or a node that is gone."""
    heard = []
    payload = {'ironic_object.data': {'uuid': 'n1'}}
    events = NodeEvents(lambda _, worth: heard.append(worth), 0.0)
    events.info({}, 'p', f'baremetal.node.{event}', payload, {})
    assert heard == [worth]


@pytest.mark.parametrize(
    ('metadata', 'is_heard'),
    [
        ({'timestamp': '2026-01-01 11:59:59.999999'}, False),
        ({'timestamp': '2026-01-01 12:00:00.000001'}, True),
        ({'timestamp': 'at noon'}, True),
        ({'timestamp': None}, True),
        ({}, True),
    ],
)
def test_what_waited_in_the_queue_is_left_out(metadata, is_heard):
    """Days of news may be there, of which the first audit knows the end."""
    heard = []
    noon = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
    events = NodeEvents(
        lambda record, _: heard.append(record), noon.timestamp()
    )
    payload = {'ironic_object.data': {'uuid': 'n1'}}
    events.info({}, 'p', 'baremetal.node.update.end', payload, metadata)
    assert bool(heard) == is_heard


def test_odd_payload_is_harmless():
    """What has no uuid concerns no node."""
    events = NodeEvents(lambda record, _: pytest.fail(str(record)), 0.0)
    kind = 'baremetal.node.update.end'
    events.error({}, 'p', kind, {'ironic_object.data': None}, {})
    events.info({}, 'p', kind, {}, {})
