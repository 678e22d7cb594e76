# SPDX-License-Identifier: Apache-2.0
"""When a worker reads all nodes itself."""

import pytest

from ironic_compute.feed.audit_schedule import AuditSchedule
from tests.fakes.clock import ManualClock


class _Schedule(AuditSchedule):
    """A schedule of lists each 1,800 s, on a clock that a test moves."""

    def __init__(self, *, is_reader: bool, host: str = 'c1') -> None:
        self.reads = is_reader
        self.clock = ManualClock()
        super().__init__(self.clock, 1800.0, 10.0, self._is_reader, host)

    def _is_reader(self) -> bool:
        return self.reads

    def after(self, seconds: float) -> tuple[bool, float]:
        """Return whether a list is due so long later, and the next look."""
        self.clock.advance(seconds)
        return self.is_due(), self.wait_s()


def test_first_list_is_due_at_once() -> None:
    """A worker begins without any facts."""
    schedule = _Schedule(is_reader=False)
    assert not schedule.may_use_told()
    assert schedule.after(0.0) == (True, 0.0)


def test_reader_reads_at_each_interval() -> None:
    """It reads for all."""
    schedule = _Schedule(is_reader=True)
    schedule.note_done()
    assert schedule.after(1799.0) == (False, 1.0)
    assert schedule.after(1.0) == (True, 0.0)


def test_others_wait_half_an_interval_longer() -> None:
    """Meanwhile a new reader may tell them its list."""
    schedule = _Schedule(is_reader=False)
    schedule.note_done()
    assert schedule.after(1799.0) == (False, 1.0)
    assert schedule.after(1.0) == (False, 900.0)
    assert schedule.after(899.0) == (False, 1.0)
    assert schedule.after(1.0) == (True, 0.0)


def test_worker_that_has_become_the_reader_reads_at_the_interval() -> None:
    """The one before has died."""
    schedule = _Schedule(is_reader=False)
    schedule.note_done()
    schedule.reads = True
    assert schedule.after(1800.0) == (True, 0.0)


def test_requested_list_is_due_until_it_begins() -> None:
    """A request during a list has another one follow."""
    schedule = _Schedule(is_reader=False)
    schedule.note_done()
    schedule.request()
    assert schedule.after(1.0)[0]
    schedule.note_done()
    assert schedule.after(0.0)[0], 'a told list may be older than the request'
    schedule.begin()
    assert not schedule.after(0.0)[0]


@pytest.mark.parametrize(
    ('is_total', 'waits_s'),
    [(True, [10, 10, 10]), (False, [10, 20, 40, 80, 160, 300, 300])],
)
def test_waits_grow_while_only_this_list_fails(
    is_total: bool, waits_s: list[float]
) -> None:
    """If both lists fail, Ironic is away and a try costs it little."""
    schedule = _Schedule(is_reader=False)
    schedule.note_done()
    for wait_s in waits_s:
        assert schedule.note_failure(is_total=is_total) == wait_s
        assert schedule.is_due()
    schedule.note_done()
    assert schedule.note_failure(is_total=False) == 10


def test_audits_of_many_workers_are_spread_over_five_minutes() -> None:
    """They hear of a list in the same second, and each loads the services."""
    waits_s = []
    for number in range(50):
        schedule = _Schedule(is_reader=False, host=f'controller-{number}')
        schedule.note_done()
        schedule.after(900.0)
        schedule.note_told()
        is_due, wait_s = schedule.after(0.0)
        assert not is_due
        schedule.clock.advance(wait_s)
        assert [schedule.take_told(), schedule.take_told()] == [True, False]
        waits_s.append(wait_s)
    assert 0.0 <= min(waits_s) < 30.0 < 270.0 < max(waits_s) < 300.0
    assert len({round(wait_s / 30.0) for wait_s in waits_s}) >= 8
