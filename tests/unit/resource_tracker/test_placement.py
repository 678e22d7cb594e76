# SPDX-License-Identifier: Apache-2.0
"""The Placement client: errors by type, repeated requests, time-outs."""

import contextlib
import io
import json

import pytest
import requests
from keystoneauth1 import adapter, session, token_endpoint
from requests import adapters

from resource_tracker import errors
from resource_tracker.delta import PutAggregates, PutInventories, PutTraits
from resource_tracker.meter import NoMeter
from resource_tracker.placement import MICROVERSION, Placement

CHANGE = PutAggregates('u', frozenset())
LOCKED = {'errors': [{'code': 'placement.inventory.inuse', 'detail': 'no'}]}
NO = json.dumps({'errors': [{'code': 'placement.undefined_code'}]})


class Wire(adapters.BaseAdapter):
    """A transport that gives each request the next of some answers."""

    def __init__(self, answers):
        super().__init__()
        self.answers = list(answers)
        self.sent = []

    def send(self, request, **options):
        """Return or raise the next answer."""
        self.sent.append((request, options))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        status, body, *headers = answer
        response = requests.Response()
        response.headers.update(*headers)
        response.status_code, response.request = status, request
        response.raw = io.BytesIO(body.encode())
        return response

    def close(self):
        """Do nothing; there is no connection."""


def _client(*answers, **options):
    wire, inner = Wire(answers), requests.Session()
    inner.mount('http://', wire)
    outer = session.Session(
        auth=token_endpoint.Token('http://placement', 'token'),
        session=inner,
        **options,
    )
    made = adapter.Adapter(outer, service_type='placement')
    return Placement(made), wire


@pytest.mark.parametrize(
    ('answer', 'kind'),
    [
        ((409, NO), errors.GenerationConflict),
        ((409, json.dumps(LOCKED)), errors.ProviderInUse),
        ((404, NO), errors.ProviderNotFound),
        ((404, '<html>'), errors.PlacementUnavailable),
        ((404, '{"message": "no route"}'), errors.PlacementUnavailable),
        ((404, '[]'), errors.PlacementUnavailable),
        ((400, '<html>'), errors.PlacementUnavailable),
        ((413, '<html>'), errors.PlacementFailed),
        ((400, NO), errors.PlacementRefused),
        ((401, '{}'), errors.PlacementUnavailable),
        ((403, NO), errors.PlacementForbidden),
        ((406, '{}'), errors.PlacementUnavailable),
        ((429, ''), errors.PlacementUnavailable),
        ((500, '<html>'), errors.PlacementFailed),
        ((502, '<html>'), errors.PlacementUnavailable),
        ((503, ''), errors.PlacementUnavailable),
        ((504, ''), errors.PlacementUnavailable),
        ((200, '<html>'), errors.PlacementUnavailable),
        ((200, '{}'), errors.PlacementUnavailable),
        (requests.ConnectionError('reset'), errors.PlacementUnavailable),
        (requests.Timeout('late'), errors.PlacementUnavailable),
    ],
)
def test_answer_becomes_a_type(answer, kind):
    """Each failure of a write raises one of our error types."""
    client, _ = _client(answer, answer)
    with pytest.raises(errors.PlacementError) as caught:
        client.write(CHANGE, 1)
    assert type(caught.value) is kind


@pytest.mark.parametrize('body', ['<html>', '{"message": "no route"}'])
@pytest.mark.parametrize(
    'request_of',
    [
        lambda client: client.read_provider('u'),
        lambda client: client.delete_provider('u'),
    ],
)
def test_404_of_a_proxy_shows_no_missing_provider(request_of, body):
    """A provider would else be created anew, or count as deleted."""
    client, _ = _client((404, body))
    with pytest.raises(errors.PlacementUnavailable, match='answered 404'):
        request_of(client)


@pytest.mark.parametrize(
    ('header', 'seconds'),
    [({'Retry-After': '45'}, 45.0), ({'Retry-After': 'Tue'}, 0.0), ({}, 0.0)],
)
def test_pause_that_placement_asks_for_is_in_the_error(header, seconds):
    """A proxy in front of Placement may limit the rate of requests."""
    client, _ = _client((429, '', header))
    with pytest.raises(errors.PlacementUnavailable) as caught:
        client.list_providers()
    assert caught.value.retry_after_s == seconds


