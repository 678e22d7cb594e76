# SPDX-License-Identifier: Apache-2.0
"""The gate before each request that changes something."""

import threading

import pytest

from ironic_compute.errors import ConfigError, GateShut
from ironic_compute.gate import LeaseGate, NeverOpen, without_waiting
from tests.fakes.clock import ManualClock
from tests.simulation.kernel import Kernel
from tests.simulation.worker import Gate


def test_gate_shuts_by_itself():
    """The gate shuts when the deadline passes."""
    clock = ManualClock(100.0)
    gate = LeaseGate(clock, 110.0)
    assert gate.is_open()
    clock.advance(10.0)
    assert not gate.is_open()


def test_deadline_never_moves_back():
    """An earlier deadline that arrives late is ignored."""
    gate = LeaseGate(ManualClock(100.0), 110.0)
    gate.extend(90.0)
    assert gate.is_open()


def test_simulation_knows_for_how_long_a_gate_is_shut():
    """Else any worker could act for the host right after the gate was shut."""
    clock = ManualClock(100.0)
    gate = Gate(clock, Kernel(1), lambda: None)
    gate.extend(110.0)
    gate.shut()
    assert (gate.is_open(), gate.shut_for_s()) == (False, 0.0)
    clock.advance(3.0)
    gate.shut()
    assert gate.shut_for_s() == 3.0
    gate.extend(120.0)
    assert gate.is_open()


def test_gate_starts_shut():
    """The gate is shut until the agent sends a deadline."""
    assert not LeaseGate(ManualClock(100.0)).is_open()


def test_shut_gate_lets_nobody_wait_who_may_not():
    """What was decided before a wait must be decided anew after it."""
    clock = ManualClock(100.0)
    gate = LeaseGate(clock, 110.0)
    with without_waiting():
        gate.wait()
        clock.advance(10.0)
        with pytest.raises(GateShut):
            gate.wait()
    gate.extend(120.0)
    gate.wait()


def test_others_wait_while_one_may_not():
    """Only requests of the same thread are refused."""
    gate, passed = LeaseGate(ManualClock(100.0)), threading.Event()

    def write():
        gate.wait()
        passed.set()

    with without_waiting():
        thread = threading.Thread(target=write)
        thread.start()
        assert not passed.wait(0.05)
        gate.extend(110.0)
        assert passed.wait(10.0)
    thread.join()


def test_waiting_thread_goes_on_when_the_lease_is_back():
    """wait() blocks while the lease is out and returns when it is in."""
    gate = LeaseGate(ManualClock(100.0))
    passed = threading.Event()

    def write():
        gate.wait()
        passed.set()

    threading.Thread(target=write, daemon=True).start()
    assert not passed.wait(0.1)
    gate.extend(110.0)
    assert passed.wait(60.0)


def test_program_that_must_not_write_is_refused():
    """A write of a program without a lease is an error, and not a wait."""
    gate = NeverOpen()
    assert not gate.is_open()
    with pytest.raises(ConfigError, match='changes nothing'):
        gate.wait()
