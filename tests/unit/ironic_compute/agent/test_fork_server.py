# SPDX-License-Identifier: Apache-2.0
"""Workers that a fork server forks, as real processes without Nova."""

import ast
import dataclasses
import errno
import logging
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hashring.clock import SystemClock
from hashring.ring import Host
from hashring.workers import HostRetired, WorkerExited, WorkerServing
from ironic_compute.agent.child import ForkedProcess, Pipes
from ironic_compute.agent.exit_codes import EX_OSERR
from ironic_compute.agent.fork_server import ForkServer
from ironic_compute.agent.parent_process import read_children
from ironic_compute.agent.worker_processes import WorkerProcesses
from tests.unit.ironic_compute.agent.open_files import count_fds
from tests.unit.ironic_compute.agent.test_worker_processes import (
    Uninterruptible,
)

HOME, OTHER = Host('c1'), Host('c2')

# A fork server and its workers, or a worker that was not forked.
TOY = textwrap.dedent(
    """
    import argparse, json, os, random, signal, sys, time
    parser = argparse.ArgumentParser()
    parser.add_argument('behaviour')
    parser.add_argument('argument', nargs='?')
    parser.add_argument('--agent-pid', type=int)
    parser.add_argument('--report-fd', type=int)
    parser.add_argument('--fork-fd', type=int)
    ties = parser.parse_args()
    if ties.fork_fd is not None:
        from ironic_compute.worker import forking
        def load():
            if ties.behaviour == 'cannot load':
                sys.exit(9)
            if ties.behaviour == 'hangs':
                time.sleep(60)
            if ties.behaviour == 'dies':
                os.setpgid = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            if ties.behaviour == 'is late':
                os.setpgid = lambda *_: time.sleep(3)
            if ties.behaviour == 'imports':
                sys.path.insert(0, ties.argument)
                import loaded
        ties.report_fd = forking.serve(
            ties.fork_fd, ties.agent_pid, time.time(), load)
    assert ties.agent_pid == os.getppid()
    def say(**message):
        os.write(ties.report_fd, json.dumps(message).encode() + b'\\n')
    appointment = json.loads(sys.stdin.readline())
    say(**{'is': 'serving'})
    if ties.behaviour == 'shows':
        fds = {int(fd) for fd in os.listdir('/proc/self/fd')}
        usual = {0, 1, 2, ties.report_fd, appointment['metrics_fd']}
        fds = {fd for fd in fds - usual if os.path.exists(f'/dev/fd/{fd}')}
        is_leader = os.getpgid(0) == os.getpid()
        say(**{'is': 'retired', 'host': str(
            (sorted(fds), is_leader, random.random()))})
    if ties.behaviour == 'deaf':
        time.sleep(60)
    for line in sys.stdin:
        sys.exit(7)
    """
)

Make = Callable[..., WorkerProcesses]


@pytest.fixture
def make(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Make]:
    """Make workers with a fork server that behaves as asked."""
    caplog.set_level(logging.INFO)
    # Other tests and linters make folders in the root of the project, which
    # the fork server would take for an upgrade if its name were in the path.
    # Modules are found there, because it is the present folder.
    monkeypatch.delenv('PYTHONPATH', raising=False)
    made = []

    def make(
        behaviour: str,
        *arguments: str,
        start_s: float = 60.0,
        standstill_s: float = 6.0,
        keeps_spare: bool = False,
    ) -> WorkerProcesses:
        workers = WorkerProcesses(
            [sys.executable, '-c', TOY, behaviour, *arguments],
            HOME,
            SystemClock(),
            silence_s=60.0,
            start_s=start_s,
            keeps_spare=keeps_spare,
            standstill_s=standstill_s,
            has_metrics=True,
            forks=True,
        )
        made.append(workers)
        return workers

    yield make
    for workers in made:
        workers.close()
        for host in (HOME, OTHER):
            workers.kill(host)


