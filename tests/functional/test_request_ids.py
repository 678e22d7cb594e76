# SPDX-License-Identifier: Apache-2.0
"""The id of a user's request is followed from nova-api to Ironic's API."""

import http.server
import threading
from collections.abc import Mapping
from typing import Any

import fixtures
import nova.conf
from oslo_context import context as oslo_context
from placement import deploy

from ironic_compute.ironic_api.reader import IronicReader
from tests.functional import pool

_VERSIONS = {
    'X-OpenStack-Ironic-API-Minimum-Version': '1.1',
    'X-OpenStack-Ironic-API-Maximum-Version': '1.95',
    'Content-Type': 'application/json',
}


class _Ironic(http.server.BaseHTTPRequestHandler):
    """Answers any request with the request id in its header."""

    def do_GET(self) -> None:
        """Answer; ``read_date`` returns the header ``Date``."""
        request_id = self.headers['X-OpenStack-Request-ID']
        self.send_response_only(200)
        self.send_header('Date', str(request_id))
        for name, value in _VERSIONS.items():
            self.send_header(name, value)
        self.send_header('Content-Length', '2')
        self.end_headers()
        self.wfile.write(b'{}')

    def log_message(self, *args: Any) -> None:
        """Log nothing."""


def _keeping_context(app: Any) -> Any:
    """Have a service of this process keep its contexts to itself.

    A Placement in a process of its own does not change the context of the
    thread that sends it a request.
    """

    def answer(environ: Any, start_response: Any) -> Any:
        context = oslo_context.get_current()
        try:
            return app(environ, start_response)
        finally:
            if context is not None:
                context.update_store()

    return answer


class RequestIdTest(pool.PoolTestCase):
    """Two hosts; each change of a node is also a request over HTTP."""

    def _use_fixtures(self) -> None:
        load = deploy.loadapp
        self.useFixture(
            fixtures.MonkeyPatch(
                'placement.deploy.loadapp',
                lambda conf: _keeping_context(load(conf)),
            )
        )
        super()._use_fixtures()

    def setUp(self) -> None:
        """Record with each change of a node which id Ironic is told."""
        super().setUp()
        self.ids: dict[str, set[str | None]] = {}
        server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), _Ironic)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        self.flags(
            group='ironic',
            auth_type='none',
            endpoint_override=f'http://127.0.0.1:{port}',
        )
        self._reader = IronicReader(nova.conf.CONF)
        change = self.ironic._changing

        def record_and_change(name: str, node: str, *more: Any) -> None:
            self.ids.setdefault(node, set()).add(self._reader.read_date())
            change(name, node, *more)

        self.ironic._changing = record_and_change  # type: ignore[method-assign]

    def _request_id(self, server: Mapping[str, Any], action: str) -> str:
        """Return the id of a user's request, as nova-api has recorded it."""
        found = self.api.get_instance_actions(server['id'])
        (request_id,) = {
            a['request_id'] for a in found if a['action'] == action
        }
        assert request_id.startswith('req-')
        return str(request_id)

    def test_ironic_is_told_which_request_each_change_is_for(self) -> None:
        """Four builds at once, then a stop: each has its own id, and no other.

        The thread of a build and that of a message may have worked for
        another request before.
        """
        servers = [
            self.api.post_server(
                {
                    'server': self._build_server(
                        flavor_id=self.flavor['id'], networks='none'
                    )
                }
            )
            for _ in range(4)
        ]
        for server in servers:
            self._wait_for_state_change(server, 'ACTIVE')
        for server in servers:
            created = self._request_id(server, 'create')
            self.assertEqual({created}, self.ids.pop(self.node_of(server)))
        for server in servers:
            self.action(server, 'os-stop')
            self._wait_for_state_change(server, 'SHUTOFF')
            stopped = self._request_id(server, 'stop')
            self.assertEqual({stopped}, self.ids.pop(self.node_of(server)))
