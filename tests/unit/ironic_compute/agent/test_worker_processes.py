# SPDX-License-Identifier: Apache-2.0
"""The agent's workers, as real processes with a toy in place of Nova."""

import dataclasses
import logging
import os
import signal
import sys
import textwrap

import pytest

from hashring.clock import SystemClock
from hashring.ring import Host
from hashring.workers import WorkerExited, WorkerServing, WorkerView
from ironic_compute.agent import exit_codes
from ironic_compute.agent.worker_processes import WorkerProcesses
from tests.fakes.clock import ManualClock
from tests.unit.ironic_compute.agent.open_files import count_fds

HOME, OTHER, THIRD = Host('c1'), Host('c2'), Host('c3')
VIEW = WorkerView(deadline_s=1.0, ring=(), agreed_since_s=None, known=())

# Is appointed, says that it serves, then does what its behaviour asks for.
TOY = textwrap.dedent(
    """
    import argparse, json, os, sys, time
    parser = argparse.ArgumentParser()
    parser.add_argument('behaviour')
    parser.add_argument('--agent-pid', type=int)
    parser.add_argument('--report-fd', type=int)
    ties = parser.parse_args()
    assert ties.agent_pid == os.getppid()
    if ties.behaviour == 'frail':
        sys.exit(9)
    appointment = json.loads(sys.stdin.readline())
    assert appointment['is_home'] == (appointment['host'] == 'c1')
    def say(line):
        os.write(ties.report_fd, line + b'\\n')
    if ties.behaviour == 'wrong':
        say(b'{"is": "cannot start", "sentence": "no [ironic] auth_type"}')
        sys.exit(78)
    if ties.behaviour in ('imports', 'never'):
        say(b'{"is": "alive", "starting": true}')
    if ties.behaviour == 'imports':
        time.sleep(2)
    if ties.behaviour == 'never':
        time.sleep(60)
    if ties.behaviour == 'newer':
        say(b'{"is": "dancing"}')
        say(b'{"is": "dancing"}')
    say(b'{"is": "serving"}')
    while ties.behaviour == 'computes':
        pass
    for line in sys.stdin:
        if ties.behaviour == 'listens':
            sys.exit(7)
        if ties.behaviour == 'counts':
            from hashring.clock import SystemClock
            from ironic_compute.agent import pipe
            from ironic_compute.pool.view import PoolView
            pool = PoolView(SystemClock())
            pool.update(pipe.decode_view(line.encode()))
            sys.exit(len(pool.ring_status().ring.hosts))
    """
)


@pytest.fixture
def make():
    """Make WorkerProcesses whose workers behave as asked."""
    made = []

    def make(
        behaviour,
        silence_s=60.0,
        keeps_spare=False,
        start_s=60.0,
        clock=None,
        standstill_s=6.0,
        has_metrics=False,
    ):
        command = [sys.executable, '-c', TOY, behaviour]
        workers = WorkerProcesses(
            command,
            HOME,
            clock or SystemClock(),
            silence_s=silence_s,
            start_s=start_s,
            keeps_spare=keeps_spare,
            standstill_s=standstill_s,
            has_metrics=has_metrics,
        )
        made.append(workers)
        return workers

    yield make
    for workers in made:
        workers.close()
        for host in (HOME, OTHER, THIRD, Host('c4')):
            workers.kill(host)


def test_a_signal_ends_the_wait_for_events(make):
    """An agent that is to end must not wait for the end of its turn."""
    workers, clock = make(''), SystemClock()
    woken_fd, wakes_fd = os.pipe2(os.O_NONBLOCK)
    workers.end_waits_on(woken_fd)
    os.write(wakes_fd, bytes([signal.SIGTERM]))
    began_s = clock.now_s()
    workers.events(60.0)
    assert clock.now_s() - began_s < 30.0
    with pytest.raises(BlockingIOError):
        os.read(woken_fd, 1)  # The next wait is a whole one.
    os.close(woken_fd)
    os.close(wakes_fd)


def wait_for(workers, kind):
    """Return the first event of a kind; fail if none comes."""
    for _ in range(300):
        for event in workers.events(0.2):
            if isinstance(event, kind):
                return event
    raise AssertionError(f'no {kind.__name__}')


