# SPDX-License-Identifier: Apache-2.0
"""The time between two reads of Nova's Service records."""

from ironic_compute.pool.services import PollInterval


def test_unsettled_pool_is_read_after_2_4_8_seconds_and_then_20() -> None:
    """A new host is mapped within seconds of its start, or much later."""
    poll = PollInterval(60.0)
    waits_s = [poll.next_s(is_settled=False) for _ in range(6)]
    assert waits_s == [2.0, 4.0, 8.0, 16.0, 20.0, 20.0]


def test_settled_pool_is_read_once_a_minute() -> None:
    """A pool that is unsettled after that is read after 2 s again."""
    poll = PollInterval(60.0)
    for _ in range(5):
        poll.next_s(is_settled=False)
    assert poll.next_s(is_settled=True) == 60.0
    assert poll.next_s(is_settled=False) == 2.0


def test_unsettled_pool_is_read_at_a_third_of_the_interval() -> None:
    """The first waits are not longer than a third of the option, either."""
    poll = PollInterval(3.0)
    assert poll.next_s(is_settled=False) == 1.0
    assert poll.next_s(is_settled=False) == 1.0
