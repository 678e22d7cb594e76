# SPDX-License-Identifier: Apache-2.0
"""An operator's request about a host reaches a worker of the pool."""

from typing import Any

import oslo_messaging
import pytest

from hashring.group import Boot, Member, MemberState
from hashring.ring import Host
from ironic_compute.cmd import hosts
from ironic_compute.cmd.nova_access import NovaRefused

C1, C2, C3, C9 = map(Host, ('c1', 'c2', 'c3', 'c9'))
MINE, OTHER = 'ironic-compute/*/*', 'ironic-compute/rack-2/*'
POOLS = {
    MINE: (
        Member(C1, Boot('b1'), serving=(C1, C3), known=(C1, C2, C3)),
        Member(C2, Boot('b2'), serving=(C2,)),
    ),
    OTHER: (Member(Host('d1'), Boot('b3'), known=(Host('d9'),)),),
}


class Wire:
    """Where orders are sent to; those of ``deaf`` are lost.

    :param answer: what each of the others says
    """

    def __init__(self, *deaf: Host, answer: str | None = None) -> None:
        self._deaf = deaf
        self._answer = answer
        self.sent: list[Host] = []

    def __call__(self, to: Host) -> str | None:
        self.sent.append(to)
        if to in self._deaf:
            raise oslo_messaging.MessagingTimeout
        return self._answer


def test_order_goes_to_the_first_who_answers() -> None:
    """Home hosts come first, as an adopted host may be handed back."""
    wire = Wire(C1, C2)
    assert 'is a host of this pool now' in hosts.adopt(C9, POOLS, MINE, wire)
    assert wire.sent == [C1, C2, C3]


@pytest.mark.parametrize('host', [C1, C3])
def test_host_that_is_known_is_no_failure(host: Host) -> None:
    """No request is sent for a host that the pool knows already."""
    wire = Wire()
    assert 'already' in hosts.adopt(host, POOLS, MINE, wire)
    assert not wire.sent


@pytest.mark.parametrize('host', ['d1', 'd9'])
def test_host_of_another_pool_that_is_up_is_refused(host: str) -> None:
    """The message says which pool has it."""
    wire = Wire()
    with pytest.raises(
        NovaRefused, match='conductor_group rack-2, shard not set'
    ):
        hosts.adopt(Host(host), POOLS, MINE, wire)
    assert not wire.sent


def test_refusal_of_a_worker_is_the_end() -> None:
    """After a refusal no other worker gets the request."""
    wire = Wire(answer='because')
    with pytest.raises(NovaRefused, match='because'):
        hosts.adopt(C9, POOLS, MINE, wire)
    assert wire.sent == [C1]


@pytest.mark.parametrize('pools', [{}, POOLS])
def test_nobody_who_answers_is_said(pools: hosts.Pools) -> None:
    """A request that no worker answers is reported as refused."""
    with pytest.raises(NovaRefused, match='No daemon of this pool answers'):
        hosts.adopt(C9, pools, MINE, Wire(C1, C2, C3))


def _up(home: Host, *served: Host, marks: Any = ()) -> Member:
    hosts = (C1, C2, C3)
    boot = Boot(f'{home}.1')
    return Member(
        home, boot, 'm-' + home, serving=served, known=hosts, marks=marks
    )


def test_host_is_forgotten_by_a_worker_of_another_host() -> None:
    """The worker of the host itself ends when its host is forgotten."""
    pools = {MINE: (_up(C1, C1, C3), _up(C2, C2))}
    wire = Wire(C1)
    result = hosts.forget(C3, pools, MINE, wire)
    assert wire.sent == [C1, C2]
    assert 'openstack compute service list --host c3' in result


@pytest.mark.parametrize(
    ('members', 'sentence'),
    [
        ((_up(C1, C1), _up(C3)), 'host c3 runs on m-c3; stop'),
        ((_up(C1, C1, C3), _up(C2, C2, marks=None)), 'c2 is of an older'),
        ((), 'No daemon of this pool answers'),
    ],
)
def test_host_is_not_forgotten_too_early(
    members: tuple[Member, ...], sentence: str
) -> None:
    """A live daemon, or one that cannot forget, would bring it back."""
    wire = Wire()
    with pytest.raises(NovaRefused, match=sentence):
        hosts.forget(C3, {MINE: members}, MINE, wire)
    assert not wire.sent


def test_unknown_host_needs_not_be_forgotten() -> None:
    """No request is sent for a host that the pool does not know."""
    wire = Wire()
    pools = {MINE: (_up(C1, C1),)}
    assert 'is no host of this' in hosts.forget(C9, pools, MINE, wire)
    assert not wire.sent


def test_pool_without_a_daemon_is_an_error_that_names_the_others() -> None:
    """An empty table would hide a wrong option."""
    url = 'redis://r1'
    with pytest.raises(NovaRefused, match=r'daemons of: .*rack-2.*Check'):
        hosts.members_of('ironic-compute/other/*', POOLS, url)
    with pytest.raises(NovaRefused, match=r'redis://r1 .*daemons of: no pool'):
        hosts.members_of(MINE, {}, url)
    assert hosts.members_of(MINE, POOLS, url) == POOLS[MINE]


def test_ended_process_is_not_shown_beside_its_successor() -> None:
    """`pool show` named the daemon twice, `pool doctor` as stopping."""
    ended, alone = (
        Member(host, Boot('b1'), machine='m1', state=MemberState.RESTARTING)
        for host in (C1, C3)
    )
    again = Member(C1, Boot('b4'), machine='m1')
    elsewhere = Member(C3, Boot('b5'), machine='m2')
    members = (ended, again, alone, elsewhere)
    assert hosts.without_ended(members) == (again, alone, elsewhere)
