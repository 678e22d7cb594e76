# SPDX-License-Identifier: Apache-2.0
"""The commands that show hosts say who serves each, and what is wrong."""

import dataclasses
import socket

import pytest

from hashring.group import Boot, Member, MemberState
from hashring.paths import Path
from hashring.ring import Host, digest_of
from ironic_compute import catalogue
from ironic_compute.agent_port.figures import HostFigures
from ironic_compute.agent_port.problems import Alert, Problem
from ironic_compute.cmd import agent_ports, host_views
from ironic_compute.cmd.nova_access import NovaRefused
from ironic_compute.cmd.nova_hosts import NovaHost
from ironic_compute.ownership.drain_order import DrainOrder
from tests.unit.ironic_compute.agent_port.test_peers import (
    TRIES_COUNT,
    port_that_answers,
    port_that_refuses,
)

C1, C2, C3, C9 = map(Host, ('c1', 'c2', 'c3', 'c9'))
POOL = 'ironic-compute/*/*'


def _up(home: Host, *served: Host, ring: str = '') -> Member:
    return Member(
        home,
        Boot(f'{home}.1'),
        'm-' + home,
        serving=served,
        known=(C1, C2, C3),
        ring=ring,
        version='1.2',
    )


def test_list_shows_who_serves_a_host_and_what_it_does_not_reach() -> None:
    """A host whose daemon is down, and one that another daemon serves."""
    lost = (Path('RabbitMQ'), Path('Ironic'))
    deaf = dataclasses.replace(_up(C2, C2), failing_paths=lost)
    assert host_views.host_rows([_up(C1, C1, C3), deaf, _up(C9)], {}) == [
        ('c1', 'c1', 'm-c1', 'home', '-'),
        ('c2', 'c2', 'm-c2', 'home', 'RabbitMQ, Ironic'),
        ('c3', 'c1', 'm-c1', 'adopted', '-'),
        ('c9', '-', '-', 'not served', '-'),
    ]


def test_list_says_why_a_live_daemon_does_not_serve_its_own_host() -> None:
    """Its host is served elsewhere, because it does not reach a service."""
    well = _up(C1, C1, C2)
    for paths, why in (
        ((Path('RabbitMQ'),), 'adopted: c2 does not reach RabbitMQ'),
        ((), 'adopted: c2 reaches all services again'),
    ):
        away = dataclasses.replace(
            _up(C2), failing_paths=paths, is_half_alive=True
        )
        rows = host_views.host_rows([well, away], {})
        assert rows[1] == (C2, C1, well.machine, why, '-')


def test_list_says_what_is_wrong_with_a_host() -> None:
    """A host that is not served has the time instead of the bare state."""
    phrases = {
        C1: ['its worker does not answer', 'not mapped to a cell'],
        C2: ['not served for 12 s'],
        C3: ['disabled in Nova'],
    }
    rows = host_views.host_rows([_up(C1, C1)], phrases)
    assert [row[3] for row in rows] == [
        'home; its worker does not answer; not mapped to a cell',
        'not served for 12 s',
        'not served; disabled in Nova',
    ]


def test_nova_is_asked_only_if_a_host_is_not_in_the_ring() -> None:
    """The digest shows that. A daemon without a worker publishes none."""
    whole, part = digest_of((C1, C2, C3)), digest_of((C1, C2))
    for rings, lacks in (
        ((whole, whole), False),
        ((whole, ''), False),
        (('', ''), False),
        ((part, part), True),
        ((whole, part), True),
    ):
        members = [_up(C1, ring=rings[0]), _up(C2, ring=rings[1])]
        assert host_views.lacks_hosts(members) is lacks


@pytest.mark.parametrize(
    ('nova', 'phrases'),
    [
        (NovaHost(True, is_mapped=True), ()),
        (NovaHost(True, is_mapped=None), ()),
        (NovaHost(True, is_mapped=False), ('not mapped to a cell',)),
        (NovaHost(True, is_disabled=True), ('disabled in Nova',)),
        (NovaHost(False, is_mapped=False), ('no Service in Nova',)),
        (
            NovaHost(True, is_disabled=True, is_mapped=False),
            ('disabled in Nova', 'not mapped to a cell'),
        ),
    ],
)
def test_nova_says_why_a_host_gets_no_nodes(
    nova: NovaHost, phrases: tuple[str, ...]
) -> None:
    """In the words of the daemons; what it cannot say is left out."""
    assert nova.phrases == phrases
    assert nova.gets_nodes is not bool(phrases)


