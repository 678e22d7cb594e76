# SPDX-License-Identifier: Apache-2.0
"""A notification that says nothing new causes no reading."""

import dataclasses

import pytest

from ironic_compute.feed.delivered import Delivered
from resource_tracker.node import NodeFacts, NodeId

FACTS = NodeFacts(
    NodeId('n1'),
    resource_class='gold',
    provision_state='deploying',
    power_state='power on',
    traits=frozenset({'CUSTOM_A'}),
    properties={'cpu_arch': 'x86_64'},
    updated_at='2026-01-01T00:00:00+00:00',
)
# As Ironic's notification writes it.
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
    """Return what knows of one node."""
    made = Delivered()
    made.accept_read(FACTS)
    return made


def test_what_was_told_is_known(delivered: Delivered) -> None:
    """However Ironic writes it; what it says besides is nobody's facts."""
    assert delivered.is_unchanged(RECORD)


@pytest.mark.parametrize(
    'news',
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
def test_any_difference_is_news(
    delivered: Delivered, news: dict[str, object]
) -> None:
    """Two changes within a second have the same ``updated_at``."""
    assert not delivered.is_unchanged({**RECORD, **news})


@pytest.mark.parametrize('missing', ['updated_at', 'traits', 'properties'])
def test_a_record_that_says_too_little_is_news(
    delivered: Delivered, missing: str
) -> None:
    """Notifications of other Ironics, and of other things about a node."""
    record = {name: RECORD[name] for name in RECORD if name != missing}
    assert not delivered.is_unchanged(record)


def test_a_list_without_times_makes_nothing_known(
    delivered: Delivered,
) -> None:
    """What it said may be older than any notification."""
    delivered.accept_read(dataclasses.replace(FACTS, updated_at=None))
    assert not delivered.is_unchanged(RECORD)


def test_a_node_that_was_denied_is_not_known(delivered: Delivered) -> None:
    """If it is there again, that is news."""
    delivered.forget_node(FACTS.uuid)
    assert not delivered.is_unchanged(RECORD)


def test_later_news_is_believed(delivered: Delivered) -> None:
    """As Ironic's API would say it; what is not in it is as it was told.

    It tells of an end, so nobody holds the lock any more.
    """
    news = {'provision_state': 'active', 'updated_at': '2026-01-01T00:00:01Z'}
    delivered.accept_read(
        dataclasses.replace(FACTS, shard='s1', reservation='c1')
    )
    assert delivered.accept_notification(
        {**RECORD, **news}
    ) == dataclasses.replace(
        FACTS,
        provision_state='active',
        updated_at='2026-01-01T00:00:01+00:00',
        shard='s1',
    )


@pytest.mark.parametrize(
    'stamp', ['2026-01-01T00:00:00Z', '2025-12-31T23:59:59Z', None]
)
def test_what_may_be_older_is_not_believed(
    delivered: Delivered, stamp: str | None
) -> None:
    """Messages overtake each other, and a second holds many changes."""
    news = {'provision_state': 'available', 'updated_at': stamp}
    assert delivered.accept_notification({**RECORD, **news}) is None


@pytest.mark.parametrize('missing', ['updated_at', 'traits', 'properties'])
def test_a_record_that_says_too_little_is_not_believed(
    delivered: Delivered, missing: str
) -> None:
    """Else a node would seem to have lost what is not in it."""
    record = {**RECORD, 'updated_at': '2026-01-01T00:00:01Z'}
    del record[missing]
    assert delivered.accept_notification(record) is None


def test_news_of_an_unknown_node_is_not_believed() -> None:
    """Whether it is of our pool is not known either."""
    assert Delivered().accept_notification(RECORD) is None


def test_traits_of_later_news_may_be_older(delivered: Delivered) -> None:
    """They have no stamp, and the conductor may have read them long ago."""
    news = {'updated_at': '2026-01-01T00:00:01Z', 'traits': []}
    assert delivered.accept_notification({**RECORD, **news}) is None


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
def test_an_answer_may_be_older_than_what_was_heard(
    delivered: Delivered, stamp: str | None, state: str, is_new: bool
) -> None:
    """It was under way when the notification came; the next one is not."""
    assert delivered.accept_notification(ACTIVE)
    answer = dataclasses.replace(
        FACTS, provision_state=state, updated_at=stamp
    )
    assert delivered.accept_read(answer) is is_new
    assert delivered.is_unchanged(ACTIVE) is (state == 'active')
    assert delivered.accept_read(answer)


def test_an_answer_that_agrees_leaves_no_room_for_an_older_one(
    delivered: Delivered,
) -> None:
    """A list was under way all the time."""
    assert delivered.accept_notification(ACTIVE)
    active = dataclasses.replace(
        FACTS, provision_state='active', updated_at=ACTIVE['updated_at']
    )
    old = dataclasses.replace(active, provision_state='deploying')
    assert delivered.accept_read(active)
    assert not delivered.accept_read(old)


@pytest.mark.parametrize('second', [0, 1])
def test_a_list_may_be_older_than_an_answer(
    delivered: Delivered, second: int
) -> None:
    """It takes longer to come; what was read by itself is not compared."""
    stamp = f'2026-01-01T00:00:0{second}+00:00'
    available = dataclasses.replace(FACTS, provision_state='available')
    accept_listed = dataclasses.replace(available, updated_at=stamp)
    assert delivered.accept_listed(FACTS)
    assert delivered.accept_listed(accept_listed) is bool(second)
    assert delivered.accept_listed(available)


def test_less_than_a_second_makes_nothing_later(delivered: Delivered) -> None:
    """Some databases keep it; notifications never have it."""
    assert delivered.accept_notification(ACTIVE)
    answer = dataclasses.replace(
        FACTS, updated_at='2026-01-01T00:00:01.250000+00:00'
    )
    assert not delivered.accept_read(answer)


def test_an_answer_is_not_older_than_another(delivered: Delivered) -> None:
    """A clock was put back; what was read before is over."""
    old = dataclasses.replace(FACTS, updated_at='2025-01-01T00:00:00+00:00')
    assert delivered.accept_read(old)
    assert delivered.accept_read(FACTS)
    assert delivered.accept_read(old)
