# SPDX-License-Identifier: Apache-2.0
"""A step of a request is repeated until the services answer it."""

import types
from typing import Any

import oslo_messaging
import pytest

from ironic_compute import delivery
from ironic_compute.manager.retries import (
    NO_ANSWER,
    after,
    retried,
    while_kept,
)
from ironic_compute.retry import retry
from tests.fakes.clock import ManualClock

_TIMEOUT = oslo_messaging.MessagingTimeout('no answer')
_SERVER = types.SimpleNamespace(uuid='s1')


class _Kill(BaseException):
    """Ends a thread, as a kill in the simulation does."""


class _Handler:
    """A handler whose step raises some errors before it succeeds."""

    def __init__(self, *errors: BaseException) -> None:
        self.clock = ManualClock()
        self.begun_s = self.clock.now_s()
        self.errors = list(errors)
        self.answers: list[Any] = []

    @retried('Server %(server)s waits: %(error)s', after(*NO_ANSWER))
    def act(self, context: Any, server: Any, *answer: Any, **how: Any) -> str:
        """Do something for a server."""
        if self.errors:
            raise self.errors.pop(0)
        self.answers.append((context, server, answer, how))
        return 'done'

    def waited_s(self) -> float:
        return self.clock.now_s() - self.begun_s


def test_step_is_repeated_each_ten_seconds_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The arguments stay the same; the result is that of the last try."""
    handler = _Handler(_TIMEOUT, _TIMEOUT)
    assert handler.act('context', _SERVER, 1, two=2) == 'done'
    assert handler.answers == [('context', _SERVER, (1,), {'two': 2})]
    assert handler.waited_s() == 20.0
    said = [record.getMessage() for record in caplog.records]
    assert said == ['Server s1 waits: no answer'] * 2


@pytest.mark.parametrize('error', [ValueError('refused'), _Kill()])
def test_other_errors_end_the_step_at_once(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """A refusal is an answer, and nothing may stop the end of a thread."""
    handler = _Handler(_TIMEOUT, error)
    with pytest.raises(type(error)):
        handler.act(None, _SERVER)
    assert handler.waited_s() == 10.0
    assert len(caplog.records) == 1


def test_error_counts_by_its_cause() -> None:
    """Nova's error for a user has the error of the service as its cause."""
    error = ValueError('the server could not be stopped')
    error.__cause__ = _TIMEOUT
    handler = _Handler(error)
    assert handler.act(None, _SERVER) == 'done'


def test_last_error_is_raised_when_the_time_is_over() -> None:
    """The step is tried once more at that time."""
    clock, tries_s = ManualClock(), []
    begun_s = clock.now_s()

    def fail() -> None:
        tries_s.append(clock.now_s() - begun_s)
        raise _TIMEOUT

    with pytest.raises(oslo_messaging.MessagingTimeout):
        retry(fail, clock, after(type(_TIMEOUT)), pause_s=2.0, limit_s=5.0)
    assert tries_s == [0.0, 2.0, 4.0, 6.0]


def test_time_of_a_long_step_before_its_first_error_does_not_count() -> None:
    """It has waited for a lock, for instance, or switched a machine off."""
    clock, errors_left = ManualClock(), [_TIMEOUT]

    def act() -> str:
        clock.advance(1000.0)
        if errors_left:
            raise errors_left.pop()
        return 'done'

    assert retry(act, clock, after(type(_TIMEOUT)), limit_s=600.0) == 'done'


def test_any_error_counts_only_while_rabbitmq_keeps_the_message() -> None:
    """Otherwise nobody would begin the request anew if the worker ended."""
    assert not while_kept(ValueError())
    with delivery.Delivery(lambda: None).handled():
        assert while_kept(ValueError())
