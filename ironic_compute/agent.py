# SPDX-License-Identifier: Apache-2.0
"""The agent process: it holds leases on hosts and is the parent of workers.

``WorkerProcesses`` is the ``hashring`` agent's hands: it starts one process a
host, speaks to it through two pipes and ends it. Everything here runs in the
agent's main thread, because a worker is killed by the kernel when the thread
that started it ends. Nothing here blocks on a worker.
"""

import dataclasses
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from oslo_log import log as logging

from hashring import opts as hashring_opts
from hashring.agent import Agent
from hashring.clock import Clock, SystemClock
from hashring.membership import Membership, new_boot
from hashring.ring import Host
from hashring.state import StateFolder
from hashring.workers import (
    Exited,
    Facts,
    Serving,
    WorkerEvent,
    WorkerView,
)
from ironic_compute import pipe
from ironic_compute.exits import EX_CONFIG

LOG = logging.getLogger(__name__)


def group_name(conductor_group: str | None, shard: str | None) -> str:
    """Name the group of the agents that share a pool of nodes.

    :param conductor_group: ``[ironic] conductor_group``
    :param shard: ``[ironic] shard``
    """
    return f'ironic-compute/{conductor_group or "-"}/{shard or "-"}'


def build_agent(conf: Any, worker_command: Sequence[str]) -> Agent:
    """Put an agent together from nova.conf.

    :param worker_command: starts a worker, without the arguments that name
        its host and its ties
    :raises hashring.errors.ConfigError: one sentence for the operator
    """
    hashring_opts.check_options(
        conf,
        service_down_time_s=conf.service_down_time,
        report_interval_s=conf.report_interval,
    )
    home, boot = Host(conf.host), new_boot()
    timing = hashring_opts.Timing.from_conf(
        conf, settle_s=conf.ironic_compute.settle_s
    )
    state = StateFolder(conf.ironic_compute.state_path)
    state.open()
    clock = SystemClock()
    membership = Membership(
        conf.coordination.backend_url,
        group_name(conf.ironic.conductor_group, conf.ironic.shard),
        home,
        boot,
        term_s=timing.lease_term_s,
    )
    workers = WorkerProcesses(
        worker_command,
        home,
        clock,
        silence_s=conf.ironic_compute.worker_silence_s,
    )
    return Agent(
        membership=membership,
        workers=workers,
        home=home,
        options=timing,
        clock=clock,
        state=state,
    )


@dataclasses.dataclass(slots=True)
class _Worker:
    """One worker process and our ends of its pipes."""

    host: Host
    tenure: int
    process: subprocess.Popen[bytes]
    down: pipe.NewestLineWriter
    up: pipe.LineReader
    up_fd: int
    pid_fd: int
    heard_s: float
    mute: bool = False
    sentence: str | None = None

    def close(self) -> None:
        for fd in (self.up_fd, self.pid_fd):
            os.close(fd)
        if self.process.stdin is not None:
            self.process.stdin.close()


