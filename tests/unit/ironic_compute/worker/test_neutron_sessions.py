# SPDX-License-Identifier: Apache-2.0
"""Nova's own clients of Neutron and Keystone, over a network that fails."""

import io
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import nova.conf
import pytest
import requests
from keystoneauth1 import exceptions as ksa_exceptions
from keystoneauth1 import fixture
from keystoneauth1 import loading as ks_loading
from neutronclient.common import exceptions as neutron_exceptions
from nova import context as nova_context
from nova import objects, service_auth
from nova import policy as nova_policy
from nova.network import model
from nova.network import neutron as nova_neutron
from nova.objects import base as objects_base

from hashring.opts import Timing
from ironic_compute.gate import LeaseGate
from ironic_compute.manager.retries import NO_ANSWER, has_no_answer
from ironic_compute.paths.path_health import NEUTRON, PathHealth
from ironic_compute.paths.repeated_requests import (
    TAKE_OVER_S,
    RepeatedRequests,
    waiting_at_most,
)
from ironic_compute.paths.traffic import SessionTraffic
from ironic_compute.worker import process
from ironic_compute.worker.gated_writes import gate_sessions
from tests.fakes.clock import ManualClock

_WAIT_S = 75.0
_KEYSTONE, _NEUTRON = 'http://keystone/v3', 'http://neutron'
_SERVER = '0b5d6a4e-5b0b-4ec3-9d0c-0c6a1d3a6c11'


class _Cloud(requests.adapters.BaseAdapter):
    """Keystone and Neutron, which has one network.

    :ivar failures: of the next requests to a service, by its address
    :ivar lost_answers: how many ports are created without an answer
    :ivar is_open: whether Keystone accepts the password
    """

    def __init__(self) -> None:
        super().__init__()
        self.arrived: list[str] = []
        self.failures: dict[str, list[Any]] = {_KEYSTONE: [], _NEUTRON: []}
        self.ports: dict[str, dict[str, Any]] = {}
        self.lost_answers = 0
        self.is_open = True

    def send(self, request: Any, *_: Any, **__: Any) -> requests.Response:
        """Answer a request, or fail it."""
        is_keystone = request.url.startswith('http://keystone')
        service = _KEYSTONE if is_keystone else _NEUTRON
        self.arrived.append(f'{request.method} {request.path_url}')
        failures = self.failures[service]
        failure = failures.pop(0) if failures else None
        if isinstance(failure, Exception):
            raise failure
        if isinstance(failure, str):
            page = _response(request, {}, 404)
            page.raw = io.BytesIO(failure.encode())
            return page
        if failure is not None:
            return _response(request, {}, failure)
        if is_keystone:
            return self._authenticate(request)
        return self._serve(request)

    def _authenticate(self, request: Any) -> requests.Response:
        if request.method == 'GET':
            versions = fixture.DiscoveryList(_KEYSTONE, v2=False)
            return _response(request, versions)
        if not self.is_open:
            return _response(request, {}, 401)
        token = fixture.V3Token()
        token.set_project_scope()
        catalog = token.add_service('network', 'neutron')
        catalog.add_standard_endpoints(internal=_NEUTRON, public=_NEUTRON)
        response = _response(request, token, 201)
        response.headers['X-Subject-Token'] = 'token'
        return response

    def _serve(self, request: Any) -> requests.Response:
        path = request.path_url.split('?')[0]
        match request.method, path.split('/')[2:]:
            case 'POST', ['ports']:
                name = f'p{len(self.ports) + 1}'
                port = {'id': name, **json.loads(request.body)['port']}
                self.ports[name] = port
                if self.lost_answers:
                    self.lost_answers -= 1
                    raise requests.ReadTimeout
                return _response(request, {'port': port}, 201)
            case 'DELETE', ['ports', name]:
                del self.ports[name]
                return _response(request, None, 204)
            case 'GET', ['ports']:
                return _response(request, {'ports': list(self.ports.values())})
            case 'GET', ['networks']:
                network = {'id': 'n1', 'name': 'n1', 'subnets': ['s1']}
                return _response(request, {'networks': [network]})
            case _:
                return _response(request, {'extensions': []})

    def close(self) -> None:
        """Close nothing."""


def _response(request: Any, body: Any, status: int = 200) -> requests.Response:
    response = requests.Response()
    response.status_code, response.request = status, request
    response.url = request.url
    text = b'' if body is None else json.dumps(body).encode()
    response.raw = io.BytesIO(text)
    response.headers['Content-Type'] = 'application/json'
    return response


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def health(clock: ManualClock) -> PathHealth:
    return PathHealth(clock)