def test_each_request_states_the_microversion():
    """Each request has the microversion that the client is written for."""
    client, wire = _client((200, '{"resource_providers": []}'))
    client.list_providers()
    ((request, _),) = wire.sent
    stated = request.headers['OpenStack-API-Version']
    assert stated == f'placement {MICROVERSION}'


def test_read_is_sent_once_more_after_a_broken_connection():
    """A read is repeated once after the connection broke."""
    broken = requests.ConnectionError('reset')
    client, wire = _client(broken, (200, '{"resource_providers": []}'))
    assert client.list_providers() == {}
    assert len(wire.sent) == 2


class _Meter(NoMeter):
    """Records when a request waits and when it is counted."""

    def __init__(self):
        self.events = []

    @contextlib.contextmanager
    def waiting(self):
        """See Meter."""
        self.events.append('begins')
        try:
            yield
        finally:
            self.events.append('ends')

    def count_request(self, method, what, status, seconds):
        """See Meter."""
        self.events.append(status)


@pytest.mark.parametrize(
    ('answer', 'status'),
    [
        ((200, '{"resource_providers": []}'), '200'),
        ((503, ''), '503'),
        (requests.Timeout('late'), 'none'),
    ],
)
def test_request_that_waits_is_known_before_it_is_counted(answer, status):
    """It may wait for a minute, and Placement is probed meanwhile."""
    client, _ = _client(answer, answer)
    client._meter = _Meter()
    with contextlib.suppress(errors.PlacementUnavailable):
        client.list_providers()
    assert client._meter.events == ['begins', 'ends', status]


@pytest.mark.parametrize(
    'answer', [requests.ConnectionError('reset'), (503, '')]
)
@pytest.mark.parametrize(
    'write', [lambda c: c.write(CHANGE, 1), lambda c: c.delete_provider('u')]
)
def test_write_is_never_sent_twice(write, answer):
    """A failed write is not repeated, because the lease may have ended.

    The retries that operators set in ``[placement]`` do not apply to writes.
    """
    client, wire = _client(answer, answer)
    client._adapter.connect_retries = client._adapter.status_code_retries = 1
    with pytest.raises(errors.PlacementUnavailable):
        write(client)
    assert len(wire.sent) == 1


@pytest.mark.parametrize(
    'change',
    [
        PutTraits('u', frozenset({'CUSTOM_NEW'})),
        PutInventories('u', {'CUSTOM_NEW': {'total': 1}}),
    ],
    ids=['traits', 'inventories'],
)
def test_lease_is_checked_after_new_names_are_created(change):
    """The lease is checked after new names are created.

    The creation of a name may take longer than the lease.
    """
    client, wire = _client((201, ''), (200, '{}'))

    def require():
        if wire.sent:
            raise PermissionError

    with pytest.raises(PermissionError):
        client.write(change, 1, require)
    ((request, _),) = wire.sent
    assert request.url.endswith('/CUSTOM_NEW')


@pytest.mark.parametrize(
    ('options', 'limit_s'),
    [({}, 60.0), ({'timeout': 5}, 5.0), ({'timeout': 120}, 60.0)],
)
def test_each_request_is_bounded(options, limit_s):
    """The time-out is 60 seconds, or ``[placement] timeout`` if less.

    A worker sets 120 s there, for the requests of Nova's own client.
    """
    client, wire = _client((200, '{"resource_providers": []}'), **options)
    client.list_providers()
    ((_, sent),) = wire.sent
    assert sent['timeout'] == limit_s


def test_access_is_proved_by_one_request_that_gives_up_early():
    """A rejected token is an error, as is no answer."""
    client, wire = _client((200, '{"name": "VCPU"}'), (401, '{}'), (401, '{}'))
    client.check_access(5.0)
    ((_, options),) = wire.sent
    assert options['timeout'] == 5.0
    with pytest.raises(errors.PlacementUnavailable):
        client.check_access(5.0)
