# SPDX-License-Identifier: Apache-2.0
"""The table of what has moved, and what is said about what is missing."""

import argparse
from collections.abc import Mapping
from typing import Any

import oslo_messaging
import pytest

from hashring.group import Boot, Member
from hashring.ring import Host
from ironic_compute.cmd import history
from ironic_compute.cmd.nova_access import NovaRefused, ask_worker
from ironic_compute.journal.moves import Move, Query
from resource_tracker.node import NodeId
from tests.unit.ironic_compute.journal.made_up import move

C1, C2, C3 = map(Host, ('c1', 'c2', 'c3'))
NOW_S = 1_800_000_000.0
NODE = '1be26c0b-03f2-4d2e-ae87-c02d7f33c123'


def _member(
    home: Host, *serving: Host, known: tuple[Host, ...] = ()
) -> Member:
    return Member(home, Boot(f'b-{home}'), serving=serving, known=known)


class Pool:
    """Daemons that answer, or do not."""

    def __init__(self, answers: Mapping[Host, Any]) -> None:
        self._answers = answers
        self.asked: list[Host] = []
        self.noted: list[str] = []

    def ask(self, host: Host, query: Query) -> list[Move]:
        """Answer as the command reads it."""
        self.asked.append(host)
        answer = self._answers[host]

        def request() -> Any:
            if isinstance(answer, Exception):
                raise answer
            return query.newest(answer)

        return ask_worker(
            request,
            no_answer=f'{host} does not answer',
            too_old=f'{host} is too old',
        )

    def read(self, *members: Member, **query: Any) -> list[float]:
        """Return when the moves were made that are shown."""
        found = history.read_history(
            members, Query(**query), self.ask, self.noted.append
        )
        return [each.at_s for each in found]


def test_moves_of_all_daemons_are_shown_newest_first() -> None:
    """One worker of each daemon is asked, the home host's if there is one."""
    pool = Pool({C1: [move(1), move(4)], C2: [move(2), move(3)]})
    members = _member(C1, C3, C1), _member(C2, C2)
    assert pool.read(*members) == [4, 3, 2, 1]
    assert pool.asked == [C1, C2]
    assert pool.read(*members, limit=3) == [4, 3, 2]
    assert pool.read(*members, node='n2') == [2]
    assert not pool.noted


@pytest.mark.parametrize(
    ('error', 'sentence'),
    [
        (oslo_messaging.MessagingTimeout(), 'c2 does not answer'),
        (oslo_messaging.RemoteError('UnsupportedVersion'), 'c2 is too old'),
        (oslo_messaging.UnsupportedVersion('1.6'), 'c2 is too old'),
    ],
)
def test_daemon_without_an_answer_is_named(error: Any, sentence: str) -> None:
    """The moves of the others are shown."""
    pool = Pool({C1: [move(1)], C2: error})
    assert pool.read(_member(C1, C1), _member(C2, C2)) == [1]
    assert pool.noted == [sentence]


def test_another_worker_of_the_daemon_is_asked() -> None:
    """All of them read the same folder."""
    pool = Pool({C1: oslo_messaging.MessagingTimeout(), C3: [move(1)]})
    assert pool.read(_member(C1, C1, C3)) == [1]
    assert not pool.noted


def test_what_cannot_be_asked_is_named() -> None:
    """A daemon that is down, and one that serves nothing."""
    pool = Pool({C1: [move(1)]})
    assert pool.read(_member(C1, C1, known=(C3,)), _member(C2)) == [1]
    assert pool.noted == [
        'The daemon of c2 serves no host, so it cannot be asked for what it '
        'has moved',
        'The daemon of c3 is not up; what it has moved is not shown',
    ]


def test_no_answer_at_all_is_a_refusal() -> None:
    """An empty table would be wrong."""
    pool = Pool({C1: oslo_messaging.MessagingTimeout()})
    with pytest.raises(NovaRefused, match='c1 does not answer'):
        pool.read(_member(C1, C1), _member(C2))


@pytest.mark.parametrize(
    'text', [NODE, NODE.upper(), NODE.replace('-', ''), f'{{{NODE}}}']
)
def test_uuid_may_have_capitals_or_no_hyphens(text: str) -> None:
    """As some inventory prints it; the table was empty."""
    pool = Pool({C1: [move(1, node=NODE), move(2)]})
    node = history.find_uuid(text, lambda name: pytest.fail(name))
    assert pool.read(_member(C1, C1), node=node) == [1]
    assert history.find_uuid('bm-1', lambda _: NodeId(NODE)) == NODE


def test_row_has_all_of_an_entry() -> None:
    """A dash for what an entry does not have."""
    made = move(
        1_800_000_000,
        node='n1',
        server='s1',
        kind='evict',
        reason='pin',
        seconds=1.26,
        by='ann',
    )
    assert history.row(made) == (
        *('2027-01-15 08:00:00', 'evict', '-', 'n1', 's1', 'c1', 'c2'),
        *('pin', '1.3', 'ann'),
    )
    host = move(0, kind='retirement', host='c1', node='', target='')
    assert history.row(host)[1:7] == ('retirement', 'c1', '-', '-', 'c1', '-')
    assert len(history.row(host)) == len(history.COLUMNS)


@pytest.mark.parametrize(
    ('text', 'at_s'),
    [
        ('90s', NOW_S - 90),
        ('30m', NOW_S - 1800),
        ('2h', NOW_S - 7200),
        ('7d', NOW_S - 7 * 86400),
        ('2027-01-15', NOW_S - 8 * 3600),
        ('2027-01-15T07:30', NOW_S - 1800),
        ('2027-01-15 07:30:00', NOW_S - 1800),
        ('2027-01-15T08:30:00+01:00', NOW_S - 1800),
        ('2027-01-15T07:30:00Z', NOW_S - 1800),
    ],
)
def test_since_is_an_age_or_a_time(text: str, at_s: float) -> None:
    """Times are in UTC, as those of the table are."""
    assert history.since(text, NOW_S) == at_s


@pytest.mark.parametrize('text', ['', 'noon', '2 h', '-1h', '1w', '15.1.2027'])
def test_other_times_are_refused(text: str) -> None:
    """The sentence has an example."""
    with pytest.raises(argparse.ArgumentTypeError, match='such as 90s'):
        history.since(text, NOW_S)


@pytest.mark.parametrize('text', ['0', '-1', '5001', 'all', ''])
def test_limit_has_bounds(text: str) -> None:
    """One message holds the answer of a daemon."""
    with pytest.raises(argparse.ArgumentTypeError, match='from 1 to 5000'):
        history.limit(text)
    assert history.limit('5000') == 5000
