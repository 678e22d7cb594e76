#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Health check of a container: exits with 0 if the agent's loop turns.

The agent sends WATCHDOG=1 to the socket in NOTIFY_SOCKET three times in the
period that WATCHDOG_USEC names, as it does for systemd. This program listens
there for one period. It needs no other service: an agent that waits for the
coordination backend is alive, and a restart would not help it. Two of these
programs must not run at once, because each replaces the socket.
"""

import contextlib
import os
import socket
import sys


def main() -> int:
    """Wait for a sign of life; return 0, or 1 if none comes."""
    path = os.environ['NOTIFY_SOCKET']
    period_s = int(os.environ['WATCHDOG_USEC']) / 1e6
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
        sock.settimeout(period_s)
        try:
            # The workers' libraries may send READY=1, which proves nothing.
            while sock.recv(4096) != b'WATCHDOG=1':
                pass
        except TimeoutError:
            print(f'no sign of life for {period_s:g} s', file=sys.stderr)
            return 1
        finally:
            os.unlink(path)
    return 0


if __name__ == '__main__':
    sys.exit(main())
