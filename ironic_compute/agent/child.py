# SPDX-License-Identifier: Apache-2.0
"""A worker process as its agent holds it: the process and its two pipes.

A child begins without a host, and imports Nova meanwhile. It serves nothing
until it is appointed, so one may be kept ready for a host yet unknown.
"""

import dataclasses
import os
import subprocess
from collections.abc import Sequence

from ironic_compute.agent import pipe

# The C library keeps memory apart for each few threads, and back for later.
# What a list of thousands of nodes took once was 20 MiB held for good; its
# threads take turns anyway. What the operator's environment says counts.
_FRUGAL = {
    'MALLOC_ARENA_MAX': '2',
    'MALLOC_TRIM_THRESHOLD_': str(128 * 1024),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Child:
    """One process and our ends of its pipes."""

    process: subprocess.Popen[bytes]
    down: pipe.NewestLineWriter
    up: pipe.LineReader
    up_fd: int
    pid_fd: int

    @classmethod
    def spawn(cls, command: Sequence[str]) -> 'Child':
        """Start a process; it dies with the thread that calls this.

        :param command: its words; those that name its ties are appended
        """
        up_fd, their_fd = os.pipe()
        ties = ['--agent-pid', str(os.getpid()), '--report-fd', str(their_fd)]
        process = subprocess.Popen(  # noqa: S603 - our own command line
            [*command, *ties],
            stdin=subprocess.PIPE,
            pass_fds=(their_fd,),
            # A Ctrl-C in the agent's terminal is the agent's to handle.
            process_group=0,
            env={**_FRUGAL, **os.environ},
        )
        os.close(their_fd)
        assert process.stdin is not None  # noqa: S101 - a pipe was asked for
        return cls(
            process=process,
            down=pipe.NewestLineWriter(process.stdin.fileno()),
            up=pipe.LineReader(up_fd),
            up_fd=up_fd,
            pid_fd=os.pidfd_open(process.pid),
        )

    def appoint(self, appointment: pipe.Appointment) -> None:
        """Tell it which host to serve: once, and before anything else."""
        self.down.write(pipe.encode_appointment(appointment))

    def has_ended(self) -> bool:
        """Is the process dead? If so it is reaped."""
        return self.process.poll() is not None

    def kill(self) -> None:
        """End the process now; it is gone on return."""
        self.process.kill()
        self.process.wait()
        self.close()

    def close(self) -> None:
        """Close our ends of the pipes of a process that is gone."""
        for fd in (self.up_fd, self.pid_fd):
            os.close(fd)
        if self.process.stdin is not None:
            self.process.stdin.close()
