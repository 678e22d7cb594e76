# SPDX-License-Identifier: Apache-2.0
"""Probes of Placement and Neutron over HTTP: each has its own connection.

A network may leave open connections alone and reset most new ones. The own
requests of a worker use an open one; the next user may need a new one.
"""

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator
from typing import Any

import nova.conf
import pytest
from keystoneauth1 import loading as ks_loading
from nova import service_auth

from ironic_compute.gate import NeverOpen
from ironic_compute.nodes.placement_reports import make_placement
from ironic_compute.paths import probes
from resource_tracker import errors
from resource_tracker.meter import NoMeter
from tests.fakes.clock import ManualClock

CONF = nova.conf.CONF


class _Service(http.server.ThreadingHTTPServer):
    """Placement or Neutron; answers each request with the same status.

    :ivar resets: how many of the next connections are closed at once
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(('127.0.0.1', 0), _Handler)
        self.accepted_count = 0
        self.paths: list[str] = []
        self.resets = 0
        self.status = 200

    @property
    def url(self) -> str:
        """Where it listens."""
        return f'http://127.0.0.1:{self.server_port}'

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return whether a new connection is served."""
        self.accepted_count += 1
        self.resets -= 1
        return self.resets < 0


class _Handler(http.server.BaseHTTPRequestHandler):
    """One connection, which stays open."""

    protocol_version = 'HTTP/1.1'
    server: _Service

    def do_GET(self) -> None:
        """Answer."""
        self.server.paths.append(self.path)
        self.send_response(self.server.status)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', '2')
        self.end_headers()
        self.wfile.write(b'{}')

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextlib.contextmanager
def serving() -> Iterator[_Service]:
    """Serve on a port of this machine."""
    served = _Service()
    thread = threading.Thread(target=served.serve_forever, args=(0.01,))
    thread.start()
    yield served
    served.shutdown()
    thread.join()
    served.server_close()


@pytest.fixture
def service() -> Iterator[_Service]:
    """A service on a port of this machine."""
    with serving() as served:
        yield served


@contextlib.contextmanager
def configured(group: str, url: str) -> Iterator[None]:
    """Have Nova reach a service at a URL, without Keystone."""
    ks_loading.register_auth_conf_options(CONF, group)
    options = {'auth_type': 'none', 'endpoint_override': url}
    for name, value in options.items():
        CONF.set_override(name, value, group)
    service_auth.reset_globals()
    yield
    service_auth.reset_globals()
    for name in options:
        CONF.clear_override(name, group)


def _placement_probe() -> Callable[[], None]:
    placement = make_placement(CONF, ManualClock(), NoMeter(), NeverOpen())
    # The worker's own request leaves a connection open.
    with contextlib.suppress(errors.PlacementError):
        placement.list_providers()
    return lambda: placement.check_access(probes.TIMEOUT_S)


@pytest.fixture(params=['placement', 'neutron'])
def probe(
    request: pytest.FixtureRequest, service: _Service
) -> Iterator[Callable[[], None]]:
    """The probe of either service."""
    with configured(request.param, service.url):
        if request.param == 'placement':
            yield _placement_probe()
        else:
            yield probes.ping_neutron


def test_each_probe_needs_a_connection_of_its_own(
    probe: Callable[[], None], service: _Service
) -> None:
    """An open connection must not hide that new ones are reset."""
    before_count = service.accepted_count
    for _ in range(3):
        probe()
    assert service.accepted_count - before_count == 3


def test_probe_is_sent_once(
    probe: Callable[[], None], service: _Service
) -> None:
    """A second try would hide the failure of the first one."""
    service.resets = 1
    before_count = service.accepted_count
    with pytest.raises(Exception, match='onnection'):
        probe()
    assert service.accepted_count - before_count == 1


@pytest.mark.parametrize('status', [401, 503])
def test_probe_fails_without_a_token_or_behind_a_proxy(
    probe: Callable[[], None], service: _Service, status: int
) -> None:
    """Nothing can be done with Placement or Neutron then."""
    service.status = status
    with pytest.raises(Exception, match=str(status)):
        probe()


@pytest.mark.parametrize('status', [200, 404, 500])
def test_neutron_that_answers_with_an_error_is_reached(
    service: _Service, status: int
) -> None:
    """Another daemon would get the same answer."""
    service.status = status
    with configured('neutron', service.url):
        probes.ping_neutron()
    assert service.paths == ['/v2.0/networks?fields=id&limit=1']
