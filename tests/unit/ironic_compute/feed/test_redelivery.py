# SPDX-License-Identifier: Apache-2.0
"""Redelivery: nodes whose delivery failed are tried one at a time."""

from ironic_compute.feed.redelivery import Redelivery
from resource_tracker.node import NodeId

N1, N2, N3 = NodeId('n1'), NodeId('n2'), NodeId('n3')


def test_each_node_has_its_turn() -> None:
    """The next node is another one each time, also after a failed read."""
    redelivery = Redelivery()
    assert redelivery.next_node() is None
    for node in (N1, N2, N3):
        redelivery.add_failed(node)
    assert [redelivery.next_node() for _ in range(4)] == [N1, N2, N3, N1]


def test_first_success_returns_all_other_nodes() -> None:
    """The other nodes leave the queue, until their delivery fails again."""
    redelivery = Redelivery()
    for node in (N1, N2, N3):
        redelivery.add_failed(node)
    assert redelivery.mark_delivered(N2) == (N1, N3)
    assert redelivery.next_node() is None
    redelivery.add_failed(N3)
    assert redelivery.mark_delivered(N1) == ()
    assert redelivery.mark_delivered(N3) == ()


def test_discarded_node_is_not_read_again():
    """It is neither the next node nor one of those after a success."""
    redelivery = Redelivery()
    for node in ('n1', 'n2', 'n3'):
        redelivery.add_failed(node)
    redelivery.discard('n1')
    assert redelivery.next_node() == 'n2'
    assert redelivery.mark_delivered('n1') == ()
    assert redelivery.mark_delivered('n2') == ('n3',)
