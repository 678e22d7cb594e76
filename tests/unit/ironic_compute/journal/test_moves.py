# SPDX-License-Identifier: Apache-2.0
"""Moves as values, the query for some of them, and what notes them."""

import json
import random

import pytest

from ironic_compute.journal.moves import (
    Cause,
    Kind,
    Move,
    MoveRecorder,
    Query,
    Reason,
    parse_move,
)
from tests.fakes.clock import ManualClock
from tests.unit.ironic_compute.journal.made_up import any_moves, move


@pytest.mark.parametrize('seed', range(5))
def test_move_survives_json(seed: int) -> None:
    """Also one with a name that is no UTF-8, and of a kind of tomorrow."""
    for each in any_moves(random.Random(seed), 20):
        raw = json.loads(json.dumps(each.as_json()))
        assert parse_move({**raw, 'of_tomorrow': 1}) == each


@pytest.mark.parametrize(
    'raw', [None, [], {}, {'at_s': 1}, {**move().as_json(), 'at_s': 'noon'}]
)
def test_what_is_no_move_is_an_error(raw: object) -> None:
    """The caller leaves it out."""
    with pytest.raises(ValueError, match='no'):
        parse_move(raw)


def test_query_selects_by_host_node_and_time() -> None:
    """A host is the former or the new one."""
    moves = [move(1), move(2, source='c3'), move(3, target='c3'), move(4)]
    moves.append(move(0, host='c3', node=''))

    def found(**query: object) -> list[float]:
        newest = Query(**query).newest(moves)  # type: ignore[arg-type]
        return [each.at_s for each in newest]

    assert found() == [4, 3, 2, 1, 0]
    assert found(host='c3') == [3, 2, 0]
    assert found(node='n4') == [4]
    assert found(since_s=3.0) == [4, 3]
    assert found(limit=1) == [4]
    assert found(host='c3', since_s=3.0, limit=5) == [3]


def test_move_that_two_readers_found_is_shown_once() -> None:
    """Both have read the same file."""
    assert Query().newest([move(1), move(1)]) == [move(1)]


def test_recorder_notes_when_and_for_how_long() -> None:
    """Each keeper gets the same entry."""
    clock, kept, counted = ManualClock(), list[Move](), list[Move]()
    recorder = MoveRecorder(clock, kept.append, counted.append)
    begun_s = recorder.now_s()
    clock.advance(2.5)
    recorder.add(
        Kind.EVICT,
        Cause(Reason.PIN, 'ann' * 200),
        begun_s=begun_s,
        source='c1',
        target='c2',
        node='n1',
        server='s1',
    )
    assert kept == counted
    (entry,) = kept
    assert (entry.at_s, entry.seconds) == (clock.wall_s(), 2.5)
    assert (entry.kind, entry.reason) == ('evict', 'pin')
    assert entry.by.startswith('annann')
    assert len(entry.by) == 200
