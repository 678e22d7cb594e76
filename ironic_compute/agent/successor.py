# SPDX-License-Identifier: Apache-2.0
"""A daemon is replaced: its successor has loaded Nova before it stops.

``systemctl restart`` ends a daemon before the next one has loaded anything, so
nobody serves its host for some seconds. SIGURG makes a daemon start its
successor first. The successor reads the configuration and loads Nova. When it
is ready, the daemon stops as it does for any restart, and the successor begins
once the daemon's process has ended: the kernel has released its lock on the
state directory and its port then. Two daemons never serve at the same time.

A daemon whose successor fails goes on as if nothing had been requested. So a
wrong nova.conf stops nothing.

``Successor`` is what the daemon that runs has of the next one, ``Predecessor``
what the next one has of it. One socket connects them. It is closed when either
process ends, however it ends.

The process that the daemon starts is the *holder* of the next one, its parent,
and waits for its end. At last the daemon kills the holder, so that the next
daemon is a child of the service manager (``parent_process``).
"""

import contextlib
import os
import pathlib
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from typing import Protocol

import attrs
from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute.agent.exit_codes import EX_OSERR
from ironic_compute.agent.parent_process import adopt_orphans
from ironic_compute.agent.signals import held_signals
from ironic_compute.agent.start_process import PREDECESSOR_OPTION

LOG = logging.getLogger(__name__)

_PROGRAM = 'ironic-compute'
_READY = b'R'
_MESSAGE_BYTES = 32
# The init process of a machine or a container.
_FIRST_PID = 1
_CONTAINER_INITS = frozenset(
    {'tini', 'dumb-init', 'docker-init', 'catatonit', 'podman-init'}
)
# Seconds between two looks whether the predecessor has ended.
_LOOK_INTERVAL_S = 0.02
# A process whose end of the socket is closed ends within this time.
_END_TIMEOUT_S = 1.0
# The same for a predecessor, also on an overloaded machine.
_EXIT_TIMEOUT_S = 30.0
# struct ucred: the process, user and group of the other end of a socket.
_UCRED = '3i'


@attrs.define(eq=False, repr=False, slots=False)
class Successor:
    """The next daemon of this controller, for the one that runs.

    The main thread makes all calls but :meth:`renounce`; none blocks longer
    than a second.

    :param command: the command line of a daemon
    :param limit_s: seconds after which a successor that is not ready is given
        up
    :param obstacle: why this daemon cannot be replaced; empty if it can
    """

    _command: Sequence[str]
    _clock: Clock
    _limit_s: float
    _obstacle: str = ''

    def __attrs_post_init__(self) -> None:
        self._holder: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._pid = 0  # Of the next daemon, once it has told it.
        self._started_s = 0.0
        self._is_ready = False
        self._is_renounced = False

    def renounce(self) -> None:
        """Let no successor begin: this daemon is to stop for another reason.

        Signal handlers may call it.
        """
        self._is_renounced = True

    def start(self) -> None:
        """Start the successor, unless there is one."""
        if self._obstacle:
            self._log_failure(self._obstacle)
            return
        if self._holder is not None:
            LOG.info(
                'The next daemon, process %(pid)d, was started before',
                {'pid': self._pid or self._holder.pid},
            )
            return
        try:
            self._holder, self._socket = self._start()
        except OSError as exc:
            self._log_failure(f'it cannot be started: {exc}')
            return
        self._started_s = self._clock.now_s()

    def _start(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Start the holder; return it, and this end of the socket.

        :raises OSError: it cannot be started
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, held_signals(), contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            fd = theirs.fileno()
            process = subprocess.Popen(  # noqa: S603 - our own
                [*self._command, PREDECESSOR_OPTION, str(fd)],
                stdin=subprocess.DEVNULL,
                pass_fds=[fd],
                # Both processes of it are killed as a group.
                process_group=0,
            )
            ours.setblocking(False)
            undo.pop_all()
        return process, ours

    def check(self) -> bool:
        """Return whether it has become ready since the last call.

        A successor that has failed is given up. One that must not begin is
        killed at once: this daemon may be killed while it ends its tasks.
        """
        if self._is_renounced:
            self._end()
        if self._socket is None or self._is_ready:
            return False
        with contextlib.suppress(BlockingIOError):
            while self._socket is not None and not self._is_ready:
                self._accept(_read(self._socket))
            return self._is_ready
        if self._clock.now_s() - self._started_s > self._limit_s:
            self._give_up(f'it was not ready after {self._limit_s:.0f} s')
        return False

    def _accept(self, message: bytes) -> None:
        if message == _READY:
            self._is_ready = True
        elif message:
            self._pid = int(message)
            LOG.info(
                'Started the next daemon, process %(pid)d; this one serves '
                'until that one has loaded Nova',
                {'pid': self._pid},
            )
        else:
            self._give_up(f'it ended with status {self._wait()}')

    def settle(self, status: int, *, is_restart: bool) -> tuple[int, int]:
        """Decide at the end of this daemon whether its successor begins.

        It begins when this process has ended. If that is not wanted, it is
        killed.

        :param status: the exit status of this daemon
        :param is_restart: this daemon has left for a restart, not for good
        :returns: the exit status, and the process that begins; 0 for none.
            The status is 71 if the successor has ended, so that the service
            manager starts a daemon.
        """
        if self._holder is None:
            return status, 0
        is_wanted = self._is_ready and is_restart and not self._is_renounced
        if status or not is_wanted:
            self._end()
            return status, 0
        if self._has_ended():
            self._give_up(f'it ended with status {self._wait()}')
            return EX_OSERR, 0
        adopt_orphans(False)  # It may have waited for a worker.
        self._holder.kill()
        self._wait()
        return 0, self._pid

    def pass_order_on(self) -> None:
        """Stop the successor that begins, if an order to stop has come since.

        The service manager has sent it to this process, and waits for the end
        of both. The successor has no tasks yet, and ends at once.
        """
        if self._is_renounced and self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)

    def _has_ended(self) -> bool:
        """Return whether the successor has ended, not only its holder."""
        if self._socket is None:
            return True
        try:
            return _read(self._socket) == b''
        except BlockingIOError:
            return False

    def _give_up(self, why: str) -> None:
        self._log_failure(why)
        self._end()

    def _end(self) -> None:
        if self._holder is not None and self._socket is not None:
            # While it was not reaped, no other group gets its number. It may
            # have ended before the next daemon, if memory is short.
            if self._holder.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._holder.pid, signal.SIGKILL)
            self._wait()
            self._socket.close()
        self._holder = self._socket = None
        self._pid, self._is_ready = 0, False

    def _log_failure(self, why: str) -> None:
        LOG.error(
            'The next daemon does not replace this one: %(why)s',
            {'why': why},
        )

    def _wait(self) -> int | None:
        """Reap the holder, which is ending; return its status."""
        if self._holder is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._holder.wait(_END_TIMEOUT_S)
        return None


