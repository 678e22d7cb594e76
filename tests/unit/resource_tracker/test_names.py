# SPDX-License-Identifier: Apache-2.0
"""Names that many threads meet at once are asked for once."""

import threading
from concurrent import futures

import pytest

from resource_tracker import errors
from resource_tracker.names import Names

GOLD = 'CUSTOM_GOLD'
THREADS_COUNT = 8


class Slow:
    """A Placement that does not answer before it is told to."""

    def __init__(self):
        self.may_answer = threading.Event()
        self.asked = []
        self.error = None

    def __call__(self, method, url):
        """Answer in a while."""
        self.asked.append((method, url))
        assert self.may_answer.wait(10)
        if self.error is not None:
            raise self.error
        return {'traits': ['COMPUTE_NODE']}


@pytest.fixture
def slow():
    """Placement."""
    return Slow()


def _all_at_once(slow, act):
    """Have many threads do something; return how each of them fared."""
    with futures.ThreadPoolExecutor(THREADS_COUNT) as threads:
        begun = [threads.submit(act) for _ in range(THREADS_COUNT)]
        futures.wait(begun, timeout=0.2)
        slow.may_answer.set()
    return [one.exception() or one.result() for one in begun]


def test_class_is_made_once(slow):
    """Though eight nodes of a new class are reported at the same time."""
    names = Names(slow)

    def write():
        with names.made('resource_classes', {GOLD: {}}):
            return 'written'

    assert _all_at_once(slow, write) == ['written'] * THREADS_COUNT
    assert slow.asked == [('PUT', f'/resource_classes/{GOLD}')]


def test_standard_traits_are_looked_up_once(slow):
    """All nodes of a driver have the same ones."""
    names = Names(slow)
    wanted = frozenset({'COMPUTE_NODE', 'OF_TOMORROW', GOLD})
    found = _all_at_once(slow, lambda: names.usable(wanted))
    assert found == [{'COMPUTE_NODE', GOLD}] * THREADS_COUNT
    assert len(slow.asked) == 1


def test_who_waited_for_an_error_fails_as_well_and_may_ask_again(slow):
    """The error of one request reaches all that it was sent for."""
    names, slow.error = Names(slow), errors.PlacementUnavailable('away')

    def write():
        with names.made('traits', [GOLD]):
            return 'written'

    outcomes = _all_at_once(slow, write)
    assert set(map(type, outcomes)) == {errors.PlacementUnavailable}
    slow.error = None
    assert write() == 'written'
