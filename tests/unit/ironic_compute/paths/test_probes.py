# SPDX-License-Identifier: Apache-2.0
"""When a path is probed, and what the end of a probe says about it."""

import functools
from collections.abc import Callable, Iterator

import oslo_messaging
import pytest
from nova import baserpc
from nova import rpc as nova_rpc
from oslo_config import cfg

from hashring.paths import Path
from ironic_compute.paths import probes
from ironic_compute.paths.path_health import (
    CONDUCTOR,
    IRONIC,
    NEUTRON,
    PLACEMENT,
    RABBITMQ,
    PathHealth,
)
from ironic_compute.paths.probes import Probe
from tests.fakes.clock import ManualClock

_SILENCE_S = 25.0


class _Ironic:
    """The far end of a probe; answers unless told."""

    def __init__(
        self, clock: ManualClock, health: PathHealth | None = None
    ) -> None:
        self.error: Exception | None = None
        self.on_request: Callable[[], object] = lambda: None
        self.is_expected = True
        self.is_doubted = False
        self.arrived_count = 0
        self.health = health or PathHealth(clock)
        self.probe = Probe(
            IRONIC,
            _SILENCE_S,
            self._answer,
            self.health,
            clock,
            lambda: self.is_expected,
            lambda path: self.is_doubted,
        )

    def _answer(self) -> None:
        self.arrived_count += 1
        self.on_request()
        if self.error is not None:
            raise self.error


@pytest.fixture
def clock() -> ManualClock:
    """A clock that the test moves."""
    return ManualClock()


@pytest.fixture
def ironic(clock: ManualClock) -> _Ironic:
    """A path that was never used."""
    return _Ironic(clock)


def _make_probes(
    calls: probes.ProbeCalls, health: PathHealth, clock: ManualClock
) -> tuple[Probe, ...]:
    pace = probes.ProbePace(conductor_s=10.0, ironic_s=10.0)
    return probes.make_probes(
        calls, health, clock, pace, lambda: True, lambda path: False
    )


def _live(ironic: _Ironic, clock: ManualClock, seconds: float) -> None:
    """Let the probe's thread do its work for so long."""
    ends_s = clock.now_s() + seconds
    while clock.now_s() < ends_s:
        clock.advance(ironic.probe.try_probe())


def test_silent_path_is_probed_at_intervals(
    ironic: _Ironic, clock: ManualClock
) -> None:
    """The probe's own answer begins the next interval."""
    _live(ironic, clock, 10 * _SILENCE_S)
    assert ironic.arrived_count == 10
    assert not ironic.health.is_failing(IRONIC)


def test_path_is_probed_often_until_it_is_known_to_work(
    clock: ManualClock,
) -> None:
    """It has failed for an earlier worker, maybe for most requests only."""
    ironic = _Ironic(clock, PathHealth(clock, starts_in_doubt=True))
    _live(ironic, clock, 10)
    assert ironic.arrived_count == 7
    assert ironic.health.states() == {}
    _live(ironic, clock, 1)
    assert list(ironic.health.states()) == [IRONIC]
    _live(ironic, clock, _SILENCE_S - 5)
    assert ironic.arrived_count == 8


def test_path_with_traffic_is_not_probed(
    ironic: _Ironic, clock: ManualClock
) -> None:
    """An idle worker reads a page of changes every ten seconds."""
    for _ in range(20):
        ironic.health.note_answer(IRONIC)
        _live(ironic, clock, 10)
    assert ironic.arrived_count == 0


def test_failing_path_is_probed_until_it_works(
    ironic: _Ironic, clock: ManualClock
) -> None:
    """Two answers, some seconds apart, end the failure."""
    ironic.error = OSError('refused')
    began_s = clock.now_s()
    _live(ironic, clock, 60)
    assert ironic.arrived_count == 12
    state = ironic.health.states()[IRONIC]
    assert (state.failing_since_s, state.why) == (began_s, 'refused')
    ironic.error = None
    _live(ironic, clock, 3 * probes.RETRY_S)
    assert not ironic.health.is_failing(IRONIC)


