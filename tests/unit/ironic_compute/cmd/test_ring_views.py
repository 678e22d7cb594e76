# SPDX-License-Identifier: Apache-2.0
"""The command that shows the ring finds its hosts, and foresees changes."""

from typing import Any

import pytest

from hashring.group import Boot, Member
from hashring.ring import Host, Ring, digest_of
from ironic_compute.cmd import ring_views
from ironic_compute.cmd.nova_access import NovaRefused
from ironic_compute.cmd.nova_hosts import NovaHost, NovaHosts

C1, C2, C3, C4 = map(Host, ('c1', 'c2', 'c3', 'c4'))
PAIR, ALL = frozenset({C1, C2}), frozenset({C1, C2, C3})
NODES = [f'node-{number}' for number in range(300)]
MAPPED = NovaHost(True, is_mapped=True)


def _members(*rings: str) -> list[Member]:
    return [
        Member(Host(f'c{n}'), Boot(f'b{n}'), ring=ring, known=(C1, C2, C3))
        for n, ring in enumerate(rings, 1)
    ]


def _never() -> NovaHosts:
    raise AssertionError('Nova is read without need')


def _answer(hosts: Any) -> dict[Boot, Any]:
    return {Boot('b1'): {'hosts': hosts}}


def test_a_port_names_the_hosts_of_the_ring() -> None:
    """Nova is not read."""
    members, answer = _members(digest_of(PAIR)), _answer(['c1', 'c2'])
    assert ring_views.find_ring(members, answer, _never) == PAIR


def test_a_ring_of_all_hosts_needs_no_port() -> None:
    """Its digest proves it; a malformed answer does no harm."""
    for answer in ({}, _answer(7), {Boot('b1'): 'no'}, _answer(['c1'])):
        members = _members(digest_of(ALL))
        assert ring_views.find_ring(members, answer, _never) == ALL


def test_nova_knows_the_ring_without_a_port() -> None:
    """A host that is not mapped is not in it."""
    found = {C1: MAPPED, C2: MAPPED, C3: NovaHost(True, is_mapped=False)}
    members = _members(digest_of(PAIR))
    assert ring_views.find_ring(members, {}, lambda: found) == PAIR


def test_hosts_that_have_not_the_digest_are_no_ring() -> None:
    """The sentence says what would help, and why Nova did not."""
    members = _members(digest_of({C1}))
    changed = dict.fromkeys(ALL, MAPPED)
    for found, why in (
        (NovaRefused('nova-conductor did not answer'), 'conductor did not'),
        (changed, 'Nova has changed'),
    ):
        with pytest.raises(NovaRefused, match=f'agent_port.*{why}'):
            ring_views.find_ring(members, {}, lambda result=found: result)


def test_the_ring_of_the_majority_is_shown() -> None:
    """Who has another one is said; who has none yet does not count."""
    one, other = digest_of(ALL), digest_of(PAIR)
    members = _members(other, one, one, '')
    assert ring_views.published_digest(members) == one
    sentence = ring_views.disagreement(members)
    assert sentence is not None
    assert 'that of c1 is another one' in sentence
    assert ring_views.disagreement(_members(one, one, '')) is None
    with pytest.raises(NovaRefused, match='host list'):
        ring_views.published_digest(_members('', ''))


def test_a_host_that_comes_gets_nodes_of_all_others() -> None:
    """No node moves between the others; the sums are those of the ring."""
    then = Ring(ALL | {C4})
    changes = ring_views.change_rows(NODES, [C1], Ring(ALL), then)
    assert [row[0] for row in changes] == ['c1', 'c2', 'c3', 'c4']
    assert [row[3] for row in changes[:3]] == [0, 0, 0]
    (_, now, later, gets, gives) = changes[3]
    assert (now, gives) == (0, 0)
    assert later == gets == sum(row[4] for row in changes) > 30
    assert sum(row[2] for row in changes) == len(NODES)
    assert [row[:2] for row in changes[:3]] == ring_views.rows(
        NODES, [], Ring(ALL)
    )
    text = ring_views.describe_change(changes)
    assert text.startswith(f'{gets} of 300 nodes would')


def test_a_host_that_goes_has_no_node_left() -> None:
    """A host that is known and not in the ring has a row, too."""
    changes = ring_views.change_rows(NODES, [C4], Ring(ALL), Ring(PAIR))
    by_host = {row[0]: row[1:] for row in changes}
    now, then, gets, gives = by_host[C3]
    assert (then, gets) == (0, 0)
    assert now == gives > 30
    assert by_host[C4] == (0, 0, 0, 0)


def test_a_change_that_is_none_is_refused() -> None:
    """The sentence names the host, and those of the ring."""
    assert ring_views.changed_hosts(ALL, [C4], [C1]) == {C2, C3, C4}
    for added, removed, why in (
        ([C1], [], 'c1 is in the ring already'),
        ([], [C4], 'c4 is not in the ring, which has: c1, c2, c3'),
        ([], [C1, C2, C3], 'No host would be left'),
    ):
        with pytest.raises(NovaRefused, match=why):
            ring_views.changed_hosts(ALL, added, removed)
