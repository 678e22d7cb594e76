# SPDX-License-Identifier: Apache-2.0
"""Checks that the cloud works as with nova-compute, and can return to it."""

import json
import subprocess
from collections.abc import Sequence
from typing import Any

from onemachine import allocations, content, packages, registry, running
from onemachine.computes import Computes
from onemachine.control import Cloud
from onemachine.progress import CloudError, expect, print_line, step
from onemachine.story import HOSTS


class Checks:
    """Runs the checks of an operator, with the operator's own tools."""

    def __init__(self, cloud: Cloud, *, eventlet: bool = False) -> None:
        self._cloud = cloud
        self._layout = cloud.layout
        self._eventlet = eventlet
        self._computes = Computes(cloud)
        self._running = running.Running(cloud.layout)
        self._content = content.Content(cloud.layout)

    def run(self) -> None:
        """Check the command line, and run Nova's own checks."""
        self._start_agents()
        (server,) = self._content.boot(1)
        with step('Asking with the openstack command'):
            self._check_services()
            self._check_hypervisors()
            self._check_providers()
            self._check_server(server)
        with step("Running Nova's own checks"):
            self._check_nova_checks()
        self._content.delete()
        print_line('SEEN: everything looks as with nova-compute')

    def swap(self) -> None:
        """Replace our daemons by stock nova-compute with servers, and back."""
        self._start_agents()
        servers = self._content.boot(2)
        self._running.stop(HOSTS)
        self._computes.start_peers(HOSTS)
        self._check_served(servers, 'stock nova-compute')
        servers += self._content.boot(1)
        self._running.stop(HOSTS)
        self._start_agents()
        self._check_served(servers, 'our daemons again')
        self._content.delete()
        print_line(
            'SEEN: to stock nova-compute and back, with the same servers'
        )

    def _start_agents(self) -> None:
        stock = [
            host
            for host, by in self._running.serving().items()
            if by.startswith('stock')
        ]
        if stock:
            self._running.stop(stock)
        self._computes.start_agents(HOSTS, eventlet=self._eventlet)

    def _check_served(self, servers: list[Any], whom: str) -> None:
        """Check that servers are where they were, and reboot them."""
        print_line(f'Now {len(servers)} servers are served by {whom}')
        self._content.reboot(servers)
        for before in servers:
            now = self._content.server(before.id)
            for what in ('compute_host', 'hypervisor_hostname', 'host_id'):
                was, is_now = getattr(before, what), getattr(now, what)
                _hold(was == is_now, f'{what} went from {was} to {is_now}')

    # The operator's view

    def _openstack(self, *words: str) -> Any:
        command = [self._layout.bin('openstack'), *words, '-f', 'json']
        environment = self._layout.environment(
            **registry.environment(self._layout)
        )
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment
        )
        if done.returncode != 0:
            raise CloudError(f'{" ".join(words)} failed: {done.stderr}')
        return json.loads(done.stdout)

    def _check_services(self) -> None:
        found = self._openstack(
            'compute', 'service', 'list', '--service', 'nova-compute'
        )
        up = {s['Host'] for s in found if s['State'] == 'up'}
        _hold(up >= set(HOSTS), f'compute services up: {sorted(up)}')

    def _check_hypervisors(self) -> None:
        found = self._openstack('hypervisor', 'list')
        nodes = set(self._content.nodes())
        names = {h['Hypervisor Hostname'] for h in found}
        _hold(names == nodes, f'{len(names)} hypervisors, {len(nodes)} nodes')
        kinds = {h['Hypervisor Type'] for h in found}
        _hold(kinds == {'ironic'}, f'hypervisor types {kinds}')

    def _check_providers(self) -> None:
        found = self._openstack('resource', 'provider', 'list')
        nodes = set(self._content.nodes())
        _hold(
            {p['uuid'] for p in found} == nodes
            and all(p['name'] == p['uuid'] for p in found),
            f'{len(found)} providers, {len(nodes)} nodes',
        )

    def _check_server(self, server: Any) -> None:
        shown = self._openstack('server', 'show', server.id)
        node = self._content.nodes()[server.hypervisor_hostname]
        _hold(node.instance_id == server.id, f'node {node.id} has it')
        _hold(shown['status'] == 'ACTIVE', f'status {shown["status"]}')
        _hold(
            shown['OS-EXT-SRV-ATTR:host'] in HOSTS,
            f'host {shown["OS-EXT-SRV-ATTR:host"]}',
        )
        _hold('192.0.2.' in str(shown['addresses']), 'it has an address')

    def _nova(self, program: str, *words: str, good: Sequence[int]) -> str:
        conf = str(self._layout.conf('nova'))
        command = [self._layout.bin(program), '--config-file', conf, *words]
        return packages.run(self._layout, command, good)

    def _check_nova_checks(self) -> None:
        # 1: a warning, about parts of Nova other than compute services.
        checked = self._nova('nova-status', 'upgrade', 'check', good=(0, 1))
        _hold('Failure' not in checked, f'nova-status: {checked}')
        for what, count in allocations.inconsistencies(self._layout).items():
            _hold(count == 0, f'{count} {what}')


def _hold(holds: bool, what: str) -> None:
    expect(holds, f'this does not look as with nova-compute: {what}')
