# SPDX-License-Identifier: Apache-2.0
"""What the end of each request of a worker says about its path."""

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import oslo_messaging
import pytest
from keystoneauth1 import exceptions as ksa_exceptions

from ironic_compute import errors
from ironic_compute.paths.path_health import (
    CONDUCTOR,
    IRONIC,
    NEUTRON,
    PLACEMENT,
    PathHealth,
)
from ironic_compute.paths.traffic import (
    ConductorTraffic,
    IronicTraffic,
    PlacementTraffic,
    SessionTraffic,
)
from resource_tracker.meter import NoMeter
from tests.fakes.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    """A clock that the test moves."""
    return ManualClock()


@pytest.fixture
def health(clock: ManualClock) -> PathHealth:
    """One about which nothing was noted."""
    return PathHealth(clock)


class _Measured:
    """Another meter of Ironic's requests."""

    def __init__(self) -> None:
        self.actions: list[str] = []

    @contextlib.contextmanager
    def __call__(self, action: str) -> Iterator[None]:
        self.actions.append(action)
        yield


def _request(health: PathHealth, clock: ManualClock, exc: Any) -> _Measured:
    """Make a request to Ironic that ends with an error, or with none."""
    measured = _Measured()
    traffic = IronicTraffic(health, clock, measured)
    ends = pytest.raises(type(exc)) if exc else contextlib.nullcontext()
    with ends, traffic.request('read node n1'):
        if exc is not None:
            raise exc
    return measured


def test_request_to_ironic_is_measured_as_before(
    health: PathHealth, clock: ManualClock
) -> None:
    """The metrics of the requests stay."""
    assert _request(health, clock, None).actions == ['read node n1']
    assert list(health.states()) == [IRONIC]
    assert not health.is_failing(IRONIC)


@pytest.mark.parametrize(
    'exc',
    [
        errors.IronicUnavailable('no answer'),
        errors.IronicNotReached('refused'),
        errors.IronicNotReached('token rejected', 401),
    ],
)
def test_no_answer_of_ironic_is_a_failure(
    health: PathHealth, clock: ManualClock, exc: Exception
) -> None:
    """Refused, no answer, or a rejected token."""
    _request(health, clock, exc)
    assert health.states()[IRONIC].why == str(exc)


@pytest.mark.parametrize(
    'exc',
    [
        errors.IronicUnavailable('broken', 500),
        errors.NodeNotFound('no such node'),
        errors.NodeLocked('locked'),
        errors.IronicRefused('wrong'),
    ],
)
def test_error_of_ironic_is_an_answer(
    health: PathHealth, clock: ManualClock, exc: Exception
) -> None:
    """Ironic is reached, whatever it says."""
    _request(health, clock, exc)
    assert not health.is_failing(IRONIC)
    assert health.silent_s(IRONIC) == 0


@pytest.mark.parametrize(
    'exc',
    [
        errors.IronicUnavailable('bad gateway', 502),
        errors.IronicNotReached('busy', 503),
        errors.ConfigError('wrong option'),
        ValueError('a defect'),
    ],
)
def test_unclear_end_notes_nothing(
    health: PathHealth, clock: ManualClock, exc: Exception
) -> None:
    """A proxy without Ironic, or a conductor that is busy: a probe tells."""
    _request(health, clock, exc)
    assert health.states() == {}


class _Counted(NoMeter):
    """Another meter of Placement's requests."""

    def __init__(self) -> None:
        self.counted: list[Any] = []

    def count_request(
        self, method: str, what: str, status: str, seconds: float
    ) -> None:
        """See Meter."""
        self.counted.append((method, what, status, seconds))

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """See Meter."""
        self.counted.append('waiting')
        yield

    def count_report(self, seconds: float) -> None:
        """See Meter."""
        self.counted.append(seconds)

    def count_drift(self, count: int) -> None:
        """See Meter."""
        self.counted.append(count)


@pytest.mark.parametrize(
    ('status', 'fails'),
    [
        ('none', True),
        ('401', True),
        ('200', False),
        ('404', False),
        ('409', False),
        ('500', False),
        ('503', None),
    ],
)
def test_status_of_placement_tells_whether_it_is_reached(
    health: PathHealth, clock: ManualClock, status: str, fails: bool | None
) -> None:
    """Without an answer the status is "none"."""
    traffic = PlacementTraffic(health, clock, NoMeter())
    traffic.count_request('GET', 'traits', status, 0.5)
    states = health.states()
    assert health.is_failing(PLACEMENT) is bool(fails)
    assert (PLACEMENT in states) is (fails is not None)


