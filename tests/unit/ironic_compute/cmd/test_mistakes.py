# SPDX-License-Identifier: Apache-2.0
"""Each typical mistake gives one sentence with the option, and a status.

The console scripts are run for real, with services that refuse them or that
are not there.
"""

import dataclasses
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.unit.ironic_compute.cmd import mistakes, refusing_services

_FILE = ('--config-file=FILE',)


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A wrong configuration or command line.

    :param name: what is wrong
    :param named: what the sentence must contain
    :param text: nova.conf; CLOSED, HTTP and FOLDER are replaced
    :param options: the command line in front of a script's command, or with
        it
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
    Mistake(
        'not UTF-8 in a folder',
        'The configuration file FILE cannot be read',
        '\udcff',
        ('--config-dir=FOLDER',),
    ),
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
    _coordination(
        'backend_url', 'redis://:pass$secret@c1', 'backend_url in nova.conf'
    ),
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
        'etcd3+http://c1?time_out=5',
        'backend_url sets time_out, an option that this backend does not '
        'have: write timeout',
    ),
    _coordination(
        'backend_url',
        'etcd3+http://c1?hosts=a:b',
        'backend_url names the server "a:b"',
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
    _coordination('adopt_step_s', 0.5, 'adopt_step_s is 0.5'),
    _coordination('drain_timeout_s', 0, 'drain_timeout_s in FILE'),
    _coordination('loop_interval_s', 9, 'loop_interval_s in FILE'),
    _coordination('restart_grace_s', -1, 'restart_grace_s in FILE'),
    _ours('delta_interval_s', 'x', '[ironic_compute] delta_interval_s in'),
    _ours('use_notifications', 'x', '[ironic_compute] use_notifications in'),
    _ours('fork_workers', 'x', '[ironic_compute] fork_workers in FILE'),
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
        'a dollar in a password',
        'below [ironic] in nova.conf cannot be used, such as the password: it '
        'refers with $',
        _USER.replace('password = secret', 'password = pass$secret'),
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
        'no password, and an endpoint',
        'check what is below [ironic] auth_type',
        f'{_USER}endpoint_override = HTTP/ironic\n'.replace(
            'password = secret\n', ''
        ),
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
    Mistake(
        'an expired certificate of Keystone',
        'correct [ironic] cafile in nova.conf',
        f'{_PLACEMENT}[ironic]\n{_AUTH}auth_url = https://TLS/id/v3\n'
        f'cafile = EXPIRED\n',
    ),
    Mistake(
        'an expired certificate of Ironic',
        'correct [ironic] cafile in nova.conf',
        f'{_USER}endpoint_override = https://TLS/ironic\ncafile = EXPIRED\n',
    ),
    Mistake(
        'a certificate of an unknown issuer',
        'self-signed certificate',
        f'{_USER}endpoint_override = https://TLS/ironic\n',
    ),
)
_NODE = f'{_IRONIC}endpoint_override = HTTP/ironic\n'
_OF_PLACEMENT_ITSELF = (
    Mistake(
        'no rights in Placement',
        'the user below [placement] in nova.conf lacks this right',
        f'{_NODE}{_PLACEMENT}endpoint_override = HTTP/forbidden\n',
    ),
    Mistake(
        'no endpoint of Placement',
        'check [placement] region_name',
        f'{_NODE}{_PLACEMENT}',
    ),
    Mistake(
        'wrong password of Placement',
        'check what is below [placement] auth_type',
        f'{_NODE}[placement]\n{_AUTH}auth_url = HTTP/no/v3\n',
    ),
    Mistake(
        'no password of Placement',
        'check what is below [placement] auth_type',
        _NODE + _PLACEMENT.replace('password = secret\n', ''),
    ),
    Mistake(
        'no Placement',
        'Unable to establish connection to http://127.0.0.1:CLOSED',
        f'{_NODE}{_PLACEMENT}endpoint_override = http://127.0.0.1:CLOSED\n',
    ),
    Mistake(
        'an expired certificate of Placement',
        'correct [placement] cafile in nova.conf',
        f'{_NODE}{_PLACEMENT}endpoint_override = https://TLS/forbidden\n'
        f'cafile = EXPIRED\n',
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
        'etcd3+http://HOST',
        'backend_url is etcd3+http://HOST, and it does not answer (connect: '
        'Service Unavailable (connection closed)): look into its log',
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
        'etcd3+https://TLS?ca_cert=EXPIRED',
        'backend_url is etcd3+https://TLS, and it does not answer (connect: '
        'ConnectionFailedError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate '
        'verify failed: certificate has expired',
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
    Mistake(
        'wrong user of RabbitMQ',
        'Login was refused using authentication mechanism PLAIN. For details '
        'see the broker logfile. Correct the user, password',
        '[DEFAULT]\ntransport_url = rabbit://nobody:secret@BROKER/\n',
    ),
    Mistake(
        'no rights in RabbitMQ',
        "access to vhost '/theirs' refused for user 'u'. Correct the user",
        '[DEFAULT]\ntransport_url = rabbit://u:secret@BROKER//theirs\n',
    ),
    Mistake(
        'an expired certificate of RabbitMQ',
        'correct [oslo_messaging_rabbit] ssl_ca_file',
        '[DEFAULT]\ntransport_url = rabbit://u:secret@TLS/\n'
        '[oslo_messaging_rabbit]\nssl = true\nssl_ca_file = EXPIRED\n',
    ),
)
# Every command that shows hosts or nodes reads the members of a pool first.
_SHOWING = (
    *(
        'host show c1',
        'node list',
        'node owner n1',
        'pool doctor',
        'pool list',
    ),
    *('pool show', 'ring show --with c4'),
)
_OF_MEMBERS = (
    *(
        Mistake(
            f'{command} without a daemon',
            'there is no daemon of any pool'
            if command == 'pool list'
            else 'there are daemons of: no pool. Check [ironic]',
            '[coordination]\nbackend_url = file://FOLDER\n',
            (*_FILE, *command.split()),
        )
        for command in _SHOWING
    ),
    *(
        Mistake(
            f'{command} without a backend',
            'backend_url is etcd3+http://127.0.0.1:CLOSED, and it does not',
            '[coordination]\nbackend_url = etcd3+http://127.0.0.1:CLOSED\n',
            (*_FILE, *command.split()),
        )
        for command in _SHOWING
    ),
)
_TRANSPORTS = (
    Mistake(
        'a dollar in the password of RabbitMQ',
        'write $$ for a $',
        '[DEFAULT]\ntransport_url = rabbit://u:pass$secret@c1/\n',
    ),
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
    ('ctl', [], 1, _OF_MEMBERS),
    ('ctl', _EXPLAIN, 78, (*_OF_IRONIC, *_OF_PLACEMENT)),
    ('ctl', _EXPLAIN, 1, (*_OF_KEYSTONE, *_OF_PLACEMENT_ITSELF)),
    ('ctl', _DRAIN, 78, _TRANSPORTS),
    ('ctl', _DRAIN, 1, _BROKERS),
    (
        'status',
        ['upgrade', 'check'],
        2,
        (*_EVERYWHERE, *_OF_IRONIC, *_OF_KEYSTONE, *_BACKENDS_AWAY),
    ),
    ('status', ['upgrade', 'check'], 2, _OF_PLACEMENT_ITSELF[1:4]),
)


@pytest.fixture(scope='module')
def places(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, str]]:
    """Return what stands for the places in a mistake."""
    folder = tmp_path_factory.mktemp('services')
    with refusing_services.serve(folder) as found, socket.socket() as closed:
        closed.bind(('127.0.0.1', 0))
        yield {**found, 'CLOSED': str(closed.getsockname()[1])}


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


def _environment() -> dict[str, str]:
    """Return the environment without what python-requests prefers."""
    certificates = ('REQUESTS_CA_BUNDLE', 'CURL_CA_BUNDLE')
    return {k: v for k, v in os.environ.items() if k not in certificates}


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
        env=_environment(),
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
