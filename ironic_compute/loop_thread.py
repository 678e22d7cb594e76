# SPDX-License-Identifier: Apache-2.0
"""A daemon thread that calls one function again and again until stopped.

Used by a worker for all work that repeats: reading Nova's Service records,
rounds of the rebalancer and of the recovery, starting and stopping the RPC
servers with the lease.
"""

import threading
from collections.abc import Callable
from typing import Protocol

import attrs

Act = Callable[[], float | None]


class Loop(Protocol):
    """What calls a function again and again; see :class:`LoopThread`."""

    def start(self) -> None:
        """Begin the calls."""

    def wake(self) -> None:
        """Make the next call now, or right after the present one."""

    def stop(self) -> None:
        """Make no further call; a call that has begun goes on."""


# Makes a loop, not started yet, from its name, what it calls, and the seconds
# until the first call. In production it is ``LoopThread``.
NewLoop = Callable[[str, Act, float], Loop]


@attrs.define(eq=False, repr=False, slots=False)
class LoopThread:
    """Calls a function in a thread, again and again, until stopped.

    Any thread may call the methods; none of them blocks.

    :param name: the name of the thread
    :param act: called in the thread; returns the seconds until its next call,
        or None to end the thread. It handles its own errors.
    :param first_wait_s: seconds between :meth:`start` and the first call
    """

    _name: str
    _act: Act
    _first_wait_s: float = 0.0

    def __attrs_post_init__(self) -> None:
        self._wake = threading.Event()
        self._is_stopped = False

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(
            target=self._run, name=self._name, daemon=True
        ).start()

    def wake(self) -> None:
        """Make the next call now, or right after the present one."""
        self._wake.set()

    def stop(self) -> None:
        """Make no further call; a call that has begun goes on."""
        self._is_stopped = True
        self._wake.set()

    def _run(self) -> None:
        wait_s: float | None = self._first_wait_s
        while wait_s is not None:
            self._wake.wait(wait_s)
            self._wake.clear()
            if self._is_stopped:
                return
            wait_s = self._act()
