# SPDX-License-Identifier: Apache-2.0
"""The session: credentials, API version and errors, with a scripted Ironic."""

import socket
from concurrent import futures

import pytest
import requests
from keystoneauth1 import exceptions as ksa_exc
from oslo_context import context as oslo_context

from ironic_compute import errors
from ironic_compute.ironic_api.client import make_client
from tests.unit.ironic_compute.ironic_api.scripted_http import (
    LOCKED,
    NO_CONDUCTOR,
    NODE,
    URL,
    fault,
    record,
    versions,
)


def test_missing_credentials_are_named(conf, gate):
    """The error names the missing option before any request is sent."""
    conf.clear_override('auth_type', 'ironic')
    conf.clear_override('endpoint_override', 'ironic')
    with pytest.raises(errors.ConfigError, match=r'\[ironic\] auth_type'):
        make_client(conf, gate)


def test_credentials_may_be_in_another_section(conf, gate):
    """auth_section may name any section; its missing options are named."""
    conf.clear_override('auth_type', 'ironic')
    conf.clear_override('endpoint_override', 'ironic')
    conf.set_override('auth_section', 'keys_of_ironic', 'ironic')
    with pytest.raises(errors.ConfigError, match='auth_type'):
        make_client(conf, gate)
    conf.set_override('auth_type', 'none', 'keys_of_ironic')
    make_client(conf, gate)


def test_unknown_auth_type_is_named(conf, gate):
    """A typing error in auth_type gives an error that names it."""
    conf.set_override('auth_type', 'pasword', 'ironic')
    with pytest.raises(errors.ConfigError, match='pasword'):
        make_client(conf, gate)


def test_new_client_sends_no_request(client, http):
    """An Ironic that is down does not stop a worker from starting."""
    assert http.call_count == 0


@pytest.mark.parametrize('highest', ['1.46', '1.81', '1.95', '1.999'])
def test_bug_1739440_older_and_newer_ironics_work(client, http, highest):
    """Ironic may be upgraded before or after the compute daemons."""
    versions(http, highest)
    http.get(f'{URL}/v1/nodes/{NODE}', json=record())
    assert client.read_node(NODE).uuid == NODE
    assert client.read_microversion() <= (1, int(highest[2:]))


def test_upgraded_ironic_is_used_in_full_after_the_next_list(client, http):
    """The version is negotiated again with each list of all nodes."""
    versions(http, '1.61')
    http.get(f'{URL}/v1/nodes/', json={'nodes': [record()]})
    client.list_nodes()
    assert 'lessee' not in http.last_request.qs['fields'][0]
    versions(http, '1.95')
    client.list_nodes()
    assert client.read_microversion() == (1, 95)
    assert 'lessee' in http.last_request.qs['fields'][0]


def test_highest_common_version_is_used(client, http):
    """With an Ironic that ends at 1.84, the client uses its own 1.82."""
    versions(http, '1.84')
    assert client.read_microversion() == (1, 82)


def test_too_old_ironic_is_a_configuration_error(client, http):
    """An Ironic without API version 1.46 has no conductor groups."""
    versions(http, '1.31')
    with pytest.raises(errors.ConfigError, match=r'1\.46'):
        client.check_pool()


def test_version_is_negotiated_again_after_a_rollback(client, http):
    """After one error the client uses the lower version of Ironic."""
    http.get(f'{URL}/v1/nodes/{NODE}', json=record())
    client.read_node(NODE)
    versions(http, '1.78')
    limits = {
        'X-OpenStack-Ironic-API-Minimum-Version': '1.1',
        'X-OpenStack-Ironic-API-Maximum-Version': '1.78',
    }
    http.get(f'{URL}/v1/nodes/{NODE}', status_code=406, headers=limits)
    with pytest.raises(errors.IronicUnavailable):
        client.read_node(NODE)
    assert client.read_microversion() == (1, 78)


@pytest.mark.parametrize(
    ('answer', 'wanted'),
    [
        ({'status_code': 404, 'json': fault('no node')}, errors.NodeNotFound),
        ({'status_code': 400, 'json': fault('bad')}, errors.IronicRefused),
        ({'status_code': 403, 'json': fault('no')}, errors.IronicRefused),
        ({'status_code': 401, 'text': ''}, errors.IronicUnavailable),
        ({'status_code': 502, 'text': ''}, errors.IronicUnavailable),
        ({'exc': requests.ConnectionError}, errors.IronicUnavailable),
        ({'exc': requests.ReadTimeout}, errors.IronicUnavailable),
        ({'json': {'uuid': 7}}, errors.IronicRefused),
    ],
)
def test_errors_of_the_libraries_are_translated(client, http, answer, wanted):
    """Callers get only errors of this package; the text names the node."""
    http.get(f'{URL}/v1/nodes/{NODE}', **answer)
    with pytest.raises(wanted, match=NODE):
        client.read_node(NODE)


