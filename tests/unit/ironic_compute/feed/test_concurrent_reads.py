# SPDX-License-Identifier: Apache-2.0
"""Concurrent reads: the single reads made while a list is read."""

import pytest

from ironic_compute.feed.concurrent_reads import ConcurrentReads
from resource_tracker.node import NodeFacts, NodeId

N1 = NodeId('n1')
OLD = NodeFacts(N1, provision_state='deploying')
NEW = NodeFacts(N1, provision_state='active')


def test_last_read_of_a_node_is_recorded() -> None:
    """Facts, a 404 and another pool of the same node replace each other."""
    concurrent = ConcurrentReads()
    with concurrent.record() as reads:
        concurrent.add(OLD)
        concurrent.add(NEW)
        assert (reads.facts, reads.missing) == ({N1: NEW}, set())
        concurrent.mark_missing(N1)
        assert (reads.facts, reads.missing) == ({}, {N1})
        concurrent.mark_left(N1)
        assert (reads.missing, reads.left) == (set(), {N1})
        concurrent.mark_missing(N1)
        assert (reads.missing, reads.left) == ({N1}, set())
        concurrent.add(OLD)
        assert (reads.facts, reads.missing) == ({N1: OLD}, set())
        concurrent.mark_left(N1)
        assert (reads.facts, reads.left) == ({}, {N1})
        concurrent.add(NEW)
        assert (reads.facts, reads.left) == ({N1: NEW}, set())


def test_reads_outside_a_list_are_not_recorded() -> None:
    """A list that is requested after a read is newer than that read."""
    concurrent = ConcurrentReads()
    concurrent.add(OLD)
    with concurrent.record() as reads:
        pass
    concurrent.add(NEW)
    concurrent.mark_missing(NodeId('n2'))
    assert (reads.facts, reads.missing) == ({}, set())


def test_each_list_has_a_record_of_its_own() -> None:
    """The audit and the delta list overlap and end at different times."""
    concurrent = ConcurrentReads()
    with concurrent.record() as audit:
        with concurrent.record() as delta:
            pass
        concurrent.add(NEW)
    assert (audit.facts, delta.facts) == ({N1: NEW}, {})


def test_failed_list_ends_its_record() -> None:
    """Nothing more is recorded for a list that raised an error."""
    concurrent = ConcurrentReads()
    with pytest.raises(RuntimeError), concurrent.record() as reads:
        raise RuntimeError
    concurrent.add(NEW)
    assert reads.facts == {}
