# SPDX-License-Identifier: Apache-2.0
"""The node feed starts when Ironic has confirmed the pool's filters."""

import logging

import pytest

from ironic_compute import errors
from ironic_compute.feed.startup import FeedStartup


class _Ironic:
    """Raises the given errors one after another; None is a good answer."""

    def __init__(self, *answers: Exception | None) -> None:
        self._answers = list(answers)
        self.events: list[str] = []
        self.startup = FeedStartup(
            self._check_pool,
            lambda: self.events.append('started'),
            lambda exc: self.events.append(str(exc)),
        )

    def _check_pool(self) -> None:
        answer = self._answers.pop(0)
        if answer is not None:
            raise answer


def test_a_pool_that_ironic_cannot_filter_is_refused() -> None:
    """The feed is not started and there is no further check."""
    ironic = _Ironic(errors.ConfigError('no shards'))
    assert ironic.startup.try_start() is None
    assert ironic.events == ['no shards']


def test_an_ironic_that_is_away_is_checked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The feed starts at the first answer; the first failure is a warning."""
    away = errors.IronicUnavailable('away')
    ironic = _Ironic(away, RuntimeError('odd'), None)
    with caplog.at_level(logging.WARNING):
        assert ironic.startup.try_start() == 1.0
        assert ironic.startup.try_start() == 1.0
    assert ironic.events == []
    assert ironic.startup.try_start() is None
    assert ironic.events == ['started']
    assert [record.levelname for record in caplog.records] == ['WARNING']