def test_one_lost_answer_is_forgotten_within_twelve_seconds(
    ironic: _Ironic, clock: ManualClock
) -> None:
    """It must not last as long as a failure for which hosts move."""

    def lose_answer() -> None:
        clock.advance(probes.TIMEOUT_S)
        ironic.error = OSError('timed out')

    ironic.on_request = lose_answer
    _live(ironic, clock, probes.TIMEOUT_S)
    assert ironic.health.is_failing(IRONIC)
    ironic.on_request, ironic.error = lambda: None, None
    _live(ironic, clock, 7.0)
    assert not ironic.health.is_failing(IRONIC)


def test_failure_of_the_traffic_is_followed_up(
    ironic: _Ironic, clock: ManualClock
) -> None:
    """One request that failed for a reason of its own fails no path."""
    ironic.health.note_answer(IRONIC)
    ironic.probe.try_probe()
    ironic.health.note_failure(IRONIC, 'timed out')
    _live(ironic, clock, 3 * probes.RETRY_S)
    assert not ironic.health.is_failing(IRONIC)


def test_error_that_was_noted_as_an_answer_is_no_failure(
    ironic: _Ironic,
) -> None:
    """The meter of the traffic knows that a 500 is an answer."""
    ironic.on_request = lambda: ironic.health.note_answer(IRONIC)
    ironic.error = OSError('500')
    ironic.probe.try_probe()
    assert not ironic.health.is_failing(IRONIC)


def test_request_that_hangs_is_a_failure_before_it_ends(
    ironic: _Ironic, clock: ManualClock
) -> None:
    """The connection to a machine that vanished blocks for minutes."""
    failed = []

    def hang() -> None:
        clock.advance(probes.TIMEOUT_S + 1.0)
        ironic.probe.note_overdue()
        failed.append(ironic.health.is_failing(IRONIC))

    ironic.on_request = hang
    ironic.probe.try_probe()
    assert failed == [True]
    assert 'no answer for 5 s' in ironic.health.states()[IRONIC].why


def test_slow_answer_is_no_failure(
    ironic: _Ironic, clock: ManualClock
) -> None:
    """An answer within the time-out is an answer."""

    def answer_slowly() -> None:
        clock.advance(probes.TIMEOUT_S - 1.0)
        ironic.probe.note_overdue()

    ironic.on_request = answer_slowly
    ironic.probe.try_probe()
    clock.advance(probes.TIMEOUT_S)
    ironic.probe.note_overdue()
    assert not ironic.health.is_failing(IRONIC)


def test_nothing_is_sent_while_no_answer_can_come(
    ironic: _Ironic, clock: ManualClock
) -> None:
    """Without the lease nobody reads the worker's own queue."""
    ironic.is_expected = False
    _live(ironic, clock, 100)
    assert ironic.arrived_count == 0
    ironic.is_expected = True
    _live(ironic, clock, 5)
    assert ironic.arrived_count == 1


def test_end_of_the_lease_is_no_failure_of_the_path(ironic: _Ironic) -> None:
    """The servers stopped while the message was on its way."""

    def lapse() -> None:
        ironic.is_expected = False

    ironic.on_request, ironic.error = lapse, OSError('timed out')
    ironic.probe.try_probe()
    assert ironic.health.states() == {}


def test_path_that_another_agent_doubts_is_probed_soon(
    ironic: _Ironic, clock: ManualClock
) -> None:
    """Every five seconds, unless it has traffic anyway."""
    _live(ironic, clock, _SILENCE_S)
    ironic.arrived_count, ironic.is_doubted = 0, True
    _live(ironic, clock, 50)
    assert ironic.arrived_count == 10
    for _ in range(50):
        ironic.health.note_answer(IRONIC)
        clock.advance(1)
        ironic.probe.try_probe()
    assert ironic.arrived_count == 10


def test_path_is_probed_while_a_request_waits_for_long(
    clock: ManualClock,
) -> None:
    """Packets may be dropped, and the request has no time-out of its own."""
    health = PathHealth(clock)
    sent: list[float] = []
    probe = Probe(
        NEUTRON, None, lambda: sent.append(clock.now_s()), health, clock
    )
    with health.waiting(NEUTRON), health.waiting(NEUTRON):
        assert health.states() == {}
        for _ in range(12):
            clock.advance(1)
            probe.try_probe()
    assert len(sent) == 2
    clock.advance(60)
    probe.try_probe()
    assert len(sent) == 2