@pytest.mark.parametrize(
    ('status', 'wanted'),
    [
        (409, errors.NodeLocked),
        (429, errors.IronicNotReached),
        (502, errors.IronicUnavailable),
        (503, errors.IronicNotReached),
    ],
)
def test_error_that_says_when_to_ask_again_is_translated(
    client, http, status, wanted
):
    """Many proxies send Retry-After, for which ironicclient has no place."""
    http.get(
        f'{URL}/v1/nodes/{NODE}',
        status_code=status,
        headers={'Retry-After': '30'},
        json=LOCKED,
    )
    with pytest.raises(wanted):
        client.read_node(NODE)


def test_refusal_for_a_protected_node_is_no_missing_right(client, http):
    """The operator who has protected it would look at Ironic's policies."""
    text = f'Node {NODE} is protected and cannot be undeployed, rebuilt or'
    http.put(
        f'{URL}/v1/nodes/{NODE}/states/provision',
        status_code=403,
        json=fault(text),
    )
    with pytest.raises(errors.IronicRefused, match=text) as refusal:
        client.set_provision_state(NODE, 'deleted')
    assert not isinstance(refusal.value, errors.IronicForbidden)
    assert 'right' not in str(refusal.value)


def test_404_without_json_is_none_of_ironic(client, http):
    """As of a web server that has no Ironic behind it for a moment."""
    page = {
        'status_code': 404,
        'text': '<html>Not Found</html>',
        'headers': {'Content-Type': 'text/html'},
    }
    http.get(f'{URL}/v1/nodes/{NODE}', **page)
    http.get(f'{URL}/v1/nodes/detail', **page)
    with pytest.raises(errors.IronicNotReached):
        client.read_node(NODE)
    with pytest.raises(errors.IronicNotReached):
        client.read_node_of_instance(NODE)


@pytest.mark.parametrize('body', ['', '{"message": "no Route matched"}', '[]'])
def test_404_of_another_form_is_none_of_ironic(client, http, body):
    """Envoy answers with an empty body, Kong with JSON of its own."""
    http.get(f'{URL}/v1/nodes/{NODE}', status_code=404, text=body)
    with pytest.raises(errors.IronicNotReached):
        client.read_node(NODE)


@pytest.mark.parametrize(
    ('method', 'url', 'send'),
    [
        ('get', '', lambda client: client.read_node(NODE)),
        ('patch', '', lambda client: client.patch_node(NODE, [])),
        ('post', '/vifs', lambda client: client.attach_vif(NODE, 'vif')),
        (
            'put',
            '/states/provision',
            lambda client: client.set_provision_state(NODE, 'active'),
        ),
    ],
)
def test_page_of_a_proxy_is_no_success(client, http, method, url, send):
    """Some proxies answer 200 with a page about their maintenance."""
    page = {
        'text': '\n<html>We are back soon</html>',
        'headers': {'Content-Type': 'text/html'},
    }
    getattr(http, method)(f'{URL}/v1/nodes/{NODE}{url}', **page)
    with pytest.raises(errors.IronicNotReached):
        send(client)


@pytest.mark.parametrize(
    ('status', 'method', 'url', 'change'),
    [
        (
            404,
            'put',
            f'{URL}/v1/nodes/{NODE}/states/provision',
            lambda client: client.set_provision_state(NODE, 'deleted'),
        ),
        (
            400,
            'patch',
            f'{URL}/v1/nodes/{NODE}',
            lambda client: client.patch_node(NODE, []),
        ),
    ],
)
def test_node_without_a_conductor_is_not_missing(
    client, http, status, method, url, change
):
    """Ironic says so with 404, or with 400, while others have conductors."""
    getattr(http, method)(url, status_code=status, json=NO_CONDUCTOR)
    with pytest.raises(errors.NoConductor, match='ipmi'):
        change(client)


def test_limit_of_deploys_is_told_from_an_outage(client, http):
    """Ironic answers 503 while max_concurrent_deploy nodes are deployed."""
    http.put(
        f'{URL}/v1/nodes/{NODE}/states/provision',
        status_code=503,
        json={
            'error_message': '{"faultstring": "Unable to process request at '
            'this time. The concurrent action limit for provisioning has been '
            'reached."}'
        },
    )
    with pytest.raises(errors.AtLimit) as caught:
        client.set_provision_state(NODE, 'active')
    assert errors.is_ironic_away(caught.value)


