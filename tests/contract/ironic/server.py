# SPDX-License-Identifier: Apache-2.0
"""A real Ironic for a test run: one process, SQLite, hardware that is fake.

API and conductor are Ironic's own. It listens on a free loopback port, keeps
all it has in one folder, and dies with the process that started it.
"""

import configparser
import contextlib
import os
import pathlib
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping

from hashring.clock import SystemClock
from tests.contract import children
from tests.free_ports import find_free_ports

_START_S = 60.0
_FAKE = (
    *('bios', 'boot', 'console', 'deploy', 'firmware', 'inspect'),
    *('management', 'power', 'raid', 'rescue', 'vendor'),
)


Options = Mapping[str, Mapping[str, str]]


def _conf(
    folder: pathlib.Path, port: int, options: Options
) -> configparser.RawConfigParser:
    conf = configparser.RawConfigParser()
    interfaces = {}
    for kind in _FAKE:
        interfaces[f'enabled_{kind}_interfaces'] = 'fake'
        interfaces[f'default_{kind}_interface'] = 'fake'
    conf['DEFAULT'] = {
        'auth_strategy': 'noauth',
        'rpc_transport': 'none',
        'host': 'conductor',
        'my_ip': '127.0.0.1',
        'state_path': str(folder),
        'enabled_hardware_types': 'fake-hardware',
        'enabled_network_interfaces': 'noop',
        'default_network_interface': 'noop',
        'enabled_storage_interfaces': 'noop',
        'default_storage_interface': 'noop',
        **interfaces,
    }
    conf['database'] = {'connection': f'sqlite:///{folder}/ironic.sqlite'}
    conf['oslo_concurrency'] = {'lock_path': str(folder / 'locks')}
    conf['oslo_messaging_notifications'] = {'driver': 'noop'}
    conf['conductor'] = {
        'automated_clean': 'false',
        'sync_power_state_interval': '-1',
        'node_locked_retry_attempts': '1',
        'node_locked_retry_interval': '0',
    }
    conf['api'] = {
        'host_ip': '127.0.0.1',
        'port': str(port),
        # Fewer than we ask for, so that lists have several pages.
        'max_limit': '2',
    }
    for section, values in options.items():
        if section not in conf:
            conf.add_section(section)
        conf[section].update(values)
    return conf


class RealIronic:
    """Where it answers, and what an operator may do behind its back."""

    def __init__(
        self, folder: pathlib.Path, port: int, token: str = ''
    ) -> None:
        self.url = f'http://127.0.0.1:{port}'
        self._token = token
        self._database = folder / 'ironic.sqlite'
        self._log = folder / 'ironic.log'

    def log_lines(self, text: str) -> list[str]:
        """Return the lines of its log that contain a text."""
        lines = self._log.read_text(errors='replace').splitlines()
        return [line for line in lines if text in line]

    def write(self, node: str, **fields: object) -> None:
        """Write fields of a node into the database itself."""
        names = ', '.join(f'{name} = ?' for name in fields)
        self._execute(
            f'UPDATE nodes SET {names} WHERE uuid = ?',
            (*fields.values(), node),
        )

    def give_trait(self, node: str, trait: str) -> None:
        """Write a trait of a node into the database itself."""
        self._execute(
            'INSERT INTO node_traits (node_id, trait, version)'
            " SELECT id, ?, '1.0' FROM nodes WHERE uuid = ?",
            (trait, node),
        )

    def _execute(self, statement: str, values: tuple[object, ...]) -> None:
        with contextlib.closing(
            sqlite3.connect(self._database, timeout=20)
        ) as database:
            database.execute(statement, values)
            database.commit()

    def has_drivers(self) -> bool:
        """Say whether a conductor has told its drivers."""
        request = urllib.request.Request(
            f'{self.url}/v1/drivers',
            headers={
                'X-OpenStack-Ironic-API-Version': '1.46',
                'X-Auth-Token': self._token,
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return b'fake-hardware' in answer.read()
        except OSError:
            return False


@contextlib.contextmanager
def real_ironic(
    folder: pathlib.Path, options: Options | None = None, token: str = ''
) -> Iterator[RealIronic]:
    """Run an Ironic; the folder is empty and short-lived.

    :param options: of ironic.conf, by section, besides the usual ones
    :param token: of an operator, if it asks a Keystone about tokens
    """
    port = find_free_ports(1)
    config = folder / 'ironic.conf'
    with config.open('w') as file:
        _conf(folder, port, options or {}).write(file)
    programs = pathlib.Path(sys.executable).parent
    argument = f'--config-file={config}'
    with (folder / 'ironic.log').open('ab') as log:
        subprocess.run(
            [programs / 'ironic-dbsync', argument, 'create_schema'],
            check=True,
            stdout=log,
            stderr=log,
        )
        process = children.start(
            [programs / 'ironic', argument],
            stdout=log,
            stderr=log,
            cwd=folder,
            start_new_session=True,
        )
    try:
        ironic = RealIronic(folder, port, token)
        _await(ironic, process, folder)
        yield ironic
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _await(
    ironic: RealIronic,
    process: 'subprocess.Popen[bytes]',
    folder: pathlib.Path,
) -> None:
    clock = SystemClock()
    ends_s = clock.now_s() + _START_S
    while not ironic.has_drivers():
        is_late = clock.now_s() > ends_s
        if process.poll() is not None or is_late:
            raise AssertionError((folder / 'ironic.log').read_text()[-2000:])
        clock.sleep(0.2)