def test_show_has_what_the_daemon_and_nova_know() -> None:
    """Each finding has its cure."""
    problem = Problem(
        Alert.HOST_NOT_IN_RING,
        'Host c2 gets no nodes.',
        catalogue.HOST_NOT_MAPPED,
        C2,
        'not mapped to a cell',
    )
    shown = host_views.fields(
        host_views.HostFacts(
            C2,
            [_up(C1, C1), dataclasses.replace(_up(C2, C2), page='http://c2/')],
            [problem],
            HostFigures(nodes=9, servers=4, dirty=1),
            NovaHost(True, True, True, 'broken', False),
        )
    )
    assert shown['State'] == 'home; not mapped to a cell'
    assert shown['Daemon'] == 'release 1.2 on m-c2, http://c2/'
    assert (shown['Nodes'], shown['Servers']) == (9, 4)
    assert shown['Service in Nova'] == 'up, disabled: broken'
    assert shown['Mapped to a cell'] == 'no'
    assert shown['Findings'] == (
        'Host c2 gets no nodes. What to do: nova-manage cell_v2 '
        'discover_hosts --by-service'
    )


def test_show_says_what_a_retirement_waits_for() -> None:
    """The own daemon is up, another one serves the host, and it is retired."""
    waits, served = [_up(C1, C1, C2), _up(C2)], [_up(C1, C1), _up(C2, C2)]
    for members, order, is_shown in (
        (waits, DrainOrder(retires=True), True),
        (waits, DrainOrder(), False),
        (served, DrainOrder(retires=True), False),
    ):
        nova = NovaHost(True, True, True, order.reason())
        facts = host_views.HostFacts(C2, members, nova=nova)
        found = host_views.fields(facts)['Findings']
        assert ('The host is retired when that daemon' in found) is is_shown


def test_show_does_without_the_port_and_without_nova() -> None:
    """What is not known is a dash; Nova alone says what is wrong, too."""
    leaving = dataclasses.replace(_up(C1, C2), state=MemberState.LEAVING)
    facts = host_views.HostFacts(C1, [leaving])
    shown = host_views.fields(facts)
    assert shown['State'] == 'not served'
    assert shown['Daemon'] == 'stopping, release 1.2 on m-c1'
    assert shown['Nodes'] == shown['Service in Nova'] == '-'
    assert shown['Mapped to a cell'] == shown['Findings'] == '-'
    disabled = dataclasses.replace(
        facts, host=C2, nova=NovaHost(True, False, True)
    )
    shown = host_views.fields(disabled)
    assert shown['State'] == 'adopted; disabled in Nova'
    assert shown['Daemon'] == 'not up'
    assert shown['Service in Nova'] == 'down, disabled: no reason'


def test_a_host_of_no_daemon_is_an_error_that_names_the_others() -> None:
    """The pool, too: it may be the wrong one."""
    members = [_up(C1, C1)]
    host_views.check_known(C3, members, POOL)
    with pytest.raises(NovaRefused, match=r'c9 is no .*not set\), .*c1, c2'):
        host_views.check_known(C9, members, POOL)


def test_port_that_answers_with_an_error_is_not_silent() -> None:
    """The daemon lives: it is starting, or has too many requests."""
    paths = frozenset({agent_ports.FINDINGS})
    error = '503 Service Unavailable'
    with (
        port_that_answers(b'[]', paths=paths) as good,
        port_that_answers(b'Not yet.\n', error, paths) as bad,
        port_that_refuses() as closed,
    ):
        members = [
            dataclasses.replace(
                _up(home, home), machine=socket.gethostname(), page=url
            )
            for home, url in ((C1, good), (C2, bad), (C3, closed))
        ]
        for _ in range(TRIES_COUNT):  # A busy machine may be late.
            found = host_views.read_phrases(members)
            if not found.get(C1) and not found.get(C2):
                break
    assert found == {C1: [], C2: [], C3: [host_views._SILENT]}
