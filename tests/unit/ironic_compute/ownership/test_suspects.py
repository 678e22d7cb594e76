# SPDX-License-Identifier: Apache-2.0
"""Suspects: which nodes are read, and when a 404 is the second one."""

import pytest

from ironic_compute.ownership.suspects import CONFIRM_S, Suspects
from resource_tracker.node import NodeFacts, NodeId

N1, N2 = NodeId('n1'), NodeId('n2')


@pytest.fixture
def suspects() -> Suspects:
    """Return one suspect, whose delete was notified at 100 s."""
    made = Suspects()
    made.add(N1, 100.0)
    return made


def test_suspect_is_due_at_once_and_a_minute_after_its_first_404(
    suspects: Suspects,
) -> None:
    """Between the two reads it is not due."""
    assert suspects.due(100.0) == {N1}
    suspects.note_missing(N1, 101.0)
    assert suspects.due(101.0 + CONFIRM_S - 0.1) == frozenset()
    assert suspects.due(101.0 + CONFIRM_S) == {N1}


def test_only_a_read_that_began_a_minute_later_confirms(
    suspects: Suspects,
) -> None:
    """A read may last longer than a minute, so its beginning counts."""
    assert not suspects.is_confirmed(N1, 500.0), 'no 404 yet'
    suspects.note_missing(N1, 101.0)
    assert not suspects.is_confirmed(N1, 101.0 + CONFIRM_S - 0.1)
    assert suspects.is_confirmed(N1, 101.0 + CONFIRM_S)
    assert not suspects.is_confirmed(N2, 101.0 + CONFIRM_S)


def test_read_without_an_answer_starts_the_count_again(
    suspects: Suspects,
) -> None:
    """An Ironic in trouble may have answered the first 404 by mistake."""
    suspects.note_missing(N1, 101.0)
    suspects.forget_missing(N1)
    suspects.forget_missing(N2)
    assert suspects.due(102.0) == {N1}
    assert not suspects.is_confirmed(N1, 500.0)


def test_second_notification_does_not_start_the_count_again(
    suspects: Suspects,
) -> None:
    """Each conductor and API may send one of its own."""
    suspects.note_missing(N1, 101.0)
    suspects.add(N1, 150.0)
    assert suspects.is_confirmed(N1, 101.0 + CONFIRM_S)


@pytest.mark.parametrize(
    ('read_at_s', 'ends'), [(99.0, False), (100.0, True), (None, True)]
)
def test_list_ends_a_suspicion_only_if_it_may_be_later(
    suspects: Suspects, read_at_s: float | None, *, ends: bool
) -> None:
    """The list may have been requested before the delete."""
    suspects.add(N2, 100.0)
    suspects.discard_listed({N1: NodeFacts(N1, read_at_s=read_at_s)})
    assert suspects.due(101.0) == ({N2} if ends else {N1, N2})


def test_nothing_is_recorded_of_a_node_that_is_not_suspected(
    suspects: Suspects,
) -> None:
    """A read may have found it meanwhile, in another thread."""
    suspects.discard(N1)
    suspects.note_missing(N1, 101.0)
    assert suspects.due(500.0) == frozenset()
    assert not suspects.is_confirmed(N1, 500.0)
