# SPDX-License-Identifier: Apache-2.0
"""Views of the agent that make a worker read the Service records."""

import pytest

from hashring.lease import SHUT_NOW_S
from hashring.ring import Host
from hashring.workers import WorkerView
from ironic_compute.gate import LeaseGate
from ironic_compute.pool.view import PoolView, update_pool_and_gate
from tests.fakes.clock import ManualClock

C1, C2 = Host('c1'), Host('c2')


@pytest.mark.parametrize(
    ('agreed_since_s', 'known', 'calls_count'),
    [
        (0.0, (C1,), 0),  # no change
        (0.0, (C1, C2), 1),  # a new host
        (None, (C1,), 1),  # an agent has another ring
        (None, (C1, C2), 1),
    ],
)
def test_changed_view_makes_services_stale_once(
    agreed_since_s: float | None, known: tuple[Host, ...], calls_count: int
) -> None:
    """A view that repeats a change does not call for another read."""
    pool, calls = PoolView(ManualClock(start_s=0.0)), []
    pool.update(WorkerView(9.0, ring=(C1,), agreed_since_s=0.0, known=(C1,)))
    pool.on_services_stale(lambda: calls.append(1))
    for _ in range(3):
        pool.update(
            WorkerView(
                9.0, ring=(C1,), agreed_since_s=agreed_since_s, known=known
            )
        )
    assert len(calls) == calls_count


def test_confirmed_mapping_makes_services_stale_once() -> None:
    """The Service records are read at once when a mapping is confirmed."""
    pool, calls = PoolView(ManualClock(start_s=0.0)), []
    pool.on_services_stale(lambda: calls.append(1))
    for vouched in ((), (C2,), (C2,)):
        pool.update(
            WorkerView(
                9.0,
                ring=(),
                agreed_since_s=None,
                known=(),
                confirmed_mappings=vouched,
            )
        )
    assert len(calls) == 1
    assert pool.confirmed_mappings == {C2}


def test_newest_view_says_whose_agents_are_in_the_group() -> None:
    """Those of an older view may have left it."""
    pool = PoolView(ManualClock(start_s=0.0))
    for homes in ((), (C1, C2), (C1,)):
        pool.update(
            WorkerView(
                9.0,
                ring=(),
                agreed_since_s=None,
                known=(C1, C2),
                member_homes=homes,
            )
        )
        assert (pool.has_member(C1), pool.has_member(C2)) == (
            C1 in homes,
            C2 in homes,
        )


def test_gate_shuts_at_once_when_the_agent_has_lost_its_lease() -> None:
    """The gate does not stay open until the deadline of an earlier view.

    It did, for up to 12 s, when the group did not list the agent any more:
    the machine had been paused, or etcd's data had been restored.
    """
    clock = ManualClock(100.0)
    gate, pool = LeaseGate(clock), PoolView(clock)

    def update(deadline_s: float) -> bool:
        view = WorkerView(deadline_s, ring=(), agreed_since_s=None, known=())
        update_pool_and_gate(view, Host('c1'), pool, gate, clock)
        return gate.is_open()

    assert update(112.0)
    assert not update(SHUT_NOW_S)
    assert not update(100.0)
    assert update(115.0)
