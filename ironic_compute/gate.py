# SPDX-License-Identifier: Apache-2.0
"""The gate: no request that changes anything leaves without a lease in force.

A worker has one gate. The agent extends its deadline through the pipe; when
the deadline passes the gate shuts by itself, on the worker's own reading of
the machine's clock. Any thread may ask; ``wait`` blocks the calling thread
and holds no other lock.
"""

import math
import threading
from typing import Protocol

from hashring.clock import Clock
from ironic_compute.errors import ConfigError

_RECHECK_S = 1.0


class Gate(Protocol):
    """What stands before each request that changes something."""

    def is_open(self) -> bool:
        """Say whether the lease is in force now."""

    def wait(self) -> None:
        """Block until the lease is in force."""


class LeaseGate:
    """A gate that is open until a deadline on ``clock``.

    :param clock: the machine's clock that counts suspend
    :param deadline_s: first deadline; shut unless given
    """

    def __init__(self, clock: Clock, deadline_s: float = -math.inf) -> None:
        self._clock = clock
        self._deadline_s = deadline_s
        self._extended = threading.Condition()

    def extend(self, deadline_s: float) -> None:
        """Move the deadline; it never moves back."""
        with self._extended:
            self._deadline_s = max(self._deadline_s, deadline_s)
            self._extended.notify_all()

    def shut(self) -> None:
        """Shut for good unless extended again: the worker is to stop."""
        with self._extended:
            self._deadline_s = -math.inf

    def is_open(self) -> bool:
        """Say whether the lease is in force now."""
        return self._clock.now_s() < self._deadline_s

    def open_for_s(self) -> float:
        """Seconds until the deadline as it is now; 0 when it has passed."""
        return max(0.0, self._deadline_s - self._clock.now_s())

    def shut_for_s(self) -> float:
        """Seconds since the deadline passed; 0 while the gate is open."""
        return max(0.0, self._clock.now_s() - self._deadline_s)

    def wait(self) -> None:
        """Block until the lease is in force."""
        with self._extended:
            while not self.is_open():
                self._extended.wait(_RECHECK_S)


class NeverOpen:
    """The gate of a program that must not change anything."""

    def is_open(self) -> bool:
        """Never."""
        return False

    def wait(self) -> None:
        """Refuse, rather than wait for ever."""
        raise ConfigError('this program changes nothing')
