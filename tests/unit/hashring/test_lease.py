# SPDX-License-Identifier: Apache-2.0
"""The lease: its deadline after counted, late and unseen heartbeats."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashring.lease import Beat, Lease, Verdict

FRESH = Lease(term_s=15.0, margin_s=3.0)


def counted(lease: Lease, sent_s: float, returned_s: float) -> Lease:
    after, verdict = lease.after(Beat(sent_s, returned_s, is_listed=True))
    assert verdict is Verdict.COUNTED
    return after


def test_nothing_is_held_before_a_counted_heartbeat() -> None:
    """After a join alone there is no deadline."""
    joined = FRESH.joined(100.0)
    assert joined.deadline_s == 0.0
    assert not joined.held(100.0)


def test_the_deadline_counts_from_the_sending() -> None:
    """The deadline counts from the sending, so a slow reply adds nothing."""
    lease = counted(FRESH.joined(100.0), 100.0, 109.0)
    assert lease.deadline_s == 100.0 + 15.0 - 3.0
    assert lease.held(111.9)
    assert not lease.held(112.0)


def test_a_late_heartbeat_does_not_count() -> None:
    """After a gap of more than a term the lease starts a new epoch."""
    lease = counted(FRESH.joined(100.0), 100.0, 100.1)
    after, verdict = lease.after(Beat(115.5, 115.6, is_listed=True))
    assert verdict is Verdict.LATE
    assert after.deadline_s == 0.0
    assert after.epoch == lease.epoch + 1


def test_a_heartbeat_that_took_too_long_does_not_count() -> None:
    """A heartbeat that returned after more than a term is late."""
    lease = counted(FRESH.joined(100.0), 100.0, 100.1)
    _, verdict = lease.after(Beat(103.0, 115.2, is_listed=True))
    assert verdict is Verdict.LATE


def test_heartbeat_of_exactly_one_term_counts() -> None:
    """The backend's term has not ended before the end of one term."""
    lease = counted(FRESH.joined(100.0), 100.0, 100.1)
    counted(lease, 103.0, 115.0)


def test_a_late_heartbeat_is_the_base_of_the_next() -> None:
    """The heartbeat after a late one counts, in the new epoch."""
    lease = counted(FRESH.joined(100.0), 100.0, 100.1)
    late, _ = lease.after(Beat(130.0, 130.1, is_listed=True))
    again = counted(late, 133.0, 133.1)
    assert again.epoch == late.epoch
    assert again.deadline_s == 145.0


def test_unseen_ends_the_lease_at_once() -> None:
    """A member list without this agent ends the lease."""
    lease = counted(FRESH.joined(100.0), 100.0, 100.1)
    after, verdict = lease.after(Beat(103.0, 103.1, is_listed=False))
    assert verdict is Verdict.NOT_LISTED
    assert after.deadline_s == 0.0
    assert after.epoch > lease.epoch


def test_without_a_join_nothing_counts() -> None:
    """A heartbeat before the first join does not count."""
    _, verdict = FRESH.after(Beat(1.0, 1.1, is_listed=True))
    assert verdict is Verdict.LATE


@given(
    st.lists(
        st.tuples(st.floats(0, 20), st.floats(0, 20), st.booleans()),
        max_size=30,
    )
)
def test_held_means_a_recent_unbroken_run(
    beats: list[tuple[float, float, bool]],
) -> None:
    """Within an epoch no two heartbeats are more than a term apart."""
    now_s, lease = 100.0, FRESH.joined(100.0)
    for wait_s, took_s, is_listed in beats:
        sent_s = now_s + wait_s
        now_s = sent_s + took_s
        before = lease
        lease, verdict = lease.after(Beat(sent_s, now_s, is_listed))
        if verdict is Verdict.COUNTED:
            assert lease.epoch == before.epoch
            assert before.base_s is not None
            assert now_s - before.base_s <= 15.0
            assert lease.deadline_s == sent_s + 15.0 - 3.0
        else:
            assert lease.epoch == before.epoch + 1
            assert not lease.held(0.0)


@pytest.mark.parametrize(('took_s', 'counts'), [(1.5, True), (1.6, False)])
def test_slow_grants_do_not_count(took_s: float, counts: bool) -> None:
    """A grant that took more than half the margin does not count."""
    assert FRESH.grant_counts(100.0, 100.0 + took_s) is counts


def test_margin_must_be_shorter_than_the_term() -> None:
    """A lease whose margin is its whole term cannot be made."""
    with pytest.raises(AssertionError):
        Lease(term_s=3.0, margin_s=3.0)
