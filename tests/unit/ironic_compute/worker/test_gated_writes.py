# SPDX-License-Identifier: Apache-2.0
"""What Nova's own code writes waits at the gate, just before it is sent."""

import contextlib
import io
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import nova.conf
import pytest
import requests
from cinderclient import client as cinder_client
from keystoneauth1 import adapter as ksa_adapter
from keystoneauth1 import exceptions as ksa_exceptions
from keystoneauth1 import loading as ks_loading
from keystoneauth1 import noauth as none
from keystoneauth1 import session as ksa_session
from keystoneauth1 import token_endpoint
from nova import context as nova_context
from nova import objects, service_auth
from nova.network import neutron as nova_neutron
from nova.objects import base as objects_base
from nova.scheduler.client import report

from ironic_compute.gate import LeaseGate
from ironic_compute.paths.path_health import PathHealth
from ironic_compute.paths.repeated_requests import RepeatedRequests
from ironic_compute.paths.traffic import ConductorTraffic
from ironic_compute.worker.gated_writes import (
    GatedConductor,
    gate_placement,
    gate_sessions,
)
from tests.fakes.clock import ManualClock

_UUID = '0b5d6a4e-5b0b-4ec3-9d0c-0c6a1d3a6c11'


class _Client:
    """nova-conductor's end of the RPC: notes what arrives and does it."""

    def __init__(self) -> None:
        self.arrived: list[str] = []
        self.timeout_s: float | None = None

    def prepare(self, timeout: float | None = None) -> '_Client':
        """Return what a call is made with."""
        self.timeout_s = timeout
        return self

    def call(self, context: Any, method: str, **arguments: Any) -> Any:
        """Answer a call."""
        if method == 'object_action':
            name = arguments['objinst'].obj_name()
            self.arrived.append(f'{name}.{arguments["objmethod"]}')
            return {}, None
        self.arrived.append(f'{arguments["objname"]}.{arguments["objmethod"]}')
        return None


class _Conductor(GatedConductor):
    """The real one, without a message bus under it."""

    def __init__(self, gate: LeaseGate) -> None:
        clock = ManualClock()
        self._gate, self._clock = gate, clock
        self._traffic = ConductorTraffic(PathHealth(clock), clock)
        self.client = _Client()


class _Adapter:
    """keystoneauth's end of the way to Placement."""

    def __init__(self) -> None:
        self.additional_headers: dict[str, str] = {}
        self.arrived: list[str] = []
        self.session = ksa_session.Session()

    def __getattr__(self, name: str) -> Callable[..., str]:
        def send(url: str, **arguments: Any) -> str:
            self.arrived.append(name)
            return f'answer to {name}'

        return send


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def gate(clock: ManualClock) -> LeaseGate:
    """A gate that is shut."""
    return LeaseGate(clock)


@pytest.fixture
def arrived(
    gate: LeaseGate, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[str]]:
    """What has arrived at the conductor, from all of Nova's objects."""
    objects.register_all()
    conductor = _Conductor(gate)
    monkeypatch.setattr(objects_base.NovaObject, 'indirection_api', conductor)
    yield conductor.client.arrived


@contextlib.contextmanager
def _beside(act: Callable[[], Any]) -> Iterator[threading.Event]:
    """Do something in another thread; yields what tells of its end."""
    ended = threading.Event()

    def run() -> None:
        act()
        ended.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield ended
    if ended.is_set():
        thread.join(60.0)


def _instance() -> Any:
    context = nova_context.get_admin_context()
    return objects.Instance(context, uuid=_UUID, host='c1')


def _save_instance() -> None:
    instance = _instance()
    instance.display_name = 'changed'
    instance._save_flavor = lambda context: None
    instance.save()


def _start_event() -> None:
    objects.InstanceActionEvent.event_start(
        nova_context.get_admin_context(), _UUID, 'compute_reboot', host='c1'
    )


def _create_fault() -> None:
    context = nova_context.get_admin_context()
    objects.InstanceFault(context, instance_uuid=_UUID).create()


def _destroy_mapping() -> None:
    context = nova_context.get_admin_context()
    objects.BlockDeviceMapping(context, id=1).destroy()


@pytest.mark.parametrize(
    ('write', 'name'),
    [
        (_save_instance, 'Instance.save'),
        (lambda: _instance().destroy(), 'Instance.destroy'),
        (_create_fault, 'InstanceFault.create'),
        (_destroy_mapping, 'BlockDeviceMapping.destroy'),
        (_start_event, 'InstanceActionEvent.event_start'),
    ],
)
def test_a_write_is_sent_once_the_gate_is_open(
    write: Callable[[], None], name: str, gate: LeaseGate, arrived: list[str]
) -> None:
    """A write waits for the gate and is then sent exactly once."""
    with _beside(write) as ended:
        assert not ended.wait(0.2)
        assert arrived == []
        gate.extend(110.0)
        assert ended.wait(60.0)
    assert arrived == [name]


