# SPDX-License-Identifier: Apache-2.0
"""Starts our daemons and stock nova-computes, as an operator does."""

import configparser
import math
import os
import pathlib
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from onemachine import config, content, packages, rights, running
from onemachine.control import Cloud
from onemachine.layout import REPOSITORY, Layout
from onemachine.progress import CloudError, print_line, step, wait_until

# Files that the package ships to operators.
_SAMPLE = REPOSITORY / 'etc' / 'ironic-compute' / 'ironic-compute.conf.sample'
_UNIT = REPOSITORY / 'etc' / 'systemd' / 'ironic-compute.service'

# Stock nova-compute serves no RPC before it has reported all its nodes.
_START_MAX_S = {'agent': 120.0, 'peer': 900.0}

# Host and sections -> sections.
Rewrite = Callable[
    [str, Mapping[str, Mapping[str, Any]]], dict[str, dict[str, Any]]
]


def _unchanged(
    host: str, sections: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    return {name: dict(options) for name, options in sections.items()}


class Computes:
    """The compute hosts of a cloud.

    :param addresses: host -> address of Ironic and Placement, if not those
        of the catalog
    :param nova: further options of nova.conf
    :param ours: further options of [ironic_compute] of our daemons
    :param environments: host -> further variables of its process
    :param rewrite: changes the sections of a host's files before they are
        written
    """

    def __init__(
        self,
        cloud: Cloud,
        addresses: Mapping[str, str] | None = None,
        *,
        nova: config.Sections | None = None,
        ours: Mapping[str, Any] | None = None,
        environments: Mapping[str, Mapping[str, str]] | None = None,
        rewrite: Rewrite = _unchanged,
    ) -> None:
        self._cloud = cloud
        self._addresses = addresses or {}
        self._more, self._ours = nova or {}, ours or {}
        self._environments = environments or {}
        self._rewrite = rewrite
        self._layout = cloud.layout
        self._processes = cloud.processes
        self._running = running.Running(cloud.layout)

    def start_agents(
        self,
        hosts: Sequence[str],
        *,
        eventlet: bool = False,
        nova_conf: pathlib.Path | None = None,
        maps: bool = True,
    ) -> None:
        """Start our daemons; wait until they serve and are mapped.

        :param nova_conf: use this file without a change
        :param maps: map new hosts to their cell
        """
        self._cloud.coordination.start()
        commands = {}
        for host in hosts:
            folder = self._layout.folder('agents', host)
            given = nova_conf.read_text() if nova_conf else None
            nova = given or self.nova_conf(host, eventlet=eventlet)
            if self._write_agent(host, folder, nova):
                # A running process has read the former file.
                self._processes.stop(f'agent-{host}', 90)
            commands[host] = unit_command(_UNIT, self._layout, folder)
        self._start('agent', commands, maps=maps)

    def write_agent(self, host: str) -> list[str]:
        """Write an agent's files; return the arguments that name them.

        The operator's commands need them before the first daemon starts.
        """
        folder = self._layout.folder('agents', host)
        self._write_agent(host, folder, self.nova_conf(host))
        names = ('nova.conf', 'ironic-compute.conf')
        return [f'--config-file={folder / name}' for name in names]

    def start_peers(self, hosts: Sequence[str]) -> None:
        """Start stock nova-computes; wait until they are up and mapped."""
        commands = {}
        for host in hosts:
            path = self._layout.folder('peers', host) / 'nova.conf'
            nova = self._nova(host)
            # By default it waits three minutes for tasks to end.
            ending = {'graceful_shutdown_timeout': 20}
            config.write(
                path, {**nova, 'DEFAULT': {**nova['DEFAULT'], **ending}}
            )
            program = self._layout.bin('nova-compute')
            commands[host] = [program, '--config-file', str(path)]
        self._start('peer', commands)

    def _start(
        self,
        kind: str,
        commands: Mapping[str, list[str]],
        *,
        maps: bool = True,
    ) -> None:
        """Start the processes that do not run, and wait for all."""
        self._refuse_doubles(kind, commands)
        asked = content.Content(self._layout)
        missing = [
            host
            for host in commands
            if self._processes.pid(f'{kind}-{host}') is None
        ]
        if not missing:
            print_line(f'{kind} {" ".join(commands)}: running')
            return
        begun_s = time.monotonic()
        with step(f'Starting {kind} {" ".join(missing)}'):
            for host in missing:
                more = self._environments.get(host, {})
                environment = self._layout.environment(**more)
                self._processes.start(
                    f'{kind}-{host}', commands[host], environment
                )
            if maps:
                self._map_new(asked, kind, missing)
            wait_until(
                f'{", ".join(missing)} up in Nova',
                lambda: self._all_serve(asked, kind, missing, begun_s),
                _START_MAX_S[kind],
            )

    def _map_new(
        self, asked: content.Content, kind: str, hosts: Sequence[str]
    ) -> None:
        """Map hosts to their cell as soon as they have a Service."""
        if set(hosts) <= asked.mapped_hosts():
            return

        def all_known() -> bool:
            for host in hosts:
                self._processes.require(f'{kind}-{host}')
            return set(hosts) <= set(asked.services())

        wait_until(f'{", ".join(hosts)} known to Nova', all_known, 120)
        self.map_hosts()

    def _refuse_doubles(self, kind: str, hosts: Iterable[str]) -> None:
        other = 'peer' if kind == 'agent' else 'agent'
        for host in hosts:
            if self._processes.pid(f'{other}-{host}') is not None:
                raise CloudError(
                    f'{other} {host} runs, and a host is served by one '
                    f'process: "devstack/cloud stop {host}" first'
                )

    def _all_serve(
        self,
        asked: content.Content,
        kind: str,
        hosts: Sequence[str],
        begun_s: float,
    ) -> bool:
        """Return whether all hosts sent a heartbeat since their start.

        A Service is still up for a minute after the end of its process, so its
        state alone proves nothing.
        """
        for host in hosts:
            self._processes.require(f'{kind}-{host}')
        own = {'agent': 'agent-{} ', 'peer': 'stock '}[kind]
        serving = self._running.serving()
        ages_s = asked.service_ages_s()
        return all(
            serving.get(host, '').startswith(own.format(host))
            and ages_s.get(host, math.inf) < time.monotonic() - begun_s
            for host in hosts
        )

    def nova_conf(self, host: str, *, eventlet: bool = False) -> str:
        """Return the text of an agent's nova.conf."""
        nova = rights.restrict(self._layout, self._nova(host))
        if eventlet:
            nova['DEFAULT']['concurrency_backend'] = 'eventlet'
        return config.render(nova)

    def _write_agent(self, host: str, folder: pathlib.Path, nova: str) -> bool:
        """Write an agent's two files; return whether one has changed."""
        ours: dict[str, dict[str, Any]] = {
            'coordination': {'backend_url': self._cloud.coordination.url},
            'ironic_compute': {
                'state_path': folder / 'state',
                **self._ours,
            },
        }
        filled = config.fill_sample(
            _SAMPLE.read_text(), self._rewrite(host, ours)
        )
        changed = config.write(folder / 'nova.conf', nova)
        return config.write(folder / 'ironic-compute.conf', filled) or changed

    def _nova(self, host: str) -> dict[str, dict[str, Any]]:
        sections = config.nova(self._layout, host)
        nova = {name: dict(options) for name, options in sections.items()}
        if host in self._addresses:
            for service in ('ironic', 'placement'):
                nova[service]['endpoint_override'] = (
                    f'http://{self._addresses[host]}:'
                    f'{self._layout.port(service)}'
                )
        for section, options in self._more.items():
            nova[section] = {**nova.get(section, {}), **options}
        return self._rewrite(host, nova)

    def map_hosts(self) -> None:
        """Map new hosts to their cell."""
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


def unit_command(
    unit: pathlib.Path, layout: Layout, folder: pathlib.Path
) -> list[str]:
    """Return the command line of a systemd unit, with our paths.

    :param folder: the folder of the configuration files, instead of /etc
    """
    parser = configparser.RawConfigParser(strict=False)
    parser.read(unit)
    program, *arguments = shlex.split(parser['Service']['ExecStart'])
    return [
        layout.bin(os.path.basename(program)),
        *(
            str(folder / os.path.basename(word))
            if word.startswith('/etc/')
            else word
            for word in arguments
        ),
    ]