class WorkerProcesses:
    """The workers of one agent; all calls from the main thread.

    :param command: starts a worker; its host and ties are appended
    :param silence_s: a worker that said nothing for so long is killed
    """

    def __init__(
        self,
        command: Sequence[str],
        home: Host,
        clock: Clock,
        *,
        silence_s: float,
    ) -> None:
        self._command = list(command)
        self._home = home
        self._clock = clock
        self._silence_s = silence_s
        self._workers: dict[Host, _Worker] = {}

    def start(self, host: Host, tenure: int) -> None:
        """Start the worker of a host; returns at once."""
        up_fd, their_fd = os.pipe()
        arguments = [
            *self._command,
            '--host',
            host,
            '--home' if host == self._home else '--adopted',
            '--agent-pid',
            str(os.getpid()),
            '--report-fd',
            str(their_fd),
        ]
        process = subprocess.Popen(  # noqa: S603 - our own command line
            arguments,
            stdin=subprocess.PIPE,
            pass_fds=(their_fd,),
            # A Ctrl-C in the agent's terminal is the agent's to handle.
            process_group=0,
        )
        os.close(their_fd)
        assert process.stdin is not None  # noqa: S101 - a pipe was asked for
        self._workers[host] = _Worker(
            host=host,
            tenure=tenure,
            process=process,
            down=pipe.NewestLineWriter(process.stdin.fileno()),
            up=pipe.LineReader(up_fd),
            up_fd=up_fd,
            pid_fd=os.pidfd_open(process.pid),
            heard_s=self._clock.now_s(),
        )
        LOG.info(
            'Started the worker of host %(host)s, process %(pid)d',
            {'host': host, 'pid': process.pid},
        )

    def stop(self, host: Host) -> None:
        """Ask a worker to drain and end."""
        if host in self._workers:
            self._workers[host].process.send_signal(signal.SIGTERM)

    def kill(self, host: Host) -> None:
        """End a worker now; the process is gone on return."""
        worker = self._workers.pop(host, None)
        if worker is not None:
            worker.process.kill()
            worker.process.wait()
            worker.close()

    def tell(self, view: WorkerView) -> None:
        """Pass a view on to each worker that can take it."""
        line = pipe.encode_view(view)
        for worker in self._workers.values():
            worker.down.write(line)

    def events(self, timeout_s: float) -> Sequence[WorkerEvent]:
        """Wait for news of the workers, then return all there is."""
        fds = {}
        for worker in self._workers.values():
            fds[worker.pid_fd] = worker.host
            if not worker.mute:
                fds[worker.up_fd] = worker.host
        ready, _, _ = select.select(list(fds), [], [], timeout_s)
        events: list[WorkerEvent] = []
        for host in sorted({fds[fd] for fd in ready}):
            events += self._hear(self._workers[host])
        self._kill_silent()
        return events

    def _hear(self, worker: _Worker) -> list[WorkerEvent]:
        events: list[WorkerEvent] = []
        try:
            for line in worker.up.lines(0):
                events += self._understand(worker, line)
        except EOFError:
            worker.mute = True  # It is ending; its exit is seen by itself.
        if worker.process.poll() is None:
            return events
        return [*events, self._bury(worker)]

    def _understand(self, worker: _Worker, line: bytes) -> list[WorkerEvent]:
        worker.heard_s = self._clock.now_s()
        match pipe.decode_message(line):
            case pipe.IsServing():
                return [Serving(worker.host, worker.tenure)]
            case pipe.Services(facts=facts):
                return [Facts(facts)]
            case pipe.CannotStart(sentence=sentence):
                worker.sentence = sentence
            case pipe.IsAlive():
                pass  # Heard; that is all it says.
        return []

    def _bury(self, worker: _Worker) -> Exited:
        del self._workers[worker.host]
        worker.close()
        status = worker.process.returncode
        LOG.info(
            'The worker of host %(host)s ended with status %(status)d',
            {'host': worker.host, 'status': status},
        )
        fatal = worker.sentence if status == EX_CONFIG else None
        return Exited(worker.host, status, fatal, worker.tenure)

    def _kill_silent(self) -> None:
        now_s = self._clock.now_s()
        for worker in self._workers.values():
            if now_s - worker.heard_s > self._silence_s:
                LOG.error(
                    'Killed the worker of host %(host)s: it gave no sign of '
                    'life for %(silence)d s',
                    {'host': worker.host, 'silence': self._silence_s},
                )
                worker.heard_s = now_s
                worker.process.kill()


def worker_command(config_arguments: Sequence[str]) -> list[str]:
    """Return the command line of a worker, with our configuration files.

    :param config_arguments: ``--config-file X …`` as the agent got them
    """
    script = os.path.join(
        os.path.dirname(os.path.abspath(sys.argv[0])), 'ironic-compute-worker'
    )
    if os.access(script, os.X_OK):
        start = [script]
    else:
        start = [sys.executable, '-m', 'ironic_compute.cmd.worker']
    return [*start, *config_arguments]
