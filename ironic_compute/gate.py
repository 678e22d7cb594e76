# SPDX-License-Identifier: Apache-2.0
"""Lease gate: requests that change something wait for a lease in force.

A worker has one gate. The agent extends its deadline through the pipe; when
the deadline passes on the worker's clock, the gate shuts by itself. It shuts
before that if the agent says so, because the lease is already lost. Any thread
may call; only ``wait`` blocks, and it holds no other lock.
"""

import contextlib
import contextvars
import math
import threading
from collections.abc import Iterator
from typing import Protocol

from hashring.clock import Clock
from ironic_compute.errors import ConfigError, GateShut

_RECHECK_S = 1.0

_may_wait = contextvars.ContextVar('may_wait', default=True)


@contextlib.contextmanager
def without_waiting() -> Iterator[None]:
    """Let no request of the body wait at a gate.

    For a request that follows from something that was read just before, and
    may be wrong after a wait: the caller reads again instead.
    """
    token = _may_wait.set(False)
    try:
        yield
    finally:
        _may_wait.reset(token)


def check_may_wait() -> None:
    """Check that the caller may wait at a shut gate.

    :raises GateShut: it is in the body of :func:`without_waiting`
    """
    if not _may_wait.get():
        raise GateShut('The lease of this host is not in force')


class Gate(Protocol):
    """The part of a gate that senders of requests use."""

    def is_open(self) -> bool:
        """Return whether the lease is in force now."""

    def wait(self) -> None:
        """Block until the lease is in force."""


class LeaseGate:
    """A gate that is open until a deadline on ``clock``.

    :param clock: a clock that also counts while the machine is suspended
    :param deadline_s: the first deadline on that clock; by default the gate
        is shut
    """

    def __init__(self, clock: Clock, deadline_s: float = -math.inf) -> None:
        self._clock = clock
        self._deadline_s = deadline_s
        self._extended = threading.Condition()

    def extend(self, deadline_s: float) -> None:
        """Move the deadline to a later time; an earlier time is ignored."""
        with self._extended:
            self._deadline_s = max(self._deadline_s, deadline_s)
            self._extended.notify_all()

    def shut(self) -> None:
        """Shut the gate, although its deadline may not have passed yet."""
        with self._extended:
            self._deadline_s = min(self._deadline_s, self._clock.now_s())

    def is_open(self) -> bool:
        """Return whether the lease is in force now."""
        return self._clock.now_s() < self._deadline_s

    def open_for_s(self) -> float:
        """Return the seconds until the deadline; 0 when it has passed."""
        return max(0.0, self._deadline_s - self._clock.now_s())

    def wait(self) -> None:
        """Block until the lease is in force.

        :raises GateShut: it is not, and the caller may not wait
        """
        with self._extended:
            while not self.is_open():
                check_may_wait()
                self._extended.wait(_RECHECK_S)


class NeverOpen:
    """A gate for programs that must not change anything."""

    def is_open(self) -> bool:
        """Return False."""
        return False

    def wait(self) -> None:
        """Do not wait, because the gate never opens.

        :raises ConfigError: always
        """
        raise ConfigError('this program changes nothing')
