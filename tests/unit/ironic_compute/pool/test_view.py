# SPDX-License-Identifier: Apache-2.0
"""When a worker asks Nova anew because of what its agent says."""

import pytest

from hashring.clock import ManualClock
from hashring.ring import Host
from hashring.workers import WorkerView
from ironic_compute.pool.view import PoolView

C1, C2 = Host('c1'), Host('c2')


@pytest.mark.parametrize(
    ('agreed_since_s', 'known', 'calls_count'),
    [
        (0.0, (C1,), 0),  # nothing new
        (0.0, (C1, C2), 1),  # a host that was not known
        (None, (C1,), 1),  # somebody has another ring
        (None, (C1, C2), 1),
    ],
)
def test_news_are_told_once(
    agreed_since_s: float | None, known: tuple[Host, ...], calls_count: int
) -> None:
    """A look for each change, not for each view that says the same."""
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


def test_operators_word_is_news() -> None:
    """Nova is asked for the host's Service at once."""
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
    assert pool.mapping_confirmed == {C2}
