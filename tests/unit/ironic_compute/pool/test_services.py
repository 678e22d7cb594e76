# SPDX-License-Identifier: Apache-2.0
"""How often Nova's Services are looked at."""

from ironic_compute.pool.services import PollInterval


def test_a_new_host_is_looked_at_soon_and_then_ever_less_often() -> None:
    """It is mapped within seconds of its start, or in a day."""
    poll = PollInterval(60.0)
    waits_s = [poll.next_s(is_settled=False) for _ in range(6)]
    assert waits_s == [2.0, 4.0, 8.0, 16.0, 20.0, 20.0]


def test_what_is_settled_is_looked_at_once_a_minute() -> None:
    """And what is unsettled after it is something new."""
    poll = PollInterval(60.0)
    for _ in range(5):
        poll.next_s(is_settled=False)
    assert poll.next_s(is_settled=True) == 60.0
    assert poll.next_s(is_settled=False) == 2.0


def test_who_wants_few_looks_gets_few() -> None:
    """The option is the measure of all of them."""
    poll = PollInterval(3.0)
    assert poll.next_s(is_settled=False) == 1.0
    assert poll.next_s(is_settled=False) == 1.0
