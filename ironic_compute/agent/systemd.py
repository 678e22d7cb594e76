# SPDX-License-Identifier: Apache-2.0
"""systemd readiness, watchdog and main process of the agent: sd_notify(3).

Without systemd, or without ``WatchdogSec`` in the unit, nothing is sent.
"""

import contextlib
import socket
from collections.abc import Mapping

from hashring.clock import Clock


class Watchdog:
    """Sends READY=1, then WATCHDOG=1 three times per watchdog period.

    :param environment: has systemd's NOTIFY_SOCKET and WATCHDOG_USEC
    """

    def __init__(self, environment: Mapping[str, str], clock: Clock) -> None:
        # A leading @ marks a socket in the abstract namespace.
        self._address = environment.get('NOTIFY_SOCKET', '').replace(
            '@', '\0', 1
        )
        timeout_us = environment.get('WATCHDOG_USEC', '')
        self._interval_s = int(timeout_us or 0) / 1e6 / 3
        self._clock = clock
        self._sent_s: float | None = None

    def notify_if_due(self) -> None:
        """Notify systemd if a notification is due.

        The agent's loop calls this method once in each turn.
        """
        now_s = self._clock.now_s()
        if self._sent_s is None:
            # Without it systemd would end a daemon that serves, so it is sent
            # in each turn until it is taken.
            if self._send(b'READY=1'):
                # It does not feed the watchdog, which has run on if this
                # process replaces another one.
                self._sent_s = now_s - self._interval_s
        elif self._interval_s and now_s - self._sent_s >= self._interval_s:
            self._send(b'WATCHDOG=1')
            self._sent_s = now_s

    def name_main_process(self, pid: int) -> bool:
        """Say that another process is the daemon when this one has ended.

        :returns: whether there is somebody to tell; it may not have heard it
        """
        self._send(b'MAINPID=%d' % pid)
        return bool(self._address)

    def _send(self, message: bytes) -> bool:
        """Return whether systemd has the message in its queue."""
        if not self._address:
            return False
        # An error is ignored: the daemon works as well if systemd does not
        # read the socket.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock,
        ):
            sock.setblocking(False)
            sock.sendto(message, self._address)
            return True
        return False
