# SPDX-License-Identifier: Apache-2.0
"""Ports of loopback that a test may use while other tests run beside it."""

import contextlib
import random
import socket

# Below the ports that the kernel gives to those who ask for any port, so that
# nobody gets one of these between the search and the use. They are so many,
# because tests of other processes choose theirs at the same time.
_FIRST, _END = 20_000, 32_000
_TRIES_COUNT = 100
# A cluster gets the ports of all its servers before any of them listens.
_given: set[int] = set()


def find_free_ports(count: int) -> int:
    """Return the first of so many ports in a row on which nobody listens.

    No port is returned twice in one process.
    """
    for _ in range(_TRIES_COUNT):
        first = random.randrange(_FIRST, _END - count)
        ports = range(first, first + count)
        if _given.isdisjoint(ports) and _are_free(ports):
            _given.update(ports)
            return first
    raise AssertionError(f'no {count} free ports in a row')


def _are_free(ports: range) -> bool:
    with contextlib.ExitStack() as taken:
        try:
            for port in ports:
                taken.enter_context(socket.create_server(('127.0.0.1', port)))
        except OSError:
            return False
    return True
