# SPDX-License-Identifier: Apache-2.0
"""The commands that show nodes join Ironic, Nova and the workers."""

import argparse
from typing import Any

import pytest

from hashring.group import Boot, Member
from hashring.ring import Host, Ring
from ironic_compute.cmd import node_views
from ironic_compute.cmd.node_views import Held, ListedNode
from ironic_compute.cmd.nova_access import NovaRefused
from ironic_compute.nodes.pins import Pin
from resource_tracker.node import NodeFacts, NodeId

C1, C2, C9 = map(Host, ('c1', 'c2', 'c9'))
N1, N2, N3, N4, N5 = map(NodeId, ('n1', 'n2', 'n3', 'n4', 'n5'))
PIN = Pin(C1, 'ann')
FACTS = (
    NodeFacts(N1, name='zoe', provision_state='available', maintenance=True),
    NodeFacts(N2, provision_state='active', instance_uuid='s2'),
    NodeFacts(N3, name='abe', provision_state='enroll'),
)
HELD = {N1: Held(C1), N2: Held(C2, PIN), N4: Held(C1), N5: Held(C9)}


def _joined() -> list[ListedNode]:
    return node_views.join(FACTS, HELD, [C1, C2], {N1: 2.53})


def test_nodes_are_listed_by_host_and_name() -> None:
    """Also one without a host, and one that is held and of another pool."""
    assert [node_views.row(each) for each in _joined()] == [
        ('n3', 'abe', '-', 'enroll', '-', '-'),
        ('n4', '-', 'c1', 'not in this pool in Ironic', '-', '-'),
        ('n1', 'zoe', 'c1', 'available, maintenance', '-', '-'),
        ('n2', '-', 'c2', 'active', 's2', 'c1'),
    ]


@pytest.mark.parametrize(
    ('host', 'option', 'nodes'),
    [
        ('', '', [N3, N4, N1, N2]),
        ('c1', '', [N4, N1]),
        ('c1', 'free', [N1]),
        ('', 'free', [N3, N1]),
        ('', 'with_server', [N2]),
        ('', 'pinned', [N2]),
        ('', 'dirty', [N1]),
        ('c2', 'dirty', []),
    ],
)
def test_options_choose_nodes(
    host: str, option: str, nodes: list[NodeId]
) -> None:
    """A node that Ironic has elsewhere is neither free nor with a server."""
    names = ('free', 'with_server', 'pinned', 'dirty')
    options = argparse.Namespace(**{name: name == option for name in names})
    found = [
        each.node
        for each in _joined()
        if node_views.is_wanted(each, host, options)
    ]
    assert found == nodes


def _ask(host: Host) -> dict[NodeId, float]:
    if host == C2:
        raise NovaRefused('c2 does not answer')
    return {N1: 2.0}


def test_dirty_nodes_of_a_silent_host_are_missed() -> None:
    """The others are shown, and a sentence says what is missing."""
    noted: list[str] = []
    found = node_views.read_dirty([C2, C1], _ask, noted.append)
    assert found == {N1: 2.0}
    assert noted == ['c2 does not answer']


def test_dirty_nodes_of_nobody_are_an_error() -> None:
    """An empty list would look like a pool without them."""
    with pytest.raises(NovaRefused, match='c2 does not'):
        node_views.read_dirty([C2], _ask, lambda sentence: None)
    assert node_views.read_dirty([], _ask, lambda sentence: None) == {}


def test_dirty_nodes_of_a_host_that_is_not_served_are_missed() -> None:
    """Nobody knows them, and the list looked as if there were none."""
    members = [Member(C1, Boot('b1'), serving=(C1,), known=(C1, C9))]
    noted: list[str] = []
    found = node_views.dirty_of(members, '', _ask, noted.append)
    assert found == {N1: 2.0}
    (sentence,) = noted
    assert sentence.startswith('No daemon serves host c9, so its nodes are')
    assert node_views.dirty_of(members, 'c1', _ask, noted.append) == found
    assert noted == [sentence]
    with pytest.raises(NovaRefused, match='No daemon serves host c9'):
        node_views.dirty_of(members, 'c9', _ask, noted.append)


def _owner(**changes: Any) -> dict[str, str]:
    arguments: dict[str, Any] = {
        'facts': FACTS[1],
        'held': HELD[N2],
        'members': [Member(C1, Boot('b1'), 'm1', serving=(C1, C2))],
        'ring': Ring([C1]),
    }
    return node_views.owner_fields(**(arguments | changes))


def test_owner_is_the_host_and_the_daemon_that_serves_it() -> None:
    """With what decides about its next host."""
    assert _owner() == {
        'Node': N2,
        'Name': '-',
        'Host': C2,
        'Served by': C1,
        'Machine': 'm1',
        'Server': 's2',
        'Host in the ring': C1,
        'Pinned to': 'c1 by ann',
    }


def test_owner_may_be_served_by_nobody() -> None:
    """The host is shown all the same; an unknown ring is a dash."""
    shown = _owner(members=[], ring=None, held=Held(C9))
    assert (shown['Host'], shown['Served by']) == (C9, '-')
    assert shown['Host in the ring'] == shown['Pinned to'] == '-'
    assert _owner(ring=Ring())['Host in the ring'] == '-'


def test_node_without_a_host_is_an_error() -> None:
    """The sentence names the command that says why."""
    with pytest.raises(NovaRefused, match='node explain n2'):
        _owner(held=Held())
