# SPDX-License-Identifier: Apache-2.0
"""The names of traits and classes: one request for many threads."""

import logging
import threading
from concurrent import futures

import pytest

from resource_tracker import errors
from resource_tracker.trait_names import TraitNames

GOLD = 'CUSTOM_GOLD'
THREADS_COUNT = 8


class Slow:
    """A Placement that answers when the test allows it."""

    def __init__(self):
        self.may_answer = threading.Event()
        self.asked = []
        self.error = None
        self.standard = ['COMPUTE_NODE']

    def __call__(self, method, url):
        """Wait for the test, then answer."""
        self.asked.append((method, url))
        assert self.may_answer.wait(60)
        if self.error is not None:
            raise self.error
        return {'traits': self.standard}


@pytest.fixture
def slow():
    """Return a Placement that does not answer yet."""
    return Slow()


def _all_at_once(slow, act):
    """Call a function in many threads; return their results or errors."""
    with futures.ThreadPoolExecutor(THREADS_COUNT) as threads:
        begun = [threads.submit(act) for _ in range(THREADS_COUNT)]
        futures.wait(begun, timeout=0.2)
        slow.may_answer.set()
    return [one.exception() or one.result() for one in begun]


def test_class_is_made_once(slow):
    """Eight nodes of one new class cause one request."""
    names = TraitNames(slow)

    def write():
        with names.ensured('resource_classes', {GOLD: {}}):
            return 'written'

    assert _all_at_once(slow, write) == ['written'] * THREADS_COUNT
    assert slow.asked == [('PUT', f'/resource_classes/{GOLD}')]


def test_standard_traits_are_looked_up_once(slow):
    """Eight nodes with the same standard traits cause one request."""
    names = TraitNames(slow)
    wanted = frozenset({'COMPUTE_NODE', 'OF_TOMORROW', GOLD})
    found = _all_at_once(slow, lambda: names.supported(wanted))
    assert found == [{'COMPUTE_NODE', GOLD}] * THREADS_COUNT
    assert len(slow.asked) == 1


def test_trait_that_an_upgrade_adds_is_found_once(slow):
    """A trait that an upgrade of Placement adds is found once."""
    slow.may_answer.set()
    names = TraitNames(slow)
    wanted = frozenset({'COMPUTE_NODE', 'OF_TOMORROW', GOLD})
    names.supported(wanted)
    assert names.read_newly_supported() == frozenset()
    slow.standard = ['COMPUTE_NODE', 'OF_TOMORROW']
    assert names.read_newly_supported() == {'OF_TOMORROW'}
    assert slow.asked[1:] == [('GET', '/traits?name=in:OF_TOMORROW')] * 2
    assert names.supported(wanted) == wanted
    assert names.read_newly_supported() == frozenset()
    assert len(slow.asked) == 3


def test_unknown_traits_are_logged_once(slow, caplog):
    """Unknown traits are logged once."""
    caplog.set_level(logging.INFO, 'resource_tracker')
    slow.may_answer.set()
    names = TraitNames(slow)
    names.supported(frozenset({'OF_TOMORROW'}))
    for _ in range(3):
        names.read_newly_supported()
    assert len(caplog.messages) == 1


def test_nothing_is_requested_without_an_unknown_trait(slow):
    """Without an unknown trait no request is sent."""
    slow.may_answer.set()
    names = TraitNames(slow)
    assert names.read_newly_supported() == frozenset()
    names.supported(frozenset({'COMPUTE_NODE', GOLD}))
    assert names.read_newly_supported() == frozenset()
    assert len(slow.asked) == 1


def test_failed_request_fails_all_waiting_threads_and_is_repeated(slow):
    """The error of a request reaches all waiting threads.

    The next call sends a new request.
    """
    names, slow.error = TraitNames(slow), errors.PlacementUnavailable('away')

    def write():
        with names.ensured('traits', [GOLD]):
            return 'written'

    outcomes = _all_at_once(slow, write)
    assert set(map(type, outcomes)) == {errors.PlacementUnavailable}
    slow.error = None
    assert write() == 'written'
