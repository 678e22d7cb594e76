# SPDX-License-Identifier: Apache-2.0
"""A worker process: its agent starts it, appoints it to a host and kills it.

A child imports Nova before the agent appoints it to a host, and serves nothing
until then. Therefore an agent can keep a spare worker ready for a host that it
does not serve yet. A child is a program that the agent has started, or was
forked by the agent's fork server; the agent is its parent in both cases. The
agent's main thread calls everything here.
"""

import contextlib
import dataclasses
import os
import select
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from hashring.ring import Host
from ironic_compute.agent import pipe
from ironic_compute.agent.start_process import start_process
from ironic_compute.agent_port.worker_metrics import (
    MetricsChannel,
    make_channel,
)

_KILL_TIMEOUT_S = 1.0


class Process(Protocol):
    """A child process of the agent; the part of ``Popen`` that is used."""

    @property
    def pid(self) -> int:
        """Its number, which no other process gets before it is reaped."""

    @property
    def returncode(self) -> int | Any:
        """The exit status, or the negative number of the fatal signal.

        None until :meth:`poll` has reaped the process.
        """

    def poll(self) -> int | None:
        """Reap the process if it has ended; return its status."""

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless the process has ended."""

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""


class ForkedProcess:
    """A child that this process has adopted and not started.

    :raises ChildProcessError: this process is not its parent
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.poll()

    def poll(self) -> int | None:
        """Reap the process if it has ended; return its status."""
        if self.returncode is None:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG)
            if found is not None:
                has_exited = found.si_code == os.CLD_EXITED
                sign = 1 if has_exited else -1
                self.returncode = sign * found.si_status
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        self.send_signal(signal.SIGKILL)


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerFds:
    """A worker's ends of its pipes, as numbers in the agent."""

    stdin: int
    report: int
    metrics: int | None

    def open_fds(self) -> list[int]:
        """Return them in the order in which the fork server gets them."""
        fds = (self.stdin, self.report, self.metrics)
        return [fd for fd in fds if fd is not None]


class Pipes:
    """The agent's ends of the pipes of one worker process.

    The agent writes to ``down_fd`` and reads from ``up_fd``.
    """

    def __init__(self, *, has_metrics: bool) -> None:
        """Open all pipes.

        :raises OSError: the process has too many open files
        """
        self.metrics: MetricsChannel | None = None
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            stdin_fd, self.down_fd = os.pipe()
            ours.callback(os.close, self.down_fd)
            theirs.callback(os.close, stdin_fd)
            self.up_fd, report_fd = os.pipe()
            ours.callback(os.close, self.up_fd)
            theirs.callback(os.close, report_fd)
            metrics_fd = None
            if has_metrics:
                self.metrics, end = make_channel()
                theirs.callback(end.close)
                metrics_fd = end.fileno()
            self._worker_fds = WorkerFds(stdin_fd, report_fd, metrics_fd)
            self._ours, self._theirs = ours.pop_all(), theirs.pop_all()

    @contextlib.contextmanager
    def lend_worker_fds(self) -> Iterator[WorkerFds]:
        """Yield the worker's ends, for the new process; then close them."""
        with self._theirs:
            yield self._worker_fds

    def close(self) -> None:
        """Close the agent's ends."""
        self._ours.close()


@dataclasses.dataclass(frozen=True, slots=True)
class Child:
    """One worker process, and the agent's ends of its two pipes.

    The agent writes to ``down`` and reads from ``up``.
    """

    process: Process
    down: pipe.NewestLineWriter
    up: pipe.LineReader
    up_fd: int
    pid_fd: int
    metrics: MetricsChannel | None
    _metrics_fd: int | None
    """The number of the worker's end of that channel, in the worker."""
    _pipes: Pipes

    @classmethod
    def spawn(
        cls, command: Sequence[str], *, has_metrics: bool = False
    ) -> 'Child':
        """Start a process; the kernel kills it when the calling thread ends.

        :param command: the command line, without ``--agent-pid`` and
            ``--report-fd``, which are appended
        :param has_metrics: the agent will read the metrics of the process
        :raises OSError: the process cannot be started
        """
        pipes = Pipes(has_metrics=has_metrics)
        with contextlib.ExitStack() as undo:
            undo.callback(pipes.close)
            with pipes.lend_worker_fds() as fds:
                process = start_process(
                    command,
                    ('--report-fd', str(fds.report)),
                    pass_fds=fds.open_fds()[1:],
                    stdin=fds.stdin,
                )
            for step in (process.wait, process.kill):
                undo.callback(step)
            child = cls.of_process(process, pipes, fds.metrics)
            undo.pop_all()
        return child

    @classmethod
    def of_process(
        cls, process: Process, pipes: Pipes, metrics_fd: int | None
    ) -> 'Child':
        """Return the child that a process with these pipes is.

        :raises OSError: this process has too many open files
        """
        return cls(
            process=process,
            down=pipe.NewestLineWriter(pipes.down_fd),
            up=pipe.LineReader(pipes.up_fd),
            up_fd=pipes.up_fd,
            pid_fd=os.pidfd_open(process.pid),
            metrics=pipes.metrics,
            _metrics_fd=metrics_fd,
            _pipes=pipes,
        )

    def appoint(
        self,
        host: Host,
        *,
        is_home: bool,
        pool: Mapping[str, str | None] | None = None,
    ) -> None:
        """Send the process the host that it must serve.

        Call it once, before any view is sent.

        :param pool: the options of ``[ironic]`` that define the agent's pool
        """
        appointment = pipe.Appointment(host, is_home, self._metrics_fd, pool)
        self.down.write(pipe.encode_appointment(appointment))

    def has_ended(self) -> bool:
        """Return whether the process has ended; if so, reap it."""
        return self.process.poll() is not None

    def kill(self) -> bool:
        """Kill the process; wait up to a second, return whether it has ended.

        If it has not, it is in a system call that no signal interrupts, such
        as a read from a failing disk. It executes nothing after this call.
        """
        self.process.kill()
        select.select([self.pid_fd], [], [], _KILL_TIMEOUT_S)
        has_ended = self.has_ended()
        self.close()
        return has_ended

    def close(self) -> None:
        """Close the agent's ends of the pipes of a process that has ended."""
        os.close(self.pid_fd)
        self._pipes.close()
