# SPDX-License-Identifier: Apache-2.0
"""A real RabbitMQ of one node, on free loopback ports."""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
from typing import Any

from hashring.clock import SystemClock
from tests.contract import children
from tests.free_ports import find_free_ports

_BIN = pathlib.Path('/usr/lib/rabbitmq/bin')
RABBITMQ = _BIN / 'rabbitmq-server'
_CTL = _BIN / 'rabbitmqctl'
START_TIMEOUT_S = 60.0
_CONFIG = """
listeners.tcp.1 = 127.0.0.1:{port}
distribution.listener.interface = 127.0.0.1
disk_free_limit.absolute = 50MB
"""


def is_installed() -> bool:
    """Return whether RabbitMQ can be started here."""
    return RABBITMQ.exists() and shutil.which('epmd') is not None


def _answers(port: int) -> bool:
    """Return whether the broker answers; it does some seconds after start."""
    with contextlib.suppress(OSError):
        socket.create_connection(('127.0.0.1', port), 1.0).close()
        return True
    return False


class Broker:
    """RabbitMQ and its epmd; the files are below ``folder``."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[Any]] = []
        self._environment: dict[str, str] = {}
        self.port = find_free_ports(1)
        self.url = f'rabbit://guest:guest@127.0.0.1:{self.port}/'

    def start(self) -> None:
        """Start both programs and wait until RabbitMQ answers."""
        self._start()
        clock = SystemClock()
        ends_s = clock.now_s() + START_TIMEOUT_S
        while not _answers(self.port):
            log = self._folder / 'output.log'
            assert clock.now_s() < ends_s, log.read_text()
            clock.sleep(0.5)

    def _start(self) -> None:
        epmd_port = str(find_free_ports(1))
        config = self._folder / 'rabbitmq.conf'
        config.write_text(_CONFIG.format(port=self.port))
        plugins = self._folder / 'enabled_plugins'
        plugins.write_text('[].\n')
        self._environment = {
            **os.environ,
            'HOME': str(self._folder),
            'ERL_EPMD_ADDRESS': '127.0.0.1',
            'ERL_EPMD_PORT': epmd_port,
            'RABBITMQ_NODENAME': f'contract{self.port}@localhost',
            'RABBITMQ_MNESIA_BASE': str(self._folder / 'mnesia'),
            'RABBITMQ_LOG_BASE': str(self._folder / 'log'),
            'RABBITMQ_CONFIG_FILE': str(config),
            'RABBITMQ_ENABLED_PLUGINS_FILE': str(plugins),
            'RABBITMQ_DIST_PORT': str(find_free_ports(1)),
            'RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS': (
                '-kernel inet_dist_use_interface {127,0,0,1}'
            ),
        }
        with (self._folder / 'output.log').open('ab') as log:
            for command in (['epmd'], [RABBITMQ]):
                self._processes.append(
                    children.start(
                        command,
                        env=self._environment,
                        stdout=log,
                        stderr=log,
                        cwd=self._folder,
                        start_new_session=True,
                    )
                )

    def allow(self, names: str) -> None:
        """Let the user use queues and exchanges whose name matches.

        :param names: a regular expression; '' for none
        """
        command = [_CTL, 'set_permissions', 'guest', names, names, names]
        subprocess.run(
            command, env=self._environment, check=True, capture_output=True
        )

    def freeze(self) -> None:
        """Stop all threads: connections stay, and nothing answers."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the programs go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for process in self._processes:
            os.killpg(process.pid, number)

    def stop(self) -> None:
        """Kill both programs with all that they have started."""
        while self._processes:
            process = self._processes.pop()
            os.killpg(process.pid, 9)
            process.wait()