def test_a_host_is_reported_up_while_the_gate_is_shut(
    arrived: list[str],
) -> None:
    """The Service record is written, or nova-api would delete servers."""
    context = nova_context.get_admin_context()
    service = objects.Service(context, id=1, report_count=0)
    service.obj_reset_changes()
    service.report_count += 1
    service.save()
    assert arrived == ['Service.save']


@pytest.mark.parametrize(
    ('change', 'timeout_s'),
    [({'report_count': 1}, 10), ({'disabled': True}, None)],
)
def test_report_waits_for_10_s_at_most(
    gate: LeaseGate, change: dict[str, Any], timeout_s: float | None
) -> None:
    """Nova shows a host down whose report waits for a minute.

    A restarted RabbitMQ loses requests. Other writes of the record wait as
    long as all requests.
    """
    conductor = _Conductor(gate)
    service = objects.Service(nova_context.get_admin_context(), id=1)
    service.obj_reset_changes()
    service.update(change)
    conductor.object_action(service._context, service, 'save', (), {})
    assert conductor.client.arrived == ['Service.save']
    assert conductor.client.timeout_s == timeout_s


def test_rows_of_nodes_wait_where_they_are_decided_on(
    arrived: list[str],
) -> None:
    """ComputeNode writes pass here; ``compute_nodes`` waits for the gate."""
    context = nova_context.get_admin_context()
    objects.ComputeNode(context, id=1).destroy()
    assert arrived == ['ComputeNode.destroy']


def test_reads_do_not_wait(arrived: list[str]) -> None:
    """A read is sent at once, although the gate is shut."""
    context = nova_context.get_admin_context()
    objects.Instance.get_by_uuid(context, _UUID)
    objects.InstanceList.get_by_host(context, 'c1')
    objects.BlockDeviceMappingList.get_by_instance_uuid(context, _UUID)
    assert [name.split('.')[1] for name in arrived] == [
        'get_by_uuid',
        'get_by_host',
        'get_by_instance_uuid',
    ]


class _Noted:
    """Counts the requests whose answers are noted."""

    def __init__(self) -> None:
        self.count = 0

    def call(self, send: Callable[[], Any]) -> Any:
        """See Traffic."""
        self.count += 1
        return send()


@pytest.fixture
def noted() -> _Noted:
    return _Noted()


@pytest.fixture
def placement(gate: LeaseGate, noted: _Noted) -> tuple[Any, _Adapter]:
    """Nova's client of Placement, and what it sends with."""
    adapter = _Adapter()
    client = report.SchedulerReportClient(adapter)
    gate_placement(client, gate, noted)
    return client, adapter


@pytest.mark.parametrize('name', ['put', 'post', 'delete'])
def test_writes_to_placement_wait(
    name: str,
    gate: LeaseGate,
    placement: tuple[Any, _Adapter],
    noted: _Noted,
) -> None:
    """Each write waits and returns Placement's response."""
    client, adapter = placement
    arguments = ('/x',) if name == 'delete' else ('/x', {})
    answers: list[str] = []
    send = getattr(client, name)
    with _beside(lambda: answers.append(send(*arguments))) as ended:
        assert not ended.wait(0.2)
        assert adapter.arrived == []
        assert noted.count == 0, 'it was not sent yet'
        gate.extend(110.0)
        assert ended.wait(60.0)
    assert adapter.arrived == [name]
    assert noted.count == 1
    assert answers == [f'answer to {name}']


def test_placement_is_read_while_the_gate_is_shut(
    placement: tuple[Any, _Adapter], noted: _Noted
) -> None:
    """A read is sent although the gate is shut, and its end is noted.

    Builds waited half a minute for their allocations before anybody knew
    that Placement was away.
    """
    client, adapter = placement
    assert client.get('/x') == 'answer to get'
    assert adapter.arrived == ['get']
    assert noted.count == 1


def _adapter(transport: Any) -> Any:
    """Return an adapter with the retries of ``[placement]`` in nova.conf."""
    session = ksa_session.Session(token_endpoint.Token('http://p', 'token'))
    session.session.mount('http://', transport)
    return ksa_adapter.Adapter(
        session,
        service_type='placement',
        connect_retries=1,
        status_code_retries=1,
    )


