# SPDX-License-Identifier: Apache-2.0
"""Admission: which agents end because of other pools on their backend."""

import dataclasses

import pytest

from hashring.admission import Admission
from hashring.group import Boot, Member
from hashring.ring import Host

C1 = Host('c1')
ME = Member(C1, Boot('me'), machine='m1')
RIVAL = Member(C1, Boot('other'), machine='m2', serving=(C1,))
DEAD_ENTRY_S = 45.0


def make(me: Member = ME) -> Admission:
    """Return the admission of an agent whose pool overlaps with "bad"."""
    return Admission(
        me,
        DEAD_ENTRY_S,
        lambda group: 'it has our nodes' if group == 'bad' else None,
    )


def pool(*homes: str, admitted: bool = False) -> tuple[Member, ...]:
    """Return agents of one pool; all have found no other pool, or none."""
    return tuple(
        Member(Host(home), Boot(home), is_admitted=admitted) for home in homes
    )


@pytest.mark.parametrize(
    ('mine', 'others', 'stays'),
    [
        # The larger one stays.
        (pool('c1', 'c3'), pool('c2'), True),
        (pool('c1'), pool('c2', 'c3'), False),
        # Of pools of one size, that with the greatest name.
        (pool('c1'), pool('c0'), True),
        (pool('c1'), pool('c2'), False),
        # One that was there before stays, whatever its size.
        (pool('c1', 'c3'), pool('c2', admitted=True), False),
        ((*pool('c3', admitted=True), ME), pool('c2', 'c4', 'c5'), True),
        # Two of these cannot go on together: the agent that starts ends.
        ((*pool('c3', admitted=True), ME), pool('c2', admitted=True), False),
    ],
)
def test_which_of_two_pools_with_the_same_nodes_stays(
    mine: tuple[Member, ...], others: tuple[Member, ...], stays: bool
) -> None:
    """An agent that stays is not admitted before the others have ended."""
    admission = make()
    why = admission.why_refused(mine, {'bad': others}, 0.0, holds_home=True)
    assert why == (None if stays else 'it has our nodes')
    assert not admission.is_admitted
    admission.why_refused(mine, {'good': others}, 1.0, holds_home=True)
    assert admission.is_admitted


def test_one_of_two_pools_that_start_together_ends() -> None:
    """All agents decide by the same facts, and only one pool ends."""
    one, two = pool('c1', 'c4'), pool('c2', 'c3')
    for mine, others in ((one, two), (two, one)):
        for me in mine:
            why = make(me).why_refused(
                mine, {'bad': others}, 0.0, holds_home=True
            )
            assert (why is None) is (mine is one)


def test_agent_is_admitted_only_when_the_groups_were_read() -> None:
    """Once admitted, it never ends because of a pool that comes later."""
    admission, known = make(), frozenset({C1, Host('c2')})
    assert admission.why_refused((ME,), None, 0.0, holds_home=True) is None
    assert not admission.is_admitted
    assert admission.adoptable(known) == frozenset()
    assert admission.why_refused((ME,), {}, 1.0, holds_home=True) is None
    assert admission.is_admitted
    assert admission.adoptable(known) == known
    later = {'bad': pool('c2', 'c3', admitted=True)}
    assert admission.why_refused((ME,), later, 2.0, holds_home=True) is None


def test_the_agent_without_the_home_lock_ends_beside_its_namesake() -> None:
    """It would wait for the lock of its home host for ever, in silence."""
    admission, groups = make(), {'good': (RIVAL,)}
    waits_s = (0.0, DEAD_ENTRY_S - 0.1)
    for now_s in waits_s:
        why = admission.why_refused((ME,), groups, now_s, holds_home=False)
        assert why is None
        assert not admission.is_admitted
    why = admission.why_refused((ME,), groups, DEAD_ENTRY_S, holds_home=False)
    assert why is not None
    assert 'host = c1: one on m2, which serves it, and this one on m1' in why


def test_the_agent_with_the_home_lock_goes_on_beside_its_namesake() -> None:
    """The other entry may be one of its own former process."""
    admission, groups = make(), {'good': (RIVAL,)}
    for now_s in (0.0, 2 * DEAD_ENTRY_S):
        why = admission.why_refused((ME,), groups, now_s, holds_home=True)
        assert why is None
        assert admission.is_admitted


def test_the_entry_of_a_former_process_is_waited_for() -> None:
    """It was killed, then started with another pool in its nova.conf."""
    admission = make()
    former = dataclasses.replace(RIVAL, lease_term_s=40.0)
    groups = {'bad': (former,)}
    for now_s in (0.0, 100.0):
        assert (
            admission.why_refused((ME,), groups, now_s, holds_home=False)
            is None
        )
    assert admission.why_refused((ME,), {}, 119.0, holds_home=False) is None
    assert admission.is_admitted


def test_what_was_read_before_an_outage_makes_no_namesake() -> None:
    """The entry of a dead process may outlive an outage of the backend."""
    admission, now_s = make(), 0.0
    groups = {'good': (RIVAL, *pool('c2'))}
    for read, now_s in ((groups, 0.0), (None, 12.0), (groups, 99.0)):
        why = admission.why_refused((ME,), read, now_s, holds_home=False)
        assert why is None, now_s
    why = admission.why_refused(
        (ME,), groups, now_s + DEAD_ENTRY_S, holds_home=False
    )
    assert why is not None


def test_agent_knows_whether_another_pool_counts_on_its_host() -> None:
    """It was started with another pool, and its host was not retired."""
    admission = make()
    former = dataclasses.replace(RIVAL, known=(C1,))
    unknown = pool('c4')
    first, second = pool('c2', 'c3')
    others = dataclasses.replace(first, known=(C1,)), second
    groups = {'good': (former, *unknown)}
    admission.why_refused((ME,), groups, 0.0, holds_home=True)
    assert admission.former_pool == ()
    admission = make()
    groups = {'good': others, 'another': unknown}
    admission.why_refused((ME,), groups, 0.0, holds_home=True)
    assert admission.former_pool == ('c2', 'c3')
