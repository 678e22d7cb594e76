# SPDX-License-Identifier: Apache-2.0
"""The agent is put together from nova.conf."""

import nova.conf
import pytest
from oslo_config import fixture

import hashring.errors
from hashring.opts import Timing
from ironic_compute.agent.build import build_agent
from ironic_compute.config import register_opts


@pytest.fixture
def conf(tmp_path):
    """Yield nova.conf of host c1 whose state and backend are in a folder."""
    register_opts(nova.conf.CONF)
    with fixture.Config(nova.conf.CONF) as changed:
        changed.config(host='c1')
        changed.config(group='ironic_compute', state_path=str(tmp_path))
        changed.config(group='coordination', backend_url=f'file://{tmp_path}')
        yield changed


def test_state_folder_is_locked_by_the_agent(conf, tmp_path):
    """A second agent on the same state folder is refused."""
    build_agent(conf.conf, 'agent', ['worker'])
    with pytest.raises(hashring.errors.ConfigError):
        build_agent(conf.conf, 'agent', ['worker'])


def test_hosts_that_nova_takes_for_down_too_soon_are_refused(conf):
    """Nova's service_down_time must be longer than report_interval."""
    conf.config(service_down_time=10, report_interval=10)
    with pytest.raises(hashring.errors.ConfigError):
        build_agent(conf.conf, 'agent', ['worker'])


def test_timing_without_an_option_settles_as_the_option_does(conf):
    """Timing and the option settle_s have the same default."""
    assert Timing().settle_s == conf.conf.ironic_compute.settle_s
    timing = Timing.from_conf(conf.conf)
    assert timing.settle_s == conf.conf.ironic_compute.settle_s
