# SPDX-License-Identifier: Apache-2.0
"""Killed and frozen members: when their entries and locks end."""

import json
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hashring.clock import SystemClock
from hashring.group import Group, Member
from hashring.membership import new_boot
from hashring.ring import Host
from tests.contract import children
from tests.contract.coordination.backends import TERM_S, BackendUnderTest, Tooz

CLOCK = SystemClock()
ROOT = pathlib.Path(__file__).parents[3]
HOST = Host('of-a-puppet')

pytestmark = pytest.mark.slow


class Puppet:
    """A member in a process of its own, which holds a lock."""

    def __init__(self, backend: Tooz) -> None:
        self.boot = new_boot()
        self.lock = Host(f'{HOST}-{self.boot}')
        self.process = children.start(
            [
                *(sys.executable, '-W', 'ignore', '-m'),
                'tests.contract.coordination.puppet',
                *(backend.url, backend.pool, 'c1', self.boot, self.lock),
            ],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._read() is True

    def ask(self, question: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(f'{question}\n')
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def puppet(backend: BackendUnderTest) -> Iterator[Puppet]:
    if not isinstance(backend, Tooz):
        pytest.skip('the fake lives in one process')
    made = Puppet(backend)
    yield made
    made.end()


@pytest.fixture
def witness(backend: BackendUnderTest) -> Iterator[Group]:
    group, me = backend.group('c2')
    group.connect()
    group.join(me)
    group.heartbeat()
    yield group
    group.close(leave=True, timeout_s=5.0)


def seconds_until(
    witness: Group, happened: Callable[[], bool], most_s: float
) -> float:
    began_s = CLOCK.now_s()
    while not happened():
        waited_s = CLOCK.now_s() - began_s
        assert waited_s < most_s, f'nothing after {waited_s:.1f} s'
        witness.heartbeat()
        CLOCK.sleep(TERM_S / 15)
    return CLOCK.now_s() - began_s


def listed(witness: Group, puppet: Puppet) -> Member | None:
    found = (m for m in witness.members() if m.boot == puppet.boot)
    return next(found, None)


def test_killed_member_is_gone_after_a_term(
    backend: BackendUnderTest, puppet: Puppet, witness: Group
) -> None:
    """A killed member's entry and lock end with the term."""
    assert listed(witness, puppet)
    assert not witness.try_lock(puppet.lock)
    # On a busy machine its own heartbeats may come late.
    assert puppet.ask('heartbeat')
    puppet.process.kill()
    puppet.process.wait()
    free_s = seconds_until(
        witness, lambda: witness.try_lock(puppet.lock), TERM_S * 2
    )
    if backend.name == 'file':
        assert free_s < 1.0  # The kernel releases the lock of a dead process.
    else:
        # Heartbeats come every tenth of a term; memcached ends terms up to
        # one second early.
        assert free_s > TERM_S * 0.9 - 1.3
    seconds_until(witness, lambda: not listed(witness, puppet), TERM_S * 2)
    witness.release(puppet.lock)


def test_lock_of_a_killed_member_is_broken_at_once(
    backend: BackendUnderTest, puppet: Puppet, witness: Group
) -> None:
    """A dead member's lock can be broken at once by its token."""
    if not backend.traits.breaks:
        pytest.skip('locks are not broken there')
    token = puppet.ask('token')
    puppet.process.kill()
    puppet.process.wait()
    witness.break_lock(puppet.lock, token)
    assert witness.try_lock(puppet.lock)
    witness.release(puppet.lock)


def test_frozen_member_loses_its_entry_and_lock(
    backend: BackendUnderTest, puppet: Puppet, witness: Group
) -> None:
    """A holder that was frozen for a term has lost its lock."""
    puppet.process.send_signal(signal.SIGSTOP)
    if backend.name == 'file':
        seconds_until(witness, lambda: not listed(witness, puppet), TERM_S * 2)
        assert not witness.try_lock(puppet.lock)
        puppet.process.send_signal(signal.SIGCONT)
        assert puppet.ask('proof') is True
        return
    seconds_until(witness, lambda: witness.try_lock(puppet.lock), TERM_S * 3)
    assert not listed(witness, puppet)
    puppet.process.send_signal(signal.SIGCONT)
    CLOCK.sleep(TERM_S / 3)
    witness.heartbeat()
    assert puppet.ask('proof') is False
    assert puppet.ask('release') is True
    assert puppet.ask('join') is True
    assert not _free_for_another(backend, puppet.lock)
    witness.release(puppet.lock)


def _free_for_another(backend: BackendUnderTest, host: Host) -> bool:
    third, me = backend.group('c3')
    third.connect()
    third.join(me)
    try:
        return third.try_lock(host)
    finally:
        third.close(leave=True, timeout_s=5.0)
