# SPDX-License-Identifier: Apache-2.0
"""Duplicate home host: which other entries count as a live second agent."""

import dataclasses

import pytest

from hashring.adoption import View
from hashring.duplicate_home import DuplicateHome
from hashring.group import Boot, Member, MemberState
from hashring.ring import Host

C1 = Host('c1')
ME = Member(C1, Boot('me'), machine='m1')
OTHER = Member(C1, Boot('other'), machine='m2', serving=(C1,))


def test_entry_that_serves_for_long_enough_is_a_rival() -> None:
    """Another entry that serves the home host is a rival after the wait."""
    duplicate_home = DuplicateHome(C1, ME.boot, wait_s=45.0)
    view = View((ME, OTHER))
    assert duplicate_home.find_rival(view, 100.0) is None
    assert duplicate_home.find_rival(view, 144.9) is None
    assert duplicate_home.find_rival(view, 145.0) == OTHER
    message = duplicate_home.message(OTHER, view)
    assert 'one on m2, which serves it, and this one on m1' in message


def test_entry_of_a_longer_term_is_waited_for_longer() -> None:
    """A dead process may have had a longer term than the present one."""
    duplicate_home = DuplicateHome(C1, ME.boot, wait_s=45.0)
    view = View((ME, dataclasses.replace(OTHER, lease_term_s=40.0)))
    assert duplicate_home.find_rival(view, 100.0) is None
    assert duplicate_home.find_rival(view, 219.9) is None
    assert duplicate_home.find_rival(view, 220.0) is not None


@pytest.mark.parametrize(
    'change',
    [
        {'serving': ()},
        {'state': MemberState.LEAVING},
        {'home': Host('c2')},
        {'boot': ME.boot},
    ],
)
def test_other_entries_are_no_rivals(change: dict[str, object]) -> None:
    """An entry that does not serve, leaves, or is of this agent is none."""
    other = dataclasses.replace(OTHER, **change)  # type: ignore[arg-type]
    duplicate_home = DuplicateHome(C1, ME.boot, wait_s=45.0)
    for now_s in (0.0, 100.0):
        assert duplicate_home.find_rival(View((ME, other)), now_s) is None


def test_entry_that_was_away_is_waited_for_again() -> None:
    """The wait restarts when the other entry vanishes in between."""
    duplicate_home = DuplicateHome(C1, ME.boot, wait_s=45.0)
    duplicate_home.find_rival(View((ME, OTHER)), 0.0)
    duplicate_home.find_rival(View((ME,)), 40.0)
    assert duplicate_home.find_rival(View((ME, OTHER)), 50.0) is None