@pytest.mark.parametrize(
    'failure', [requests.ConnectionError('reset'), requests.ReadTimeout(), 503]
)
@pytest.mark.parametrize('name', ['get', 'put', 'post', 'delete'])
@pytest.mark.parametrize('is_remade', [False, True])
def test_keystoneauth_repeats_no_write_to_placement(
    name: str,
    failure: Exception | int,
    gate: LeaseGate,
    noted: _Noted,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_remade: bool,
) -> None:
    """It was sent again without the lease; a read may be.

    Nova makes another adapter when Keystone has not named the endpoint.
    """
    monkeypatch.setattr(time, 'sleep', lambda seconds: None)
    transport = _Transport()
    client = report.SchedulerReportClient(_adapter(transport))
    gate.extend(110.0)
    gate_placement(client, gate, noted)
    if is_remade:
        client._adapter = _adapter(transport)
        client._client = client._create_client()
    transport.failures = [failure, failure]
    arguments = ('/x',) if name in ('get', 'delete') else ('/x', {})
    with contextlib.suppress(ksa_exceptions.ClientException):
        getattr(client, name)(*arguments)
    assert len(transport.arrived) == (2 if name == 'get' else 1)


class _Transport(requests.adapters.BaseAdapter):
    """The network between Nova and the other services."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived: list[str] = []
        self.failures: list[Exception | int] = []

    def send(self, request: Any, *_: Any, **__: Any) -> requests.Response:
        """Note a request and answer it with an empty object."""
        self.arrived.append(f'{request.method} {request.path_url}')
        failure = self.failures.pop(0) if self.failures else 200
        if isinstance(failure, Exception):
            raise failure
        response = requests.Response()
        response.status_code, response.request = failure, request
        response.url, response.raw = request.url, io.BytesIO(b'{"port": {}}')
        response.headers['Content-Type'] = 'application/json'
        return response

    def close(self) -> None:
        """Close nothing."""


@pytest.fixture
def network(
    gate: LeaseGate, noted: _Noted, clock: ManualClock
) -> Iterator[_Transport]:
    """Nova's sessions with Neutron and Cinder, over a network of the test."""
    service_auth.reset_globals()
    gate_sessions(gate, noted, RepeatedRequests(clock, 75.0), clock)
    transport = _Transport()
    for group in ('neutron', 'cinder'):
        session = service_auth.get_service_auth_session(group)
        session.session.mount('http://', transport)
    yield transport
    service_auth.reset_globals()


@pytest.fixture
def neutron(network: _Transport) -> Iterator[Any]:
    """Nova's own client of Neutron."""
    conf = nova.conf.CONF
    ks_loading.register_auth_conf_options(conf, 'neutron')
    conf.set_override('auth_type', 'none', 'neutron')
    conf.set_override('endpoint_override', 'http://neutron', 'neutron')
    context = nova_context.get_admin_context()
    yield nova_neutron.get_client(context, admin=True)
    conf.clear_override('auth_type', 'neutron')
    conf.clear_override('endpoint_override', 'neutron')


@pytest.mark.parametrize(
    ('write', 'request_line'),
    [
        (lambda n: n.create_port({}), 'POST /v2.0/ports'),
        (lambda n: n.update_port('p', {}), 'PUT /v2.0/ports/p'),
        (lambda n: n.delete_port('p'), 'DELETE /v2.0/ports/p'),
    ],
)
def test_writes_to_neutron_wait(
    write: Callable[[Any], Any],
    request_line: str,
    gate: LeaseGate,
    network: _Transport,
    neutron: Any,
) -> None:
    """A worker whose lease has lapsed changes no port."""
    with _beside(lambda: write(neutron)) as ended:
        assert not ended.wait(0.2)
        assert network.arrived == []
        gate.extend(110.0)
        assert ended.wait(60.0)
    assert network.arrived == [request_line]


def test_neutron_is_read_while_the_gate_is_shut(
    network: _Transport, neutron: Any, noted: _Noted
) -> None:
    """A read of Neutron is sent although the gate is shut."""
    neutron.show_port('p')
    assert network.arrived == ['GET /v2.0/ports/p']
    assert noted.count == 1


def test_write_that_is_repeated_needs_the_lease_again(
    gate: LeaseGate, network: _Transport, neutron: Any, noted: _Noted
) -> None:
    """The lease has lapsed while the worker waited for Neutron."""
    network.failures = [requests.ConnectTimeout()]
    gate.extend(101.0)
    with _beside(lambda: neutron.update_port('p', {})) as ended:
        assert not ended.wait(0.2)
        assert network.arrived == ['PUT /v2.0/ports/p']
        assert noted.count == 1, 'the failure is known meanwhile'
        gate.extend(110.0)
        assert ended.wait(60.0)
    assert network.arrived == ['PUT /v2.0/ports/p'] * 2


