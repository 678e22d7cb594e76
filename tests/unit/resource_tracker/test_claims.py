# SPDX-License-Identifier: Apache-2.0
"""The claims of builds on nodes."""

import threading

import pytest

from resource_tracker.claims import Claim, ClaimBook
from resource_tracker.errors import NodeClaimed
from tests.unit.resource_tracker.nodes import NODE, numbered


def test_one_consumer_a_node():
    """A second consumer is refused, and the error names the first."""
    book = ClaimBook()
    book.claim(NODE, 'one')
    with pytest.raises(NodeClaimed) as caught:
        book.claim(NODE, 'two')
    assert (caught.value.node, caught.value.consumer) == (NODE, 'one')
    assert book.consumer(NODE) == 'one'


def test_same_consumer_may_claim_again():
    """A build that is resumed can claim its node once more."""
    book = ClaimBook()
    book.claim(NODE, 'one')
    book.claim(NODE, 'one')
    book.release(NODE, 'one')
    assert book.consumer(NODE) is None


def test_newest_of_a_consumer_counts():
    """A repeated claim replaces the generation of the earlier one."""
    book = ClaimBook()
    book.claim(NODE, 'one', 7)
    book.claim(NODE, 'one', 9)
    assert book.claim_of(NODE) == Claim('one', 9)


def test_release_by_another_consumer_is_ignored():
    """A late release by an earlier build leaves the present claim."""
    book = ClaimBook()
    book.claim(NODE, 'two')
    book.release(NODE, 'one')
    assert book.consumer(NODE) == 'two'


def test_claims_on_two_nodes_are_independent():
    """Bug 1784705: the release of one node leaves claims on others."""
    book = ClaimBook()
    book.claim(NODE, 'one')
    book.claim(numbered(2).uuid, 'one')
    book.release(NODE, 'one')
    assert book.consumer(numbered(2).uuid) == 'one'


def test_of_many_at_once_one_wins():
    """Of eight builds that claim a node at once, one succeeds."""
    book, won, start = ClaimBook(), [], threading.Barrier(8)

    def build(name):
        start.wait()
        try:
            book.claim(NODE, name)
        except NodeClaimed:
            return
        won.append(name)

    threads = [
        threading.Thread(target=build, args=(f'b{n}',)) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [book.consumer(NODE)]
