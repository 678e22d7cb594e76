# SPDX-License-Identifier: Apache-2.0
"""The agent is put together from nova.conf."""

import time

import nova.conf
import pytest
from oslo_config import fixture

import hashring.errors
from hashring.counts import HostMove
from hashring.events import Why
from hashring.opts import Timing
from hashring.ring import Host
from ironic_compute.agent.build import Commands, build_agent
from ironic_compute.config import register_opts
from ironic_compute.journal.move_file import journal_folder, read_moves
from ironic_compute.journal.moves import Query

_COMMANDS = Commands(worker=['worker'], agent=['agent'])


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
    build_agent(conf.conf, 'agent', _COMMANDS)
    with pytest.raises(hashring.errors.ConfigError):
        build_agent(conf.conf, 'agent', _COMMANDS)


def test_hosts_that_nova_takes_for_down_too_soon_are_refused(conf):
    """Nova's service_down_time must be longer than report_interval."""
    conf.config(service_down_time=10, report_interval=10)
    with pytest.raises(hashring.errors.ConfigError):
        build_agent(conf.conf, 'agent', _COMMANDS)


def test_agent_starts_with_a_doubtful_url_and_names_it(conf, caplog):
    """If it were refused, all daemons of the pool would end at an upgrade."""
    conf.config(group='coordination', backend_url='redis://h/1')
    build_agent(conf.conf, 'agent', _COMMANDS)
    assert 'nova.conf should be corrected: [coordination]' in caplog.text


def test_timing_without_an_option_settles_as_the_option_does(conf):
    """Timing and the option settle_s have the same default."""
    assert Timing().settle_s == conf.conf.ironic_compute.settle_s
    timing = Timing.from_conf(conf.conf)
    assert timing.settle_s == conf.conf.ironic_compute.settle_s


@pytest.mark.parametrize(
    ('why', 'kind', 'reason', 'way'),
    [
        (Why.ADOPTED, 'adoption', 'daemon-gone', ('c2', 'c1')),
        (Why.HAND_BACK, 'hand-back', 'daemon-back', ('c1', 'c2')),
        (Why.HALF_ALIVE, 'hand-back', 'half-alive', ('c1', '')),
    ],
)
def test_moved_host_is_in_the_journal(conf, tmp_path, why, kind, reason, way):
    """The agent's own one, below the state folder."""
    agent = build_agent(conf.conf, 'agent', _COMMANDS).agent
    agent._on_host_move(HostMove(Host('c2'), why, 2.5))
    for _ in range(1000):
        found = read_moves(journal_folder(tmp_path), Query())
        if found:
            break
        time.sleep(0.01)
    (move,) = found
    assert (move.kind, move.reason) == (kind, reason)
    assert (move.source, move.target) == way
    assert move.host == 'c2'
    assert 2.5 <= move.seconds < 60.0
