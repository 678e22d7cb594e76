# SPDX-License-Identifier: Apache-2.0
"""Unconfirmed rows: which nodes get no build yet, and waits for them."""

import threading

import pytest
from nova import objects

from ironic_compute.nodes import records
from ironic_compute.nodes.unconfirmed_rows import UnconfirmedRows
from resource_tracker.node import NodeId
from tests.fakes.clock import ManualClock

objects.register_all()

N1, N2 = NodeId('n1'), NodeId('n2')
NEW_S = 90.0
WAIT_S = 10.0


@pytest.fixture
def rows() -> UnconfirmedRows:
    """Return a set in which rows are new for 90 seconds."""
    return UnconfirmedRows(ManualClock(), NEW_S)


def test_node_is_unconfirmed_until_it_is_discarded(
    rows: UnconfirmedRows,
) -> None:
    """Discarding a node that is not in the set is no error."""
    rows.add(N1)
    rows.add(N2)
    rows.discard(N1)
    rows.discard(N1)
    assert rows.nodes() == {N2}
    assert N2 in rows
    assert N1 not in rows


@pytest.mark.parametrize(('age_s', 'is_new'), [(89.0, True), (91.0, False)])
def test_only_a_new_row_is_added(
    rows: UnconfirmedRows, age_s: float, is_new: bool
) -> None:
    """An old row cannot be taken over by a late request any more."""
    created_s = ManualClock().wall_s() - age_s
    row = objects.ComputeNode(
        hypervisor_hostname=N1, stats={records.NEW: f'{created_s:.0f}'}
    )
    rows.add_if_new(row)
    assert (N1 in rows) is is_new


def test_wait_ends_when_the_row_is_confirmed(rows: UnconfirmedRows) -> None:
    """A build waits for its own node, whatever the others are."""
    rows.add(N1)
    rows.add(N2)
    waiter = threading.Thread(
        target=rows.wait_confirmed, args=(N1, 10 * WAIT_S), daemon=True
    )
    waiter.start()
    rows.discard(N2)
    waiter.join(0.1)
    assert waiter.is_alive()
    rows.discard(N1)
    waiter.join(WAIT_S)
    assert not waiter.is_alive()


def test_wait_times_out(rows: UnconfirmedRows) -> None:
    """The node then is still unconfirmed, and the caller goes on."""
    rows.add(N1)
    rows.wait_confirmed(N1, 0.01)
    assert N1 in rows
