# SPDX-License-Identifier: Apache-2.0
"""What an agent counts, for its metrics."""

import math

import pytest

from hashring import events
from hashring.counts import KILLED, Durations, EventCounter, HostMove
from hashring.ring import Host
from hashring.workers import NO_HOST, WorkerExited, WorkerServing

C1, C2 = Host('c1'), Host('c2')


def adopt(counter: EventCounter, tenure: int, now_s: float) -> None:
    """Start the worker of c2, which had been an orphan for 4 s."""
    start = events.Start(C2, tenure, events.Why.ADOPTED, waited_s=4.0)
    counter.note_effect(start, now_s)


def test_a_lapse_is_counted_once() -> None:
    """Only the end of a lease counts, not each turn without one."""
    counter = EventCounter()
    for held in (False, False, True, True, False, False, True):
        counter.note_lease(held=held)
    assert counter.counts.lapses == 1


def test_an_adoption_lasts_until_its_worker_serves() -> None:
    """The time begins when the host became an orphan."""
    counter = EventCounter()
    adopt(counter, tenure=3, now_s=100.0)
    assert counter.counts.adoptions == 1
    assert counter.counts.adoption_s.sum_s == 0.0
    counter.note_event(WorkerServing(C2, 3), 107.0)
    counter.note_event(WorkerServing(C2, 3), 120.0)
    assert counter.counts.adoption_s.sum_s == 11.0
    assert counter.counts.adoption_s.cumulative()[-1] == (math.inf, 1)


@pytest.mark.parametrize(
    'between',
    [
        WorkerExited(C2, 1, tenure=3),
        WorkerServing(C2, 2),  # An earlier worker's message, read late.
    ],
)
def test_an_adoption_that_failed_has_no_time(
    between: WorkerExited | WorkerServing,
) -> None:
    """A worker that ended before it served is none of the adoption times."""
    counter = EventCounter()
    adopt(counter, tenure=3, now_s=100.0)
    counter.note_event(between, 101.0)
    assert counter.counts.adoption_s.sum_s == 0.0


def test_the_home_host_is_not_adopted() -> None:
    """Its start counts as a start of a worker only."""
    counter = EventCounter()
    counter.note_effect(events.Start(C1, 1, events.Why.HOME), 10.0)
    counter.note_event(WorkerServing(C1, 1), 15.0)
    assert counter.counts.worker_starts == {C1: 1}
    assert counter.counts.adoptions == 0
    assert counter.counts.adoption_s == Durations()


def test_workers_are_counted_by_host_and_status() -> None:
    """A worker that the agent kills has the status killed."""
    counter = EventCounter()
    for status in (0, 1, 1, -9):
        counter.note_event(WorkerExited(C1, status), 1.0)
    counter.note_effect(events.Kill(C2, events.Why.NOT_PROVEN), 2.0)
    assert counter.counts.worker_exits == {
        (C1, '0'): 1,
        (C1, '1'): 2,
        (C1, '-9'): 1,
        (C2, KILLED): 1,
    }


def test_the_path_worker_is_no_worker_of_a_host() -> None:
    """Its end is not counted, as its start is not."""
    counter = EventCounter()
    counter.note_event(WorkerExited(NO_HOST, 1), 1.0)
    assert counter.counts.worker_exits == {}


def test_hand_backs_are_counted_where_they_begin() -> None:
    """Another reason to stop a worker is no hand-back."""
    counter = EventCounter()
    counter.note_effect(events.Stop(C2, events.Why.HAND_BACK), 1.0)
    counter.note_effect(events.Stop(C1, events.Why.LEAVING), 1.0)
    assert counter.counts.hand_backs == 1


def test_hosts_that_have_moved_are_told() -> None:
    """An adoption when its worker serves; an end when the lock is released."""
    told: list[HostMove] = []
    counter = EventCounter(told.append)
    why = events.Why
    adopt(counter, tenure=3, now_s=100.0)
    counter.note_event(WorkerServing(C2, 3), 107.0)
    counter.note_effect(events.Stop(C2, why.HAND_BACK), 110.0)
    counter.note_effect(events.Kill(C2, why.OVERDUE), 113.0)
    assert told == [HostMove(C2, why.ADOPTED, 11.0)]
    counter.note_effect(events.Release(C2, 9, why.OVERDUE), 113.0)
    counter.note_effect(events.Release(C2, 9, why.OVERDUE, True), 119.0)
    counter.note_effect(events.Kill(C1, why.HALF_ALIVE), 120.0)
    counter.note_effect(events.Release(C1, 9, why.HALF_ALIVE), 120.0)
    counter.note_effect(events.Stop(C1, why.LEAVING), 121.0)
    counter.note_effect(events.Release(C1, 9, why.LEAVING), 122.0)
    assert told[1:] == [
        HostMove(C2, why.HAND_BACK, 3.0),
        HostMove(C1, why.HALF_ALIVE, 0.0),
    ]


def test_counts_that_were_read_do_not_change() -> None:
    """Another thread may go through them while the agent counts on."""
    counter = EventCounter()
    counter.note_event(WorkerExited(C1, 1), 1.0)
    read = counter.counts
    counter.note_event(WorkerExited(C1, 1), 1.0)
    assert read.worker_exits == {(C1, '1'): 1}


@pytest.mark.parametrize(
    ('seconds', 'bounds'), [(0.0, 2), (10.0, 2), (10.1, 1), (99.0, 1)]
)
def test_a_duration_falls_into_each_bucket_above_it(
    seconds: float, bounds: int
) -> None:
    """A bucket's bound belongs to it; the last bucket has no bound."""
    made = Durations((10.0,), (0, 0)).with_one(seconds).cumulative()
    assert sum(count for _, count in made) == bounds
    assert made[-1] == (math.inf, 1)
