# SPDX-License-Identifier: Apache-2.0
"""Each typical mistake gives one sentence with the option, and a status.

The console scripts are run for real, with services that refuse them or that
are not there.
"""

import dataclasses
import http.server
import json
import pathlib
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.unit.ironic_compute.cmd import mistakes

_FILE = ('--config-file=FILE',)


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A wrong configuration or command line.

    :param name: what is wrong
    :param named: what the sentence must contain
    :param text: nova.conf; CLOSED, HTTP and FOLDER are replaced
    :param options: the command line in front of a script's command
    """

    name: str
    named: str
    text: str = ''
    options: tuple[str, ...] = _FILE


def _coordination(option: str, value: object, named: str) -> Mistake:
    text = f'[coordination]\n{option} = {value}\n'
    return Mistake(f'{option} = {value}', f'[coordination] {named}', text)


def _ours(option: str, value: object, named: str) -> Mistake:
    text = f'[ironic_compute]\n{option} = {value}\n'
    return Mistake(f'{option} = {value}', named, text)


# Of every script: nothing is connected to before the configuration is read.
OF_FILES = (
    Mistake(
        'no file',
        '/nowhere/nova.conf',
        '',
        ('--config-file=/nowhere/nova.conf',),
    ),
    Mistake(
        'a folder as file',
        '--config-file FOLDER cannot be read: Is a',
        '',
        ('--config-file=FOLDER',),
    ),
    Mistake(
        'no folder',
        '--config-dir /nowhere/conf.d is no folder',
        '',
        ('--config-dir=/nowhere/conf.d',),
    ),
    Mistake(
        'a file as folder',
        '--config-dir FILE is no folder',
        '',
        ('--config-dir=FILE',),
    ),
    Mistake('not UTF-8', 'FILE cannot be read', '\udcff'),
    Mistake('no section', 'Section must be started', 'host = c1\n'),
    Mistake(
        'no value', "No ':' or '=' found in assignment", '[DEFAULT]\nhost c1\n'
    ),
)
OF_VALUES = (
    _coordination('lease_term_s', 'ten', 'lease_term_s in FILE is not valid'),
    _coordination(
        'lease_term_s',
        1,
        'lease_term_s in FILE is not valid: Should be greater than',
    ),
    _coordination('lease_margin_s', 'x', 'lease_margin_s in FILE'),
    _ours(
        'settle_s', 'soon', '[ironic_compute] settle_s in FILE is not valid'
    ),
    _ours('spare_worker', 'perhaps', '[ironic_compute] spare_worker in FILE'),
    _ours('agent_port', 99999, '[ironic_compute] agent_port in FILE'),
    _ours('row_parallelism', 0, '[ironic_compute] row_parallelism in FILE'),
    Mistake(
        'placement_parallelism',
        '[resource_tracker] placement_parallelism in FILE',
        '[resource_tracker]\nplacement_parallelism = many\n',
    ),
)
OF_URLS = (
    _coordination('backend_url', '', 'backend_url has the unknown scheme ""'),
    _coordination('backend_url', 'etcd:2379', 'backend_url has the unknown'),
    _coordination('backend_url', 'etcd3://c1', 'backend_url has the unknown'),
    _coordination(
        'backend_url',
        'mysql://u:secret@c1/nova',
        'backend_url is mysql://, a backend that',
    ),
    _coordination(
        'backend_url', 'etcd3+http://c1:http', 'backend_url is not a URL'
    ),
    _coordination(
        'backend_url', 'etcd3+http://', 'backend_url names no server'
    ),
    _coordination(
        'backend_url', 'file://coordination', 'backend_url names no folder'
    ),
    _coordination(
        'backend_url', 'redis://c1?timeout=abc', 'backend_url sets timeout=abc'
    ),
    _coordination(
        'backend_url',
        'etcd3+http://c1?hosts=a:b',
        'backend_url names the etcd server "a:b"',
    ),
    _coordination(
        'backend_url',
        'etcd3+https://c1?ca_cert=/nowhere.pem',
        'backend_url sets ca_cert=/nowhere.pem, a file that cannot be read',
    ),
)

_OF_AGENT = (
    _coordination('lease_margin_s', 9, 'lease_margin_s is 9'),
    _coordination('half_alive_s', 3, 'half_alive_s is 3'),
    _coordination('restart_grace_s', 300, 'restart_grace_s is 300'),
    _ours('state_path', '/etc/hostname', '[ironic_compute] state_path is'),
    Mistake(
        'host with a space',
        'Option host in FILE is not valid',
        '[DEFAULT]\nhost = my host\n',
    ),
    Mistake(
        'no folder of logs',
        '[DEFAULT] log_dir is /nowhere',
        '',
        (*_FILE, '--log-dir=/nowhere'),
    ),
    Mistake(
        'a folder as log',
        '[DEFAULT] log_file is FOLDER',
        '',
        (*_FILE, '--log-file=FOLDER'),
    ),
    Mistake(
        'no configuration of logs',
        '[DEFAULT] log_config_append is /nowhere',
        '',
        (*_FILE, '--log-config-append=/nowhere'),
    ),
)

_LIST, _EXPLAIN, _DRAIN = (
    ['host', 'list'],
    ['node', 'explain', 'n1'],
    ['host', 'drain', 'c9'],
)
_AUTH = """auth_type = password
username = compute
password = secret
user_domain_name = Default
system_scope = all
"""
_PLACEMENT = f'[placement]\n{_AUTH}auth_url = HTTP/id/v3\n'
_IRONIC = f'[ironic]\n{_AUTH}auth_url = HTTP/id/v3\n'
_USER = f'{_PLACEMENT}{_IRONIC}'
_OF_IRONIC = (
    Mistake('no credentials', 'set [ironic] auth_type', _PLACEMENT),
    Mistake(
        'no such auth_type',
        'below [ironic] auth_type in nova.conf cannot be used',
        f'{_PLACEMENT}[ironic]\nauth_type = pass-word\n',
    ),
    Mistake(
        'no auth_url',
        'below [ironic] auth_type in nova.conf cannot be used',
        f'{_PLACEMENT}[ironic]\n{_AUTH}',
    ),
)
_OF_KEYSTONE = (
    Mistake(
        'wrong password',
        'check what is below [ironic] auth_type',
        f'{_PLACEMENT}[ironic]\n{_AUTH}auth_url = HTTP/no/v3\n',
    ),
    Mistake(
        'no password',
        'check what is below [ironic] auth_type',
        _USER.replace('password = secret\n', ''),
    ),
    Mistake(
        'no Keystone',
        'Unable to establish connection to http://127.0.0.1:CLOSED',
        f'{_PLACEMENT}[ironic]\n{_AUTH}auth_url = http://127.0.0.1:CLOSED/v3\n',
    ),
    Mistake(
        'no such region',
        'Atlantis region not found',
        f'{_USER}region_name = Atlantis\n',
    ),
    Mistake(
        'no rights in Ironic',
        'the user below [ironic] in nova.conf lacks this right',
        _USER,
    ),
)
_OF_PLACEMENT = (
    Mistake(
        'no credentials of Placement',
        'set [placement] auth_type',
        _IRONIC,
    ),
    Mistake(
        'no such auth_type of Placement',
        'below [placement] auth_type in nova.conf cannot be used',
        f'{_IRONIC}[placement]\nauth_type = pass-word\n',
    ),
)
_BACKENDS_AWAY = (
    _coordination(
        'backend_url',
        'etcd3+http://127.0.0.1:CLOSED',
        'backend_url is etcd3+http://127.0.0.1:CLOSED, and it does not answer '
        '(connect: ConnectionFailedError: [Errno 111] Connection refused)',
    ),
    _coordination(
        'backend_url',
        'etcd3+http://nowhere.invalid:1',
        'backend_url is etcd3+http://nowhere.invalid:1, and it does not',
    ),
    Mistake(
        'a backend without TLS',
        'WRONG_VERSION_NUMBER',
        '[coordination]\nbackend_url = etcd3+https://HOST\n',
    ),
    _coordination(
        'backend_url',
        'zookeeper://127.0.0.1:CLOSED',
        'backend_url is zookeeper://127.0.0.1:CLOSED, and it does not',
    ),
)
_BROKERS = (
    Mistake(
        'no RabbitMQ',
        'RabbitMQ cannot be used: [Errno 111] Connection refused. Check '
        '[DEFAULT] transport_url',
        '[DEFAULT]\ntransport_url = rabbit://u:secret@127.0.0.1:CLOSED/\n',
    ),
)
_TRANSPORTS = (
    Mistake(
        'no such transport',
        '[DEFAULT] transport_url in nova.conf cannot be used',
        '[DEFAULT]\ntransport_url = rabbits://u:secret@c1/\n',
    ),
    Mistake(
        'transport that is no URL',
        '[DEFAULT] transport_url in nova.conf cannot be used',
        '[DEFAULT]\ntransport_url = c1:5672\n',
    ),
)
_EVERYWHERE = (*OF_FILES, *OF_VALUES, *OF_URLS)

# Script, command, exit status, mistakes.
RUNS: Sequence[tuple[str, list[str], int, Sequence[Mistake]]] = (
    ('agent', [], 78, (*_EVERYWHERE, *_OF_AGENT)),
    ('ctl', _LIST, 78, _EVERYWHERE),
    ('ctl', _LIST, 1, _BACKENDS_AWAY),
    ('ctl', _EXPLAIN, 78, (*_OF_IRONIC, *_OF_PLACEMENT)),
    ('ctl', _EXPLAIN, 1, _OF_KEYSTONE),
    ('ctl', _DRAIN, 78, _TRANSPORTS),
    ('ctl', _DRAIN, 1, _BROKERS),
    (
        'status',
        ['upgrade', 'check'],
        2,
        (*_EVERYWHERE, *_OF_IRONIC, *_OF_KEYSTONE, *_BACKENDS_AWAY),
    ),
)


class _Refusing(http.server.BaseHTTPRequestHandler):
    """Keystone below /id, and below /no without tokens; Ironic below /bm."""

    def log_message(self, *_arguments: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        """Describe Keystone's API; refuse everything else."""
        if self.path.startswith('/bm'):
            self._answer(403, {'error_message': 'not allowed'})
            return
        link = {'rel': 'self', 'href': self._url(self.path)}
        version = {'id': 'v3.14', 'status': 'stable', 'links': [link]}
        self._answer(200, {'version': version})

    def do_POST(self) -> None:
        """Give a token for Ironic, or refuse to."""
        self.rfile.read(int(self.headers['Content-Length']))
        if self.path.startswith('/no'):
            self._answer(401, {'error': {'code': 401, 'message': 'refused'}})
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
        return f'http://127.0.0.1:{self.server.server_port}{path}'

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header('X-Subject-Token', 'token')
        self.send_header('Content-Length', str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture(scope='module')
def places() -> Iterator[dict[str, str]]:
    """Return what stands for the places in a mistake."""
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), _Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    host = f'127.0.0.1:{server.server_port}'
    with socket.socket() as closed:
        closed.bind(('127.0.0.1', 0))
        port = str(closed.getsockname()[1])
        yield {'CLOSED': port, 'HTTP': f'http://{host}', 'HOST': host}
    server.shutdown()
    server.server_close()


