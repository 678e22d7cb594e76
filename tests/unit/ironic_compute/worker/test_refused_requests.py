# SPDX-License-Identifier: Apache-2.0
"""Refusals of requests that Nova's own code makes, as sentences."""

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from keystoneauth1 import adapter, fixture, plugin, service_token, session
from keystoneauth1.identity import v3
from nova import service_auth

from ironic_compute.worker import refused_requests

_POLICY = (
    '(rule:update_port and rule:update_port:device_id) is disallowed by policy'
)
_KEYSTONE = 'http://keystone/v3'
_OWN = v3.Password(
    _KEYSTONE, username='u', user_domain_id='d', password='secret'
)


class _UserToken(plugin.BaseAuthPlugin):
    """The token of the user who asked for a server."""

    def get_token(self, session: Any, **kwargs: Any) -> str:
        return 'token'


class _Service(requests.adapters.BaseAdapter):
    """Keystone, and a service that answers each request in one way."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__()
        self._status, self._text = status, text

    def send(self, request: Any, *_: Any, **__: Any) -> requests.Response:
        """Answer a request."""
        response = requests.Response()
        response.request, response.url = request, request.url
        response.status_code, text = self._status, self._text
        if request.url.startswith(_KEYSTONE):
            response.status_code, text = 201, json.dumps(fixture.V3Token())
            response.headers['X-Subject-Token'] = 'token'
        response.raw = io.BytesIO(text.encode())
        response.headers['Content-Type'] = 'application/json'
        return response

    def close(self) -> None:
        """Close nothing."""


def _request(
    section: str, auth: Any, status: int = 403, text: str = ''
) -> Any:
    """Send a request as Nova's client of a service does."""
    sent = session.Session()
    sent.session.mount('http://', _Service(status, text))
    sent.request = refused_requests.logged(section, sent.request)
    client = adapter.Adapter(
        sent, auth=auth, endpoint_override='http://service:9696'
    )
    return client.put('/v2.0/ports/p1?x=y', json={}, raise_exc=False)


def _neutron_error(message: str) -> str:
    error = {'type': 'PolicyNotAuthorized', 'message': message, 'detail': ''}
    return json.dumps({'NeutronError': error})


@pytest.mark.parametrize(
    'auth',
    [_OWN, service_token.ServiceTokenAuthWrapper(_OWN, _UserToken())],
)
def test_refusal_names_the_rules_and_the_section(
    caplog: Any, auth: Any
) -> None:
    """With the credentials of nova.conf, beside a service token or not."""
    response = _request('neutron', auth, text=_neutron_error(_POLICY))
    assert response.status_code == 403
    (record,) = caplog.records
    assert record.message.startswith(
        f'Neutron refused PUT /v2.0/ports/p1: {_POLICY} (HTTP 403); the user '
        f'below [neutron] in nova.conf lacks a right'
    )


def test_refusal_of_a_users_token_names_that_user(caplog: Any) -> None:
    """Nova sends a service token beside it, whose rights do not count."""
    auth = service_token.ServiceTokenAuthWrapper(_UserToken(), _OWN)
    text = json.dumps({'forbidden': {'code': 403, 'message': 'volume:x'}})
    _request('cinder', auth, text=text)
    assert 'Cinder refused PUT' in caplog.text
    assert ': volume:x (HTTP 403); the user who asked for it' in caplog.text


@pytest.mark.parametrize('text', ['<b>no</b>\n', '[]', '{}', '{"a": "b"}'])
def test_refusal_without_a_message_has_its_text(
    caplog: Any, text: str
) -> None:
    """A page of HTML, or JSON of another form."""
    _request('glance', _UserToken(), text=text)
    (record,) = caplog.records
    assert f': {text.strip()} (HTTP 403); ' in record.message


@pytest.mark.parametrize('status', [200, 401, 404, 409])
def test_other_answers_are_not_logged(caplog: Any, status: int) -> None:
    """They have nothing to do with rights, or Nova shows them."""
    assert _request('neutron', _OWN, status).status_code == status
    assert not caplog.records


@pytest.fixture
def _new_sessions() -> Iterator[None]:
    service_auth.reset_globals()
    yield
    service_auth.reset_globals()


@pytest.mark.usefixtures('_new_sessions')
@pytest.mark.parametrize('section', ['neutron', 'cinder', 'glance'])
def test_the_sessions_of_nova_log(caplog: Any, section: str) -> None:
    """Whoever asks for a session later gets the same one."""
    refused_requests.log_refusals()
    sent = service_auth.get_service_auth_session(section)
    sent.session.mount('http://', _Service(403, _neutron_error(_POLICY)))
    client = adapter.Adapter(sent, auth=_OWN, endpoint_override='http://x')
    client.get('/', raise_exc=False)
    assert f'refused GET /: {_POLICY}' in caplog.text
