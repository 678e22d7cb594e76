# SPDX-License-Identifier: Apache-2.0
"""Adoption order: which agent tries an orphaned host, and when."""

import dataclasses

import pytest

from hashring.adoption import Presence, PresenceWatch, View
from hashring.group import Boot, Member, MemberState
from hashring.ring import Host

C1, C2, C3, C4, C5 = (Host(f'c{n}') for n in range(1, 6))


def member(home: Host, **more: object) -> Member:
    made = Member(home, Boot(f'{home}.1'), serving=(home,))
    return dataclasses.replace(made, **more)  # type: ignore[arg-type]


def watch(home: Host, *members: Member, at_s: float = 0.0) -> PresenceWatch:
    made = PresenceWatch(Boot(f'{home}.1'), step_s=2.0)
    made.update(View(members), at_s)
    return made


def hosts(made: PresenceWatch, *known: Host, at_s: float) -> set[Host]:
    return {turn.host for turn in made.due_adoptions(known, frozenset(), at_s)}


def test_the_first_waits_one_step() -> None:
    """An orphaned host is not tried before one step has passed."""
    one = watch(C1, member(C1))
    assert hosts(one, C4, at_s=10.0) == set()
    assert hosts(one, C4, at_s=11.9) == set()
    assert hosts(one, C4, at_s=12.0) == {C4}


def test_candidates_follow_each_other() -> None:
    """Of three agents one tries after one step, one after 2, one after 3."""
    everybody = [member(C1), member(C2), member(C3)]
    watches = [watch(home, *everybody) for home in (C1, C2, C3)]
    for each in watches:
        hosts(each, C4, at_s=0.0)
    tried = [
        sum(hosts(each, C4, at_s=at_s) == {C4} for each in watches)
        for at_s in (1.9, 2.0, 4.0, 6.0)
    ]
    assert tried == [0, 1, 2, 3]


def test_agent_with_more_hosts_comes_later() -> None:
    """An agent that serves two hosts comes after one that serves one."""
    busy = member(C1, serving=(C1, C5))
    first = watch(C2, busy, member(C2))
    second = watch(C1, busy, member(C2))
    for each in (first, second):
        hosts(each, C4, at_s=0.0)
    assert hosts(first, C4, at_s=2.0) == {C4}
    assert hosts(second, C4, at_s=2.0) == set()


def test_two_orphans_find_two_agents() -> None:
    """Two hosts orphaned at once have different first candidates."""
    everybody = [member(C1), member(C2)]
    found = []
    for home in (C1, C2):
        each = watch(home, *everybody)
        hosts(each, C4, C5, at_s=0.0)
        found.append(hosts(each, C4, C5, at_s=2.0))
    assert sorted(map(len, found)) == [1, 1]
    assert set.union(*found) == {C4, C5}


def test_a_served_host_is_no_orphan() -> None:
    """A host that a member publishes as served is not tried."""
    one = watch(C1, member(C1), member(C2, serving=(C2, C4)))
    hosts(one, C4, at_s=0.0)
    assert hosts(one, C4, at_s=60.0) == set()


def test_a_restart_is_waited_for_from_first_sight() -> None:
    """The grace counts from the first sight, even after the entry ended."""
    gone = member(C4, state=MemberState.RESTARTING, grace_s=30.0, serving=())
    one = watch(C1, member(C1), gone, at_s=100.0)
    one.update(View((member(C1), gone)), 110.0)
    one.update(View((member(C1),)), 120.0)
    assert one.presence(C4, 129.9) is Presence.EXPECTED
    assert one.presence(C4, 130.0) is Presence.ABSENT


def test_a_return_ends_the_grace() -> None:
    """An agent that came back and crashed is not waited for any more."""
    gone = member(C4, state=MemberState.RESTARTING, grace_s=30.0)
    back = member(C4, boot=Boot('c4.2'))
    one = watch(C1, member(C1), gone)
    one.update(View((member(C1), gone, back)), 1.0)
    assert one.presence(C4, 1.0) is Presence.HOME
    one.update(View((member(C1),)), 2.0)
    assert one.presence(C4, 2.0) is Presence.ABSENT


@pytest.mark.parametrize(
    'change',
    [{'state': MemberState.LEAVING}, {'wants_home': False}],
)
def test_agent_that_does_not_want_its_home_is_absent(
    change: dict[str, object],
) -> None:
    """A leaving agent, or one whose worker keeps dying, is absent."""
    one = watch(C1, member(C1), member(C4, serving=(), **change))
    assert one.presence(C4, 0.0) is Presence.ABSENT


def test_leaving_agent_adopts_nothing() -> None:
    """An agent that leaves is no candidate for adoption."""
    one = watch(C1, member(C1, state=MemberState.LEAVING))
    hosts(one, C4, at_s=0.0)
    assert hosts(one, C4, at_s=60.0) == set()


def test_agent_that_fails_on_a_path_does_not_adopt() -> None:
    """It would give the host away again."""
    sick = member(C1, failing_paths=('RabbitMQ',))
    well = member(C2, working_paths=('RabbitMQ',))
    members = (sick, well, member(C3, is_half_alive=True))
    for home, expected in ((C1, set()), (C2, {C4}), (C3, set())):
        made = watch(home, *members)
        hosts(made, C4, at_s=0.0)
        assert hosts(made, C4, at_s=100.0) == expected


def test_in_an_outage_for_all_hosts_are_adopted_as_ever() -> None:
    """The service may be back before the host's own agent is."""
    made = watch(
        C1,
        member(C1, failing_paths=('Ironic',)),
        member(C2, failing_paths=('Ironic',)),
    )
    hosts(made, C4, at_s=0.0)
    assert hosts(made, C4, at_s=4.0) == {C4}


def test_agent_that_knows_no_path_is_not_better_than_others() -> None:
    """Its workers may keep dying, while a service is away for all."""
    broken = member(C3, serving=(), wants_home=False)
    others = [
        member(home, failing_paths=('Placement',), working_paths=('Ironic',))
        for home in (C1, C2)
    ]
    for home in (C1, C2, C3):
        made = watch(home, broken, *others)
        hosts(made, C3, at_s=0.0)
        assert hosts(made, C3, at_s=6.0) == {C3}