@pytest.fixture
def cloud(clock: ManualClock, health: PathHealth) -> Iterator[_Cloud]:
    """The services, with Nova's session of a worker in front of them."""
    conf = nova.conf.CONF
    ks_loading.register_auth_conf_options(conf, 'neutron')
    conf.set_override('auth_type', 'password', 'neutron')
    plugin = ks_loading.get_auth_plugin_conf_options('password')
    conf.register_opts(plugin, 'neutron')
    options = {
        'auth_url': _KEYSTONE,
        'username': 'nova',
        'password': 'secret',
        'user_domain_id': 'default',
        'project_name': 'service',
        'project_domain_id': 'default',
    }
    for name, value in options.items():
        conf.set_override(name, value, 'neutron')
    service_auth.reset_globals()
    gate = LeaseGate(clock, clock.now_s() + 1e6)
    traffic = SessionTraffic(NEUTRON, health, clock)
    gate_sessions(gate, traffic, RepeatedRequests(clock, _WAIT_S), clock)
    services = _Cloud()
    session = service_auth.get_service_auth_session('neutron')
    session.session.mount('http://', services)
    yield services
    service_auth.reset_globals()
    for name in ('auth_type', *options):
        conf.clear_override(name, 'neutron')
    # Some are required, so no other test could read a configuration.
    conf.unregister_opts(plugin, 'neutron')


def _client() -> Any:
    return nova_neutron.get_client(
        nova_context.get_admin_context(), admin=True
    )


_AWAY = [requests.ConnectionError('away')] * 4
_NO_SUCCESS = (
    ksa_exceptions.HttpServerError,
    neutron_exceptions.NeutronClientException,
)
_NO_SERVICE = '<html>404 Not Found</html>'


@pytest.mark.parametrize('service', [_KEYSTONE, _NEUTRON])
def test_404_of_a_proxy_does_not_delete_a_port(
    service: str, cloud: _Cloud
) -> None:
    """Nova would take the port for deleted, and its address stayed in use."""
    client = _client()
    client.create_port({'port': {'device_id': _SERVER}})
    if service == _KEYSTONE:
        client.httpclient.auth.invalidate()
    cloud.failures[service] = [_NO_SERVICE] * 3
    client.delete_port('p1')
    assert cloud.ports == {}


def test_404_of_neutron_is_its_answer(
    cloud: _Cloud, clock: ManualClock
) -> None:
    """A port that is gone is not waited for."""
    cloud.failures[_NEUTRON] = [404]
    begun_s = clock.now_s()
    with pytest.raises(neutron_exceptions.NotFound):
        _client().delete_port('p1')
    assert clock.now_s() == begun_s


@pytest.mark.parametrize('status', [502, 503, 504])
@pytest.mark.parametrize('service', [_KEYSTONE, _NEUTRON])
def test_proxy_without_a_service_has_no_answer(
    service: str, status: int, cloud: _Cloud
) -> None:
    """So a delete of a server is repeated, which ended in ERROR."""
    cloud.failures[service] = [status] * 1000
    with pytest.raises(_NO_SUCCESS) as raised:
        _client().list_ports()
    assert has_no_answer(raised.value)


@pytest.mark.parametrize(
    'failures', [_AWAY, [503] * 4, [502, 504, *_AWAY]], ids=str
)
@pytest.mark.parametrize('write', [False, True])
def test_request_waits_for_keystone_which_it_needs_first(
    failures: list[Any], cloud: _Cloud, health: PathHealth, *, write: bool
) -> None:
    """A port is created once, when Keystone has answered."""
    cloud.failures[_KEYSTONE] = list(failures)
    client = _client()
    if write:
        client.create_port({'port': {'device_id': _SERVER}})
        assert len(cloud.ports) == 1
    else:
        assert client.list_ports()['ports'] == []
    assert not cloud.failures[_KEYSTONE]
    assert not health.is_failing(NEUTRON) or _AWAY[0] in failures


@pytest.mark.parametrize(
    'failure', [requests.ConnectionError('away'), requests.ReadTimeout()]
)
def test_keystone_that_stays_away_is_a_failure_of_the_path(
    failure: Exception, cloud: _Cloud, clock: ManualClock, health: PathHealth
) -> None:
    """The time is up once, however many requests to Keystone are needed."""
    cloud.failures[_KEYSTONE] = [failure] * 1000
    begun_s = clock.now_s()
    with pytest.raises(NO_ANSWER):
        _client().list_ports()
    assert clock.now_s() - begun_s == _WAIT_S
    assert health.is_failing(NEUTRON)
    assert not any(line.startswith('GET /v2.0') for line in cloud.arrived)


def test_probe_asks_keystone_once(cloud: _Cloud, clock: ManualClock) -> None:
    """It must not wait, because it tells whether the path works."""
    cloud.failures[_KEYSTONE] = list(_AWAY)
    begun_s = clock.now_s()
    with waiting_at_most(0.0), pytest.raises(NO_ANSWER):
        _client().list_networks()
    assert clock.now_s() == begun_s