@pytest.mark.parametrize('path', [PLACEMENT, NEUTRON])
def test_request_that_waits_for_two_seconds_is_followed_by_a_probe(
    clock: ManualClock, path: Path
) -> None:
    """It may wait for a minute; no more than one probe in five seconds."""
    health, sent = PathHealth(clock), []
    send = functools.partial(sent.append, path)
    calls = probes.ProbeCalls(
        rabbitmq=lambda: None,
        new_connection=lambda: None,
        ironic=lambda: None,
        placement=send,
        neutron=send,
    )
    made = _make_probes(calls, health, clock)
    health.note_answer(path)
    with health.waiting(path):
        clock.advance(1.5)
        assert not any(probe.is_suspect() for probe in made)
        clock.advance(0.5)
        (probe,) = (each for each in made if each.is_suspect())
        assert probe.path == path
        for _ in range(20):
            probe.try_probe()
            clock.advance(0.5)
    assert len(sent) == 2


def test_call_that_waits_has_a_new_connection_probed(
    clock: ManualClock,
) -> None:
    """RabbitMQ answers on the open one, and resets each new one."""

    def connect() -> None:
        raise OSError('Connection reset by peer')

    health = PathHealth(clock)
    calls = probes.ProbeCalls(
        lambda: None, connect, lambda: None, lambda: None, lambda: None
    )
    probe = _make_probes(calls, health, clock)[0]
    for _ in range(60):
        clock.advance(1)
        probe.try_probe()
    assert not health.is_failing(RABBITMQ)
    with health.waiting(RABBITMQ):
        for _ in range(11):
            clock.advance(1)
            probe.try_probe()
        assert health.states()[RABBITMQ].why == 'Connection reset by peer'
    for _ in range(60):
        clock.advance(1)
        probe.try_probe()
    assert health.is_failing(RABBITMQ)


def test_idle_worker_stays_below_its_limits(clock: ManualClock) -> None:
    """An hour without traffic: messages and requests are counted."""
    paths = (RABBITMQ, IRONIC, PLACEMENT, NEUTRON)
    counts = dict.fromkeys(paths, 0)

    def count(path: str) -> None:
        counts[path] += 1

    calls = probes.ProbeCalls(
        lambda: count(RABBITMQ),
        lambda: count(RABBITMQ),
        lambda: count(IRONIC),
        lambda: count(PLACEMENT),
        lambda: count(NEUTRON),
    )
    health = PathHealth(clock)
    made = _make_probes(calls, health, clock)
    for _ in range(3600):
        clock.advance(1)
        # The worker's own traffic.
        health.note_answer(CONDUCTOR)
        if clock.now_s() % 10 == 0:
            health.note_answer(IRONIC)
        for probe in made:
            probe.try_probe()
    # The request and its answer, every ten seconds.
    assert 2 * counts[RABBITMQ] <= 3600 / 5
    assert counts[IRONIC] <= 1
    assert counts[PLACEMENT] == counts[NEUTRON] == 0


def test_placement_is_probed_after_a_failure_until_it_answers(
    clock: ManualClock,
) -> None:
    """It has no traffic while no node changes; ten seconds must be quiet."""
    sent: list[float] = []

    def send() -> None:
        sent.append(clock.now_s())

    health = PathHealth(clock)
    calls = probes.ProbeCalls(
        lambda: None, lambda: None, lambda: None, send, lambda: None
    )
    (probe,) = (
        each
        for each in _make_probes(calls, health, clock)
        if each.path == PLACEMENT
    )
    health.note_failure(PLACEMENT, 'refused')
    for _ in range(60):
        clock.advance(1)
        probe.try_probe()
    assert len(sent) == 10
    assert not health.is_failing(PLACEMENT)


@pytest.fixture
def conductor() -> Iterator[None]:
    """Nova's end of a nova-conductor, on a message bus in memory."""
    transport = oslo_messaging.get_rpc_transport(cfg.CONF, 'kombu+memory:////')
    server = oslo_messaging.get_rpc_server(
        transport,
        oslo_messaging.Target(topic='conductor', server='c9'),
        [baserpc.BaseRPCAPI('conductor', None)],
        executor='threading',
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nova_rpc, 'TRANSPORT', transport)
        server.start()
        yield
    server.stop()
    server.wait()
    transport.cleanup()


@pytest.mark.usefixtures('conductor')
def test_conductor_answers_a_ping() -> None:
    """Each nova-conductor has Nova's base RPC API."""
    probes.ping_conductor()
