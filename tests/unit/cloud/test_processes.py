# SPDX-License-Identifier: Apache-2.0
"""Processes are started once, and only recorded ones are ended."""

import json
import os
import signal
import socket
import sys
import threading

import pytest
from onemachine import processes
from onemachine.progress import CloudError, wait_until

SLEEP = ['sleep', '60']


@pytest.fixture
def running(layout):
    """Return the processes of a cloud; the fixture ends them all."""
    table = processes.Processes(layout)
    yield table
    for name in table.names():
        table.stop(name, timeout_s=1)


def test_started_process_is_recorded_and_stopped(running):
    """A process runs in a session of its own until it is stopped."""
    pid = running.start('one', SLEEP)
    assert running.pid('one') == pid
    assert os.getsid(pid) == pid
    running.stop('one')
    assert processes.born(pid) is None
    assert running.names() == []


def test_start_is_idempotent(running):
    """A second start with the same command line finds the process."""
    assert running.start('one', SLEEP) == running.start('one', SLEEP)


def test_process_with_another_command_line_is_replaced(running):
    """A process with another command line is replaced."""
    first = running.start('one', SLEEP)
    second = running.start('one', ['sleep', '61'])
    assert second != first
    assert processes.born(first) is None


def test_pid_of_another_process_is_not_signalled(running, layout):
    """A pid that now belongs to another process is not signalled."""
    record = {'pid': os.getpid(), 'born': '1', 'command': []}
    (layout.folder('run') / 'one.json').write_text(json.dumps(record))
    assert running.pid('one') is None
    running.signal('one', signal.SIGKILL)
    running.stop('one')


def test_port_that_becomes_free_is_waited_for(running):
    """A start waits for a port whose process is about to end."""
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        port = taken.getsockname()[1]
        ending = threading.Timer(0.5, taken.close)
        ending.start()
        assert running.start('one', SLEEP, port=port)
        ending.join()


def test_error_about_a_used_port_names_it(layout):
    """The error about a used port names the port and the remedy."""
    running = processes.Processes(layout, port_wait_s=0.2)
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CloudError, match=f':{port}.*--port-base'):
            running.start('one', SLEEP, port=port)
    assert running.pid('one') is None


def test_halted_process_is_stopped(running):
    """A process in SIGSTOP is ended at once."""
    pid = running.start('one', SLEEP)
    running.signal('one', signal.SIGSTOP)
    running.stop('one', timeout_s=20)
    assert processes.born(pid) is None


def test_children_of_a_killed_process_are_ended(running):
    """Children that outlive a killed parent are ended."""
    running.start('one', ['sh', '-c', 'sleep 60 & sleep 60'])
    pid = running.require('one')
    (child, *_) = wait_until(
        'children', lambda: processes.children(pid), 10, 0.05
    )
    os.kill(pid, signal.SIGKILL)
    running.stop('one')
    # At once, because the next process listens on the same port.
    assert processes.born(child) is None


def test_ended_process_is_missed(running):
    """The error about an ended process has the end of its log."""
    running.start('one', ['sh', '-c', 'echo no such thing; exit 1'])
    running.await_end('one', 10)
    with pytest.raises(CloudError, match=r'one is not running(.|\n)*no such'):
        running.require('one')


# On SIGURG it starts the parent of its successor. When the successor is ready,
# it kills that parent and ends.
_DAEMON = """
import signal, subprocess, sys, time
def replace(*_):
    program = 'import os, time; os.fork(); time.sleep(60)'
    command = [sys.executable, '-c', program, '--predecessor-fd', '3']
    holder = subprocess.Popen(command)
    time.sleep(2)
    holder.kill()
    holder.wait()
    sys.exit()
signal.signal(signal.SIGURG, replace)
print('ready', flush=True)
time.sleep(60)
"""


def test_successor_of_a_daemon_is_recorded(running, layout):
    """It is stopped under the same name."""
    first = running.start('agent-c1', [sys.executable, '-c', _DAEMON])
    wait_until('it to start', lambda: layout.log('agent-c1').read_text(), 20)
    running.replace('agent-c1')
    second = running.pid('agent-c1')
    assert second not in (None, first)
    running.stop('agent-c1')
    assert processes.born(second) is None


def test_daemon_that_is_not_replaced_is_named(running, layout):
    """Its successor does not get ready, so it goes on."""
    program = _DAEMON.replace('sys.exit()', 'return')
    running.start('agent-c1', [sys.executable, '-c', program])
    wait_until('it to start', lambda: layout.log('agent-c1').read_text(), 20)
    with pytest.raises(CloudError, match='agent-c1 was not replaced'):
        running.replace('agent-c1', timeout_s=2.0)
