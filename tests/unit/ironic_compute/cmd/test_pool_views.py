# SPDX-License-Identifier: Apache-2.0
"""The commands that show pools say what the daemons publish."""

import dataclasses
from typing import Any

import pytest

from hashring.group import Boot, Member, MemberState
from hashring.paths import Path
from hashring.ring import Host
from ironic_compute.agent.groups import group_name
from ironic_compute.agent_port.state import PATHS
from ironic_compute.cmd import pool_views
from ironic_compute.cmd.nova_access import NovaRefused

C1, C2, C3 = map(Host, ('c1', 'c2', 'c3'))
MINE, OTHER = group_name(None, None), group_name('rack 2', '')
URL = 'redis://r1'


def _up(home: Host, *serving: Host, **changes: Any) -> Member:
    member = Member(
        home,
        Boot(f'{home}.1'),
        f'm-{home}',
        serving=serving or (home,),
        known=(C1, C2),
        ring='d1',
        version='1.2',
        lease_term_s=15.0,
        working_paths=PATHS,
    )
    return dataclasses.replace(member, **changes)


def test_list_has_each_pool_with_a_daemon() -> None:
    """Its options as in nova.conf; a group that everybody left is no pool."""
    pools = {
        OTHER: (_up(C3, known=()),),
        MINE: (_up(C1), _up(C3)),
        'ironic-compute/left/*': (),
    }
    assert pool_views.pool_rows(pools, MINE, URL) == [
        ('not set', 'not set', 2, 3, 1, 'yes'),
        ('rack 2', 'empty', 1, 1, 0, '-'),
    ]


def test_a_backend_without_a_daemon_is_an_error_that_names_it() -> None:
    """An empty table would hide a wrong option."""
    for pools in ({}, {MINE: ()}):
        with pytest.raises(NovaRefused, match='redis://r1 there is no daemon'):
            pool_views.pool_rows(pools, MINE, URL)


def test_show_has_one_value_if_all_agree() -> None:
    """And for how long, if a port has answered that."""
    members = [_up(C2), _up(C1)]
    shown = pool_views.fields(members, MINE, URL, 71.4)
    assert shown == {
        'Conductor group': 'not set',
        'Shard': 'not set',
        'Backend': URL,
        'Daemons': 'c1 on m-c1, c2 on m-c2',
        'Hosts': 'c1, c2',
        'Not served': '-',
        'Ring': 'd1',
        'Rings agree': 'yes, for 71 s',
        'Releases': '1.2',
        'Lease terms': '15 s',
    }
    assert pool_views.fields(members, MINE, URL, None)['Rings agree'] == 'yes'


def test_show_says_who_differs() -> None:
    """A daemon without a worker has no ring, and is no matter."""
    other = _up(C2, ring='d2', version='1.3', lease_term_s=20.0)
    members = [_up(C1), other, _up(C3, ring='', version='1.3')]
    shown = pool_views.fields(members, MINE, URL, None)
    assert shown['Ring'] == 'd1: c1; d2: c2'
    assert shown['Rings agree'] == 'no'
    assert shown['Releases'] == '1.2: c1; 1.3: c2, c3'
    assert shown['Lease terms'] == '15 s: c1, c3; 20 s: c2'
    alone = pool_views.fields([_up(C1, ring='')], MINE, URL, None)
    assert alone['Ring'] == alone['Rings agree'] == '-'
    assert alone['Not served'] == 'c2'


def test_the_shortest_agreement_counts() -> None:
    """A daemon that has just started knows it for a short time only."""
    answers: dict[Boot, Any] = {
        Boot('1'): {'agreed_for_s': 70.5},
        Boot('2'): {'agreed_for_s': 9},
        Boot('3'): {'agreed_for_s': None},
        Boot('4'): ['no ring'],
    }
    assert pool_views.agreed_for_s(answers) == 9.0
    assert pool_views.agreed_for_s({}) is None


def test_doctor_has_nothing_to_say_if_all_is_well() -> None:
    """A service that no request was sent to does not fail."""
    new = _up(C2, working_paths=PATHS[:3])
    rows = pool_views.doctor_rows([_up(C1), new])
    assert rows == [
        ('c1', 'm-c1', *['works'] * 5, 'up'),
        ('c2', 'm-c2', *['works'] * 3, 'not known', 'not known', 'up'),
    ]
    assert list(pool_views.sentences(rows)) == []


@pytest.mark.parametrize(
    ('changes', 'state', 'sentence'),
    [
        ({'state': MemberState.LEAVING}, 'stopping', 'm-c1 is stopping'),
        ({'wants_home': False}, 'worker keeps dying', 'dying on m-c1'),
        ({'is_half_alive': True}, 'half alive', 'has given its hosts away'),
        ({'serving': ()}, 'host not served', 'no daemon serves its host'),
    ],
)
def test_doctor_says_how_a_daemon_is(
    changes: dict[str, Any], state: str, sentence: str
) -> None:
    """A daemon may be unwell although all services answer it now."""
    rows = pool_views.doctor_rows([_up(C1, known=(), **changes)])
    assert rows[0][-1] == state
    (found,) = pool_views.sentences(rows)
    assert sentence in found


def test_doctor_has_nothing_to_say_of_a_host_that_is_handed_back() -> None:
    """Its daemon is up again; the one that serves the host gives it back."""
    rows = pool_views.doctor_rows(
        [_up(C1, serving=()), _up(C2, serving=(C1, C2))]
    )
    assert [row[-1] for row in rows] == ['up', 'up']


def test_doctor_knows_that_another_daemon_serves_a_host() -> None:
    """Such a host may have nodes, so it cannot be forgotten."""
    rows = pool_views.doctor_rows([_up(C1, serving=(C1, C2))])
    assert rows[1] == ('c2', '-', *['not known'] * 5, 'adopted')
    (found,) = pool_views.sentences(rows)
    assert 'another one serves the host' in found
    assert 'host retire c2' in found


def test_doctor_names_the_services_that_a_daemon_does_not_reach() -> None:
    """And the host of which no daemon is up."""
    lost = (Path('Ironic'), Path('RabbitMQ'))
    deaf = _up(C1, failing_paths=lost, working_paths=PATHS[3:])
    rows = pool_views.doctor_rows([deaf])
    assert rows[0][2:7] == ('fails', 'not known', 'fails', 'works', 'works')
    assert rows[1] == ('c2', '-', *['not known'] * 5, 'not up')
    first, second = pool_views.sentences(rows)
    assert 'daemon of c1 does not reach RabbitMQ, Ironic: ' in first
    assert 'host forget c2' in second
