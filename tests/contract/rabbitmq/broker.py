# SPDX-License-Identifier: Apache-2.0
"""A real RabbitMQ of one node, on free loopback ports."""

import os
import pathlib
import shutil
import subprocess
from typing import Any

from tests.contract import children
from tests.contract.coordination.servers import free_port

RABBITMQ = pathlib.Path('/usr/lib/rabbitmq/bin/rabbitmq-server')
START_TIMEOUT_S = 60.0
_CONFIG = """
listeners.tcp.1 = 127.0.0.1:{port}
distribution.listener.interface = 127.0.0.1
disk_free_limit.absolute = 50MB
"""


def is_installed() -> bool:
    """Return whether RabbitMQ can be started here."""
    return RABBITMQ.exists() and shutil.which('epmd') is not None


class Broker:
    """RabbitMQ and its epmd; the files are below ``folder``."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[Any]] = []
        self.port = free_port()
        self.url = f'rabbit://guest:guest@127.0.0.1:{self.port}/'

    def start(self) -> None:
        """Start both programs; the caller waits until RabbitMQ answers."""
        epmd_port = str(free_port())
        config = self._folder / 'rabbitmq.conf'
        config.write_text(_CONFIG.format(port=self.port))
        plugins = self._folder / 'enabled_plugins'
        plugins.write_text('[].\n')
        environment = {
            **os.environ,
            'HOME': str(self._folder),
            'ERL_EPMD_ADDRESS': '127.0.0.1',
            'ERL_EPMD_PORT': epmd_port,
            'RABBITMQ_NODENAME': f'contract{self.port}@localhost',
            'RABBITMQ_MNESIA_BASE': str(self._folder / 'mnesia'),
            'RABBITMQ_LOG_BASE': str(self._folder / 'log'),
            'RABBITMQ_CONFIG_FILE': str(config),
            'RABBITMQ_ENABLED_PLUGINS_FILE': str(plugins),
            'RABBITMQ_DIST_PORT': str(free_port()),
            'RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS': (
                '-kernel inet_dist_use_interface {127,0,0,1}'
            ),
        }
        with (self._folder / 'output.log').open('ab') as log:
            for command in (['epmd'], [RABBITMQ]):
                self._processes.append(
                    children.start(
                        command,
                        env=environment,
                        stdout=log,
                        stderr=log,
                        cwd=self._folder,
                        start_new_session=True,
                    )
                )

    def stop(self) -> None:
        """Kill both programs with all that they have started."""
        for process in self._processes:
            os.killpg(process.pid, 9)
            process.wait()
