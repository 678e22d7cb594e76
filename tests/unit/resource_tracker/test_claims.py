# SPDX-License-Identifier: Apache-2.0
"""The claim book."""

import threading

import pytest

from resource_tracker.claims import Claim, ClaimBook
from resource_tracker.errors import NodeClaimed
from tests.unit.resource_tracker.nodes import NODE, numbered


def test_one_consumer_a_node():
    """A second consumer is refused and told of the first."""
    book = ClaimBook()
    book.claim(NODE, 'one')
    with pytest.raises(NodeClaimed) as caught:
        book.claim(NODE, 'two')
    assert (caught.value.node, caught.value.consumer) == (NODE, 'one')
    assert book.consumer(NODE) == 'one'


def test_same_consumer_may_claim_again():
    """A build that is resumed finds its claim."""
    book = ClaimBook()
    book.claim(NODE, 'one')
    book.claim(NODE, 'one')
    book.release(NODE, 'one')
    assert book.consumer(NODE) is None


def test_newest_of_a_consumer_counts():
    """Nova may have looked at Placement again since."""
    book = ClaimBook()
    book.claim(NODE, 'one', 7)
    book.claim(NODE, 'one', 9)
    assert book.claim_of(NODE) == Claim('one', 9)


def test_only_the_consumer_itself_is_struck_out():
    """A late release of a former build harms nobody."""
    book = ClaimBook()
    book.claim(NODE, 'two')
    book.release(NODE, 'one')
    assert book.consumer(NODE) == 'two'


def test_nodes_do_not_know_of_each_other():
    """Bug 1784705: what one node has, no other sees."""
    book = ClaimBook()
    book.claim(NODE, 'one')
    book.claim(numbered(2).uuid, 'one')
    book.release(NODE, 'one')
    assert book.consumer(numbered(2).uuid) == 'one'


def test_of_many_at_once_one_wins():
    """Two builds of one moment: exactly one gets the node."""
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
