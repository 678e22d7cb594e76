# SPDX-License-Identifier: Apache-2.0
"""A daemon starts its successor; both ends, with toy programs."""

import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import pytest

from hashring.events import Leave
from ironic_compute.agent.build import Daemon
from ironic_compute.agent.exit_codes import EX_OSERR
from ironic_compute.agent.parent_process import adopt_orphans
from ironic_compute.agent.successor import (
    NovaNotLoaded,
    Predecessor,
    Successor,
    agent_command,
    find_obstacle,
)
from ironic_compute.agent.systemd import Watchdog
from ironic_compute.cmd import daemon
from tests.fakes.clock import ManualClock

_LIMIT_S = 30.0
_SOON_S = 60.0
# A daemon that is ready at once, and ends with its predecessor.
_READY = """
import socket, sys
from ironic_compute.agent.parent_process import continue_in_child
fd = int(sys.argv[sys.argv.index('--predecessor-fd') + 1])
continue_in_child(fd)
end = socket.socket(fileno=fd)
end.setblocking(True)
end.send(b'R')
end.recv(1)
"""
_WRONG_CONFIG = 'raise SystemExit(78)'
_LOADS_FOR_EVER = 'import time; time.sleep(600)'
# It begins to serve when its predecessor has ended.
_SERVES = _READY + 'import time; time.sleep(600)'
# It is ready, then it ends.
_DIES = _READY.replace('end.recv(1)', '')


@pytest.fixture
def clock() -> ManualClock:
    """The clock of the daemon that runs."""
    return ManualClock()


def _started(program: str, clock: ManualClock) -> Successor:
    successor = Successor([sys.executable, '-c', program], clock, _LIMIT_S)
    successor.start()
    return successor


