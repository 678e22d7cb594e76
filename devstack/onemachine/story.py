# SPDX-License-Identifier: Apache-2.0
"""The demonstration: each step is carried out and then checked.

A check reads the real services and waits a bounded time. The first check that
fails ends the demonstration with its sentence and exit status 1.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from onemachine import content, naming, registry, running
from onemachine.computes import Computes
from onemachine.control import Cloud
from onemachine.progress import (
    CloudError,
    elapsed_s,
    print_line,
    step,
    wait_until,
)

HOSTS = ('c1', 'c2', 'c3')
NODE_COUNT = 30
SERVER_COUNT = 6
# Seconds: the lease term of 15 s, one adoption step, the start of a worker,
# and a reserve.
ADOPTION_MAX_S = 60


class Story:
    """Runs the demonstration once."""

    def __init__(self, cloud: Cloud, *, eventlet: bool) -> None:
        self._cloud = cloud
        self._eventlet = eventlet
        self._computes = Computes(cloud)
        self._running = running.Running(cloud.layout)
        self._timings: list[tuple[str, float]] = []

    def run(self) -> None:
        """Run all steps; print the table of durations at the end.

        :raises CloudError: the check of a step failed
        """
        self._timings.append(('everything is installed', elapsed_s()))
        with self._chapter('the cloud is up'):
            self._cloud.up()
        self._content = content.Content(self._cloud.layout)
        with self._chapter('leftovers of an earlier run are gone'):
            self._clean()
        with self._chapter(f'{NODE_COUNT} nodes are enrolled'):
            self._content.enroll(NODE_COUNT)
        with self._chapter('three agents run'):
            self._computes.start_agents(HOSTS, eventlet=self._eventlet)
        with self._chapter('every node is held, by three hosts'):
            self._check_split()
        with self._chapter('every node is offered by Placement'):
            self._check_all_offered()
        with self._chapter(f'{SERVER_COUNT} servers are ACTIVE'):
            servers = self._boot()
        with self._chapter('each server stays with its holder'):
            self._check_pinned(servers)
        self._lose_and_recover(servers)
        with self._chapter('all servers are deleted'):
            self._content.delete()
        with self._chapter('every node is available and offered again'):
            self._check_all_free()
        self._show_timings()

    @contextlib.contextmanager
    def _chapter(self, what: str) -> Iterator[None]:
        begun_s = time.monotonic()
        yield
        took_s = time.monotonic() - begun_s
        self._timings.append((what, took_s))
        print_line(f'SEEN: {what} ({took_s:.1f} s)')

    def _show_timings(self) -> None:
        rows = [(f'{took_s:7.1f}', what) for what, took_s in self._timings]
        total = sum(took_s for _, took_s in self._timings)
        rows.append((f'{total:7.1f}', 'in all'))
        print('\n' + content.table(('Seconds', 'What was seen'), rows))

    # Before

    def _clean(self) -> None:
        """Delete all servers, and end all agents and peers."""
        if self._content.servers():
            served = set(self._running.serving())
            holders = {s.compute_host for s in self._content.servers()}
            if holders - served - {None}:
                self._running.stop(self._running.hosts())
                self._computes.start_agents(HOSTS, eventlet=self._eventlet)
            self._content.delete()
        if self._running.hosts():
            self._running.stop(self._running.hosts())
        self._content.forget_hosts(but=HOSTS)

    # The split

    def _check_split(self) -> None:
        nodes = set(self._content.nodes())

        def is_split() -> bool:
            holders = self._content.holders()
            mine = {n: h for n, h in holders.items() if n in nodes}
            return set(mine) == nodes and set(mine.values()) == set(HOSTS)

        wait_until('all nodes held, by all three hosts', is_split, 120)
        print(self._content.hosts_table())

    def _check_all_offered(self) -> None:
        nodes = set(self._content.nodes())
        wait_until(
            'all nodes schedulable in Placement',
            lambda: nodes <= self._content.schedulable(),
            120,
        )

    # Servers

    def _boot(self) -> list[Any]:
        """Boot servers; two of them on c1, for the next steps."""
        names = naming.server_names(str(SERVER_COUNT))
        with step(f'Booting {SERVER_COUNT} servers'):
            asked = self._content.create_servers(names[:2], host='c1')
            asked += self._content.create_servers(names[2:])
            servers = self._content.all_active(asked)
        print(self._content.servers_table())
        return servers

    def _check_pinned(self, servers: list[Any]) -> None:
        holders = self._content.holders()
        for server in servers:
            node = server.hypervisor_hostname
            if holders.get(node) != server.compute_host:
                raise CloudError(
                    f'node {node} of server {server.name} is held by '
                    f'{holders.get(node)}, not {server.compute_host}'
                )

    # Losing a daemon

    def _lose_and_recover(self, servers: list[Any]) -> None:
        before = self._content.holders()
        rebooted, deleted = [s for s in servers if s.compute_host == 'c1'][:2]
        print_line('kill -9 of the agent and the worker of c1')
        self._running.kill(['c1'])
        compute = self._content.cloud.compute
        # A request while c1 is not served must wait and not fail.
        self._content.request_reboot(rebooted)
        compute.delete_server(deleted.id)
        with self._chapter('another agent serves host c1'):
            self._await_served('c1', lambda by: 'agent-c1' not in by)
        print(self._content.hosts_table())
        with self._chapter('the reboot asked for meanwhile is done'):
            self._content.await_rebooted(rebooted, 120)
        with self._chapter('the delete asked for meanwhile is done'):
            self._check_deleted(deleted)
        with self._chapter('no node has changed its holder'):
            self._check_holders(before)
        with self._chapter('c1 is back and serves itself'):
            self._computes.start_agents(['c1'], eventlet=self._eventlet)
            self._await_served('c1', lambda by: 'agent-c1' in by)
        with self._chapter('still no node has changed its holder'):
            self._check_holders(before)

    def _await_served(self, host: str, by: Callable[[str], bool]) -> None:
        def is_served() -> bool:
            return by(self._running.serving().get(host, 'agent-c1'))

        wait_until(f'host {host} served', is_served, ADOPTION_MAX_S)

    def _check_deleted(self, server: Any) -> None:
        node = server.hypervisor_hostname
        wait_until(
            f'{server.name} gone',
            lambda: server.id not in {s.id for s in self._content.servers()},
            120,
        )
        wait_until(
            f'node {node} free of it',
            lambda: self._content.nodes()[node].instance_id is None,
            120,
        )

    def _check_holders(self, before: dict[str, str]) -> None:
        now = self._content.holders()
        moved = {n for n, host in before.items() if now.get(n) != host}
        if moved:
            raise CloudError(f'nodes that changed their holder: {moved}')

    # After

    def _check_all_free(self) -> None:
        def all_available() -> bool:
            return all(
                node.provision_state == 'available'
                and node.instance_id is None
                for node in self._content.nodes().values()
            )

        wait_until('all nodes available in Ironic', all_available, 180)
        self._check_all_offered()
        left = self._content.allocations_count()
        if left:
            raise CloudError(f'Placement still has {left} allocations')
        ports = list(
            self._content.cloud.network.ports(
                network_id=self._content.cloud.network.find_network(
                    registry.NETWORK
                ).id
            )
        )
        if ports:
            raise CloudError(f'Neutron still has {len(ports)} ports')
