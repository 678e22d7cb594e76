# SPDX-License-Identifier: Apache-2.0
"""From three stock nova-computes to a pool, to fewer hosts, and back.

Each way is the one that ``ironic-computectl migrate plan`` lists. After each
step, servers of each host are rebooted; after each way all of them, one is
booted and one deleted, and Placement and Nova are compared.
"""

import time
from collections.abc import Sequence
from typing import Any

from onemachine import allocations, content, running
from onemachine.backends import sql
from onemachine.computes import Computes
from onemachine.control import Cloud
from onemachine.dials import Dials
from onemachine.progress import expect, print_line, step, wait_until
from onemachine.recipe import Recipe, Row

HOSTS = ('c1', 'c2', 'c3')
# The options of each way, and the hosts that are there at its end.
_WAYS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ('one pool of three', ('--hosts', 'c1,c2,c3'), HOSTS),
    ('one pool of two', ('--hosts', 'c1,c2'), ('c1', 'c2')),
    ('two nova-computes', ('--back',), ('c1', 'c2')),
    ('one pool of three again', ('--hosts', 'c1,c2,c3'), HOSTS),
    ('one nova-compute', ('--back', '--hosts', 'c1'), ('c1',)),
)


class Migration:
    """Goes all ways once, with the same servers."""

    def __init__(self, cloud: Cloud, nodes: int, servers: int) -> None:
        self._cloud = cloud
        self._layout = cloud.layout
        self._nodes_count, self._servers_count = nodes, servers
        self._computes = Computes(cloud)
        self._running = running.Running(cloud.layout)
        self._content = content.Content(cloud.layout)
        self._timings: list[tuple[str, str]] = []
        self._waiting: list[Any] = []

    def run(self) -> None:
        """Go all ways.

        :raises CloudError: a step or a check failed
        """
        self._begin()
        for name, words, hosts in _WAYS:
            with step(f'The way to {name}'):
                self._go(name, words, hosts)
        self._content.delete()
        print('\n' + content.table(('Seconds', 'Step'), self._timings))
        print_line(
            f'SEEN: {self._nodes_count} nodes and {self._servers_count} '
            f'servers went {len(_WAYS)} ways; no allocation changed'
        )

    def _begin(self) -> None:
        """Start three stock nova-computes with nodes and servers."""
        # Otherwise two builds may get the same node; nova-compute fails then.
        if Dials(self._layout).turn('placement-retries', 'off'):
            self._cloud.up()
        if self._running.hosts():
            self._running.stop(self._running.hosts())
        self._computes.start_peers(HOSTS)
        self._content.delete()
        self._content.forget_hosts(but=HOSTS)
        self._content.enroll(self._nodes_count)
        self._await_all_held(HOSTS)
        self._content.boot(self._servers_count, 900)
        print(self._content.hosts_table())

    def _go(
        self, name: str, words: tuple[str, ...], hosts: tuple[str, ...]
    ) -> None:
        self._since_s = time.monotonic()
        self._is_back = '--back' in words
        recipe = Recipe(self._cloud, *words)
        before = self._allocations()
        recipe.follow(lambda row: self._look(row, before))
        expect(not recipe.plan(), f'the plan to {name} is not empty')
        self._await_all_held(hosts)
        self._check_servers(hosts)
        print(self._content.hosts_table())

    def _look(self, row: Row, before: set[str]) -> None:
        """Check the cloud after a step, with requests of users."""
        took_s = time.monotonic() - self._since_s
        self._timings.append((f'{took_s:7.1f}', f'{row["Host"]}: {row["Do"]}'))
        after = self._allocations()
        expect(
            after == before,
            f'allocations changed: {sorted(after ^ before)}',
        )
        if 'disable' in row['Do']:
            # A nova-compute that starts resumes a reboot, and then gets its
            # message, too; Nova records that as a failed action.
            if not self._is_back:
                self._request_reboots(row['Host'].split(', '))
        else:
            self._await_reboots()
            self._reboot_one_of_each_host()
        self._since_s = time.monotonic()

    def _request_reboots(self, hosts: Sequence[str]) -> None:
        """Request what must wait until somebody serves these hosts again."""
        first = {s.compute_host: s for s in self._content.servers()}
        for server in (first[host] for host in hosts if host in first):
            self._content.request_reboot(server)
            self._waiting.append(server)

    def _await_reboots(self) -> None:
        """Wait for the requests to hosts that are served again."""
        served = self._running.serving()
        for server in list(self._waiting):
            if server.compute_host in served:
                self._content.await_rebooted(server)
                self._waiting.remove(server)

    def _reboot_one_of_each_host(self) -> None:
        served = self._running.serving()
        busy = {server.id for server in self._waiting}
        first = {
            s.compute_host: s
            for s in self._content.servers()
            if s.compute_host in served and s.id not in busy
        }
        self._content.reboot(list(first.values()))

    def _allocations(self) -> set[str]:
        """Return consumer, node and class of each allocation."""
        text = sql(
            self._layout,
            'SELECT a.consumer_id, p.uuid, a.resource_class_id, a.used '
            'FROM placement.allocations AS a JOIN '
            'placement.resource_providers AS p '
            'ON p.id = a.resource_provider_id;',
        )
        return set(text.splitlines())

    def _check_servers(self, hosts: tuple[str, ...]) -> None:
        """Use each server as its user would, then compare the services."""
        servers = self._content.servers()
        expect(
            {s.compute_host for s in servers} <= set(hosts),
            f'servers are on {sorted({s.compute_host for s in servers})}',
        )
        self._content.reboot(servers, 600)
        self._content.boot(1, 300)
        doomed = min(servers, key=lambda server: str(server.created_at))
        self._content.delete_server(doomed, 300)
        states = {s.status for s in self._content.servers()}
        expect(states == {'ACTIVE'}, f'servers are {states}')
        for what, count in allocations.inconsistencies(self._layout).items():
            expect(count == 0, f'{count} {what}')

    def _await_all_held(self, hosts: tuple[str, ...]) -> None:
        """Wait until these hosts hold all nodes, and Placement offers them."""
        nodes = set(self._content.nodes())

        def are_held() -> bool:
            holders = self._content.holders()
            return set(holders) >= nodes and {
                holders[node] for node in nodes
            } <= set(hosts)

        wait_until(f'all nodes held by {", ".join(hosts)}', are_held, 300)
        free = {n.id for n in self._content.nodes().values() if _is_free(n)}
        wait_until(
            'all free nodes offered',
            lambda: free <= self._content.schedulable(),
            300,
        )


def _is_free(node: Any) -> bool:
    return node.instance_id is None and node.provision_state == 'available'
