# SPDX-License-Identifier: Apache-2.0
"""Services that refuse whoever asks, for the tests of operators' mistakes.

There are Keystone, Ironic, Placement and etcd, with and without TLS, and
RabbitMQ. The certificate has expired. Each service listens on a free port of
loopback.
"""

import contextlib
import datetime
import http.server
import ipaddress
import json
import pathlib
import socketserver
import ssl
import struct
import threading
from collections.abc import Iterator
from typing import Any

from amqp import serialization
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as keys
from cryptography.hazmat.primitives.asymmetric import ec

_ADDRESS = '127.0.0.1'
NODE = '11111111-1111-4111-8111-111111111111'
_VERSION = 'X-OpenStack-Ironic-API'
_HEADERS = {
    f'{_VERSION}-Version': '1.82',
    f'{_VERSION}-Minimum-Version': '1.1',
    f'{_VERSION}-Maximum-Version': '1.82',
}


class _Refusing(http.server.BaseHTTPRequestHandler):
    """Keystone below /id, and below /no without tokens.

    Ironic is below /bm, where it refuses all, and below /ironic, where it has
    one node. Placement is below /forbidden. etcd's gateway is the rest, and
    cannot serve: so it answers if it cannot connect to etcd.
    """

    def log_message(self, *_arguments: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        """Describe Keystone's API or a node; refuse everything else."""
        if self.path.startswith('/bm'):
            self._answer(403, {'error_message': 'not allowed'})
        elif self.path.startswith('/ironic'):
            self._answer(200, {'uuid': NODE, 'name': None})
        elif self.path.startswith('/forbidden'):
            error = {'code': 'placement.undefined_code', 'detail': 'not yours'}
            self._answer(403, {'errors': [error]})
        elif self.path == '/version':
            self._answer(200, {'etcdserver': '3.4.23'})
        else:
            link = {'rel': 'self', 'href': self._url(self.path)}
            version = {'id': 'v3.14', 'status': 'stable', 'links': [link]}
            self._answer(200, {'version': version})

    def do_POST(self) -> None:
        """Give a token for Ironic, or refuse to."""
        self.rfile.read(int(self.headers['Content-Length']))
        if self.path.startswith('/no'):
            self._answer(401, {'error': {'code': 401, 'message': 'refused'}})
            return
        if self.path.startswith('/v3/'):
            self._answer(503, {'error': 'connection closed', 'code': 14})
            return
        endpoint = {'interface': 'public', 'region_id': 'R', 'region': 'R'}
        endpoint['url'] = self._url('/bm')
        service = {'type': 'baremetal', 'endpoints': [endpoint]}
        user = {'id': 'u', 'name': 'u', 'domain': {'id': 'd', 'name': 'd'}}
        dates = {'expires_at': '2099-01-01T00:00:00.0Z'}
        self._answer(
            201, {'token': {'user': user, 'catalog': [service], **dates}}
        )

    def _url(self, path: str) -> str:
        return f'http://{_ADDRESS}:{self.server.server_port}{path}'

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header('Content-Type', 'application/json')
        self.send_header('X-Subject-Token', 'token')
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header('Content-Length', str(len(data)))
        self.end_headers()
        self.wfile.write(data)


# Classes and methods of AMQP 0-9-1.
_START, _START_OK, _TUNE, _CLOSE = (10, 10), (10, 11), (10, 30), (10, 50)
_LOGIN = (
    'ACCESS_REFUSED - Login was refused using authentication mechanism '
    'PLAIN. For details see the broker logfile.'
)
_VHOST = "NOT_ALLOWED - access to vhost '/theirs' refused for user 'u'"


class _RabbitMQ(socketserver.StreamRequestHandler):
    """A broker that refuses the user ``nobody``, and others the vhost.

    The texts are those of RabbitMQ 3.10.
    """

    def handle(self) -> None:
        """Let a client come as far as it may, and close the connection."""
        self.rfile.read(8)  # The protocol's name and version.
        properties = {'capabilities': {'authentication_failure_close': True}}
        self._send(
            _START,
            'ooFSS',
            (0, 9, properties, b'PLAIN AMQPLAIN', b'en_US'),
        )
        if b'nobody' in self._receive():
            self._send(_CLOSE, 'BsBB', (403, _LOGIN, 0, 0))
        else:
            self._send(_TUNE, 'BlB', (0, 131072, 0))
            self._receive()
            self._receive()
            self._send(_CLOSE, 'BsBB', (530, _VHOST, *(10, 40)))
        self._receive()

    def _send(
        self, method: tuple[int, int], form: str, values: tuple[Any, ...]
    ) -> None:
        body = struct.pack('>HH', *method) + serialization.dumps(form, values)
        frame = struct.pack('>BHI', 1, 0, len(body)) + body + b'\xce'
        self.wfile.write(frame)

    def _receive(self) -> bytes:
        head = self.rfile.read(7)
        if len(head) < 7:
            return b''
        return self.rfile.read(struct.unpack('>BHI', head)[2] + 1)


class _TlsServer(http.server.ThreadingHTTPServer):
    """A server whose handshakes happen in the threads of the requests."""

    def handle_error(self, *_arguments: Any) -> None:
        """Expect each client to refuse the certificate."""


def _write_certificate(file: pathlib.Path) -> None:
    """Write a certificate that expired yesterday, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _ADDRESS)])
    address = x509.IPAddress(ipaddress.ip_address(_ADDRESS))
    day, now = datetime.timedelta(days=1), datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - 2 * day)
        .not_valid_after(now - day)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file.write_bytes(
        made.public_bytes(keys.Encoding.PEM)
        + key.private_bytes(
            keys.Encoding.PEM,
            keys.PrivateFormat.PKCS8,
            keys.NoEncryption(),
        )
    )


@contextlib.contextmanager
def _serving(server: socketserver.BaseServer) -> Iterator[str]:
    """Serve in a thread; yield the address."""
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f'{_ADDRESS}:{server.server_address[1]}'
    finally:
        server.shutdown()
        server.server_close()


class _ThreadingTCPServer(socketserver.ThreadingTCPServer):
    daemon_threads = True


@contextlib.contextmanager
def serve(folder: pathlib.Path) -> Iterator[dict[str, str]]:
    """Serve all of them; yield the words that stand for their places.

    :param folder: an empty one, for the certificate
    """
    certificate = folder / 'expired.pem'
    _write_certificate(certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    tls = _TlsServer((_ADDRESS, 0), _Refusing)
    tls.socket = context.wrap_socket(
        tls.socket, server_side=True, do_handshake_on_connect=False
    )
    plain = http.server.ThreadingHTTPServer((_ADDRESS, 0), _Refusing)
    rabbitmq = _ThreadingTCPServer((_ADDRESS, 0), _RabbitMQ)
    with (
        _serving(plain) as http_at,
        _serving(tls) as tls_at,
        _serving(rabbitmq) as rabbitmq_at,
    ):
        yield {
            'HTTP': f'http://{http_at}',
            'HOST': http_at,
            'TLS': tls_at,
            'EXPIRED': str(certificate),
            'BROKER': rabbitmq_at,
        }