def _replaced(text: str, places: dict[str, str]) -> str:
    for word, place in places.items():
        text = re.sub(rf'\b{word}\b', place, text)
    return text


def _write(
    folder: pathlib.Path, mistake: Mistake, places: dict[str, str]
) -> dict[str, str]:
    """Write nova.conf; return all places of a mistake."""
    folder.mkdir()
    mine = {**places, 'FILE': f'{folder}/nova.conf', 'FOLDER': str(folder)}
    text = _replaced(mistake.text, mine)
    # Nothing of the machine itself is used.
    for group, option in (
        ('coordination', 'backend_url'),
        ('ironic_compute', 'state_path'),
    ):
        if option not in text:
            value = f'file://{folder}' if group == 'coordination' else folder
            text += f'[{group}]\n{option} = {value}\n' if mistake.text else ''
    pathlib.Path(mine['FILE']).write_text(text, errors='surrogateescape')
    return mine


@pytest.mark.parametrize(
    ('script', 'command', 'status', 'wrong'), RUNS, ids=lambda v: str(v)[:20]
)
def test_one_sentence_that_names_the_option(
    tmp_path: pathlib.Path,
    places: dict[str, str],
    script: str,
    command: list[str],
    status: int,
    wrong: Sequence[Mistake],
) -> None:
    """Nothing else is on stderr; no traceback, no password is shown."""
    mine = [
        _write(tmp_path / str(i), one, places) for i, one in enumerate(wrong)
    ]
    cases = [
        [*(_replaced(o, at) for o in one.options), *command]
        for one, at in zip(wrong, mine, strict=True)
    ]
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', mistakes.__file__, script],
        input=json.dumps(cases),
        check=True,
        capture_output=True,
        text=True,
    )
    results = json.loads(done.stdout)
    assert len(results) == len(wrong)
    bad = [
        f'{one.name}: {result}'
        for one, at, result in zip(wrong, mine, results, strict=True)
        if not _is_good(result, status, _replaced(one.named, at))
    ]
    assert not bad, '\n'.join(bad)


def _is_good(result: dict[str, Any], status: int, named: str) -> bool:
    shown = result['err'] + result['out']
    # oslo.upgradecheck prints a table, with lines that it wraps.
    words = ' '.join(shown.replace('|', ' ').split())
    return (
        result['status'] == status
        and result['err'].count('\n') <= 1
        and ' '.join(named.split()) in words
        and 'Traceback' not in shown
        and 'secret' not in shown
    )


def test_there_are_forty_mistakes() -> None:
    """So many are wanted, different ones."""
    assert len({one for *_run, wrong in RUNS for one in wrong}) >= 40
