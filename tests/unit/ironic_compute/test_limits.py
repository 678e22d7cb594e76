# SPDX-License-Identifier: Apache-2.0
"""An operator's limits that are lower than what bare metal needs."""

import logging

import nova.conf
import pytest
from oslo_config import cfg

from ironic_compute import limits, reception


def _warnings(
    caplog: pytest.LogCaptureFixture, **values: int
) -> list[list[str]]:
    conf = cfg.ConfigOpts()
    nova.conf.base.register_opts(conf)
    nova.conf.compute.register_opts(conf)
    reception.set_defaults(conf)
    conf.set_default('max_concurrent_builds', limits.ENOUGH_COUNT)
    conf([], default_config_files=[])
    for name, value in values.items():
        conf.set_override(name, value)
    with caplog.at_level(logging.WARNING):
        limits.warn(conf)
    return [message.split()[:4] for message in caplog.messages]


def test_our_own_defaults_are_not_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nobody has chosen them, and they suffice."""
    assert _warnings(caplog) == []


def test_each_lower_limit_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By its name and value; Nova takes no limit at all for ten."""
    told = _warnings(
        caplog, executor_thread_pool_size=64, max_concurrent_builds=0
    )
    assert told == [
        ['[DEFAULT]', 'executor_thread_pool_size', 'is', '64'],
        ['[DEFAULT]', 'max_concurrent_builds', 'is', '0'],
    ]


def test_a_higher_limit_is_the_operators_own_affair(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """More threads than ours harm nobody."""
    assert _warnings(caplog, executor_thread_pool_size=2000) == []
