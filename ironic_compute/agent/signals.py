# SPDX-License-Identifier: Apache-2.0
"""Signals of the agent: how an operator stops, reloads and inspects a daemon.

SIGTERM and SIGINT: stop for a restart. SIGUSR1: stop for good. SIGURG: be
replaced by a new daemon, which loads Nova first (``agent/successor``). SIGHUP:
read the options again that may change while a process runs, such as ``debug``.
SIGUSR2: write a report of all threads. Workers do the two latter, too.

SIGURG has no other use here, and processes that do not handle it ignore it.

A handler only notes its signal, because it interrupts the main thread
anywhere. The agent's loop carries it out at its next turn, for which it is
woken: otherwise Python would go on with the wait that the signal interrupted.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any, Protocol

from hashring.agent import Agent
from ironic_compute.instructions import reload_options, write_report

# What would end a daemon that does not handle its signals yet. Its workers and
# its fork server block the same signals.
_HELD = frozenset({signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})


@contextlib.contextmanager
def held_signals() -> Iterator[None]:
    """Let a daemon that is started here keep its signals until it is built.

    systemd passes it what comes from the moment on that its predecessor ends.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Instructed(Protocol):
    """The workers, as far as instructions of the operator go."""

    def end_waits_on(self, fd: int) -> None:
        """Make each wait for events end when a byte can be read from ``fd``.

        :param fd: does not block
        """

    def reload_options(self) -> None:
        """Make all workers read their mutable options again."""

    def write_reports(self) -> None:
        """Make all workers write a report."""


class Replacement(Protocol):
    """What starts the next daemon."""

    def start(self) -> None:
        """Start the next daemon."""

    def renounce(self) -> None:
        """Let the next daemon not begin; a signal handler calls it."""


class AgentSignals:
    """The signals that the agent has received; the main thread calls it.

    :param prog: the name of the report
    """

    def __init__(
        self,
        conf: Any,
        prog: str,
        workers: Instructed,
        successor: Replacement,
    ) -> None:
        self._conf = conf
        self._prog = prog
        self._workers = workers
        self._successor = successor
        self._noted: set[int] = set()

    def install(self, agent: Agent) -> None:
        """Handle all signals from now on."""
        woken_fd, wakes_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakes_fd, warn_on_full_buffer=False)
        self._workers.end_waits_on(woken_fd)

        def stop(number: int, frame: Any) -> None:
            self._successor.renounce()
            agent.request_stop(for_good=number == signal.SIGUSR1)

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, stop)
        for number in (signal.SIGHUP, signal.SIGUSR2, signal.SIGURG):
            signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)

    def _note(self, number: int, frame: Any) -> None:
        self._noted.add(number)

    def act(self) -> None:
        """Carry out what the noted signals order."""
        # A signal that comes in between is noted again.
        noted, self._noted = self._noted, set()
        if signal.SIGHUP in noted:
            reload_options(self._conf)
            self._workers.reload_options()
        if signal.SIGUSR2 in noted:
            write_report(self._conf, self._prog)
            self._workers.write_reports()
        if signal.SIGURG in noted:
            self._successor.start()
