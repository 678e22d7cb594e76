# SPDX-License-Identifier: Apache-2.0
"""Retries of requests, and reads of a node, by the driver."""

import contextlib
import math

import pytest

from ironic_compute import errors
from tests.fakes.ironic import FakeIronic

from . import fake
from .faulty import FaultyIronic


def _failing(*failures):
    """Return a function that raises these errors, one a call, then returns."""
    left = list(failures)

    def act():
        if left:
            raise left.pop(0)
        return 'done'

    return act


def test_request_is_repeated_after_errors_that_can_pass():
    """By default, a request is repeated after any retriable error."""
    waiter = fake.bench().driver._waiter
    act = _failing(errors.NodeLocked('409'), errors.IronicUnavailable('503'))
    assert waiter.retry(act) == 'done'


@pytest.mark.parametrize('longest_s', [math.inf, 5.0])
def test_time_for_which_a_change_waits_for_the_lease_does_not_count(longest_s):
    """Except for a caller that can go on without the answer."""
    bench = fake.bench()
    fail = _failing(errors.IronicUnavailable('503'))

    def act():
        bench.clock.advance(300.0)
        return fail()

    waiter, is_bounded = bench.driver._waiter, longest_s < math.inf
    expected = pytest.raises(errors.IronicUnavailable)
    with expected if is_bounded else contextlib.nullcontext():
        assert waiter.retry(act, longest_s=longest_s) == 'done'


def test_request_that_must_not_be_sent_twice_is_not_repeated():
    """A change that Ironic may have executed already is not sent again."""
    waiter = fake.bench().driver._waiter
    with pytest.raises(errors.IronicUnavailable):
        waiter.retry(
            _failing(errors.IronicUnavailable('lost')), on=errors.Untouched
        )
    act = _failing(errors.NodeLocked('409'))
    assert waiter.retry(act, on=errors.Untouched) == 'done'


def test_refused_request_is_not_repeated():
    """An error that stays is raised at once."""
    bench = fake.bench()
    began_s = bench.clock.now_s()
    with pytest.raises(errors.IronicRefused):
        bench.driver._waiter.retry(_failing(errors.IronicRefused('400')))
    assert bench.clock.now_s() == began_s


def test_read_of_a_node_survives_an_outage():
    """``read_node`` repeats its request; ``try_read_node`` returns None."""
    bench = fake.bench()
    faulty = FaultyIronic(bench.ironic)
    waiter = fake.on(faulty, bench).driver._waiter
    faulty.at = 0
    assert waiter.read_node(fake.NODE).uuid == fake.NODE
    faulty.at = 2
    assert waiter.try_read_node(fake.NODE) is None


def test_wait_with_a_fresh_result_sends_no_request():
    """A node that is as wanted already is not read again."""
    bench = fake.on(FaultyIronic(FakeIronic()), fake.bench())
    facts = bench.node_cache.facts(fake.NODE)
    waiter = bench.driver._waiter
    state = waiter.wait_until(
        fake.NODE, lambda facts: facts.provision_state, 60.0, fresh=facts
    )
    assert state == 'available'
    assert not bench.ironic.requests