def test_token_that_expires_is_renewed_for_a_new_port(
    cloud: _Cloud,
) -> None:
    """Keystone alone was away, so no port was created before."""
    client = _client()
    client.list_ports()
    client.httpclient.auth.invalidate()
    cloud.failures[_KEYSTONE] = list(_AWAY)
    client.create_port({'port': {'device_id': _SERVER}})
    assert len(cloud.ports) == 1


def test_wrong_password_fails_at_once(
    cloud: _Cloud, clock: ManualClock, health: PathHealth
) -> None:
    """It does not go away by waiting, and nothing can be done with it."""
    cloud.is_open = False
    begun_s = clock.now_s()
    with pytest.raises(ksa_exceptions.Unauthorized):
        _client().list_ports()
    assert clock.now_s() == begun_s
    assert health.is_failing(NEUTRON)


class _NoConductor:
    """nova-conductor, which saves what no test reads."""

    def object_action(self, *_: Any) -> Any:
        return {}, None

    def object_class_action_versions(self, *_: Any) -> None:
        """Return nothing."""


def test_port_without_an_answer_is_deleted_with_the_failed_build(
    cloud: _Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nova builds on another node after it has freed the ports of this one.

    It finds a port that it does not know of by the server's uuid.
    """
    objects.register_all()
    monkeypatch.setattr(
        objects_base.NovaObject, 'indirection_api', _NoConductor()
    )
    context = nova_context.get_admin_context()
    cache = objects.InstanceInfoCache(
        context, instance_uuid=_SERVER, network_info=model.NetworkInfo()
    )
    server = objects.Instance(
        context,
        uuid=_SERVER,
        project_id='p',
        deleted=False,
        system_metadata={},
        info_cache=cache,
    )
    cloud.lost_answers = 1
    api = nova_neutron.API()
    networks = objects.NetworkRequestList(
        objects=[objects.NetworkRequest(network_id='n1')]
    )
    monkeypatch.setattr(nova_policy, 'authorize', lambda *_, **__: True)
    client = _client()
    monkeypatch.setattr(nova_neutron, 'get_client', lambda *_, **__: client)
    with pytest.raises(ksa_exceptions.ConnectTimeout):
        api.allocate_for_instance(context, server, networks)
    assert len(cloud.ports) == 1, 'the request was carried out, once'
    api.deallocate_for_instance(context, server, requested_networks=networks)
    assert cloud.ports == {}
    assert 'GET /v2.0/ports?device_id=' + _SERVER in cloud.arrived


@pytest.fixture
def worker_conf() -> Iterator[Any]:
    """nova.conf with the defaults of a worker."""
    conf = nova.conf.CONF
    process.set_defaults(conf)
    yield conf
    for group, name, _ in process._DEFAULTS:
        conf.clear_default(name, group)
        conf.clear_override(name, group)


@pytest.mark.parametrize('group', ['neutron', 'cinder', 'glance', 'placement'])
@pytest.mark.parametrize('configured_s', [None, 30])
def test_request_to_a_service_has_a_time_limit(
    group: str, configured_s: int | None, worker_conf: Any
) -> None:
    """A lost packet blocked a build's thread for a quarter of an hour.

    Until the limit, another daemon has got the host if this one is cut off.
    """
    conf = worker_conf
    if configured_s is not None:
        conf.set_override('timeout', configured_s, group)
    session = ks_loading.load_session_from_conf_options(conf, group)
    if configured_s is None:
        assert session.timeout > Timing().half_alive_s + TAKE_OVER_S
    else:
        assert session.timeout == configured_s


def test_thread_of_a_build_ends_if_neutron_is_silent(cloud: _Cloud) -> None:
    """The connection is open, but there is no answer on it."""
    conf = nova.conf.CONF
    with socket.create_server(('127.0.0.1', 0)) as silent:
        port = silent.getsockname()[1]
        conf.set_override(
            'endpoint_override', f'http://127.0.0.1:{port}', 'neutron'
        )
        session = service_auth.get_service_auth_session('neutron')
        session.timeout = 0.5
        session.session.mount(
            'http://127.0.0.1', requests.adapters.HTTPAdapter()
        )
        ended: list[BaseException] = []

        def build() -> None:
            try:
                _client().create_port({'port': {'device_id': _SERVER}})
            except ksa_exceptions.ConnectTimeout as exc:
                ended.append(exc)

        thread = threading.Thread(target=build, daemon=True)
        thread.start()
        thread.join(60.0)
    conf.clear_override('endpoint_override', 'neutron')
    assert not thread.is_alive()
    assert ended
