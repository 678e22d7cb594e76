# SPDX-License-Identifier: Apache-2.0
"""Processes are started once, and only what was started is ended."""

import json
import os
import signal
import socket
import threading

import pytest
from onemachine import processes
from onemachine.progress import CloudError, wait_until

SLEEP = ['sleep', '60']


@pytest.fixture
def running(layout):
    """The processes of a cloud; whatever a test starts is ended."""
    table = processes.Processes(layout)
    yield table
    for name in table.names():
        table.stop(name, timeout_s=1)


def test_started_process_is_recorded_and_stopped(running):
    """It runs in a session of its own until it is stopped."""
    pid = running.start('one', SLEEP)
    assert running.pid('one') == pid
    assert os.getsid(pid) == pid
    running.stop('one')
    assert processes.born(pid) is None
    assert running.names() == []


def test_start_is_idempotent(running):
    """The same command line finds the running process."""
    assert running.start('one', SLEEP) == running.start('one', SLEEP)


def test_another_command_line_starts_anew(running):
    """What runs with an old command line, of an old venv say, is replaced."""
    first = running.start('one', SLEEP)
    second = running.start('one', ['sleep', '61'])
    assert second != first
    assert processes.born(first) is None


def test_pid_of_another_process_is_not_believed(running, layout):
    """A number the kernel gave to somebody else is never signalled."""
    record = {'pid': os.getpid(), 'born': '1', 'command': []}
    (layout.folder('run') / 'one.json').write_text(json.dumps(record))
    assert running.pid('one') is None
    running.signal('one', signal.SIGKILL)
    running.stop('one')


def test_port_that_becomes_free_is_waited_for(running):
    """Who listened there is about to end."""
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        port = taken.getsockname()[1]
        ending = threading.Timer(0.5, taken.close)
        ending.start()
        assert running.start('one', SLEEP, port=port)
        ending.join()


def test_taken_port_is_told(layout):
    """The sentence names the port and the cure."""
    running = processes.Processes(layout, let_go_s=0.2)
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CloudError, match=f':{port}.*--port-base'):
            running.start('one', SLEEP, port=port)
    assert running.pid('one') is None


def test_halted_process_is_stopped(running):
    """One that was paused hears of its end, and at once."""
    pid = running.start('one', SLEEP)
    running.signal('one', signal.SIGSTOP)
    running.stop('one', timeout_s=20)
    assert processes.born(pid) is None


def test_what_a_process_leaves_behind_is_ended(running):
    """Children that outlive a killed parent do not stay for ever."""
    running.start('one', ['sh', '-c', 'sleep 60 & sleep 60'])
    pid = running.require('one')
    (child, *_) = wait_until(
        'children', lambda: processes.children(pid), 10, 0.05
    )
    os.kill(pid, signal.SIGKILL)
    running.stop('one')
    # At once: who starts next listens where it did.
    assert processes.born(child) is None


def test_ended_process_is_missed(running):
    """Who needs it is told the end of its log."""
    running.start('one', ['sh', '-c', 'echo no such thing; exit 1'])
    running.await_end('one', 10)
    with pytest.raises(CloudError, match=r'one is not running(.|\n)*no such'):
        running.require('one')