def test_request_to_cinder_is_not_repeated(network: _Transport) -> None:
    """Its client has retries of its own, and users see Cinder's errors."""
    network.failures = [requests.ConnectTimeout()]
    session = service_auth.get_service_auth_session('cinder')
    with pytest.raises(ksa_exceptions.ConnectTimeout):
        session.get('http://cinder/v3')
    assert len(network.arrived) == 1


@pytest.fixture
def cinder(network: _Transport) -> Any:
    """Return Nova's client of Cinder, which sends with the same session."""
    session = service_auth.get_service_auth_session('cinder')
    client = cinder_client.Client(
        '3.27',
        session=session,
        endpoint_override='http://cinder',
        auth=None,
        connect_retries=nova.conf.CONF.cinder.http_retries,
    )
    client.client.auth = none.NoAuth('http://cinder')
    return client


def test_writes_to_cinder_wait(
    gate: LeaseGate, network: _Transport, cinder: Any
) -> None:
    """A worker whose lease has lapsed changes no attachment."""
    with _beside(lambda: cinder.attachments.delete('a')) as ended:
        assert not ended.wait(0.2)
        assert network.arrived == []
        gate.extend(110.0)
        assert ended.wait(60.0)
    assert network.arrived == ['DELETE /attachments/a']


def test_repeated_write_to_cinder_needs_the_lease_again(
    gate: LeaseGate, clock: ManualClock, network: _Transport, cinder: Any
) -> None:
    """The lease has lapsed while the worker waited for Cinder."""
    gate.extend(100.2)
    network.failures = [requests.ConnectTimeout()]
    with _beside(lambda: cinder.attachments.delete('a')) as ended:
        while clock.now_s() < 100.2:
            assert not ended.wait(0.01)
        assert not ended.wait(0.2)
        assert network.arrived == ['DELETE /attachments/a']
        gate.extend(110.0)
        assert ended.wait(60.0)
    assert network.arrived == ['DELETE /attachments/a'] * 2


def test_volume_whose_answer_is_lost_is_not_made_twice(
    gate: LeaseGate, network: _Transport, cinder: Any
) -> None:
    """Nothing would name the first volume, which stayed for ever."""
    gate.extend(110.0)
    network.failures = [requests.ReadTimeout()]
    with pytest.raises(ksa_exceptions.ConnectTimeout):
        cinder.volumes.create(1)
    assert network.arrived == ['POST /volumes']


class _Keystone(token_endpoint.Token):  # type: ignore[misc]
    """Gets a token from Keystone for each request."""

    def get_token(self, session: Any) -> str:
        session.post('http://keystone/v3/auth/tokens', authenticated=False)
        return 'token'


@pytest.mark.parametrize(
    'failure', [requests.ReadTimeout(), requests.ConnectionError('reset')]
)
def test_volume_for_which_keystone_gives_no_token_is_made_later(
    failure: Exception, gate: LeaseGate, network: _Transport, cinder: Any
) -> None:
    """The build failed, although Cinder had got nothing."""
    gate.extend(110.0)
    cinder.client.auth = _Keystone('http://cinder', None)
    network.failures = [failure]
    with contextlib.suppress(KeyError):  # The answer has no volume.
        cinder.volumes.create(1)
    token = 'POST /v3/auth/tokens'
    assert network.arrived == [token, token, 'POST /volumes']


def test_write_that_cinder_refuses_to_hear_is_repeated(
    gate: LeaseGate, network: _Transport, cinder: Any
) -> None:
    """Without a connection nothing was done: Cinder is restarted."""
    gate.extend(110.0)
    with socket.socket() as unused:
        unused.bind(('127.0.0.1', 0))
        port = unused.getsockname()[1]
    with pytest.raises(requests.ConnectionError) as refused:
        requests.get(f'http://127.0.0.1:{port}', timeout=60)
    network.failures = [refused.value]
    with contextlib.suppress(KeyError):  # The answer has no volume.
        cinder.volumes.create(1)
    assert network.arrived == ['POST /volumes'] * 2


def test_token_is_requested_while_the_gate_is_shut(
    network: _Transport, noted: _Noted
) -> None:
    """Reads need a token, too, so a request for one does not wait."""
    session = service_auth.get_service_auth_session('neutron')
    session.post('http://keystone/v3/auth/tokens', authenticated=False)
    assert network.arrived == ['POST /v3/auth/tokens']
    assert noted.count == 0, 'Keystone is another service'
