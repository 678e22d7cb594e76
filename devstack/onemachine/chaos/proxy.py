# SPDX-License-Identifier: Apache-2.0
"""A proxy between the compute hosts and the APIs of Ironic and Placement.

It runs as a process of its own. Each host uses another loopback address, with
the usual ports of the APIs, so the log has the host of each request: one JSON
line for each request that can change something. A file has the present fault
of Ironic.
"""

import contextlib
import enum
import http.client
import http.server
import json
import pathlib
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

UPSTREAM = '127.0.0.1'
# A request without an answer is held for so long, or until the fault ends.
HOLD_S = 120.0
_HOPS = frozenset({'connection', 'transfer-encoding', 'content-length'})


class Trouble(enum.Enum):
    """A fault of Ironic's API."""

    NONE = 'none'
    ERRORS = 'each request answers 500'
    SILENCE = 'no request is answered'
    EMPTY = 'each list of nodes is empty'
    SHORT = 'each list of nodes lacks every second one'


def address(number: int) -> str:
    """Return the loopback address of the n-th host."""
    return f'127.0.1.{number + 1}'


def trouble_now(path: pathlib.Path) -> Trouble:
    """Read the present fault of Ironic."""
    try:
        return Trouble[path.read_text().strip()]
    except (OSError, KeyError):
        return Trouble.NONE


def spoil(trouble: Trouble, path: str, body: bytes) -> bytes:
    """Return a list of nodes, changed as the present fault does."""
    if trouble not in (Trouble.EMPTY, Trouble.SHORT):
        return body
    if path.partition('?')[0].rstrip('/') not in ('/v1/nodes', '/nodes'):
        return body
    answer = json.loads(body)
    nodes = answer.get('nodes', [])
    kept = [] if trouble is Trouble.EMPTY else nodes[::2]
    return json.dumps({'nodes': kept}).encode()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    host = ''
    is_ironic = False
    port = 0
    folder = pathlib.Path()

    def _serve(self) -> None:
        size = int(self.headers.get('Content-Length') or 0)
        request = self.rfile.read(size) if size else None
        trouble = self._trouble()
        if trouble is Trouble.SILENCE:
            self._hold()
            self.close_connection = True
            return
        if trouble is Trouble.ERRORS:
            self._answer(500, (), b'{"error_message": "trouble"}')
            return
        begun_s = time.time()
        status, headers, body = self._ask(request)
        if self.command == 'GET' and status == 200:
            body = spoil(trouble, self.path, body)
        else:
            self._note(begun_s, status)
        self._answer(status, headers, body)

    do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = do_HEAD = _serve

    def _trouble(self) -> Trouble:
        if not self.is_ironic:
            return Trouble.NONE
        return trouble_now(self.folder / 'trouble')

    def _hold(self) -> None:
        ends_s = time.monotonic() + HOLD_S
        while time.monotonic() < ends_s:
            if self._trouble() is not Trouble.SILENCE:
                return
            time.sleep(0.5)

    def _ask(self, request: bytes | None) -> tuple[int, Sequence[Any], bytes]:
        upstream = http.client.HTTPConnection(UPSTREAM, self.port, timeout=120)
        with contextlib.closing(upstream):
            headers = {
                name: value
                for name, value in self.headers.items()
                if name.lower() not in _HOPS
            }
            upstream.request(self.command, self.path, request, headers)
            answer = upstream.getresponse()
            return answer.status, answer.getheaders(), answer.read()

    def _answer(
        self, status: int, headers: Sequence[Any], body: bytes
    ) -> None:
        with contextlib.suppress(OSError):
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in _HOPS:
                    self.send_header(name, value)
            self.send_header('Content-Length', str(len(body)))
            self.end_headers()
            if self.command != 'HEAD':
                self.wfile.write(body)

    def _note(self, begun_s: float, status: int) -> None:
        line = {
            'at_s': begun_s,
            'host': self.host,
            'api': 'ironic' if self.is_ironic else 'placement',
            'method': self.command,
            'path': self.path,
            'status': status,
        }
        with open(self.folder / 'changes.log', 'a') as log:
            log.write(json.dumps(line) + '\n')

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing on the terminal."""


def serve(
    folder: pathlib.Path, hosts: Sequence[str], ports: Mapping[str, int]
) -> None:
    """Serve until the process is stopped.

    :param folder: folder of the file with the fault, and of the log
    :param ports: the ports of ``ironic`` and ``placement``
    """
    servers = []
    for number, host in enumerate(hosts):
        for api, port in ports.items():
            attributes = {
                'host': host,
                'is_ironic': api == 'ironic',
                'port': port,
                'folder': folder,
            }
            handler = type('Handler', (_Handler,), attributes)
            servers.append(
                http.server.ThreadingHTTPServer(
                    (address(number), port), handler
                )
            )
    for server in servers[1:]:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    servers[0].serve_forever()


if __name__ == '__main__':
    given = json.loads(sys.argv[1])
    serve(pathlib.Path(given['folder']), given['hosts'], given['ports'])
