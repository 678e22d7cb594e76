# SPDX-License-Identifier: Apache-2.0
"""Delivered facts: which notifications and answers are new or stale."""

import dataclasses

import pytest

from ironic_compute.feed.delivered import Delivered
from ironic_compute.nodes.node_cache import NodeCache
from resource_tracker.node import NodeFacts, NodeId
from tests.fakes.clock import ManualClock

FACTS = NodeFacts(
    NodeId('n1'),
    resource_class='gold',
    provision_state='deploying',
    power_state='power on',
    traits=frozenset({'CUSTOM_A'}),
    properties={'cpu_arch': 'x86_64'},
    updated_at='2026-01-01T00:00:00+00:00',
)
# A record in the format of Ironic's notifications.
RECORD = {
    'uuid': 'n1',
    'resource_class': 'gold',
    'provision_state': 'deploying',
    'power_state': 'power on',
    'traits': ['CUSTOM_A'],
    'properties': {'cpu_arch': 'x86_64'},
    'updated_at': '2026-01-01T00:00:00Z',
    'extra': {'not': 'ours'},
}


@pytest.fixture
def delivered() -> Delivered:
    """Return the delivered facts of one node."""
    made = Delivered()
    made.accept_read(FACTS)
    return made


def test_record_equal_to_the_delivered_facts_is_unchanged(
    delivered: Delivered,
) -> None:
    """Another time format and further fields make no difference."""
    assert delivered.is_unchanged(RECORD)


@pytest.mark.parametrize(
    'fields',
    [
        {'provision_state': 'active'},
        {'power_state': 'power off'},
        {'traits': []},
        {'properties': {'cpu_arch': 'aarch64'}},
        {'maintenance': True},
        {'updated_at': '2026-01-01T00:00:01Z'},
        {'updated_at': None},
        {'uuid': 'n2'},
        {'uuid': None},
    ],
)
def test_record_with_any_difference_is_changed(
    delivered: Delivered, fields: dict[str, object]
) -> None:
    """A record differs also in the same second, and if it is malformed."""
    assert not delivered.is_unchanged({**RECORD, **fields})


@pytest.mark.parametrize('missing', ['updated_at', 'traits', 'properties'])
def test_incomplete_record_is_changed(
    delivered: Delivered, missing: str
) -> None:
    """A record without a required field is never equal to the facts."""
    record = {name: RECORD[name] for name in RECORD if name != missing}
    assert not delivered.is_unchanged(record)


def test_facts_without_a_time_equal_no_record(
    delivered: Delivered,
) -> None:
    """Facts of a full list have no time, so any record may be newer."""
    delivered.accept_read(dataclasses.replace(FACTS, updated_at=None))
    assert not delivered.is_unchanged(RECORD)


def test_forgotten_node_equals_no_record(delivered: Delivered) -> None:
    """A record of a node that was forgotten is new."""
    delivered.forget_node(FACTS.uuid)
    assert not delivered.is_unchanged(RECORD)


def test_later_record_is_accepted(delivered: Delivered) -> None:
    """Fields that the record lacks are kept, except Ironic's reservation."""
    fields = {
        'provision_state': 'active',
        'updated_at': '2026-01-01T00:00:01Z',
    }
    delivered.accept_read(
        dataclasses.replace(FACTS, shard='s1', reservation='c1')
    )
    assert delivered.accept_notification(
        {**RECORD, **fields}
    ) == dataclasses.replace(
        FACTS,
        provision_state='active',
        updated_at='2026-01-01T00:00:01+00:00',
        shard='s1',
    )


def test_accepted_record_is_not_ordered_like_the_read_before_it(
    delivered: Delivered,
) -> None:
    """A list may have been read since, and its facts are older."""
    cache = NodeCache(ManualClock())
    delivered.accept_read(dataclasses.replace(FACTS, read_at_s=10.0))
    cache.update_facts(dataclasses.replace(FACTS, read_at_s=20.0))
    fields = {
        'provision_state': 'active',
        'updated_at': '2026-01-01T00:00:01Z',
    }
    facts = delivered.accept_notification({**RECORD, **fields})
    assert facts is not None
    assert cache.update_facts(facts)
    assert not cache.update_facts(dataclasses.replace(FACTS, read_at_s=19.0))


@pytest.mark.parametrize(
    'stamp', ['2026-01-01T00:00:00Z', '2025-12-31T23:59:59Z', None]
)
def test_record_that_is_not_later_is_not_accepted(
    delivered: Delivered, stamp: str | None
) -> None:
    """A record of the same second may be older than the delivered facts."""
    fields = {'provision_state': 'available', 'updated_at': stamp}
    assert delivered.accept_notification({**RECORD, **fields}) is None


