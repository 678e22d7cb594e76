# SPDX-License-Identifier: Apache-2.0
"""The probe of Placement, against answers over HTTP.

``tests/contract/placement/test_double_allocation.py`` runs it against the real
Placement.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import requests
import requests_mock
from keystoneauth1 import adapter, session, token_endpoint

from ironic_compute.cmd import placement_probe
from ironic_compute.cmd.placement_probe import PlacementProbe, ProbeFailed

URL = 'http://placement'
_GONE = requests.ConnectionError('gone')


class _Service:
    """Answers each request; ``wins`` consumers get the unit in each try."""

    def __init__(self, mock: requests_mock.Mocker) -> None:
        self.wins = 1
        self.requests: list[str] = []
        # Method and start of the path -> status, or no answer at all.
        self.failures: dict[str, int | Exception] = {}
        self._holders: list[str] = []
        mock.register_uri(requests_mock.ANY, requests_mock.ANY, text=self._do)

    def _do(self, request: Any, context: Any) -> str:
        path = request.path
        self.requests.append(f'{request.method} {path}')
        context.status_code = 204
        for start, failure in self.failures.items():
            if f'{request.method} {path}'.startswith(start):
                if isinstance(failure, Exception):
                    raise failure
                context.status_code = failure
                return ''
        if path.startswith('/allocations/'):
            context.status_code = self._allocate(request.method, path)
        return ''

    def _allocate(self, method: str, path: str) -> int:
        if method == 'DELETE':
            is_held = path in self._holders
            self._holders = [each for each in self._holders if each != path]
            return 204 if is_held else 404
        if len(self._holders) >= self.wins:
            return 409
        self._holders.append(path)
        return 204

    def probe(self) -> int | None:
        """Run one probe."""
        auth = token_endpoint.Token(URL, 'admin')
        return PlacementProbe(
            adapter.Adapter(session.Session(auth), service_type='placement')
        ).run()

    def remains(self) -> bool:
        """Whether an allocation is left, or no provider was deleted last."""
        deletes = ('DELETE /resource_providers/', 'DELETE /resource_classes/')
        ended = zip(self.requests[-2:], deletes, strict=True)
        return bool(self._holders) or not all(
            request.startswith(delete) for request, delete in ended
        )


@pytest.fixture
def service() -> Iterator[_Service]:
    with requests_mock.Mocker() as mock:
        yield _Service(mock)


def test_one_consumer_in_each_try_is_no_defect(service: _Service) -> None:
    """All tries are made, and everything is deleted."""
    assert service.probe() is None
    puts = [r for r in service.requests if r.startswith('PUT /allocations/')]
    assert len(puts) == (
        placement_probe.TRIES_COUNT * placement_probe.CONSUMERS_COUNT
    )
    assert not service.remains()


def test_two_consumers_in_one_try_are_the_defect(service: _Service) -> None:
    """The first such try ends the probe, and everything is deleted."""
    service.wins = 2
    assert service.probe() == 1
    assert not service.remains()


def test_provider_of_another_probe_stays(service: _Service) -> None:
    """The name is in use; the only provider asked for again is our own."""
    service.failures = {
        'POST /resource_providers': 409,
        'DELETE /resource_providers/': 404,
    }
    with pytest.raises(ProbeFailed, match='another probe'):
        service.probe()
    assert not service.remains()


@pytest.mark.parametrize(
    'request_line',
    ['POST /resource_providers', 'PUT /resource_providers/'],
)
@pytest.mark.parametrize('failure', [503, _GONE])
def test_failed_creation_is_cleaned_up(
    service: _Service, request_line: str, failure: int | Exception
) -> None:
    """A request without an answer may have created the provider."""
    service.failures = {request_line: failure}
    if request_line.startswith('POST') and failure == 503:
        service.failures['PUT /resource_providers/'] = 404
    with pytest.raises(ProbeFailed, match='Placement'):
        service.probe()
    assert not service.remains()


def test_lost_answer_to_an_allocation_is_cleaned_up(
    service: _Service,
) -> None:
    """It may have been a success, so the consumers are deleted."""
    service.failures = {'PUT /allocations/': _GONE}
    with pytest.raises(ProbeFailed, match='PUT /allocations/'):
        service.probe()
    deletes = [r for r in service.requests if r.startswith('DELETE /alloc')]
    assert len(deletes) == placement_probe.CONSUMERS_COUNT
    assert not service.remains()


@pytest.mark.parametrize('failure', [409, 500, _GONE])
def test_provider_that_stays_is_named(
    service: _Service, failure: int | Exception
) -> None:
    """The operator learns which provider to delete."""
    service.failures = {'DELETE /resource_providers/': failure}
    with pytest.raises(ProbeFailed, match='could not be deleted') as raised:
        service.probe()
    uuid = service.requests[-1].rpartition('/')[2]
    assert uuid in str(raised.value)