def test_404_of_keystone_is_none_of_ironic(client, http):
    """A token has expired, and Keystone's web server has no Keystone.

    Or the application credential was deleted.
    """
    http.get(f'{URL}/v1/nodes/{NODE}', exc=ksa_exc.NotFound)
    with pytest.raises(errors.IronicNotReached, match='auth_type'):
        client.read_node(NODE)


def test_ironicclient_repeats_no_request(client, http):
    """Repetitions of two layers would multiply, so one layer repeats."""
    http.get(f'{URL}/v1/nodes/{NODE}', status_code=503)
    asked_count = http.call_count
    with pytest.raises(errors.IronicNotReached):
        client.read_node(NODE)
    assert http.call_count - asked_count == 2  # One negotiates the version.


@pytest.fixture
def listener():
    """Return a socket at which connections arrive."""
    with socket.create_server(('127.0.0.1', 0)) as listener:
        yield listener


def _ask(conf, gate, address) -> errors.IronicComputeError:
    """Return the error of a request to an Ironic at this address."""
    host, port = address
    conf.set_override('endpoint_override', f'http://{host}:{port}', 'ironic')
    with pytest.raises(errors.IronicUnavailable) as raised:
        make_client(conf, gate).read_node(NODE)
    return raised.value


def test_refused_connection_is_certain(conf, gate, listener):
    """Ironic has done nothing, so any request may be sent again."""
    address = listener.getsockname()
    listener.close()
    assert isinstance(_ask(conf, gate, address), errors.Untouched)


def test_connection_reset_after_a_request_is_not_certain(conf, gate, listener):
    """Ironic may have begun what was requested, as by a lost answer."""

    def receive_and_reset() -> None:
        connection, _ = listener.accept()
        connection.recv(1)
        connection.close()  # Data was not read, so that this is a reset.

    with futures.ThreadPoolExecutor(1) as thread:
        thread.submit(receive_and_reset)
        error = _ask(conf, gate, listener.getsockname())
    assert not isinstance(error, errors.Untouched)


@pytest.mark.parametrize(
    ('answer', 'status'),
    [
        ({'status_code': 401}, 401),
        ({'status_code': 404, 'text': 'of a proxy'}, None),
        ({'status_code': 500}, 500),
        ({'status_code': 503}, 503),
        ({'exc': requests.ConnectionError}, None),
        ({'exc': requests.ReadTimeout}, None),
        ({'exc': requests.exceptions.SSLError}, None),
    ],
)
def test_error_tells_whether_ironic_has_answered(client, http, answer, status):
    """A service that answers with an error is reached."""
    http.get(f'{URL}/v1/nodes/{NODE}', **answer)
    with pytest.raises(errors.IronicUnavailable) as raised:
        client.read_node(NODE)
    assert raised.value.http_status == status


def _run_in_thread(act, request_id, global_id=None):
    """Run a function in a thread that works on a user's request."""

    def run():
        oslo_context.RequestContext(
            request_id=request_id, global_request_id=global_id
        )
        act()

    with futures.ThreadPoolExecutor(1) as threads:
        threads.submit(run).result()


def _last_id(http):
    return http.last_request.headers.get('X-OpenStack-Request-ID')


def test_each_request_has_the_id_of_its_threads_request(client, http):
    """Reads, lists and changes have it, though the threads share a client."""
    http.get(f'{URL}/v1/nodes/{NODE}', json=record())
    http.get(f'{URL}/v1/nodes/', json={'nodes': [record()]})
    http.put(f'{URL}/v1/nodes/{NODE}/states/provision', status_code=202)
    for number, act in enumerate(
        (
            lambda: client.read_node(NODE),
            client.list_nodes,
            lambda: client.set_provision_state(NODE, 'active'),
        )
    ):
        request_id = f'req-{number}1111111-1111-1111-1111-111111111111'
        _run_in_thread(act, request_id)
        assert _last_id(http) == request_id


def test_id_that_the_users_client_gave_is_passed_on(client, http):
    """It is the one under which all services log the request."""
    http.get(f'{URL}/v1/nodes/{NODE}', json=record())
    _run_in_thread(lambda: client.read_node(NODE), 'req-nova', 'req-heat')
    assert _last_id(http) == 'req-heat'


def test_request_of_a_thread_without_context_has_no_id(client, http):
    """Lists of the daemon itself are on behalf of no user."""
    http.get(f'{URL}/v1/nodes/{NODE}', json=record())
    with futures.ThreadPoolExecutor(1) as threads:
        threads.submit(client.read_node, NODE).result()
    assert _last_id(http) is None
