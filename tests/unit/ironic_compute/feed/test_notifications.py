# SPDX-License-Identifier: Apache-2.0
"""Notifications: which ones are used, and the quality of their record."""

import datetime

import pytest

from ironic_compute.feed.notifications import NodeEvents, Quality


@pytest.mark.parametrize(
    ('event_type', 'is_received'),
    [
        ('baremetal.node.provision_set.success', True),
        ('baremetal.node.update.end', True),
        ('baremetal.node.power_set.error', True),
        ('baremetal.node.update.start', False),
        ('baremetal.port.update.end', False),
        ('compute.instance.update', False),
    ],
)
def test_only_ends_of_node_events_count(event_type, is_received):
    """A start event carries the requested state, so only ends count."""
    received = []
    payload = {'ironic_object.data': {'uuid': 'n1'}}
    events = NodeEvents(lambda record, _: received.append(record), 0.0)
    events.info({}, 'p', event_type, payload, {})
    assert received == ([{'uuid': 'n1'}] if is_received else [])


@pytest.mark.parametrize(
    ('event', 'quality'),
    [
        ('provision_set.end', Quality.COMPLETE),
        ('provision_set.error', Quality.COMPLETE),
        ('power_set.success', Quality.COMPLETE),
        ('power_state_corrected.success', Quality.COMPLETE),
        ('update.end', Quality.NO_SHARD),
        ('maintenance_set.end', Quality.NO_SHARD),
        ('provision_setup.end', Quality.NO_SHARD),
        ('update.error', Quality.UNUSABLE),
        ('maintenance_set.error', Quality.UNUSABLE),
        ('delete.end', Quality.DELETED),
        ('delete.error', Quality.UNUSABLE),
    ],
)
def test_record_quality_depends_on_the_event(event, quality):
    """Some records were never saved, or show a node that is deleted."""
    received = []
    payload = {'ironic_object.data': {'uuid': 'n1'}}
    events = NodeEvents(lambda _, quality: received.append(quality), 0.0)
    events.info({}, 'p', f'baremetal.node.{event}', payload, {})
    assert received == [quality]


@pytest.mark.parametrize(
    ('metadata', 'is_received'),
    [
        ({'timestamp': '2026-01-01 11:59:59.999999'}, False),
        ({'timestamp': '2026-01-01 12:00:00.000001'}, True),
        ({'timestamp': 'at noon'}, True),
        ({'timestamp': None}, True),
        ({}, True),
    ],
)
def test_notifications_sent_before_the_start_are_skipped(
    metadata, is_received
):
    """The first audit reads the result of those changes anyway."""
    received = []
    noon = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
    events = NodeEvents(
        lambda record, _: received.append(record), noon.timestamp()
    )
    payload = {'ironic_object.data': {'uuid': 'n1'}}
    events.info({}, 'p', 'baremetal.node.update.end', payload, metadata)
    assert bool(received) == is_received


def test_old_notifications_are_skipped_only_at_first():
    """A clock that was ahead at the start makes all of them look old."""
    received, skips = [], [True, False]
    events = NodeEvents(
        lambda record, _: received.append(record['uuid']),
        since_s=4e9,
        may_skip=lambda: skips.pop(0),
    )
    for node in ('n1', 'n2'):
        payload = {'ironic_object.data': {'uuid': node}}
        metadata = {'timestamp': '2026-01-01 12:00:00.000001'}
        events.info({}, 'p', 'baremetal.node.delete.end', payload, metadata)
    assert received == ['n2']


def test_payload_without_a_node_is_skipped():
    """A payload without a uuid is not passed on and raises nothing."""
    events = NodeEvents(lambda record, _: pytest.fail(str(record)), 0.0)
    kind = 'baremetal.node.update.end'
    events.error({}, 'p', kind, {'ironic_object.data': None}, {})
    events.info({}, 'p', kind, {}, {})
