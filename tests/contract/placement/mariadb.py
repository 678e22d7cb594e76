# SPDX-License-Identifier: Apache-2.0
"""A real MariaDB on a free loopback port."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
from typing import Any

from tests.contract import children
from tests.free_ports import find_free_ports

MARIADB = pathlib.Path('/usr/sbin/mariadbd')


def is_installed() -> bool:
    """Return whether MariaDB can be started, and reached with SQLAlchemy."""
    return (
        MARIADB.exists()
        and shutil.which('mariadb-install-db') is not None
        and importlib.util.find_spec('pymysql') is not None
    )


class MariaDB:
    """MariaDB; its files are below ``folder``."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._data = folder / 'data'
        self._socket = folder / 'mysqld.sock'
        self._user = [] if os.geteuid() else ['--user=root']
        self._process: subprocess.Popen[Any] | None = None
        self.port = find_free_ports(1)

    def start(self) -> None:
        """Create the files and start; the caller waits for an answer."""
        temporary = self._folder / 'tmp'
        temporary.mkdir()
        files = [f'--datadir={self._data}', f'--tmpdir={temporary}']
        subprocess.run(
            [
                'mariadb-install-db',
                '--no-defaults',
                '--auth-root-authentication-method=normal',
                *files,
                *self._user,
            ],
            check=True,
            capture_output=True,
        )
        with (self._folder / 'output.log').open('ab') as log:
            self._process = children.start(
                [
                    MARIADB,
                    '--no-defaults',
                    *files,
                    f'--socket={self._socket}',
                    '--bind-address=127.0.0.1',
                    f'--port={self.port}',
                    '--skip-name-resolve',
                    '--innodb-flush-log-at-trx-commit=0',
                    *self._user,
                ],
                stdout=log,
                stderr=log,
            )

    def url(self, database: str) -> str:
        """Return the URL of a database, as SQLAlchemy needs it."""
        return f'mysql+pymysql://root@127.0.0.1:{self.port}/{database}'

    def executes(self, statement: str) -> bool:
        """Execute a statement; return whether that succeeded."""
        command = ['mariadb', '-u', 'root', f'--socket={self._socket}']
        done = subprocess.run([*command, '-e', statement], capture_output=True)
        return done.returncode == 0

    def stop(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
