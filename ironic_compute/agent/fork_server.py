# SPDX-License-Identifier: Apache-2.0
"""The agent's fork server: a process that has loaded Nova and forks workers.

A forked worker loads nothing, so it starts at once and shares most of its
memory with the others. The agent is its parent, so it lives on if the fork
server ends. If the fork server ends or hangs, the agent starts its workers as
programs of their own until it has another one.

The agent's main thread makes all calls, and none of them blocks.
"""

import contextlib
import socket
import subprocess
from collections.abc import Sequence

import attrs
from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute.agent import fork_messages
from ironic_compute.agent.child import (
    Child,
    ForkedProcess,
    Pipes,
)
from ironic_compute.agent.exit_codes import EX_FILES_CHANGED
from ironic_compute.agent.parent_process import (
    adopt_orphans,
    read_children,
    reap_if_ended,
)
from ironic_compute.agent.process_activity import Standstill, read_activity
from ironic_compute.agent.start_process import (
    StartedForkServer,
    start_fork_server,
)

LOG = logging.getLogger(__name__)

# Seconds until the next fork server is started after one has ended. If the
# files of its modules have changed, the upgrade has probably ended by then.
_HOLD_OFF_S = 60.0
_LOOK_INTERVAL_S = 0.5
_END_TIMEOUT_S = 1.0