def test_requests_to_placement_are_counted_as_before(
    health: PathHealth, clock: ManualClock
) -> None:
    """All that is counted reaches the metrics."""
    meter = _Counted()
    traffic = PlacementTraffic(health, clock, meter)
    with traffic.waiting():
        pass
    traffic.count_request('PUT', 'traits', '200', 0.5)
    traffic.count_report(2.0)
    traffic.count_drift(3)
    assert meter.counted == ['waiting', ('PUT', 'traits', '200', 0.5), 2.0, 3]


def test_request_to_placement_waits_until_it_ends(
    health: PathHealth, clock: ManualClock
) -> None:
    """In a black hole it ends after a minute; a probe tells before."""
    traffic = PlacementTraffic(health, clock, NoMeter())
    with contextlib.suppress(TimeoutError), traffic.waiting():
        clock.advance(6)
        assert health.waits_s(PLACEMENT) == 6
        raise TimeoutError
    assert health.waits_s(PLACEMENT) == 0
    assert health.states() == {}


def test_old_request_to_placement_that_ends_late_is_no_failure(
    health: PathHealth, clock: ManualClock
) -> None:
    """Another request had an answer since it was sent."""
    traffic = PlacementTraffic(health, clock, NoMeter())
    traffic.count_request('GET', 'traits', '200', 0.1)
    clock.advance(1)
    traffic.count_request('GET', 'traits', 'none', 60.0)
    assert not health.is_failing(PLACEMENT)


def _time_out() -> None:
    raise oslo_messaging.MessagingTimeout('no reply')


def test_time_out_is_a_failure_of_the_conductor(
    health: PathHealth, clock: ManualClock
) -> None:
    """The caller gets the error."""
    with pytest.raises(oslo_messaging.MessagingTimeout):
        ConductorTraffic(health, clock).call(_time_out)
    assert health.states()[CONDUCTOR].why == 'no reply'


def test_answer_of_the_conductor_is_returned_and_noted(
    health: PathHealth, clock: ManualClock
) -> None:
    """The caller gets the answer."""
    assert ConductorTraffic(health, clock).call(lambda: 7) == 7
    assert not health.is_failing(CONDUCTOR)
    assert health.silent_s(CONDUCTOR) == 0


def test_other_errors_of_the_conductor_note_nothing(
    health: PathHealth, clock: ManualClock
) -> None:
    """An unreachable RabbitMQ is found by its own probe."""

    def fail() -> None:
        raise oslo_messaging.MessageDeliveryFailure('broker away')

    with pytest.raises(oslo_messaging.MessageDeliveryFailure):
        ConductorTraffic(health, clock).call(fail)
    assert health.states() == {}


@pytest.mark.parametrize(
    ('error', 'fails'),
    [
        (ksa_exceptions.ConnectFailure('refused'), True),
        (ksa_exceptions.ConnectTimeout('no answer'), True),
        (ksa_exceptions.Unauthorized('token'), True),
        (ksa_exceptions.NotFound('no such port'), False),
        (ksa_exceptions.ServiceUnavailable('proxy'), None),
        (ksa_exceptions.EndpointNotFound(), None),
        (None, False),
    ],
)
def test_end_of_a_request_of_nova_tells_whether_a_service_is_reached(
    health: PathHealth,
    clock: ManualClock,
    error: Exception | None,
    fails: bool | None,
) -> None:
    """The caller gets the answer or the error."""

    def send() -> Any:
        assert health.waits_s(NEUTRON) == 0.0
        clock.advance(3)
        assert health.waits_s(NEUTRON) == 3.0
        if error is not None:
            raise error
        return types.SimpleNamespace(status_code=204, reason='No Content')

    traffic = SessionTraffic(NEUTRON, health, clock)
    if error is None:
        assert traffic.call(send).status_code == 204
    else:
        with pytest.raises(type(error)):
            traffic.call(send)
    assert health.waits_s(NEUTRON) == 0.0
    assert health.is_failing(NEUTRON) is bool(fails)
    assert (NEUTRON in health.states()) is (fails is not None)
