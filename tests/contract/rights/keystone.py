# SPDX-License-Identifier: Apache-2.0
"""A small Keystone: its tokens name the roles and the project of their user.

keystonemiddleware of a real service validates each token here, so the service
enforces its policy as in a cloud.
"""

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

# The user of the manual has one role: for requests to Ironic with the scope
# of the system, for others in the project of the services.
SYSTEM_TOKEN = 'of-the-service-user-for-the-system'
SERVICE_TOKEN = 'of-the-service-user-in-its-project'
# Everything else that a test does, as an operator would.
ADMIN_TOKEN = 'of-the-operator'
_ROLES = {
    SYSTEM_TOKEN: ['service'],
    SERVICE_TOKEN: ['service'],
    ADMIN_TOKEN: ['admin', 'service'],
}
_DOMAIN = {'id': 'default', 'name': 'Default'}
_SCOPES: dict[str, dict[str, Any]] = {
    SERVICE_TOKEN: {
        'project': {'id': 'service-id', 'name': 'service', 'domain': _DOMAIN}
    },
    SYSTEM_TOKEN: {'system': {'all': True}},
    ADMIN_TOKEN: {'system': {'all': True}},
}
_EXPIRES = '2999-01-01T00:00:00.000000Z'


def _token(name: str, url: str) -> dict[str, Any]:
    token: dict[str, Any] = {
        'methods': ['password'],
        'user': {'id': name, 'name': name, 'domain': _DOMAIN},
        'audit_ids': [name],
        'expires_at': _EXPIRES,
        'issued_at': '2020-01-01T00:00:00.000000Z',
        'roles': [{'id': role, 'name': role} for role in _ROLES[name]],
        **_SCOPES[name],
        'is_domain': False,
        'catalog': [
            {
                'type': 'identity',
                'name': 'keystone',
                'id': 'identity',
                'endpoints': [
                    {
                        'interface': interface,
                        'id': interface,
                        'region': 'one',
                        'region_id': 'one',
                        'url': f'{url}/v3',
                    }
                    for interface in ('public', 'internal', 'admin')
                ],
            }
        ],
    }
    return {'token': token}


class _Handler(http.server.BaseHTTPRequestHandler):
    @property
    def _url(self) -> str:
        return f'http://127.0.0.1:{self.server.server_address[1]}'

    def do_POST(self) -> None:
        """Give whoever asks the operator's token."""
        self.rfile.read(int(self.headers.get('Content-Length', 0)))
        self._answer(201, _token(ADMIN_TOKEN, self._url), ADMIN_TOKEN)

    def do_GET(self) -> None:
        """Validate a token, or name the version of this Keystone."""
        subject = self.headers.get('X-Subject-Token')
        if subject is None:
            self._answer(200, self._versions())
        elif subject in _ROLES:
            self._answer(200, _token(subject, self._url), subject)
        else:
            self._answer(404, {'error': {'code': 404, 'message': 'unknown'}})

    def _versions(self) -> dict[str, Any]:
        version = {
            'id': 'v3.14',
            'status': 'stable',
            'links': [{'rel': 'self', 'href': f'{self._url}/v3/'}],
            'media-types': [],
        }
        if self.path.startswith('/v3'):
            return {'version': version}
        return {'versions': {'values': [version]}}

    def _answer(self, status: int, body: Any, subject: str = '') -> None:
        encoded = json.dumps(body).encode()
        self.send_response(status)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(encoded)))
        if subject:
            self.send_header('X-Subject-Token', subject)
        self.end_headers()
        self.wfile.write(encoded)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextlib.contextmanager
def keystone() -> Iterator[str]:
    """Serve on a free port of this machine; yield the URL."""
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f'http://127.0.0.1:{server.server_address[1]}'
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def authtoken(url: str) -> dict[str, str]:
    """Return ``[keystone_authtoken]`` of a service that validates here."""
    return {
        'auth_type': 'password',
        'auth_url': url,
        'www_authenticate_uri': url,
        'username': 'operator',
        'password': 'secret',
        'user_domain_id': 'default',
        'project_name': 'service',
        'project_domain_id': 'default',
        'service_token_roles': 'service',
    }