@pytest.mark.parametrize('host', [HOME, OTHER])
def test_worker_says_that_it_serves(make, host):
    """The agent gets an event with the worker's host and tenure."""
    workers = make('patient')
    workers.start(host, tenure=3)
    assert wait_for(workers, WorkerServing) == WorkerServing(host, 3)


def test_metrics_are_read_of_workers_that_serve(make):
    """One that loads Nova does not answer; one that has ended has none."""
    workers = make('patient', has_metrics=True)
    workers.start(HOME, tenure=1)
    assert workers.metrics_channels() == {}
    wait_for(workers, WorkerServing)
    assert workers.metrics_channels().keys() == {HOME}
    workers.kill(HOME)
    assert workers.metrics_channels() == {}


def test_without_the_port_no_worker_has_a_channel(make):
    """An agent whose port is off opens nothing for it."""
    workers = make('patient')
    workers.start(HOME, tenure=1)
    wait_for(workers, WorkerServing)
    assert workers.metrics_channels() == {}


def test_unknown_message_of_a_newer_worker_ends_no_agent(make, caplog):
    """A message that this release cannot read is ignored and logged once."""
    workers = make('newer')
    workers.start(HOME, tenure=3)
    assert wait_for(workers, WorkerServing) == WorkerServing(HOME, 3)
    assert caplog.text.count('Ignored a message of the worker') == 1


def test_view_reaches_the_worker(make):
    """A view reaches the worker; its exit comes back as an event."""
    workers = make('listens')
    workers.start(HOME, tenure=1)
    wait_for(workers, WorkerServing)
    workers.deliver_view(VIEW)
    assert wait_for(workers, WorkerExited) == WorkerExited(HOME, 7, None, 1)


def test_bug_2144384_worker_process_has_the_ring_it_is_told(make):
    """Nothing of a ring is left to what a process inherits."""
    workers = make('counts')
    for hosts in ((HOME,), (HOME, OTHER)):
        workers.start(HOME, tenure=1)
        wait_for(workers, WorkerServing)
        workers.deliver_view(dataclasses.replace(VIEW, ring=hosts))
        assert wait_for(workers, WorkerExited).status == len(hosts)


def test_wrong_configuration_brings_its_sentence(make):
    """Exit status 78 is fatal; the event has the worker's sentence."""
    workers = make('wrong')
    workers.start(HOME, tenure=1)
    exited = wait_for(workers, WorkerExited)
    assert exited.status == exit_codes.EX_CONFIG
    assert exited.fatal == 'no [ironic] auth_type'


def test_killed_worker_is_gone_on_return(make):
    """After kill() there is no process and no event."""
    workers = make('patient')
    workers.start(HOME, tenure=1)
    wait_for(workers, WorkerServing)
    workers.kill(HOME)
    workers.kill(HOME)
    assert workers.events(0) == []


def test_stopped_worker_drains(make):
    """stop() sends SIGTERM; the exit is reported as an event."""
    workers = make('patient')
    workers.start(HOME, tenure=1)
    wait_for(workers, WorkerServing)
    workers.stop(HOME)
    assert wait_for(workers, WorkerExited).status == -15


def test_silent_worker_is_killed(make):
    """A worker that sends no message for too long is killed."""
    workers = make('patient', silence_s=0.5)
    workers.start(HOME, tenure=1)
    assert wait_for(workers, WorkerExited).status == -9


def test_worker_that_imports_for_long_is_not_killed(make):
    """While a worker starts, the time-out of a start counts instead."""
    workers = make('imports')
    workers.start(HOME, tenure=1)
    while not workers._workers[HOME].is_importing:
        workers.events(0.2)
    workers._silence_s = 1.0
    assert wait_for(workers, WorkerServing) == WorkerServing(HOME, 1)


def test_worker_that_never_starts_is_killed(make):
    """A worker that only began to start is killed after its time-out."""
    workers = make('never', start_s=0.5)
    workers.start(HOME, tenure=1)
    assert wait_for(workers, WorkerExited).status == -9


def test_home_host_does_not_wait_for_adopted_hosts(make, caplog):
    """Of the hosts that wait for their workers the home host is the first."""
    caplog.set_level(logging.INFO)
    workers = make('never')
    for host in (OTHER, THIRD, Host('c4'), HOME):
        workers.start(host, tenure=1)
    assert 'Started the worker of host c1' not in caplog.text
    workers.kill(OTHER)
    workers.events(0)
    assert 'Started the worker of host c1' in caplog.text
    assert 'Started the worker of host c4' not in caplog.text


