# SPDX-License-Identifier: Apache-2.0
"""A worker serves its host before Ironic has said anything."""

import math
import threading
import types
from typing import Any

import nova.conf
import pytest

from hashring.clock import SystemClock
from hashring.ring import Host
from ironic_compute import errors
from ironic_compute.config import register_opts
from ironic_compute.gate import LeaseGate
from ironic_compute.pool.view import PoolView
from ironic_compute.worker.components import Components, Tenure
from tests.fakes.ironic import FakeIronic

RECORD = types.SimpleNamespace(id=1)


class _Ironic:
    """An Ironic that says of the pool what the test wants said.

    :param answers: what each look at the pool raises; None is a good answer
    """

    def __init__(self, *answers: Exception | None) -> None:
        self._answers = list(answers)
        self._fake = FakeIronic()
        self.asked_by: list[threading.Thread] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fake, name)

    def measure(self, meter: Any) -> None:
        """See IronicClient."""

    def check_pool(self) -> None:
        """See IronicClient."""
        self.asked_by.append(threading.current_thread())
        answer = self._answers.pop(0)
        if answer is not None:
            raise answer


def _components(ironic: _Ironic) -> Components:
    """Make the parts of a home worker, whose threads only look at Ironic."""
    register_opts(nova.conf.CONF)
    clock = SystemClock()
    pool = PoolView(clock)
    gate = LeaseGate(clock, math.inf)
    client: Any = ironic
    placement: Any = object()
    return Components(
        Tenure(Host('c1'), True, gate, pool, clock), client, placement
    )


def _started(
    components: Components, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Start the parts and wait for what comes of it: read, or refused."""
    came: list[str] = []
    done = threading.Event()

    def note(what: str) -> None:
        came.append(what)
        done.set()

    monkeypatch.setattr(components.feed, 'start', lambda: note('read'))
    monkeypatch.setattr(components.services, 'read_records', lambda: None)
    components.on_refused = lambda exc: note(str(exc))
    components.start()
    assert done.wait(60.0)
    components.stop()
    return came


def test_the_check_at_start_asks_ironic_nothing() -> None:
    """An Ironic that swallows requests does not hold the first report up."""
    ironic = _Ironic()
    _components(ironic).check_service_record(RECORD)
    assert ironic.asked_by == []


def test_a_pool_that_cannot_be_told_apart_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is found out in a thread of its own, and nothing is read."""
    ironic = _Ironic(errors.ConfigError('no shards'))
    components = _components(ironic)
    assert _started(components, monkeypatch) == ['no shards']
    assert threading.main_thread() not in ironic.asked_by


def test_an_ironic_that_is_away_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pool is read as soon as Ironic has said that it can be."""
    away = errors.IronicUnavailable('away')
    ironic = _Ironic(away, RuntimeError('odd'), None)
    components = _components(ironic)
    assert _started(components, monkeypatch) == ['read']
    assert len(ironic.asked_by) == 3
