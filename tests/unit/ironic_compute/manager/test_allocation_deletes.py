# SPDX-License-Identifier: Apache-2.0
"""The delete of an allocation goes on until Placement has answered."""

import types
from typing import Any

import pytest
from keystoneauth1 import exceptions as ksa_exceptions
from nova import exception as nova_exception
from nova.scheduler.client import report

from ironic_compute.manager.allocation_deletes import repeat_deletes
from tests.fakes.clock import ManualClock


class _Adapter:
    """keystoneauth's end of the way to Placement."""

    def __init__(self, *answers: Exception | int) -> None:
        self.additional_headers: dict[str, str] = {}
        self._answers = list(answers)
        self.sent: list[str] = []
        self.left: dict[str, Any] = {}

    def delete(self, url: str, **arguments: Any) -> Any:
        """Answer with the next status, or not at all."""
        self.sent.append(url)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return _Response(status_code=answer, text='')

    def get(self, url: str, **arguments: Any) -> Any:
        """Answer with the next status, and the allocations that are left."""
        answer = self.delete(url)
        answer.json = lambda: {'allocations': self.left}
        return answer


class _Response(types.SimpleNamespace):
    def __bool__(self) -> bool:
        return bool(self.status_code < 400)


def _delete(
    *answers: Exception | int, left: dict[str, Any] | None = None
) -> tuple[bool, int, float]:
    """Delete an allocation with Nova's real client of Placement.

    :param left: the allocations that Placement has after the first answer
    :returns: its result, the number of requests, and the seconds waited
    """
    adapter, clock = _Adapter(*answers), ManualClock()
    adapter.left = left or {}
    client: Any = report.SchedulerReportClient(adapter)
    repeat_deletes(client, clock)
    begun_s = clock.now_s()
    context = types.SimpleNamespace(global_id='req')
    result = client.delete_allocation_for_instance(context, 's1', force=True)
    return result, len(adapter.sent), clock.now_s() - begun_s


def test_an_answer_ends_the_delete() -> None:
    """One request is enough."""
    assert _delete(204) == (True, 1, 0.0)


def test_allocation_that_does_not_exist_is_looked_for() -> None:
    """A second request shows that Placement has answered the first."""
    assert _delete(404, 200) == (False, 2, 0.0)


def test_404_of_a_proxy_does_not_end_the_delete() -> None:
    """As from a web server in which Placement is not configured yet."""
    assert _delete(404, 404, 204) == (True, 3, 10.0)


def test_allocation_that_is_left_after_a_404_is_deleted() -> None:
    """Another server answered the first request."""
    left = {'node': {'resources': {'CUSTOM_GOLD': 1}}}
    assert _delete(404, 200, 204, left=left) == (True, 3, 10.0)


@pytest.mark.parametrize(
    'failure',
    [
        ksa_exceptions.ConnectFailure(),
        ksa_exceptions.ConnectTimeout(),
        ksa_exceptions.SSLError(),
        ksa_exceptions.Unauthorized(),
        ksa_exceptions.DiscoveryFailure(),
        503,
        500,
    ],
)
def test_a_delete_without_an_answer_is_sent_again(
    failure: Exception | int,
) -> None:
    """Nova's client returns None after most of these errors."""
    assert _delete(failure, failure, 204) == (True, 3, 20.0)


@pytest.mark.parametrize(
    ('failure', 'is_wrong'),
    [
        (ksa_exceptions.Unauthorized('wrong password'), True),
        (ksa_exceptions.MissingAuthPlugin('no auth_type'), True),
        (ksa_exceptions.ConnectFailure('away'), False),
        (ksa_exceptions.DiscoveryFailure('away'), False),
    ],
)
def test_operator_is_told_what_to_correct(
    failure: Exception,
    caplog: pytest.LogCaptureFixture,
    *,
    is_wrong: bool,
) -> None:
    """Waiting does not mend wrong credentials, but the request is kept."""
    assert _delete(failure, 204) == (True, 2, 10.0)
    (record,) = [
        r for r in caplog.records if 'The allocation of' in r.getMessage()
    ]
    assert str(failure) in record.getMessage()
    assert ('[placement]' in record.getMessage()) is is_wrong
    assert record.levelname == ('ERROR' if is_wrong else 'WARNING')


def test_address_of_placement_is_read_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nova's own decorator makes another client after this error."""
    failure = ksa_exceptions.EndpointNotFound()
    create = report.SchedulerReportClient._create_client
    made: list[Any] = []

    def make(self: Any) -> Any:
        made.append(create(self))
        return made[-1]

    monkeypatch.setattr(report.SchedulerReportClient, '_create_client', make)
    assert _delete(failure, failure, 204) == (True, 3, 10.0)
    assert '[placement]' in caplog.text
    assert len(made) == 2, "the first one is made with Nova's client"


def test_an_allocation_that_has_changed_is_read_again() -> None:
    """With soft deletes Nova's client compares generations."""
    clock = ManualClock()
    tries = [
        nova_exception.AllocationDeleteFailed(consumer_uuid='s', error='')
    ]

    def delete(*args: Any, **kwargs: Any) -> bool:
        if tries:
            raise tries.pop()
        return True

    client = types.SimpleNamespace(delete_allocation_for_instance=delete)
    repeat_deletes(client, clock)
    assert client.delete_allocation_for_instance(None, 's', force=False)
