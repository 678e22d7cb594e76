# SPDX-License-Identifier: Apache-2.0
"""Nova's host aggregates, as a worker reads them through the conductor."""

import logging

import pytest
from nova import objects
from nova.objects import base

from ironic_compute.pool.host_aggregates import HostAggregates
from resource_tracker.provider import Aggregates

A = '00000000-0000-4000-8000-00000000000a'
B = '00000000-0000-4000-8000-00000000000b'


class Conductor:
    """A nova-conductor that answers one RPC, or fails."""

    def __init__(self):
        self.aggregates = {}
        self.is_away = False
        self.calls = []

    def object_class_action_versions(self, context, name, method, *rest):
        """See ConductorAPI."""
        self.calls.append((name, method))
        if self.is_away:
            raise RuntimeError('CantStartEngineError')
        return objects.AggregateList(
            objects=[
                objects.Aggregate(
                    uuid=uuid, name=f'zone-{uuid[-1]}', hosts=list(hosts)
                )
                for uuid, hosts in self.aggregates.items()
            ]
        )


@pytest.fixture
def conductor(monkeypatch):
    """Return a conductor that has no host aggregate."""
    objects.register_all()
    made = Conductor()
    monkeypatch.setattr(base.NovaObject, 'indirection_api', made)
    return made


def test_host_is_in_its_aggregates_alone(conductor):
    """Other aggregates of Nova are returned as well: the host leaves them."""
    conductor.aggregates = {A: ['c1', 'c2'], B: ['c2']}
    found = HostAggregates().read_for('c1', ['c1'])
    assert found == Aggregates(frozenset({A}), frozenset({A, B}))
    assert conductor.calls == [('AggregateList', 'get_all')]


def test_deleted_aggregate_is_left(conductor):
    """A provider leaves the aggregate that Nova had and has deleted."""
    aggregates = HostAggregates()
    conductor.aggregates = {A: ['c1']}
    aggregates.read_for('c1', ['c1'])
    conductor.aggregates = {}
    found = aggregates.read_for('c1', ['c1'])
    assert found.merged_with(frozenset({A, 'foreign'})) == {'foreign'}


def test_nova_without_aggregates_gives_none(conductor):
    """The aggregates of providers are not even read then."""
    assert HostAggregates().read_for('c1', ['c1']) is None


def test_failing_conductor_is_logged_once(conductor, caplog):
    """The result of the last successful read is used after an error."""
    caplog.set_level(logging.INFO)
    aggregates = HostAggregates()
    conductor.aggregates = {A: ['c1']}
    before = aggregates.read_for('c1', ['c1'])
    conductor.is_away = True
    assert [aggregates.read_for('c1', ['c1']) for _ in range(3)] == [
        before
    ] * 3
    assert len(caplog.messages) == 1


def test_aggregate_with_half_the_pool_is_logged_once(conductor, caplog):
    """A free node that moves to another host would change its zone."""
    aggregates = HostAggregates()
    conductor.aggregates = {A: ['c1', 'c2', 'x'], B: ['x']}
    aggregates.read_for('c1', ['c1', 'c2'])
    assert caplog.messages == []
    for _ in range(2):
        aggregates.read_for('c1', ['c1', 'c2', 'c3', 'c4'])
    (logged,) = caplog.messages
    assert 'Aggregate zone-a has c1, c2 of this pool and not c3, c4' in logged
