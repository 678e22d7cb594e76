# SPDX-License-Identifier: Apache-2.0
"""The pool of the night: three daemons, twelve nodes, five servers.

It can be started, looked at, and put right whatever has been done to it.
"""

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onemachine import registry, running
from onemachine.chaos import proxy
from onemachine.chaos.views import Views
from onemachine.computes import Computes, unit_command
from onemachine.content import Content, each
from onemachine.control import Cloud
from onemachine.layout import REPOSITORY
from onemachine.night import accounts
from onemachine.progress import CloudError, step, wait_until

HOSTS = ('c1', 'c2', 'c3')
NODES_COUNT = 12
SERVERS_COUNT = 5
_WELL_MAX_S = 300.0
# Metrics of a daemon in a pool that is well.
_GOOD: Mapping[str, float] = {
    'ready': 1,
    'lease_in_force': 1,
    'half_alive': 0,
    'ring_agreed': 1,
    'ring_hosts': len(HOSTS),
    'hosts_known': len(HOSTS),
}
POLICY = '# The operator of this Ironic has changed no rule.\n{}\n'


class Pool:
    """A running cloud with its three daemons."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.layout = cloud.layout
        self.running = running.Running(cloud.layout)
        self.addresses = {h: proxy.address(n) for n, h in enumerate(HOSTS)}
        self.views = Views(cloud.layout, self.addresses)
        self.policy = cloud.layout.conf('ironic').with_name('policy.yaml')
        self.computes = Computes(cloud, rewrite=self._rewrite)

    @property
    def content(self) -> Content:
        """The nodes and servers; only after the services have started."""
        return Content(self.layout)

    def _rewrite(
        self, host: str, sections: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        found = accounts.with_accounts(self.layout, host, sections)
        if 'ironic_compute' in found:
            found['ironic_compute'] |= self.views.options(host)
        return found

    # The daemons

    def restart(self, hosts: Sequence[str]) -> None:
        """Restart daemons with their files as they are; do not wait."""
        self.stop(hosts)
        for host in hosts:
            self.cloud.processes.start(f'agent-{host}', self.command(host))

    def stop(self, hosts: Sequence[str]) -> None:
        """Stop those of these daemons that run."""
        names = [f'agent-{host}' for host in hosts]
        found = [n for n in names if self.cloud.processes.pid(n) is not None]
        if found:
            self.running.stop([n.removeprefix('agent-') for n in found])

    def command(self, host: str) -> list[str]:
        """Return the command line of a daemon."""
        unit = REPOSITORY / 'etc' / 'systemd' / 'ironic-compute.service'
        folder = self.layout.folder('agents', host)
        return unit_command(unit, self.layout, folder)

    def ctl(self, host: str) -> str:
        """Return the ironic-computectl of a controller, with its files."""
        folder = self.layout.folder('agents', host)
        return (
            f'{self.layout.bin("ironic-computectl")}'
            f' --config-file {folder}/nova.conf'
            f' --config-file {folder}/ironic-compute.conf'
        )

    def url(self, host: str) -> str:
        """Return the URL of a daemon's status page."""
        options = self.views.options(host)
        return f'http://{options["agent_address"]}:{options["agent_port"]}/'

    # Putting it right

    def restore(self) -> None:
        """Put all right that an operator can have changed."""
        self.revive()
        accounts.ensure(self.layout, HOSTS)
        self._remove_strangers()
        self._enable_hosts()
        self.stop([host for host in HOSTS if not self._is_good(host)])
        self.computes.start_agents(HOSTS)
        self._mend_nodes()
        self._mend_servers()

    def revive(self) -> None:
        """Start the services that do not run, with their usual files."""
        self._let_continue()
        self.policy.write_text(POLICY)
        self.cloud.up()

    def await_well(self) -> None:
        """Wait until nothing is wrong.

        :raises CloudError: with what is still wrong
        """
        last: list[str] = []

        def is_well() -> bool:
            last[:] = self.faults()
            return not last

        with step('Waiting until the pool is well'):
            try:
                wait_until('a pool that is well', is_well, _WELL_MAX_S, 2.0)
            except CloudError as exc:
                raise CloudError(f'{exc}: {"; ".join(last)}') from exc

    def _let_continue(self) -> None:
        for host in HOSTS:
            for pid in self.running.family(host):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _remove_strangers(self) -> None:
        present = set(self.running.hosts()) - set(HOSTS)
        if present:
            self.running.stop(sorted(present))
        self.content.forget_hosts(but=HOSTS)

    def _enable_hosts(self) -> None:
        content = self.content
        for host, service in content.services().items():
            if service.status == 'disabled':
                content.cloud.compute.enable_service(service)
            if service.is_forced_down:
                content.cloud.compute.update_service_forced_down(
                    service, host, 'nova-compute', forced=False
                )
        if set(content.services()) - content.mapped_hosts():
            self.computes.map_hosts()

    def _is_good(self, host: str) -> bool:
        found = self.views.metric(host, 'ready')
        return found == 1 and self.views.metric(host, 'half_alive') == 0

    def _mend_nodes(self) -> None:
        content = self.content
        content.enroll(NODES_COUNT)
        each(lambda node: _mend_node(content.metal, node), list(_nodes(self)))

    def _mend_servers(self) -> None:
        """Keep the oldest servers that are well, and no flavor of a case."""
        content = self.content
        found = sorted(content.servers(), key=lambda s: str(s.created_at))
        kept = [s for s in found if s.status == 'ACTIVE' or s.task_state]
        kept = kept[:SERVERS_COUNT]
        if doomed := [s.id for s in found if s not in kept]:
            content.delete(doomed)
        for flavor in content.cloud.compute.flavors():
            if flavor.name != registry.FLAVOR:
                content.cloud.compute.delete_flavor(flavor)
        if len(kept) < SERVERS_COUNT:
            self._await_offered()
            content.boot(SERVERS_COUNT - len(kept))

    def _await_offered(self) -> None:
        content = self.content
        with step('Waiting until the free nodes are offered'):
            wait_until(
                'all free nodes offered',
                lambda: (
                    {n.id for n in self.free_nodes()} <= content.schedulable()
                ),
                _WELL_MAX_S,
                2.0,
            )

    # Looking

    def serves_at_home(self, host: str) -> bool:
        """Return whether the worker of a host is that of its own daemon."""
        by = self.running.serving().get(host, '')
        return by.startswith(f'agent-{host} ')

    def free_nodes(self) -> list[Any]:
        """Return the nodes without a server, by name."""
        return [node for node in _nodes(self) if not node.instance_id]

    def faults(self) -> list[str]:
        """Return what is wrong, in a few words each."""
        return [
            *self._faults_of_daemons(),
            *self._faults_of_hosts(),
            *self._faults_of_nodes(),
            *(
                f'server {s.name} is {s.status} ({s.task_state})'
                for s in self.content.servers()
                if s.status != 'ACTIVE' or s.task_state
            ),
        ]

    def _faults_of_daemons(self) -> Iterator[str]:
        for host in HOSTS:
            if not self.serves_at_home(host):
                yield f'{host} is not served at home'
            for name, good in _GOOD.items():
                found = self.views.metric(host, name)
                if found != good:
                    yield f'{name} of {host} is {found}'

    def _faults_of_hosts(self) -> Iterator[str]:
        services = self.content.services()
        if set(services) != set(HOSTS):
            yield f'the hosts are {sorted(services)}'
        for host, service in services.items():
            if (service.state, service.status) != ('up', 'enabled'):
                yield f'{host} is {service.state} and {service.status}'

    def _faults_of_nodes(self) -> Iterator[str]:
        content = self.content
        holders, nodes = content.holders(), list(_nodes(self))
        idle = set(HOSTS) - {holders.get(node.id) for node in nodes}
        if idle:
            yield f'without nodes: {sorted(idle)}'
        offered = content.schedulable()
        for node in nodes:
            if holders.get(node.id) not in HOSTS:
                yield f'{node.name} has no holder'
            if not node.instance_id and node.id not in offered:
                yield f'{node.name} is not offered'


def _nodes(pool: Pool) -> list[Any]:
    found = pool.content.nodes().values()
    return sorted(found, key=lambda node: str(node.name))


def _mend_node(metal: Any, node: Any) -> None:
    if node.is_maintenance:
        metal.unset_node_maintenance(node)
    if node.resource_class != registry.RESOURCE_CLASS:
        value = {'path': '/resource_class', 'value': registry.RESOURCE_CLASS}
        metal.patch_node(node.id, [{'op': 'add', **value}])
    for trait in node.traits or ():
        metal.remove_node_trait(node, trait)
    if node.provision_state == 'manageable':
        metal.set_node_provision_state(node, 'provide', wait=True, timeout=60)
