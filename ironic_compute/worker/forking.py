# SPDX-License-Identifier: Apache-2.0
"""The fork server's process: it loads Nova once and forks workers.

Before it forks, it has read no configuration, opened no connection and started
no thread. A worker that it forks goes on as one that has just loaded Nova: it
reads nova.conf and waits for its host. The process between the two ends at
once, so the worker becomes a child of the agent.
"""

import _socket
import gc
import os
import posix
import select
import socket
import sys
from collections.abc import Callable, Sequence

import attrs

from ironic_compute import compat
from ironic_compute.agent import exit_codes, fork_messages
from ironic_compute.agent.parent_process import kill_with_parent
from ironic_compute.worker.loaded_files import LoadedFiles

# Seconds between two looks at the files, while no worker is requested.
_FILES_INTERVAL_S = 60.0


def serve(
    fork_fd: int, agent_pid: int, began_s: float, load: Callable[[], None]
) -> int:
    """Load Nova, then fork a worker for each request of the agent.

    It returns in the workers only; the fork server's process ends in it.

    :param fork_fd: the inherited socket on which the agent requests workers
    :param began_s: when this process began to load modules, in seconds since
        1970
    :param load: loads all modules of a worker that need no configuration
    :returns: in a new worker, the file descriptor of the pipe that the agent
        reads; the one that the agent writes is its standard input
    """
    # Objects that live on must not be moved between the collector's lists,
    # because the pages of memory that it writes to are not shared any more.
    gc.disable()
    load()
    gc.collect()
    gc.freeze()
    # eventlet replaces the class `socket.socket`, and would make its event
    # loop before the fork. Nothing else waits in this process.
    agent = _socket.socket(fileno=fork_fd)
    os.set_inheritable(fork_fd, False)
    forks = _Forks(agent, agent_pid, LoadedFiles(began_s))
    agent.send(fork_messages.READY)
    while True:
        report_fd = forks.serve_one()
        if report_fd is not None:
            return report_fd


@attrs.define(eq=False, repr=False, slots=False)
class _Forks:
    """Forks a worker for each request; see :func:`serve`."""

    _agent: _socket.socket
    _agent_pid: int
    _files: LoadedFiles

    def serve_one(self) -> int | None:
        """Serve the next request; return the worker's pipe in the worker."""
        fds = self._next_request()
        # Otherwise the worker would write the same text once more.
        sys.stdout.flush()
        sys.stderr.flush()
        between = os.fork()
        if between == 0:
            return self._fork_again(fds)
        for fd in fds:
            os.close(fd)
        # posix.waitpid, because eventlet's os.waitpid makes its event loop.
        _, status = posix.waitpid(between, 0)
        if status != 0:
            os._exit(exit_codes.EX_OSERR)
        return None

    def _next_request(self) -> Sequence[int]:
        """Wait for a request; return the worker's ends of its pipes."""
        self._agent.settimeout(_FILES_INTERVAL_S)
        while True:
            try:
                message, fds, _, _ = socket.recv_fds(
                    self._agent,  # type: ignore[arg-type]
                    fork_messages.MAX_BYTES,
                    fork_messages.FDS_MAX,
                    socket.MSG_CMSG_CLOEXEC,
                )
            except TimeoutError:
                self._exit_if_files_changed()
                continue
            if not message:
                os._exit(exit_codes.EX_AGENT_GONE)
            self._exit_if_files_changed()
            return fds

    def _exit_if_files_changed(self) -> None:
        if self._files.have_changed():
            os._exit(exit_codes.EX_FILES_CHANGED)

    def _fork_again(self, fds: Sequence[int]) -> int:
        """Fork the worker from the process in between, which ends here."""
        try:
            between_fd = os.pidfd_open(os.getpid())
            pid = os.fork()
        except OSError:
            os._exit(exit_codes.EX_OSERR)
        if pid != 0:
            os._exit(0)
        return self._become_worker(fds, between_fd)

    def _become_worker(self, fds: Sequence[int], between_fd: int) -> int:
        gc.enable()
        compat.renew_event_loop()
        # The agent is the parent once the process in between has ended. Only
        # then is the kernel told to kill this process with its parent.
        select.select([between_fd], [], [])
        os.close(between_fd)
        kill_with_parent(self._agent_pid)
        os.setpgid(0, 0)
        stdin_fd, report_fd, *others = fds
        os.dup2(stdin_fd, 0)
        os.close(stdin_fd)
        metrics_fd = others[0] if others else None
        answer = fork_messages.Forked(os.getpid(), metrics_fd)
        self._agent.settimeout(None)
        self._agent.send(fork_messages.encode_forked(answer))
        self._agent.close()
        return report_fd