def _until(is_so: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + _SOON_S
    while not is_so():
        assert time.monotonic() < ends_s
        time.sleep(0.01)


def _is_ready(program: str, clock: ManualClock) -> Successor:
    successor = _started(program, clock)
    _until(successor.check)
    return successor


def _stat(pid: int) -> list[str]:
    """Return what the kernel says of a process, from its state on."""
    return pathlib.Path(f'/proc/{pid}/stat').read_text().split()[2:]


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _is_alive(pid: int) -> bool:
    try:
        return _stat(pid)[0] != 'Z'
    except FileNotFoundError:
        return False


def test_successor_begins_when_it_is_ready(clock: ManualClock) -> None:
    """The daemon stops once for it, and names its process.

    That is a child of the service manager by then. systemd kills one that is
    not as soon as it has sent it SIGTERM.
    """
    successor = _is_ready(_READY, clock)
    assert not successor.check()
    assert _parent(successor._pid) == successor._holder.pid
    adopt_orphans(True)  # It was killed while it waited for a worker.
    status, pid = successor.settle(0, is_restart=True)
    assert status == 0
    assert _is_alive(pid)
    assert _parent(pid) not in (os.getpid(), successor._holder.pid)


def test_wrong_configuration_stops_nothing(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The daemon goes on, says why, and can be replaced later."""
    successor = _started(_WRONG_CONFIG, clock)
    _until(
        lambda: 'it ended with status 78' in caplog.text or (successor.check())
    )
    assert successor.settle(0, is_restart=True) == (0, 0)
    successor._command = [sys.executable, '-c', _READY]
    successor.start()
    _until(successor.check)


def test_successor_that_never_loads_is_given_up(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """After ``worker_start_s``."""
    successor = _started(_LOADS_FOR_EVER, clock)
    process = successor._holder
    assert not successor.check()
    clock.advance(_LIMIT_S + 1.0)
    assert not successor.check()
    assert process.poll() is not None
    assert 'it was not ready after 30 s' in caplog.text


def test_second_request_starts_no_second_successor(
    clock: ManualClock,
) -> None:
    """While the first one loads."""
    successor = _started(_LOADS_FOR_EVER, clock)
    process = successor._holder
    successor.start()
    assert successor._holder is process
    successor.settle(0, is_restart=False)


def test_program_that_cannot_be_started_stops_nothing(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """For instance while the package is being upgraded."""
    successor = Successor(['/nowhere/ironic-compute'], clock, _LIMIT_S)
    successor.start()
    assert not successor.check()
    assert 'it cannot be started' in caplog.text
    assert successor.settle(0, is_restart=True) == (0, 0)


def test_daemon_with_too_many_open_files_serves_on(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its main loop must not end because of the successor."""
    successor = Successor([sys.executable], clock, _LIMIT_S)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as next_free:
        lowest = next_free.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        successor.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert 'it cannot be started: [Errno 24]' in caplog.text


def test_daemon_that_nobody_follows_is_not_replaced(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Some releases of podman pass signals of their own on: SIGURG, too."""
    successor = Successor([sys.executable], clock, _LIMIT_S, 'no')
    successor.start()
    assert successor._holder is None
    assert 'does not replace this one: no' in caplog.text


@pytest.mark.parametrize(
    ('pid', 'parent', 'init', 'is_replaced'),
    [
        (1, 0, 'ironic-compute', False),
        (7, 1, 'tini', False),
        (7, 1, 'dumb-init', False),
        (7, 1, 'systemd', True),
        (7, 6, 'tini', True),
    ],
)
def test_container_ends_with_its_daemon(
    monkeypatch: pytest.MonkeyPatch,
    pid: int,
    parent: int,
    init: str,
    is_replaced: bool,
) -> None:
    """The daemon is its first process, or the child of that."""
    with monkeypatch.context() as patch:
        patch.setattr(os, 'getpid', lambda: pid)
        patch.setattr(os, 'getppid', lambda: parent)
        patch.setattr(pathlib.Path, 'read_text', lambda path: f'{init}\n')
        obstacle = find_obstacle()
    assert bool(obstacle) is not is_replaced


@pytest.mark.parametrize('status', [0, 78])
def test_daemon_that_stops_for_another_reason_ends_its_successor(
    clock: ManualClock, status: int
) -> None:
    """It left for good, or its configuration cannot work any more."""
    successor = _is_ready(_READY, clock)
    pid = successor._pid
    assert successor.settle(status, is_restart=bool(status)) == (status, 0)
    _until(lambda: not _is_alive(pid))


def test_order_to_stop_ends_the_successor(clock: ManualClock) -> None:
    """SIGTERM comes while the daemon that is replaced ends its tasks."""
    successor = _is_ready(_READY, clock)
    successor.renounce()
    assert successor.settle(0, is_restart=True) == (0, 0)


def test_daemon_that_is_killed_after_an_order_to_stop_has_no_successor(
    clock: ManualClock,
) -> None:
    """Somebody loses his patience; nobody must serve after that."""
    successor = _is_ready(_READY, clock)
    pid = successor._pid
    successor.renounce()
    assert not successor.check()
    _until(lambda: not _is_alive(pid))


@pytest.mark.parametrize('restarting', [True, False])
def test_daemon_of_a_host_that_is_retired_has_no_successor(
    clock: ManualClock, *, restarting: bool
) -> None:
    """If it is killed while it leaves, the host must not come back."""
    successor = _is_ready(_READY, clock)
    pid, leave = successor._pid, Leave(restarting=restarting)
    agent: Any = types.SimpleNamespace(
        assignment=types.SimpleNamespace(leaving=leave)
    )
    signals: Any = types.SimpleNamespace(act=lambda: None)
    Daemon(agent, signals, successor, Watchdog({}, clock)).on_turn()
    if restarting:
        assert successor.settle(0, is_restart=True) == (0, pid)
    else:
        _until(lambda: not _is_alive(pid))


def test_successor_that_is_late_for_an_order_to_stop_replaces_nothing(
    clock: ManualClock,
) -> None:
    """It becomes ready while the daemon leaves for good."""
    successor = _started(_READY, clock)
    successor.renounce()
    time.sleep(0.5)
    assert not successor.check()
    successor.settle(0, is_restart=False)


def test_service_manager_starts_a_daemon_if_the_successor_died(
    clock: ManualClock,
) -> None:
    """Status 0 would leave the host without a daemon."""
    successor = _is_ready(_DIES, clock)
    successor._holder.wait(_SOON_S)
    assert successor.settle(0, is_restart=True) == (EX_OSERR, 0)


class _Interrupted(Watchdog):
    """SIGTERM comes while systemd is told of the next daemon."""

    successor: Successor

    def name_main_process(self, pid: int) -> bool:
        self.successor.renounce()  # As the handler of the signal does.
        return super().name_main_process(pid)


def test_order_to_stop_that_comes_last_ends_the_successor(
    clock: ManualClock,
) -> None:
    """systemd would wait for its end, and kill its workers after 90 s."""
    watchdog = _Interrupted({}, clock)
    watchdog.successor = successor = _is_ready(_SERVES, clock)
    pid = successor._pid
    agent = types.SimpleNamespace(
        run=lambda: 0,
        exit_message=None,
        assignment=types.SimpleNamespace(leaving=Leave(restarting=True)),
    )
    parts = types.SimpleNamespace(
        agent=agent, successor=successor, watchdog=watchdog
    )
    assert daemon._run(parts) == 0
    _until(lambda: not _is_alive(pid))


def _lose_holder(successor: Successor) -> int:
    """Have the kernel kill the holder alone; return the successor."""
    os.kill(successor._holder.pid, signal.SIGKILL)
    os.waitid(os.P_PID, successor._holder.pid, os.WEXITED | os.WNOWAIT)
    return successor._pid


def test_order_to_stop_ends_a_successor_without_holder(
    clock: ManualClock,
) -> None:
    """Memory is short, and the kernel has killed the holder."""
    successor = _is_ready(_SERVES, clock)
    pid = _lose_holder(successor)
    successor.renounce()
    assert not successor.check()
    _until(lambda: not _is_alive(pid))


def test_successor_without_holder_begins(clock: ManualClock) -> None:
    """Status 71 would have the service manager start another daemon."""
    successor = _is_ready(_READY, clock)
    pid = _lose_holder(successor)
    assert successor.settle(0, is_restart=True) == (0, pid)
    assert _is_alive(pid)
    os.kill(pid, signal.SIGKILL)


class _Workers:
    """A fork server that loads for three turns."""

    def __init__(self, *, fails: bool = False) -> None:
        self.turns = 0
        self._fails = fails

    @property
    def is_loading(self) -> bool:
        return self.turns < 3

    @property
    def lacks_fork_server(self) -> bool:
        return self.is_loading or self._fails

    def events(self, timeout_s: float) -> None:
        self.turns += 1
        time.sleep(0.001)


def _wait_in_thread(end: socket.socket) -> tuple[threading.Thread, _Workers]:
    workers = _Workers()
    predecessor = Predecessor(end.detach())
    thread = threading.Thread(
        target=predecessor.wait_for_end, args=(workers,), daemon=True
    )
    thread.start()
    return thread, workers


def test_successor_waits_until_its_predecessor_has_ended() -> None:
    """It says that it is ready when Nova is loaded, not before."""
    ours, theirs = socket.socketpair()
    thread, workers = _wait_in_thread(theirs)
    ours.settimeout(_SOON_S)
    assert ours.recv(1) == b'R'
    turns = workers.turns
    assert turns >= 3
    _until(lambda: workers.turns > turns)
    assert thread.is_alive()
    ours.close()
    thread.join(_SOON_S)
    assert not thread.is_alive()


def test_successor_that_cannot_load_nova_replaces_nothing() -> None:
    """Its workers could not load Nova, either."""
    ours, theirs = socket.socketpair()
    with ours:
        with pytest.raises(NovaNotLoaded):
            Predecessor(theirs.detach()).wait_for_end(_Workers(fails=True))
        assert ours.recv(1) == b''


def test_successor_without_nova_begins_if_nobody_serves() -> None:
    """Its predecessor was killed; its next fork server may load Nova."""
    ours, theirs = socket.socketpair()
    ours.close()
    Predecessor(theirs.detach()).wait_for_end(_Workers(fails=True))


def test_successor_begins_if_its_predecessor_was_killed() -> None:
    """Before it could say that it is ready."""
    ours, theirs = socket.socketpair()
    ours.close()
    thread, _ = _wait_in_thread(theirs)
    thread.join(_SOON_S)
    assert not thread.is_alive()


def test_successor_begins_if_nobody_has_read_its_number() -> None:
    """Its predecessor was killed within a second after it had started it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.send(b'4711')
    ours.close()
    Predecessor(theirs.detach()).wait_for_end(_Workers())


# Its socket is closed a second before its lock is released, as may be so when
# the kernel ends a process.
_DIES_SLOWLY = """
import fcntl, socket, subprocess, sys, time
lock = open(sys.argv[1], 'w')
fcntl.flock(lock, fcntl.LOCK_EX)
ours, theirs = socket.socketpair()
command = [sys.executable, '-c', sys.argv[2], str(theirs.fileno()), lock.name]
subprocess.Popen(command, pass_fds=[theirs.fileno()])
theirs.close()
ours.recv(1)
ours.close()
time.sleep(1)
"""
_TAKES_THE_LOCK = """
import fcntl, sys
from ironic_compute.agent.successor import Predecessor
class Workers:
    is_loading = lacks_fork_server = False
    def events(self, timeout_s): pass
Predecessor.of(int(sys.argv[1])).wait_for_end(Workers())
fcntl.flock(open(sys.argv[2]), fcntl.LOCK_EX | fcntl.LOCK_NB)
print('taken')
"""


def test_successor_begins_when_the_lock_of_its_predecessor_is_free(
    tmp_path: pathlib.Path,
) -> None:
    """Otherwise it ended with status 78, and nobody would start a daemon."""
    program = [sys.executable, '-c', _DIES_SLOWLY]
    found = subprocess.run(
        [*program, str(tmp_path / 'agent.lock'), _TAKES_THE_LOCK],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert found.stdout == 'taken\n', found.stderr


def test_successor_has_the_options_of_its_predecessor(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program is the one that was started, or the module."""
    script = tmp_path / 'ironic-compute'
    script.touch(mode=0o755)
    monkeypatch.setattr(sys, 'argv', [str(script)])
    assert agent_command(['--debug']) == [str(script), '--debug']
    monkeypatch.setattr(sys, 'argv', ['/usr/lib/agent.py'])
    command = agent_command(['--debug'])
    assert command[1:] == ['-m', 'ironic_compute.cmd.agent', '--debug']
