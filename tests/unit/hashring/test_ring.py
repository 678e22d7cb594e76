# SPDX-License-Identifier: Apache-2.0
"""The hash ring: few moves, even shares, equal in every process."""

import collections
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hashring import ring
from hashring.ring import Host, Ring
from tests.unit.hashring.rings import moves

NODES = [f'{n:08x}-node' for n in range(200)]

hosts = st.sets(
    st.text('abcdef0123456789.-', min_size=1, max_size=12).map(Host),
    min_size=1,
    max_size=5,
)


@settings(max_examples=25, deadline=None)
@given(hosts, st.integers(0, 100))
def test_only_the_joined_host_gains(members: set[Host], pick: int) -> None:
    """A new host gets nodes; no other host does."""
    joined = Host(f'new{pick}')
    after = Ring({*members, joined})
    for old, new in moves(Ring(members), after, NODES).values():
        assert new == joined
        assert old in members


@settings(max_examples=25, deadline=None)
@given(hosts)
def test_only_the_left_host_loses(members: set[Host]) -> None:
    """If a host is removed, only its own nodes move."""
    left = min(members)
    before = Ring(members)
    moved = moves(before, Ring(members - {left}), NODES)
    assert set(moved) == {n for n in NODES if before.target(n) == left}


@settings(max_examples=25, deadline=None)
@given(hosts, st.randoms())
def test_order_does_not_matter(members: set[Host], rng: random.Random) -> None:
    """Equal hosts in any order give equal rings, digests and targets."""
    mixed = sorted(members)
    rng.shuffle(mixed)
    one, two = Ring(members), Ring(mixed)
    assert one == two and hash(one) == hash(two)
    assert one.digest == two.digest
    assert all(one.target(n) == two.target(n) for n in NODES)


@pytest.mark.parametrize('round_', range(5))
def test_shares_are_even(round_: int) -> None:
    """Over 5 hosts and 1,000 nodes max/mean stays at most 1.2."""
    rng = random.Random(round_)
    nodes = [f'{rng.getrandbits(128):032x}' for _ in range(1000)]
    five = Ring(Host(f'compute-{n}.{round_}') for n in range(5))
    counts = collections.Counter(five.target(node) for node in nodes)
    assert max(counts.values()) / (1000 / 5) <= 1.2


def test_the_empty_ring_targets_nothing() -> None:
    """Without hosts a node has no target, and there is no digest."""
    empty = Ring(())
    assert empty.target('x') is None
    assert empty.digest == ''
    assert empty.hosts == frozenset()


def test_digests_differ() -> None:
    """Different sets of hosts have different digests."""
    assert Ring([Host('ab')]).digest != Ring([Host('a')]).digest
    two = Ring([Host('a'), Host('b')])
    assert two.digest != Ring([Host('a b')]).digest


def test_a_known_answer() -> None:
    """Targets and digest are fixed, so an upgrade moves no node."""
    three = Ring(Host(name) for name in ('c1', 'c2', 'c3'))
    found = [three.target(f'node-{n}') for n in range(8)]
    assert three.digest == '389ebf709589e5d6'
    assert found == ['c3', 'c3', 'c3', 'c2', 'c1', 'c2', 'c2', 'c1']


def test_affinity_spreads_first_candidates() -> None:
    """Different hosts have different first candidates."""
    firsts = {
        min('abc', key=lambda c: ring.affinity(Host(f'h{n}'), c))
        for n in range(30)
    }
    assert firsts == {'a', 'b', 'c'}


@settings(max_examples=25, deadline=None)
@given(hosts)
def test_digest_needs_no_ring(members: set[Host]) -> None:
    """It is the one that daemons publish, and that of no hosts is empty."""
    assert ring.digest_of(members) == Ring(members).digest
    assert ring.digest_of(()) == Ring().digest == ''
