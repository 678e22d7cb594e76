# SPDX-License-Identifier: Apache-2.0
"""Neutron behind HTTP: Nova's real client in front of Nova's fixture.

The fixture replaces Nova's client. Here Nova has its own client again, and
what it sends goes through the session that a worker has made, as far as a
transport which asks the fixture, or which refuses connections.
"""

import http
import io
import json
import time
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

import nova.conf
import requests
from keystoneauth1 import loading as ks_loading
from nova import exception as nova_exception
from nova import service_auth
from nova.network import neutron as nova_neutron
from urllib3 import exceptions as urllib3_exceptions

CONF = nova.conf.CONF
URL = 'http://neutron'
# Before any fixture has replaced it.
_get_client = nova_neutron.get_client
_BOOLEANS = {'True': True, 'False': False}


class NeutronTransport(requests.adapters.BaseAdapter):
    """The network between one process and Neutron.

    :param fixture: answers the requests
    """

    def __init__(self, fixture: Any) -> None:
        super().__init__()
        self._fixture = fixture
        self._refused_until_s = 0.0
        self._is_refused: Callable[[str], bool] = lambda line: False
        self.arrived: list[str] = []
        self.refused: list[str] = []

    def refuse(
        self, seconds: float, is_refused: Callable[[str], bool]
    ) -> None:
        """Refuse all connections for a while, beginning with one request.

        :param is_refused: whether the refusals begin with a request line
        """
        self._is_refused = is_refused
        self._refused_until_s = -seconds

    def send(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Answer a request, or refuse its connection."""
        line = f'{request.method} {request.path_url}'
        if self._refuses(line):
            self.refused.append(line)
            raise _refusal(request)
        self.arrived.append(line)
        return self._answer(request)

    def close(self) -> None:
        """Close nothing."""

    def _refuses(self, line: str) -> bool:
        if self._refused_until_s < 0.0 and self._is_refused(line):
            self._refused_until_s = time.monotonic() - self._refused_until_s
        return time.monotonic() < self._refused_until_s

    def _answer(self, request: Any) -> requests.Response:
        response = requests.Response()
        response.request, response.url = request, request.url
        response.headers['Content-Type'] = 'application/json'
        response.status_code = http.HTTPStatus.OK
        try:
            body = self._ask(request)
        except nova_exception.NotFound as exc:
            response.status_code = http.HTTPStatus.NOT_FOUND
            body = {'NeutronError': {'message': str(exc), 'detail': ''}}
        response.raw = io.BytesIO(json.dumps(body).encode())
        return response

    def _ask(self, request: Any) -> Any:
        """Call the fixture's method for a request, such as ``show_port``."""
        url = urllib.parse.urlsplit(request.url)
        _, _, plural, *ids = url.path.replace('-', '_').split('/')
        ids = url.path.split('/')[3:]
        body = json.loads(request.body) if request.body else None
        name = plural.removesuffix('s')
        ask = self._fixture
        match request.method:
            case 'GET' if ids:
                return getattr(ask, f'show_{name}')(*ids)
            case 'GET':
                return self._list(plural, urllib.parse.parse_qs(url.query))
            case 'POST':
                return getattr(ask, f'create_{name}')(body)
            case 'PUT':
                return getattr(ask, f'update_{name}')(*ids, body)
        return getattr(ask, f'delete_{name}')(*ids)

    def _list(self, plural: str, query: Mapping[str, list[str]]) -> Any:
        wanted = {
            name: [_BOOLEANS.get(value, value) for value in values]
            for name, values in query.items()
        }
        if plural == 'ports':
            wanted['is_admin'] = True  # type: ignore[assignment]
        return getattr(self._fixture, f'list_{plural}')(**wanted)


def _refusal(request: Any) -> requests.ConnectionError:
    """Return the error of requests for a connection that is refused.

    A real connection is not tried, because Nova's fixtures replace them in
    this process, and their error has another form.
    """
    # urllib3 has these errors keep their connections, and there are none.
    new_connection_error: Any = urllib3_exceptions.NewConnectionError
    max_retry_error: Any = urllib3_exceptions.MaxRetryError
    try:
        try:
            raise ConnectionRefusedError('refused')
        except ConnectionRefusedError as exc:
            raise new_connection_error(None, 'refused') from exc
    except new_connection_error as exc:
        reason = max_retry_error(None, request.url, exc)
        return requests.ConnectionError(reason, request=request)


def use_http(test: Any) -> NeutronTransport:
    """Let Nova of a test send its requests to Neutron over HTTP."""
    ks_loading.register_auth_conf_options(CONF, 'neutron')
    test.flags(auth_type='none', endpoint_override=URL, group='neutron')
    transport = NeutronTransport(test.neutron)
    session = service_auth.get_service_auth_session('neutron')
    session.session.mount('http://', transport)
    test.stub_out('nova.network.neutron.get_client', _get_admin_client)
    return transport


def _get_admin_client(context: Any, admin: bool = False) -> Any:
    """Return Nova's client, with the rights of an operator for all."""
    return _get_client(context.elevated(), admin=True)
