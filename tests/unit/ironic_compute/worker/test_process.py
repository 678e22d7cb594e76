# SPDX-License-Identifier: Apache-2.0
"""The exit status of a worker says why it has ended."""

import logging
import pathlib

import pytest
from keystoneauth1 import exceptions as ksa_exc
from nova import exception as nova_exception
from oslo_config import fixture

from hashring.ring import Host
from ironic_compute import config, errors, instructions
from ironic_compute.agent import exit_codes, pipe
from ironic_compute.worker import process

_STOP_LIMITS = ('manager_shutdown_timeout', 'graceful_shutdown_timeout')


def _end_of(exc: Exception | None) -> tuple[int, list[pipe.Message]]:
    sent: list[pipe.Message] = []

    def serve() -> None:
        if exc is not None:
            raise exc

    return process.end_of(serve, sent.append), sent


def test_a_refused_user_is_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another worker is started: Keystone may refuse for a time only."""
    status, sent = _end_of(ksa_exc.Unauthorized('no'))
    assert (status, sent) == (exit_codes.EX_KEYSTONE_REFUSED, [])
    (record,) = caplog.records
    assert record.levelno == logging.ERROR and record.exc_info is None
    assert 'Keystone refuses a user of nova.conf' in record.getMessage()


def test_a_wrong_configuration_ends_the_daemon_too() -> None:
    """The agent gets the sentence."""
    status, sent = _end_of(errors.ConfigError('no'))
    assert (status, sent) == (exit_codes.EX_CONFIG, [pipe.CannotStart('no')])


def test_an_ordered_end_is_status_0() -> None:
    """Nothing is sent."""
    assert _end_of(None) == (0, [])


@pytest.mark.parametrize('is_allowed', [False, True])
def test_old_computes_are_allowed_as_for_nova_compute(
    is_allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade over several releases sets Nova's workaround for it."""

    def refuse() -> None:
        raise nova_exception.TooOldComputeService(
            oldest_supported_version='epoxy',
            scope='cell',
            min_service_level=1,
            oldest_supported_service=2,
        )

    monkeypatch.setattr(process.nova_utils, 'raise_if_old_compute', refuse)
    with fixture.Config(process.CONF) as conf:
        conf.config(
            group='workarounds',
            disable_compute_service_check_for_ffu=is_allowed,
        )
        if is_allowed:
            process._check_old_computes()
        else:
            with pytest.raises(nova_exception.TooOldComputeService):
                process._check_old_computes()


def test_a_worker_is_of_the_pool_of_its_agent(tmp_path: pathlib.Path) -> None:
    """Neither an edited nova.conf nor a reload of it changes the pool.

    Its agent stays in the group of the pool that it has read at its start.
    """
    file = tmp_path / 'nova.conf'
    file.write_text('[ironic]\nconductor_group = rack2\nshard = s2\n')
    pool = {'conductor_group': 'rack1', 'shard': None}
    with fixture.Config(process.CONF) as conf:
        conf.set_config_files([str(file)])
        conf.conf.reload_config_files()
        assert conf.conf.ironic.conductor_group == 'rack2'
        appointment = pipe.Appointment(Host('c1'), is_home=True, pool=pool)
        process.make_tenure(appointment)
        for _ in range(2):
            assert conf.conf.ironic.conductor_group == 'rack1'
            assert conf.conf.ironic.shard is None
            file.write_text('[ironic]\nconductor_group = rack3\n')
            instructions.reload_options(conf.conf)


@pytest.mark.parametrize(
    'drain_s, limits_s',
    [(20.0, (45, 60)), (60.0, (45, 60)), (300.5, (285, 300))],
)
def test_a_worker_may_drain_for_as_long_as_its_agent_waits(
    drain_s: float, limits_s: tuple[int, int]
) -> None:
    """A longer drain_timeout_s saved no task: Nova ended after a minute."""
    config.register_opts(process.CONF)
    with fixture.Config(process.CONF) as conf:
        conf.config(group='coordination', drain_timeout_s=drain_s)
        process.allow_long_drain(conf.conf)
        for name, limit_s in zip(_STOP_LIMITS, limits_s, strict=True):
            assert conf.conf[name] == limit_s
            conf.conf.clear_default(name)


def test_limits_of_a_stop_in_nova_conf_win() -> None:
    """They have a meaning of their own for whoever has set them."""
    config.register_opts(process.CONF)
    with fixture.Config(process.CONF) as conf:
        for name in _STOP_LIMITS:
            conf.config(**{name: 90})
        conf.config(group='coordination', drain_timeout_s=300.0)
        process.allow_long_drain(conf.conf)
        for name in _STOP_LIMITS:
            assert conf.conf[name] == 90
            conf.conf.clear_default(name)


@pytest.mark.parametrize(
    'graceful_s, tasks_s', [(0, 285), (10, 0), (90, 75), (600, 285)]
)
def test_a_worker_does_not_wait_for_tasks_until_nova_ends_it(
    graceful_s: int, tasks_s: int
) -> None:
    """With only one limit in nova.conf, Nova 33 killed it amid its wait."""
    config.register_opts(process.CONF)
    with fixture.Config(process.CONF) as conf:
        conf.config(graceful_shutdown_timeout=graceful_s)
        conf.config(group='coordination', drain_timeout_s=300.0)
        process.allow_long_drain(conf.conf)
        assert conf.conf.manager_shutdown_timeout == tasks_s
        for name in _STOP_LIMITS:
            conf.conf.clear_default(name)