class NovaNotLoaded(Exception):
    """A successor cannot load Nova; its predecessor serves on."""


class Workers(Protocol):
    """The workers of a successor, which has none yet."""

    @property
    def is_loading(self) -> bool:
        """Whether the fork server is loading Nova."""

    @property
    def lacks_fork_server(self) -> bool:
        """Whether nova.conf wants a fork server, and none has loaded Nova."""

    def events(self, timeout_s: float) -> object:
        """Let the fork server go on; wait for it up to ``timeout_s``."""


class Predecessor:
    """The daemon that this process replaces.

    :param fd: this process's end of the socket
    :param pid_fd: a pidfd of that daemon, if it runs
    """

    def __init__(self, fd: int, pid_fd: int | None = None) -> None:
        self._socket = socket.socket(fileno=fd)
        self._pid_fd = pid_fd

    @classmethod
    def of(cls, fd: int | None) -> 'Predecessor | None':
        """Return the daemon that this process replaces, if there is one."""
        return None if fd is None else cls(fd, _open_peer(fd))

    def wait_for_end(self, workers: Workers) -> None:
        """Load Nova, say so, and return when the predecessor has ended.

        :raises NovaNotLoaded: this process must end, as its workers could not
            load Nova, either
        """
        workers.events(_LOOK_INTERVAL_S)
        while workers.is_loading:
            workers.events(_LOOK_INTERVAL_S)
        self._socket.setblocking(False)
        # It is "reset" if what this process has said was not read before.
        with self._socket, contextlib.suppress(ConnectionError):
            if workers.lacks_fork_server and not self._has_ended():
                raise NovaNotLoaded('the fork server has not loaded Nova')
            self._socket.send(_READY)
            while not self._has_ended():
                workers.events(_LOOK_INTERVAL_S)
        self._wait_for_exit()
        LOG.info('The daemon before this one has ended; this one begins')

    def _wait_for_exit(self) -> None:
        """Wait until its lock on the state directory is released, too.

        The kernel may close the socket of a process that was killed before
        its other files.
        """
        if self._pid_fd is not None:
            select.select([self._pid_fd], [], [], _EXIT_TIMEOUT_S)
            os.close(self._pid_fd)

    def _has_ended(self) -> bool:
        try:
            return _read(self._socket) == b''
        except BlockingIOError:
            return False


def find_obstacle() -> str:
    """Return why the next daemon would end with this one; empty if not."""
    is_first = os.getpid() == _FIRST_PID
    if is_first or (os.getppid() == _FIRST_PID and _is_container_init()):
        return 'it would end with its container; restart that instead'
    return ''


def _is_container_init() -> bool:
    """Return whether process 1 ends when its first child has ended."""
    try:
        name = pathlib.Path(f'/proc/{_FIRST_PID}/comm').read_text().strip()
    except OSError:
        return False
    return name in _CONTAINER_INITS


def agent_command(arguments: Sequence[str]) -> list[str]:
    """Return the command line of another daemon like this process.

    :param arguments: the options of this process
    """
    script = os.path.abspath(sys.argv[0])
    if os.path.basename(script) == _PROGRAM and os.access(script, os.X_OK):
        return [script, *arguments]
    return [sys.executable, '-m', 'ironic_compute.cmd.agent', *arguments]


def _open_peer(fd: int) -> int | None:
    """Return a pidfd of the process that has made a pair of sockets."""
    with socket.socket(fileno=os.dup(fd)) as end:
        raw = end.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(_UCRED)
        )
    pid, _uid, _gid = struct.unpack(_UCRED, raw)
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None  # It has ended.


def _read(end: socket.socket) -> bytes:
    """Return a message of the other process; empty if it has ended.

    :raises BlockingIOError: nothing was sent
    """
    try:
        return end.recv(_MESSAGE_BYTES)
    except ConnectionResetError:
        return b''