@attrs.define(eq=False, repr=False, slots=False)
class ForkServer:
    """The agent's end of its fork server.

    :param command: command line of a worker, without ``--agent-pid``
    :param start_s: seconds for which it may owe an answer
    :param standstill_s: seconds for which it may stand still meanwhile
    :param has_metrics: other threads will read the metrics of the workers
    :param started: the process, if it was started before
    """

    _command: Sequence[str]
    _clock: Clock
    _start_s: float
    _standstill_s: float
    _has_metrics: bool
    _started: StartedForkServer | None = None

    def __attrs_post_init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        if self._started is not None:
            self._process, self._socket = self._started
        self._due_s = 0.0
        self._is_ready = False
        # The pipes of the worker that was requested and has not answered.
        self._requested: Pipes | None = None
        self._children: set[int] = set()  # When it was requested.
        self._forked: Child | None = None
        # Workers that are not used, will end soon, and are not reaped yet.
        self._ending: set[int] = set()
        self._expect_answer()

    def fds(self) -> list[int]:
        """Return what can be read when :meth:`check` has something to do."""
        return [] if self._socket is None else [self._socket.fileno()]

    @property
    def is_up(self) -> bool:
        """Whether it has loaded Nova, or is loading it."""
        return self._process is not None

    @property
    def is_ready(self) -> bool:
        """Whether it has loaded Nova."""
        return self._is_ready

    def check(self) -> None:
        """Receive its answers, notice its end, start it when it is due."""
        self._reap_unused()
        if self._process is not None and self._socket is not None:
            self._receive(self._process, self._socket)
        else:
            self._start_if_due()

    def request(self) -> bool:
        """Request a worker, which :meth:`take` returns in a later turn.

        :returns: False if no worker will come; True also if one was requested
            already, or cannot be requested yet
        :raises OSError: the agent has too many open files
        """
        self._start_if_due()
        if self._socket is None:
            return False
        if self._is_ready and self._requested is None:
            self._send_request(self._socket)
        return self._socket is not None

    def take(self) -> Child | None:
        """Return the worker that was forked; None if it is not there yet."""
        forked, self._forked = self._forked, None
        return forked

    def close(self) -> None:
        """Kill the fork server, for good; its workers live on."""
        self._due_s = float('inf')
        self._end()
        if (forked := self.take()) is not None:
            forked.kill()

    def _start_if_due(self) -> None:
        if self._process is not None or self._clock.now_s() < self._due_s:
            return
        try:
            self._process, self._socket = start_fork_server(self._command)
        except OSError as exc:
            LOG.warning(
                'Could not start the fork server: %(error)s', {'error': exc}
            )
            self._due_s = self._clock.now_s() + _HOLD_OFF_S
            return
        self._expect_answer()

    def _expect_answer(self) -> None:
        self._asked_s = self._looked_s = self._clock.now_s()
        self._standstill = Standstill()

    def _send_request(self, to: socket.socket) -> None:
        self._requested = Pipes(has_metrics=self._has_metrics)
        self._children = read_children()
        self._expect_answer()
        with self._requested.lend_worker_fds() as fds:
            try:
                adopt_orphans(True)
                socket.send_fds(to, [fork_messages.FORK], fds.open_fds())
            except OSError as exc:
                self._give_up(f'it takes no request: {exc}')

    def _receive(
        self, process: subprocess.Popen[bytes], answers: socket.socket
    ) -> None:
        """Receive all answers; give the fork server up if none will come."""
        with contextlib.suppress(BlockingIOError):
            while self._socket is not None:
                self._accept(process, _read(answers))
        owes = not self._is_ready or self._requested is not None
        if self._socket is not None and owes:
            self._check_progress(process.pid)

    def _accept(
        self, process: subprocess.Popen[bytes], message: bytes
    ) -> None:
        if message == fork_messages.READY:
            self._is_ready = True
            LOG.info(
                'The fork server, process %(pid)d, has loaded Nova',
                {'pid': process.pid},
            )
        elif message and self._requested is not None:
            self._adopt(message, self._requested)
        else:
            self._accept_end(process)

    def _accept_end(self, process: subprocess.Popen[bytes]) -> None:
        """Give the fork server up, because its end of the socket is closed."""
        status = _wait(process)
        if status == EX_FILES_CHANGED:
            LOG.info(
                'The fork server has ended, because files that it had loaded '
                'have changed; the next one is made in %(wait)d s',
                {'wait': _HOLD_OFF_S},
            )
            self._end()
        else:
            self._give_up(f'it ended with status {status}')

    def _adopt(self, message: bytes, pipes: Pipes) -> None:
        """Take a new worker as a child of this process."""
        try:
            forked = fork_messages.decode_forked(message)
            process = ForkedProcess(forked.pid)
        except (ValueError, OSError) as exc:
            self._give_up(f'its worker cannot be used: {exc}')
            return
        self._requested = None
        adopt_orphans(False)
        try:
            self._forked = Child.of_process(process, pipes, forked.metrics_fd)
        except OSError as exc:
            pipes.close()
            process.kill()
            self._ending.add(process.pid)
            self._give_up(f'its worker cannot be used: {exc}')

    def _check_progress(self, pid: int) -> None:
        """Give the fork server up if it stands still or takes too long."""
        now_s = self._clock.now_s()
        if now_s - self._looked_s >= _LOOK_INTERVAL_S:
            self._looked_s = now_s
            self._standstill.update(
                read_activity(pid), now_s, is_importing=True
            )
        if self._standstill.lasts_s > self._standstill_s:
            self._give_up('it stands still')
        elif now_s - self._asked_s > self._start_s:
            self._give_up(f'it sent no answer for {self._start_s:.0f} s')

    def _give_up(self, why: str) -> None:
        LOG.warning(
            'The fork server cannot be used: %(why)s; until the next one is '
            'made in %(wait)d s, workers load Nova themselves',
            {'why': why, 'wait': _HOLD_OFF_S},
        )
        self._end()

    def _end(self) -> None:
        """Kill the process; a worker that it still forks ends at once.

        That worker finds its pipe closed, or is no child of the agent.
        """
        if self._requested is not None:
            self._requested.close()
            adopt_orphans(False)
            # The agent starts no other process while a worker is requested,
            # so a new child is that worker. It may hang now, and end later.
            self._ending |= read_children() - self._children
            self._reap_unused()
        if self._process is not None and self._socket is not None:
            self._process.kill()
            _wait(self._process)
            self._socket.close()
            self._due_s = max(self._due_s, self._clock.now_s() + _HOLD_OFF_S)
        self._process = self._socket = self._requested = None
        self._is_ready = False

    def _reap_unused(self) -> None:
        """Reap the workers that have ended and that nobody uses.

        oslo.reports cannot report of a process with a child that was not
        reaped.
        """
        self._ending = {p for p in self._ending if not reap_if_ended(p)}


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    """Reap a process that is ending; return its status.

    :returns: None if it has not ended within a second. Python reaps it when
        the agent starts another process.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(_END_TIMEOUT_S)
    return None


def _read(answers: socket.socket) -> bytes:
    """Return the next answer; empty if the fork server has ended.

    :raises BlockingIOError: there is none yet
    """
    try:
        return answers.recv(fork_messages.MAX_BYTES)
    except ConnectionResetError:
        return b''
