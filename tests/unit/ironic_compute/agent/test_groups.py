# SPDX-License-Identifier: Apache-2.0
"""Names of agent groups, and pools that overlap."""

import pytest

from ironic_compute.agent.groups import (
    describe_pool,
    find_overlap,
    group_name,
)


def test_pools_have_groups_of_their_own():
    """Each pair of conductor group and shard has a group of its own."""
    names = {
        group_name(group, shard)
        for group in (None, '', 'a', 'b', '*', '-')
        for shard in (None, '', 'a', 's', '*', 'a/s')
    }
    assert len(names) == 36
    assert group_name('Rack1', 's') == group_name('rack1', 's')
    assert group_name('a', 'S') != group_name('a', 's')


@pytest.mark.parametrize(
    ('mine', 'other', 'clashes'),
    [
        ((None, None), ('a', None), True),
        ((None, 's1'), (None, None), True),
        ((None, 's1'), ('a', None), True),
        ((None, 's1'), ('a', 's1'), True),
        ((None, 's1'), ('a', 's2'), False),
        (('a', None), ('b', None), False),
        (('a', None), ('', None), False),
        (('a', 's1'), ('a', 's2'), False),
        (('a', 'S1'), ('a', 's1'), True),
    ],
)
def test_pools_that_share_nodes_cannot_live_side_by_side(mine, other, clashes):
    """An unset option means all nodes; '' is one conductor group."""
    for one, two in ((mine, other), (other, mine)):
        sentence = find_overlap(group_name(*one), group_name(*two))
        assert bool(sentence) == clashes


def test_clash_names_both_pools_and_the_options():
    """The sentence names both pools and the options to set."""
    sentence = find_overlap(group_name('a', None), group_name('', 's1'))
    assert sentence is None
    sentence = find_overlap(group_name(None, None), group_name('', 's1'))
    assert 'conductor_group not set, shard not set' in sentence
    assert 'conductor_group empty, shard s1' in sentence
    assert find_overlap(group_name(None, None), 'somebody/else') is None


def test_a_pool_is_described_by_its_options():
    """The description shows an unset option and an empty one."""
    description = describe_pool(group_name('', None))
    assert description == 'conductor_group empty, shard not set'