def test_hosts_with_servers_start_before_others(make, caplog):
    """Their users wait for them."""
    caplog.set_level(logging.INFO)
    workers = make('never')
    for host in ('c5', 'c6', 'c3', 'c4'):
        workers.start(Host(host), 1, has_servers=host == 'c4')
    workers.kill(Host('c5'))
    workers.events(0)
    assert 'Started the worker of host c4' in caplog.text
    assert 'Started the worker of host c3' not in caplog.text


def test_two_workers_start_at_once(make):
    """Further workers start when another one serves."""
    strangers = children()
    workers = make('imports')
    hosts = [OTHER, THIRD, Host('c4'), HOME]
    for host in hosts:
        workers.start(host, tenure=1)
    assert len(children() - strangers) == 2
    served: list[Host] = []
    for _ in range(300):
        # Two workers may begin to serve in one round.
        served += [
            event.host
            for event in workers.events(0.2)
            if isinstance(event, WorkerServing)
        ]
        if len(served) == len(hosts):
            break
    assert set(served[:2]) == {OTHER, THIRD}
    assert set(served[2:]) == {HOME, 'c4'}
    assert len(children() - strangers) == 4


def test_slow_start_does_not_delay_others_for_ever(make):
    """A start that takes long is not counted any more."""
    strangers = children()
    clock = ManualClock()
    workers = make('never', clock=clock)
    for host in (HOME, OTHER, THIRD):
        workers.start(host, tenure=1)
    workers.events(0)
    assert len(children() - strangers) == 2
    clock.advance(30.0)
    workers.events(0)
    assert len(children() - strangers) == 3


def test_host_that_waits_for_its_worker_is_stopped_and_killed(make):
    """A host whose worker has not been started yet ends at once."""
    strangers = children()
    workers = make('never')
    for host in (HOME, OTHER, THIRD, Host('c4')):
        workers.start(host, tenure=7)
    workers.kill(THIRD)
    workers.stop(Host('c4'))
    assert workers.events(0) == [WorkerExited(Host('c4'), 0, None, 7)]
    workers.kill(HOME)
    workers.events(0)
    assert len(children() - strangers) == 1


class Uninterruptible:
    """A worker process that a signal ends only when ``wakes`` is called."""

    def __init__(self, process):
        self._process = process
        self.wakes = process.kill

    def __getattr__(self, name):
        return getattr(self._process, name)

    def kill(self):
        """Do nothing, as a signal to a process that waits for its disk."""


def in_a_system_call(workers, host):
    """Let the worker of a host wait in a system call without end."""
    worker = workers._workers[host]
    process = Uninterruptible(worker.child.process)
    worker.child = dataclasses.replace(worker.child, process=process)
    return process


def test_killed_worker_in_a_system_call_stops_no_other(make, caplog):
    """The agent goes on after a second; the process is reaped later."""
    strangers = children()
    workers = make('patient')
    for host in (HOME, OTHER):
        workers.start(host, tenure=1)
    process = in_a_system_call(workers, HOME)
    began_s = SystemClock().now_s()
    workers.kill(HOME)
    assert SystemClock().now_s() - began_s < 5.0
    assert 'in a system call' in caplog.text
    assert len(children() - strangers) == 2
    process.wakes()
    for _ in range(100):
        workers.events(0.05)
    assert len(children() - strangers) == 1


def test_silent_worker_in_a_system_call_is_replaced(make):
    """The host of a worker that hangs in a system call is served again."""
    workers = make('patient', silence_s=0.5)
    workers.start(HOME, tenure=3)
    process = in_a_system_call(workers, HOME)
    assert wait_for(workers, WorkerExited) == WorkerExited(HOME, -9, None, 3)
    workers._silence_s = 60.0  # On a busy machine the start takes a while.
    workers.start(HOME, tenure=4)
    assert wait_for(workers, WorkerServing) == WorkerServing(HOME, 4)
    process.wakes()


def wait_until_ended(workers, most_s):
    """Return after how many seconds a worker was killed; None if it lives."""
    began_s = SystemClock().now_s()
    while SystemClock().now_s() - began_s < most_s:
        for event in workers.events(0.2):
            if isinstance(event, WorkerExited):
                return SystemClock().now_s() - began_s
    return None