def has_ended(pid: int) -> bool:
    """Return whether a child has ended and was not reaped."""
    state = pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(') ')[2]
    return state.startswith('Z')


def wait_for(workers: WorkerProcesses, kind: type) -> Any:
    """Return the first event of a kind; fail if none comes."""
    for _ in range(300):
        for event in workers.events(0.2):
            if isinstance(event, kind):
                return event
    raise AssertionError(f'no {kind.__name__}')


def serve(workers: WorkerProcesses, host: Host) -> int:
    """Have a host served; return the process of its worker."""
    workers.start(host, tenure=1)
    assert wait_for(workers, WorkerServing) == WorkerServing(host, 1)
    return workers._workers[host].child.process.pid


def turn_until(workers: WorkerProcesses, is_true: Callable[[], bool]) -> None:
    """Let the loop of the agent turn until something is true."""
    for _ in range(300):
        if is_true():
            return
        workers.events(0.1)
    raise AssertionError('it never came true')


def kill_fork_server(workers: WorkerProcesses) -> ForkServer:
    """Kill it; return the agent's end, which has noticed that."""
    server = workers._fork_server
    assert server is not None
    os.kill(fork_server_of(workers), signal.SIGKILL)
    turn_until(workers, lambda: not server.is_up)
    return server


def fork_server_of(workers: WorkerProcesses) -> int:
    """Return the process of the fork server, which has been started."""
    server = workers._fork_server
    assert server is not None
    assert server._process is not None
    return server._process.pid


