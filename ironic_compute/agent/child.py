# SPDX-License-Identifier: Apache-2.0
"""A worker process: its agent starts it, appoints it to a host and kills it.

A child imports Nova before the agent appoints it to a host, and serves nothing
until then. Therefore an agent can keep a spare worker ready for a host that it
does not serve yet. The agent's main thread calls everything here.
"""

import contextlib
import dataclasses
import os
import select
import subprocess
from collections.abc import Sequence

from hashring.ring import Host
from ironic_compute.agent import pipe
from ironic_compute.agent_port.worker_metrics import (
    MetricsChannel,
    make_channel,
)

# The C library keeps an arena of memory for every few threads and does not
# return it: 20 MiB stayed in use after each list of thousands of nodes. Two
# arenas suffice, because Python runs one thread at a time. Variables of the
# operator's environment take precedence.
_MALLOC = {'MALLOC_ARENA_MAX': '2', 'MALLOC_TRIM_THRESHOLD_': str(128 * 1024)}

_KILL_TIMEOUT_S = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Child:
    """One worker process, and the agent's ends of its two pipes.

    The agent writes to ``down`` and reads from ``up``.
    """

    process: subprocess.Popen[bytes]
    down: pipe.NewestLineWriter
    up: pipe.LineReader
    up_fd: int
    pid_fd: int
    metrics: MetricsChannel | None = None
    _metrics_fd: int | None = None
    """The number of the worker's end of that channel, in the worker."""

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
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as theirs:
            up_fd, worker_fd = os.pipe()
            undo.callback(os.close, up_fd)
            theirs.callback(os.close, worker_fd)
            metrics, metrics_fd = None, None
            if has_metrics:
                metrics, end = make_channel()
                theirs.callback(end.close)
                metrics_fd = end.fileno()
            process = _start(command, worker_fd, metrics_fd)
            assert process.stdin is not None  # noqa: S101 - a pipe was asked for
            for step in (process.stdin.close, process.wait, process.kill):
                undo.callback(step)
            child = cls(
                process=process,
                down=pipe.NewestLineWriter(process.stdin.fileno()),
                up=pipe.LineReader(up_fd),
                up_fd=up_fd,
                pid_fd=os.pidfd_open(process.pid),
                metrics=metrics,
                _metrics_fd=metrics_fd,
            )
            undo.pop_all()
        return child

    def appoint(self, host: Host, *, is_home: bool) -> None:
        """Send the process the host that it must serve.

        Call it once, before any view is sent.
        """
        appointment = pipe.Appointment(host, is_home, self._metrics_fd)
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
        for fd in (self.up_fd, self.pid_fd):
            os.close(fd)
        if self.process.stdin is not None:
            self.process.stdin.close()


def _start(
    command: Sequence[str], report_fd: int, metrics_fd: int | None
) -> subprocess.Popen[bytes]:
    args = ['--agent-pid', str(os.getpid()), '--report-fd', str(report_fd)]
    return subprocess.Popen(  # noqa: S603 - our own command line
        [*command, *args],
        stdin=subprocess.PIPE,
        pass_fds=[fd for fd in (report_fd, metrics_fd) if fd is not None],
        # The process gets a process group of its own, so that a Ctrl-C in the
        # terminal reaches the agent alone.
        process_group=0,
        env={**_MALLOC, **os.environ},
    )