@pytest.mark.parametrize('missing', ['updated_at', 'traits', 'properties'])
def test_incomplete_record_is_not_accepted(
    delivered: Delivered, missing: str
) -> None:
    """A record without a required field does not replace the facts."""
    record = {**RECORD, 'updated_at': '2026-01-01T00:00:01Z'}
    del record[missing]
    assert delivered.accept_notification(record) is None


def test_record_of_an_unknown_node_is_not_accepted() -> None:
    """Without delivered facts there is nothing to complete a record with."""
    assert Delivered().accept_notification(RECORD) is None


def test_later_record_with_other_traits_is_not_accepted(
    delivered: Delivered,
) -> None:
    """Traits have no time stamp, so they may be older than the record."""
    fields = {'updated_at': '2026-01-01T00:00:01Z', 'traits': []}
    assert delivered.accept_notification({**RECORD, **fields}) is None


ACTIVE = {
    **RECORD,
    'provision_state': 'active',
    'updated_at': '2026-01-01T00:00:01Z',
}


@pytest.mark.parametrize(
    ('stamp', 'state', 'is_new'),
    [
        ('2026-01-01T00:00:02+00:00', 'error', True),
        ('2026-01-01T00:00:01+00:00', 'active', True),
        ('2026-01-01T00:00:01+00:00', 'deploying', False),
        ('2026-01-01T00:00:00+00:00', 'deploying', False),
        (None, 'deploying', False),
    ],
)
def test_answer_that_may_be_older_than_a_notification_is_refused(
    delivered: Delivered, stamp: str | None, state: str, is_new: bool
) -> None:
    """A read that began before a notification is stale; the next is not."""
    assert delivered.accept_notification(ACTIVE)
    answer = dataclasses.replace(
        FACTS, provision_state=state, updated_at=stamp
    )
    assert delivered.accept_read(answer) is is_new
    assert delivered.is_unchanged(ACTIVE) is (state == 'active')
    assert delivered.accept_read(answer)


def test_older_answer_is_refused_after_an_equal_one(
    delivered: Delivered,
) -> None:
    """An answer equal to the notification does not make older answers new."""
    assert delivered.accept_notification(ACTIVE)
    active = dataclasses.replace(
        FACTS, provision_state='active', updated_at=ACTIVE['updated_at']
    )
    old = dataclasses.replace(active, provision_state='deploying')
    assert delivered.accept_read(active)
    assert not delivered.accept_read(old)


@pytest.mark.parametrize('second', [0, 1])
def test_listed_facts_that_may_be_older_are_refused(
    delivered: Delivered, second: int
) -> None:
    """A list takes longer than the read of one node; a third one is later."""
    stamp = f'2026-01-01T00:00:0{second}+00:00'
    available = dataclasses.replace(FACTS, provision_state='available')
    accept_listed = dataclasses.replace(available, updated_at=stamp)
    assert delivered.accept_listed(FACTS)
    assert delivered.accept_listed(accept_listed) is bool(second)
    assert delivered.accept_listed(available)


@pytest.mark.parametrize(
    'stamp', ['tomorrow', '', '0001-01-01T00:00:00+05:00']
)
def test_stamp_that_is_no_time_counts_as_none(
    delivered: Delivered, stamp: str
) -> None:
    """The list or notification with it raises nothing."""
    odd = dataclasses.replace(FACTS, updated_at=stamp)
    record = {**RECORD, 'updated_at': stamp}
    assert not delivered.is_unchanged(record)
    assert delivered.accept_notification(record) is None
    assert delivered.accept_notification(ACTIVE)
    assert not delivered.accept_read(odd)
    assert delivered.accept_read(odd)
    assert delivered.accept_listed(odd)
    assert delivered.accept_notification(ACTIVE) is None


def test_fractions_of_a_second_make_an_answer_not_later(
    delivered: Delivered,
) -> None:
    """Some databases store fractions of a second; notifications lack them."""
    assert delivered.accept_notification(ACTIVE)
    answer = dataclasses.replace(
        FACTS, updated_at='2026-01-01T00:00:01.250000+00:00'
    )
    assert not delivered.accept_read(answer)


def test_answer_with_an_earlier_time_replaces_another_answer(
    delivered: Delivered,
) -> None:
    """A clock of Ironic may be set back, so only reads are not compared."""
    old = dataclasses.replace(FACTS, updated_at='2025-01-01T00:00:00+00:00')
    assert delivered.accept_read(old)
    assert delivered.accept_read(FACTS)
    assert delivered.accept_read(old)
