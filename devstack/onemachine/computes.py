# SPDX-License-Identifier: Apache-2.0
"""Our daemons and stock nova-computes, started as an operator would."""

import configparser
import os
import pathlib
import shlex
import signal
from collections.abc import Sequence

from onemachine import config, content, packages, processes
from onemachine.control import Cloud
from onemachine.layout import REPOSITORY
from onemachine.progress import CloudError, step, wait_until

_UNIT = REPOSITORY / 'etc' / 'systemd' / 'ironic-compute.service'


class Computes:
    """The compute hosts of a cloud."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._layout = cloud.layout
        self._processes = cloud.processes

    # Starting

    def start_agents(
        self, hosts: Sequence[str], *, eventlet: bool = False
    ) -> None:
        """Start our daemons; wait until Nova sees them up and mapped."""
        self._cloud.coordination.start()
        for host in hosts:
            folder = self._write_agent(host, eventlet)
            self._processes.start(f'agent-{host}', self._unit_command(folder))
        self._await_up(hosts, 'agent')

    def start_peers(self, hosts: Sequence[str]) -> None:
        """Start stock nova-computes; wait until they are up and mapped."""
        for host in hosts:
            path = self._layout.folder('peers', host) / 'nova.conf'
            nova = config.nova(self._layout, host)
            # Its own default waits three minutes for tasks to end.
            ending = {'graceful_shutdown_timeout': 20}
            config.write(
                path, {**nova, 'DEFAULT': {**nova['DEFAULT'], **ending}}
            )
            command = [
                self._layout.bin('nova-compute'),
                '--config-file',
                str(path),
            ]
            self._processes.start(f'peer-{host}', command)
        self._await_up(hosts, 'peer')

    def _write_agent(self, host: str, eventlet: bool) -> pathlib.Path:
        folder = self._layout.folder('agents', host)
        nova = {k: dict(v) for k, v in config.nova(self._layout, host).items()}
        if eventlet:
            nova['DEFAULT']['concurrency_backend'] = 'eventlet'
        config.write(folder / 'nova.conf', nova)
        config.write(
            folder / 'ironic-compute.conf',
            {
                'coordination': {
                    'backend_url': self._cloud.coordination.url,
                },
                'ironic_compute': {'state_path': folder / 'state'},
            },
        )
        return folder

    def _unit_command(self, folder: pathlib.Path) -> list[str]:
        """Return the systemd unit's command line with our paths in it."""
        unit = configparser.RawConfigParser(strict=False)
        unit.read(_UNIT)
        program, *arguments = shlex.split(unit['Service']['ExecStart'])
        return [
            self._layout.bin(os.path.basename(program)),
            *(
                str(folder / os.path.basename(word))
                if word.startswith('/etc/')
                else word
                for word in arguments
            ),
        ]

    def _await_up(self, hosts: Sequence[str], kind: str) -> None:
        asked = content.Content(self._layout)

        def all_up() -> bool:
            for host in hosts:
                self._processes.require(f'{kind}-{host}')
            services = asked.services()
            return all(
                host in services and services[host].state == 'up'
                for host in hosts
            )

        with step(f'Starting {kind} {" ".join(hosts)}'):
            wait_until(f'{", ".join(hosts)} up in Nova', all_up, 120)
            self.map_hosts()

    def map_hosts(self) -> None:
        """Tell Nova's API the cell of new hosts."""
        packages.run(
            self._layout,
            [
                self._layout.bin('nova-manage'),
                '--config-file',
                str(self._layout.conf('nova')),
                'cell_v2',
                'discover_hosts',
                '--by-service',
            ],
        )

    # Ending and halting

    def stop(self, hosts: Sequence[str]) -> None:
        """End processes with SIGTERM and wait for them."""
        names = [self._name(host) for host in hosts]
        with step(f'Stopping {" ".join(names)}'):
            for name in names:
                self._processes.signal(name, signal.SIGTERM)
            for name in names:
                self._processes.stop(name, timeout_s=90)

    def kill(self, hosts: Sequence[str]) -> None:
        """Kill processes with -9, an agent with all its workers."""
        names = [self._name(host) for host in hosts]
        self._signal_all(hosts, signal.SIGKILL)
        for name in names:
            self._processes.stop(name)

    def pause(self, hosts: Sequence[str]) -> None:
        """Freeze processes as a hung machine would."""
        self._signal_all(hosts, signal.SIGSTOP)

    def resume(self, hosts: Sequence[str]) -> None:
        """Let frozen processes go on."""
        self._signal_all(hosts, signal.SIGCONT)

    def _signal_all(
        self, hosts: Sequence[str], number: signal.Signals
    ) -> None:
        for host in hosts:
            pid = self._processes.require(self._name(host))
            workers = [
                child
                for child in processes.children(pid)
                if content.worker_host(child)
            ]
            for one in (pid, *workers):
                os.kill(one, number)

    def _name(self, host: str) -> str:
        for kind in ('agent', 'peer'):
            if self._processes.pid(f'{kind}-{host}') is not None:
                return f'{kind}-{host}'
        raise CloudError(f'neither an agent nor a peer {host} is running')
