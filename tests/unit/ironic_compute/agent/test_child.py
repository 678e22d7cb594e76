# SPDX-License-Identifier: Apache-2.0
"""Worker processes: their environment, pipes and end."""

import pathlib
import sys

import pytest

from hashring.ring import Host
from ironic_compute.agent.child import Child
from tests.unit.ironic_compute.agent.open_files import count_fds

_TELL = """
import os, sys
said = os.environ.get(sys.argv[1], 'nothing')
os.write(int(sys.argv[-1]), said.encode() + b'\\n')
"""


def _told(name: str) -> str:
    """Return what a child finds in its environment."""
    child = Child.spawn([sys.executable, '-c', _TELL, name])
    try:
        return child.up.next_line().decode().strip()
    finally:
        child.kill()


def test_a_worker_does_not_notify_systemd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the agent tells it that the daemon is ready and alive."""
    for name in ('NOTIFY_SOCKET', 'WATCHDOG_PID', 'WATCHDOG_USEC'):
        monkeypatch.setenv(name, '1')
        assert _told(name) == 'nothing'


def test_a_worker_gives_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory options are set unless the operator has set them."""
    monkeypatch.delenv('MALLOC_ARENA_MAX', raising=False)
    monkeypatch.setenv('MALLOC_TRIM_THRESHOLD_', '4096')
    monkeypatch.setenv('OF_THE_OPERATOR', 'kept')
    assert _told('MALLOC_ARENA_MAX') == '2'
    assert _told('MALLOC_TRIM_THRESHOLD_') == '4096'
    assert _told('OF_THE_OPERATOR') == 'kept'


@pytest.mark.parametrize('has_metrics', [False, True])
def test_no_pipe_stays_open_if_a_process_cannot_be_started(
    tmp_path: pathlib.Path, *, has_metrics: bool
) -> None:
    """A failed start leaves no file descriptor open."""
    before = count_fds()
    for _ in range(3):
        with pytest.raises(OSError, match='nothing'):
            Child.spawn([str(tmp_path / 'nothing')], has_metrics=has_metrics)
    assert count_fds() == before


_APPOINTED = """
import os, stat, sys
from ironic_compute.agent import pipe
appointment = pipe.decode_appointment(sys.stdin.buffer.readline())
is_socket = stat.S_ISSOCK(os.fstat(appointment.metrics_fd).st_mode)
fds = sorted(int(fd) for fd in os.listdir('/proc/self/fd') if int(fd) > 2)
others = set(fds) - {appointment.metrics_fd, int(sys.argv[-1])}
sockets = [fd for fd in others if os.path.exists(f'/proc/self/fd/{fd}')
           and stat.S_ISSOCK(os.fstat(fd).st_mode)]
os.write(int(sys.argv[-1]), f'{is_socket} {sockets}\\n'.encode())
"""


def test_a_worker_inherits_its_own_end_for_metrics_only() -> None:
    """It is told its number; the end of another worker is not there."""
    command = [sys.executable, '-c', _APPOINTED]
    children = [Child.spawn(command, has_metrics=True) for _ in range(2)]
    try:
        for child in children:
            child.appoint(Host('c1'), is_home=True)
        for child in children:
            assert child.up.next_line() == b'True []'
    finally:
        for child in children:
            child.kill()


def test_files_of_a_child_are_closed_with_it() -> None:
    """A worker that is killed again and again costs no descriptor."""
    before = count_fds()
    for _ in range(2):
        Child.spawn([sys.executable, '-c', ''], has_metrics=True).kill()
    assert count_fds() == before
