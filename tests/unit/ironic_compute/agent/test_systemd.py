# SPDX-License-Identifier: Apache-2.0
"""Readiness and watchdog messages, sent to a socket like systemd's."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ironic_compute.agent.systemd import Watchdog
from tests.fakes.clock import ManualClock


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    """systemd's end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / 'notify'))
        made.setblocking(False)
        yield made


def _heard(listener: socket.socket) -> list[bytes]:
    found = []
    while True:
        try:
            found.append(listener.recv(100))
        except BlockingIOError:
            return found


def _watchdog(listener: socket.socket, clock: ManualClock) -> Watchdog:
    """Return the watchdog of a unit with ``WatchdogSec=30``."""
    told = {
        'NOTIFY_SOCKET': listener.getsockname(),
        'WATCHDOG_USEC': '30000000',
    }
    return Watchdog(told, clock)


def test_ready_once_then_alive_in_time(listener: socket.socket) -> None:
    """WATCHDOG=1 is sent three times per period, not at each turn."""
    clock = ManualClock(start_s=50.0)
    watchdog = _watchdog(listener, clock)
    watchdog.notify_if_due()
    assert _heard(listener) == [b'READY=1']
    for _ in range(60):
        clock.advance(0.5)
        watchdog.notify_if_due()
    assert _heard(listener) == [b'WATCHDOG=1'] * 3


def test_watchdog_is_fed_as_soon_as_the_daemon_is_ready(
    listener: socket.socket,
) -> None:
    """Its predecessor may have fed it a whole third of the period ago."""
    clock = ManualClock(start_s=50.0)
    watchdog = _watchdog(listener, clock)
    watchdog.notify_if_due()
    clock.advance(0.05)
    watchdog.notify_if_due()
    assert _heard(listener) == [b'READY=1', b'WATCHDOG=1']


def test_ready_is_all_without_a_watchdog(listener: socket.socket) -> None:
    """Without WatchdogSec only READY=1 is sent."""
    clock = ManualClock(start_s=50.0)
    watchdog = Watchdog({'NOTIFY_SOCKET': listener.getsockname()}, clock)
    for _ in range(3):
        watchdog.notify_if_due()
        clock.advance(1000.0)
    assert _heard(listener) == [b'READY=1']


def test_ready_is_sent_until_systemd_takes_it(
    listener: socket.socket,
) -> None:
    """Its queue is full while it does something else, such as a reload."""
    clock = ManualClock(start_s=50.0)
    watchdog = _watchdog(listener, clock)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as others:
        others.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                others.sendto(b'WATCHDOG=1', listener.getsockname())
        watchdog.notify_if_due()
    assert b'READY=1' not in _heard(listener)
    for _ in range(2):
        clock.advance(1.0)
        watchdog.notify_if_due()
    assert _heard(listener) == [b'READY=1', b'WATCHDOG=1']


@pytest.mark.parametrize('address', [None, '/nowhere/notify', '@nobody'])
def test_daemon_lives_without_a_listener(address: str | None) -> None:
    """The daemon goes on if no process reads the socket."""
    told = {} if address is None else {'NOTIFY_SOCKET': address}
    Watchdog(told, ManualClock()).notify_if_due()
