# SPDX-License-Identifier: Apache-2.0
"""Names that many threads meet at once are asked for once."""

import logging
import threading
from concurrent import futures

import pytest

from resource_tracker import errors
from resource_tracker.trait_names import TraitNames

GOLD = 'CUSTOM_GOLD'
THREADS_COUNT = 8


class Slow:
    """A Placement that does not answer before it is told to."""

    def __init__(self):
        self.may_answer = threading.Event()
        self.asked = []
        self.error = None
        self.standard = ['COMPUTE_NODE']

    def __call__(self, method, url):
        """Answer in a while."""
        self.asked.append((method, url))
        assert self.may_answer.wait(60)
        if self.error is not None:
            raise self.error
        return {'traits': self.standard}


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
    names = TraitNames(slow)

    def write():
        with names.ensured('resource_classes', {GOLD: {}}):
            return 'written'

    assert _all_at_once(slow, write) == ['written'] * THREADS_COUNT
    assert slow.asked == [('PUT', f'/resource_classes/{GOLD}')]


def test_standard_traits_are_looked_up_once(slow):
    """All nodes of a driver have the same ones."""
    names = TraitNames(slow)
    wanted = frozenset({'COMPUTE_NODE', 'OF_TOMORROW', GOLD})
    found = _all_at_once(slow, lambda: names.supported(wanted))
    assert found == [{'COMPUTE_NODE', GOLD}] * THREADS_COUNT
    assert len(slow.asked) == 1


def test_what_an_upgrade_brings_is_learned_once(slow):
    """Only what was unknown is asked for, and said when it is known."""
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


def test_unknown_traits_are_told_once(slow, caplog):
    """However often they are asked for in vain."""
    caplog.set_level(logging.INFO, 'resource_tracker')
    slow.may_answer.set()
    names = TraitNames(slow)
    names.supported(frozenset({'OF_TOMORROW'}))
    for _ in range(3):
        names.read_newly_supported()
    assert len(caplog.messages) == 1


def test_nothing_is_asked_when_nothing_was_unknown(slow):
    """An idle daemon asks Placement for no names."""
    slow.may_answer.set()
    names = TraitNames(slow)
    assert names.read_newly_supported() == frozenset()
    names.supported(frozenset({'COMPUTE_NODE', GOLD}))
    assert names.read_newly_supported() == frozenset()
    assert len(slow.asked) == 1


def test_who_waited_for_an_error_fails_as_well_and_may_ask_again(slow):
    """The error of one request reaches all that it was sent for."""
    names, slow.error = TraitNames(slow), errors.PlacementUnavailable('away')

    def write():
        with names.ensured('traits', [GOLD]):
            return 'written'

    outcomes = _all_at_once(slow, write)
    assert set(map(type, outcomes)) == {errors.PlacementUnavailable}
    slow.error = None
    assert write() == 'written'
