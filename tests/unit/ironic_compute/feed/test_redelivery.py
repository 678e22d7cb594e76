# SPDX-License-Identifier: Apache-2.0
"""What could not be taken in is tried again, one node at a time."""

from ironic_compute.feed.redelivery import Redelivery
from resource_tracker.node import NodeId

N1, N2, N3 = NodeId('n1'), NodeId('n2'), NodeId('n3')


def test_each_node_has_its_turn() -> None:
    """Also if nothing comes of one that Ironic cannot show."""
    redelivery = Redelivery()
    assert redelivery.next_node() is None
    for node in (N1, N2, N3):
        redelivery.add_failed(node)
    assert [redelivery.next_node() for _ in range(4)] == [N1, N2, N3, N1]


def test_when_one_is_told_all_others_are_tried_at_once() -> None:
    """Each of them once: what fails again is noted again."""
    redelivery = Redelivery()
    for node in (N1, N2, N3):
        redelivery.add_failed(node)
    assert redelivery.mark_delivered(N2) == (N1, N3)
    assert redelivery.next_node() is None
    redelivery.add_failed(N3)
    assert redelivery.mark_delivered(N1) == ()
    assert redelivery.mark_delivered(N3) == ()