def test_forked_worker_is_a_child_of_the_agent(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """It serves its host, and its exit status reaches the agent."""
    workers = make('patient')
    pid = serve(workers, HOME)
    assert '(forked)' in caplog.text
    assert read_children() >= {pid, fork_server_of(workers)}
    workers._workers[HOME].child.down.write(b'end\n')
    assert wait_for(workers, WorkerExited) == WorkerExited(HOME, 7, None, 1)
    assert pid not in read_children()


def test_signal_that_ended_a_forked_worker_is_known(make: Make) -> None:
    """An operator kills it, or its agent stops it."""
    workers = make('patient')
    serve(workers, HOME)
    workers.stop(HOME)
    assert wait_for(workers, WorkerExited).status == -signal.SIGTERM
    pid = serve(workers, HOME)
    workers.kill(HOME)
    assert pid not in read_children()
    assert workers.events(0) == []


def test_forked_workers_share_no_file_group_or_random_number(
    make: Make,
) -> None:
    """A worker has its own pipes only, and chooses its own numbers."""
    workers = make('shows')
    shown = []
    for host in (HOME, OTHER):
        workers.start(host, tenure=1)
        retired = wait_for(workers, HostRetired)
        fds, is_leader, number = ast.literal_eval(retired.host)
        assert (fds, is_leader) == ([], True)
        shown.append(number)
    assert shown[0] != shown[1]


def test_killed_fork_server_leaves_its_workers_alive(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """The next worker loads Nova itself."""
    workers = make('patient')
    served = serve(workers, HOME)
    kill_fork_server(workers)
    assert 'it ended with status -9' in caplog.text
    serve(workers, OTHER)
    assert '(new)' in caplog.text
    assert workers._workers[HOME].child.process.pid == served
    assert not workers._workers[HOME].child.has_ended()


@pytest.mark.parametrize(
    ('behaviour', 'why'),
    [
        ('cannot load', 'it ended with status 9'),
        ('hangs', 'it stands still'),
        ('dies', 'it stands still'),
    ],
)
def test_host_is_served_though_the_fork_server_fails(
    make: Make, caplog: pytest.LogCaptureFixture, behaviour: str, why: str
) -> None:
    """It ends while it loads, hangs, or its worker dies at once."""
    workers = make(behaviour, standstill_s=1.0)
    serve(workers, HOME)
    assert why in caplog.text
    assert '(new)' in caplog.text
    assert not any(map(has_ended, read_children()))


def test_fork_server_that_takes_no_request_ends_no_daemon(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be killed in the turn in which a worker is requested."""
    free_later = [os.open(os.devnull, os.O_RDONLY) for _ in range(16)]
    workers = make('patient')
    workers.events(0)  # Starts the fork server.
    for fd in free_later:  # The next files get these numbers.
        os.close(fd)

    def refuse(*_: object) -> None:
        raise BrokenPipeError(errno.EPIPE, 'Broken pipe')

    monkeypatch.setattr(socket, 'send_fds', refuse)
    assert serve(workers, HOME)


def test_worker_that_cannot_be_watched_stays_no_zombie(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """oslo.reports cannot report of a process with a zombie."""
    workers = make('patient')
    workers.start(HOME, tenure=1)

    def refuse(pid: int) -> int:
        raise OSError(errno.EMFILE, 'Too many open files')

    with monkeypatch.context() as patch:
        patch.setattr(os, 'pidfd_open', refuse)
        assert wait_for(workers, WorkerExited).status == EX_OSERR
    assert serve(workers, HOME)
    assert not [pid for pid in read_children() if has_ended(pid)]


def test_worker_that_is_not_awaited_any_more_stays_no_zombie(
    make: Make,
) -> None:
    """It hung between its fork and its answer, and lived on."""
    strangers = read_children()
    workers = make('is late', standstill_s=1.0)
    served = serve(workers, HOME)
    turn_until(workers, lambda: read_children() - strangers <= {served})


def test_fork_server_that_loads_for_too_long_is_given_up(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """A host does not wait longer than for a worker that loads Nova."""
    workers = make('hangs', start_s=1.0)
    serve(workers, HOME)
    assert 'it sent no answer for 1 s' in caplog.text


def test_frozen_fork_server_delays_a_host_for_seconds(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker is requested of it in vain, and is started as a program."""
    workers = make('patient', standstill_s=1.0)
    serve(workers, HOME)
    os.kill(fork_server_of(workers), signal.SIGSTOP)
    serve(workers, OTHER)
    assert 'it stands still' in caplog.text


def test_upgraded_files_are_not_run_in_their_former_release(
    make: Make, caplog: pytest.LogCaptureFixture, tmp_path: pathlib.Path
) -> None:
    """The fork server ends, and the worker loads the new files itself."""
    module = tmp_path / 'loaded.py'
    module.write_text('release = 1')
    time.sleep(0.2)  # It must be older than the fork server.
    workers = make('imports', str(tmp_path))
    serve(workers, HOME)
    module.write_text('release = 22')
    serve(workers, OTHER)
    assert 'files that it had loaded have changed' in caplog.text
    assert '(new)' in caplog.text


def test_next_fork_server_is_made_a_minute_later(make: Make) -> None:
    """Not at once, because it may fail again."""
    workers = make('patient')
    serve(workers, HOME)
    server = kill_fork_server(workers)
    workers.events(0)
    assert not server.is_up
    server._clock = _Later()
    workers.events(0)
    assert server.is_up


class _Later:
    """The clock a minute later."""

    def now_s(self) -> float:
        return SystemClock().now_s() + 61.0

    def wall_s(self) -> float:
        raise NotImplementedError

    def sleep(self, seconds: float) -> None:
        raise NotImplementedError


def test_fork_server_takes_the_place_of_the_spare_worker(make: Make) -> None:
    """A spare worker is made only while there is no fork server."""
    workers = make('patient', keeps_spare=True)
    serve(workers, HOME)
    workers.events(0)
    assert workers._spare is None
    server = kill_fork_server(workers)
    turn_until(workers, lambda: workers._spare is not None)
    server._clock = _Later()
    turn_until(workers, lambda: workers._spare is None)
    assert server.is_ready


def test_spare_worker_that_is_killed_slowly_stays_no_zombie(
    make: Make,
) -> None:
    """It waits for its disk when a fork server takes its place."""
    workers = make('patient', keeps_spare=True)
    serve(workers, HOME)
    server = kill_fork_server(workers)
    turn_until(workers, lambda: workers._spare is not None)
    spare = workers._spare
    assert spare is not None
    workers._spare = dataclasses.replace(
        spare, process=Uninterruptible(spare.process)
    )
    server._clock = _Later()
    turn_until(workers, lambda: workers._spare is None)
    # Its pipes are closed, so it ends.
    turn_until(workers, lambda: spare.process.pid not in read_children())


def test_worker_whose_host_is_dropped_meanwhile_is_killed(make: Make) -> None:
    """It was requested, and its host was stopped before it was there."""
    strangers = read_children()
    workers = make('patient')
    serve(workers, HOME)
    workers.start(OTHER, tenure=2)
    workers.stop(OTHER)
    assert wait_for(workers, WorkerExited) == WorkerExited(OTHER, 0, None, 2)
    server = workers._fork_server
    assert server is not None
    turn_until(workers, lambda: server._requested is None)
    # The fork server and the worker of the home host.
    assert len(read_children() - strangers) == 2


def test_close_ends_the_fork_server_for_good(make: Make) -> None:
    """No process is left, and none is started."""
    strangers = read_children()
    workers = make('patient')
    serve(workers, HOME)
    workers.kill(HOME)
    workers.close()
    workers.events(0)
    assert not read_children() - strangers


def test_forked_workers_leave_no_open_pipes(make: Make) -> None:
    """A thousand restarts must not run out of file descriptors."""
    workers = make('patient')
    counts = set()
    for _ in range(3):
        serve(workers, HOME)
        workers.kill(HOME)
        counts.add(count_fds())
    assert len(counts) == 1


AGENT = textwrap.dedent(
    """
    import sys
    from hashring.clock import SystemClock
    from hashring.ring import Host
    from ironic_compute.agent.worker_processes import WorkerProcesses
    workers = WorkerProcesses(
        [sys.executable, '-c', sys.argv[1], 'deaf'], Host('c1'),
        SystemClock(), silence_s=60.0, start_s=60.0, keeps_spare=False,
        forks=True)
    workers.start(Host('c1'), 1)
    while not workers.events(0.1):
        pass
    print(workers._workers['c1'].child.process.pid,
          workers._fork_server._process.pid, flush=True)
    sys.stdin.read()
    """
)


@pytest.mark.parametrize('first', ['agent', 'fork server', 'both'])
def test_forked_worker_ends_with_its_agent(first: str) -> None:
    """Also if it does not read its pipe, and its fork server was killed."""
    agent = subprocess.Popen(
        [sys.executable, '-c', AGENT, TOY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert agent.stdout is not None
    pids = [int(pid) for pid in agent.stdout.readline().split()]
    fds = [os.pidfd_open(pid) for pid in pids]
    if first != 'agent':
        os.kill(pids[1], signal.SIGKILL)
    if first == 'fork server':
        assert select.select(fds[1:], [], [], 30.0)[0]
        assert not select.select(fds[:1], [], [], 0.5)[0]
    agent.kill()
    for fd in fds:
        assert select.select([fd], [], [], 30.0)[0] == [fd]
        os.close(fd)
    agent.communicate()


def test_child_of_another_process_is_refused() -> None:
    """The agent could neither reap it nor be sure of its number."""
    with pytest.raises(ChildProcessError):
        ForkedProcess(os.getppid())


def test_pipes_of_a_forked_worker_are_closed_with_it() -> None:
    """Both ends, whether the worker has got its own or not."""
    before = count_fds()
    pipes = Pipes(has_metrics=True)
    with pipes.lend_worker_fds():
        pass
    pipes.close()
    del pipes
    assert count_fds() == before