def test_frozen_worker_is_replaced_long_before_its_silence_ends(make, caplog):
    """A worker that is stopped and whose agent lives is killed in seconds.

    Its host must be served again within 30 s, the next start included.
    """
    workers = make('patient')
    workers.start(HOME, tenure=3)
    wait_for(workers, WorkerServing)
    workers._workers[HOME].child.process.send_signal(signal.SIGSTOP)
    assert 6.0 < wait_until_ended(workers, 30.0) < 20.0
    assert 'and stands still' in caplog.text


def test_busy_worker_without_a_message_is_not_killed(make):
    """A worker that computes for long, or has no cpu, is given its time."""
    workers = make('computes', standstill_s=1.0)
    workers.start(HOME, tenure=3)
    wait_for(workers, WorkerServing)
    assert wait_until_ended(workers, 10.0) is None


def test_worker_is_not_killed_for_a_silence_of_its_agent(make):
    """An agent that was frozen with its worker looks again for seconds."""
    clock = ManualClock()
    workers = make('patient', clock=clock, silence_s=600.0)
    workers.start(HOME, tenure=3)
    wait_for(workers, WorkerServing)
    clock.advance(300.0)
    assert workers.events(0) == []
    clock.advance(300.0)
    assert workers.events(0) == []


def test_workers_leave_no_open_pipes(make):
    """A thousand restarts must not run out of file descriptors."""
    workers = make('listens')
    before = count_fds()
    for tenure in range(3):
        workers.start(HOME, tenure)
        wait_for(workers, WorkerServing)
        workers.deliver_view(VIEW)
        wait_for(workers, WorkerExited)
    assert count_fds() == before


def children():
    """Return the processes that this one started and that live."""
    with open(f'/proc/self/task/{os.getpid()}/children') as found:
        return {int(pid) for pid in found.read().split()}


def test_spare_becomes_the_worker_of_the_next_host(make):
    """The spare process serves the host, and a new spare is started."""
    strangers = children()
    workers = make('patient', keeps_spare=True)
    workers.events(0)
    (spare,) = children() - strangers
    workers.start(OTHER, tenure=4)
    assert children() - strangers == {spare}
    assert wait_for(workers, WorkerServing) == WorkerServing(OTHER, 4)
    workers.events(0)
    assert len(children() - strangers) == 2
    workers.kill(OTHER)
    assert spare not in children()


def test_no_spare_while_a_worker_starts(make):
    """No spare is started while a worker starts."""
    strangers = children()
    workers = make('patient', keeps_spare=True)
    workers.start(HOME, tenure=1)
    workers.events(0)
    assert len(children() - strangers) == 1


def test_two_hosts_at_once_need_one_more_process(make):
    """The second of two hosts does not wait for another spare."""
    workers = make('patient', keeps_spare=True)
    workers.events(0)
    workers.start(HOME, tenure=1)
    workers.start(OTHER, tenure=1)
    served = set()
    for _ in range(100):
        served |= {event.host for event in workers.events(0.2)}
        if served == {HOME, OTHER}:
            return
    raise AssertionError(f'only {served} are served')


def test_spare_that_ends_is_not_started_again_at_once(make):
    """A spare that ends by itself is replaced a minute later."""
    strangers = children()
    workers = make('frail', keeps_spare=True)
    workers.events(0)
    (spare,) = children() - strangers
    os.waitid(os.P_PID, spare, os.WEXITED | os.WNOWAIT)
    workers.events(0)
    assert not children() - strangers


def test_spare_ends_with_its_owner(make):
    """After close() there is no spare, and none is started."""
    strangers = children()
    workers = make('patient', keeps_spare=True)
    workers.events(0)
    workers.close()
    workers.events(0)
    assert not children() - strangers


def test_process_that_cannot_be_started_ends_nobody_else(tmp_path):
    """If a process cannot be started, the other workers go on."""
    workers = WorkerProcesses(
        [str(tmp_path / 'nothing')],
        HOME,
        SystemClock(),
        silence_s=60.0,
        start_s=60.0,
        keeps_spare=True,
    )
    assert workers.events(0) == []
    workers.start(HOME, tenure=2)
    assert workers.events(0) == [
        WorkerExited(HOME, exit_codes.EX_OSERR, None, 2)
    ]
    assert workers.events(0) == []
