# SPDX-License-Identifier: Apache-2.0
"""A write is not sent without the lease, however long Keystone takes."""

import io
import threading
from typing import Any

import pytest
import requests
from keystoneauth1 import session as ksa_session
from keystoneauth1 import token_endpoint

from ironic_compute.gate import LeaseGate
from ironic_compute.gated_transport import gate_transport
from tests.fakes.clock import ManualClock

_URL = 'http://service/x'


class _SlowKeystone(token_endpoint.Token):
    """Gives a token; the lease of the test ends meanwhile.

    :param slow_count: which of the tokens takes so long
    """

    def __init__(self, gate: LeaseGate, slow_count: int) -> None:
        super().__init__('http://service', 'token')
        self._gate = gate
        self._left_count = slow_count

    def get_token(self, *args: Any, **kwargs: Any) -> str:
        self._left_count -= 1
        if self._left_count == 0:
            self._gate.shut()
        return 'token'

    def invalidate(self) -> bool:
        """Return True: another token can be had."""
        return True


class _Service(requests.adapters.BaseAdapter):
    """Notes the requests, and answers with these status codes, then 200."""

    def __init__(self, *codes: int) -> None:
        super().__init__()
        self.arrived: list[str] = []
        self._codes = list(codes)

    def send(self, request: Any, *_: Any, **__: Any) -> requests.Response:
        self.arrived.append(str(request.method))
        response = requests.Response()
        response.status_code = self._codes.pop(0) if self._codes else 200
        response.request, response.url = request, request.url
        response.raw = io.BytesIO(b'{}')
        return response

    def close(self) -> None:
        """Close nothing."""


def _make(service: _Service, slow_count: int) -> tuple[Any, LeaseGate]:
    """Return a session with the service, and the gate, which is open."""
    gate = LeaseGate(ManualClock(100.0), 110.0)
    session = ksa_session.Session(_SlowKeystone(gate, slow_count))
    session.session.mount('http://', service)
    gate_transport(session, gate)
    return session, gate


@pytest.mark.parametrize('method', ['POST', 'PUT', 'PATCH', 'DELETE'])
@pytest.mark.parametrize(
    ('codes', 'slow_count'),
    [((), 1), ((401,), 2)],
    ids=['first token', 'token after a refusal'],
)
def test_write_waits_if_the_lease_ends_before_there_is_a_token(
    method: str, codes: tuple[int, ...], slow_count: int
) -> None:
    """It was sent although another host might serve the server by then."""
    service = _Service(*codes)
    session, gate = _make(service, slow_count)
    sending = threading.Thread(target=session.request, args=(_URL, method))
    sending.start()
    sending.join(0.3)
    assert sending.is_alive()
    assert len(service.arrived) == len(codes)
    gate.extend(120.0)
    sending.join(60.0)
    assert service.arrived == [method] * (len(codes) + 1)


@pytest.mark.parametrize(
    ('method', 'options'),
    [('GET', {}), ('HEAD', {}), ('POST', {'authenticated': False})],
    ids=['GET', 'HEAD', 'request for a token'],
)
def test_what_changes_nothing_never_waits(
    method: str, options: dict[str, bool]
) -> None:
    """Reads go on without the lease, and need tokens."""
    service = _Service()
    session, gate = _make(service, 1)
    gate.shut()
    session.request(_URL, method, **options)
    assert service.arrived == [method]
