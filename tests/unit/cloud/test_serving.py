# SPDX-License-Identifier: Apache-2.0
"""The record of which agent serves each host."""

import sys

import pytest
from onemachine import processes
from onemachine.chaos import serving
from onemachine.progress import wait_until
from onemachine.running import Running


def history(*looks):
    """Return the history of one host, looked at once in a second."""
    found = serving.ServingHistory()
    for at_s, agent in enumerate(looks):
        found.add(float(at_s), {} if agent is None else {'c1': agent})
    return found


def test_agents_are_read_from_the_processes():
    """A worker belongs to its agent; a stock nova-compute to its host."""
    assert serving.agents_of(
        {
            'c1': 'agent-c2 (worker 17)',
            'c2': 'agent-c2 (worker 18)',
            'c3': 'stock (process 19)',
        }
    ) == {'c1': 'c2', 'c2': 'c2', 'c3': 'c3'}


def test_a_hand_over_and_a_return_are_two_moves():
    """Gaps between two agents are no moves."""
    found = history('c1', 'c1', None, 'c2', 'c2', None, 'c1')
    assert found.moves('c1') == ['c2', 'c1']
    assert found.by_other_s('c1', 0.0) == 3.0
    assert found.by_other_s('c1', 5.0) is None
    assert found.changed_s == 6.0


def test_a_restarted_worker_is_no_move():
    """A host that its agent serves again has not moved."""
    found = history('c1', None, 'c1')
    assert found.moves('c1') == []
    assert found.by_other_s('c1', 0.0) is None


def test_all_are_home_only_if_each_is_served():
    """A host that nobody serves is not at home."""
    assert history('c2', 'c1').all_home(['c1'])
    assert not history('c1', None).all_home(['c1'])
    assert not history('c1', 'c2').all_home(['c1'])
    assert not history('c1').all_home(['c1', 'c2'])


def test_recording_looks_again_and_again():
    """A move while the context is open is recorded."""
    now = {'c1': 'agent-c1 (worker 1)'}
    with serving.recorded(lambda: now) as found:
        assert found.agents == {'c1': 'c1'}
        now = {'c1': 'agent-c3 (worker 2)'}
        wait_until('a move', lambda: found.moves('c1') == ['c3'], 10, 0.05)


# A daemon with a worker of host c3.
_DAEMON = """
import subprocess
worker = ['ironic-compute-worker: host c3']
subprocess.Popen(
    worker, executable='/bin/cat', stdin=subprocess.PIPE
).wait()
"""


@pytest.mark.parametrize('order', [('c2', 'c3'), ('c3', 'c2')])
def test_worker_without_a_lease_serves_nobody(layout, order):
    """If two daemons have a worker of a host, the adopter's one serves."""
    table = processes.Processes(layout)
    pids = [
        table.start(f'agent-{host}', [sys.executable, '-c', _DAEMON])
        for host in order
    ]

    def agents():
        return serving.agents_of(Running(layout).serving())

    try:
        for pid in pids:
            wait_until('a worker', lambda p=pid: processes.children(p), 10)
        assert agents() == {'c3': 'c2'}
        table.stop('agent-c2', 5)
        assert agents() == {'c3': 'c3'}
    finally:
        for name in table.names():
            table.stop(name, 5)
