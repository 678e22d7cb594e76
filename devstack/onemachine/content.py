# SPDX-License-Identifier: Apache-2.0
"""What is in the cloud: nodes, servers, and who holds and serves what."""

import collections
import concurrent.futures
import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from onemachine import processes, registry
from onemachine.backends import sql
from onemachine.layout import Layout
from onemachine.progress import CloudError, step, wait_until

_PARALLEL = 8
# Above this, nodes are copies of the first one's row in Ironic's database.
_THROUGH_API_MAX = 50


def each(act: Callable[[Any], Any], things: Iterable[Any]) -> list[Any]:
    """Do something for all things, a few at once."""
    with concurrent.futures.ThreadPoolExecutor(_PARALLEL) as pool:
        return list(pool.map(act, things))


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Lay out a table."""
    texts = [[str(cell) for cell in row] for row in [columns, *rows]]
    widths = [max(len(row[i]) for row in texts) for i in range(len(columns))]
    lines = [
        '  '.join(
            c.ljust(w) for c, w in zip(row, widths, strict=True)
        ).rstrip()
        for row in texts
    ]
    return '\n'.join([lines[0], '-' * len(lines[0]), *lines[1:]])


class Content:
    """Asks and changes a cloud through its APIs, as its users would."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.cloud = registry.connect(layout)
        self._metal = registry.connect(layout, system=True).baremetal

    # Nodes

    def nodes(self) -> dict[str, Any]:
        """Return all nodes of Ironic, by uuid."""
        return {node.id: node for node in self._metal.nodes(details=True)}

    def enroll(self, count: int) -> None:
        """Have at least so many nodes, all that are new made available."""
        present = len(self.nodes())
        if present >= count:
            return
        with step(f'Enrolling {count - present} nodes'):
            through_api = min(count, _THROUGH_API_MAX) - present
            if through_api > 0:
                each(self._enroll_one, range(present, present + through_api))
            if count > _THROUGH_API_MAX:
                self._copy_nodes(count - len(self.nodes()))

    def _enroll_one(self, number: int) -> None:
        node = self._metal.create_node(
            name=f'node-{number:05d}',
            driver='fake-hardware',
            resource_class=registry.RESOURCE_CLASS,
            properties={'cpu_arch': 'x86_64', 'capabilities': 'boot:uefi'},
        )
        high, low = divmod(number, 256)
        self._metal.create_port(
            node_id=node.id, address=f'52:54:00:00:{high:02x}:{low:02x}'
        )
        self._metal.set_node_provision_state(
            node, 'manage', wait=True, timeout=120
        )
        # A deploy of the fake hardware does not power a node on, and Nova
        # takes a server whose node is off for stopped.
        self._metal.set_node_power_state(
            node, 'power on', wait=True, timeout=120
        )
        self._metal.set_node_provision_state(
            node, 'provide', wait=True, timeout=120
        )

    def _copy_nodes(self, count: int) -> None:
        """Copy the row of a free node: a thousand in a second or two."""
        columns = sql(
            self._layout,
            'SELECT column_name FROM information_schema.columns WHERE '
            "table_schema='ironic' AND table_name='nodes';",
        ).split()
        own = {'id', 'uuid', 'name', 'reservation', 'instance_uuid'}
        copied = ', '.join(f'`{c}`' for c in columns if c not in own)
        present = len(self.nodes())
        statements = [
            f'INSERT INTO ironic.nodes (uuid, name, {copied}) '  # noqa: S608
            f"SELECT '{uuid.uuid4()}', 'node-{present + i:05d}', {copied} "
            "FROM ironic.nodes WHERE provision_state='available' LIMIT 1;"
            for i in range(count)
        ]
        sql(self._layout, '\n'.join(statements))

    def nodes_table(self) -> str:
        """Return all nodes as a table."""
        rows = [
            (n.name, n.id, n.provision_state, n.power_state, n.instance_id)
            for n in self.nodes().values()
        ]
        columns = ('Name', 'UUID', 'Provision state', 'Power', 'Instance')
        return table(columns, sorted(rows))

    # Servers

    def servers(self) -> list[Any]:
        """Return all servers of all projects."""
        return list(self.cloud.compute.servers(all_projects=True))

    def server(self, server_id: str) -> Any:
        """Return one server as nova-api shows it."""
        return self.cloud.compute.get_server(server_id)

    def create_server(self, name: str) -> Any:
        """Ask for one server; returns at once."""
        cloud = self.cloud
        return cloud.compute.create_server(
            name=name,
            flavor_id=cloud.compute.find_flavor(registry.FLAVOR).id,
            image_id=cloud.image.find_image(registry.IMAGE).id,
            networks=[
                {'uuid': cloud.network.find_network(registry.NETWORK).id}
            ],
        )

    def boot(self, count: int, timeout_s: float = 180) -> list[Any]:
        """Boot servers and wait until all are ACTIVE."""
        stamp = int(time.time()) % 100000
        names = [f'server-{stamp}-{i}' for i in range(count)]
        with step(f'Booting {count} servers'):
            made = each(self.create_server, names)
            return [self.await_active(s.id, timeout_s) for s in made]

    def await_active(self, server_id: str, timeout_s: float = 180) -> Any:
        """Wait until a server is ACTIVE without a task; fail on ERROR."""

        def is_active() -> Any:
            server = self.server(server_id)
            if server.status == 'ERROR':
                raise CloudError(
                    f'server {server.name} is in ERROR: {server.fault}'
                )
            done = server.status == 'ACTIVE' and server.task_state is None
            return server if done else None

        return wait_until(f'server {server_id} ACTIVE', is_active, timeout_s)

    def delete(self, names: Sequence[str] = (), timeout_s: float = 180) -> int:
        """Delete servers, all if none is named; wait until they are gone."""
        doomed = [s for s in self.servers() if not names or s.name in names]
        if not doomed:
            return 0
        with step(f'Deleting {len(doomed)} servers'):
            each(lambda s: self.cloud.compute.delete_server(s.id), doomed)
            ids = {s.id for s in doomed}
            wait_until(
                'the servers to be gone',
                lambda: not ids & {s.id for s in self.servers()},
                timeout_s,
            )
        return len(doomed)

    def servers_table(self) -> str:
        """Return all servers as a table."""
        rows = [
            (s.name, s.id, s.status, s.compute_host, s.hypervisor_hostname)
            for s in self.servers()
        ]
        return table(('Name', 'ID', 'Status', 'Host', 'Node'), sorted(rows))

    # Hosts

    def services(self) -> dict[str, Any]:
        """Return Nova's compute services by host."""
        found = self.cloud.compute.services(binary='nova-compute')
        return {service.host: service for service in found}

    def holders(self) -> dict[str, str]:
        """Return the holder of each node, from Nova's own records."""
        text = sql(
            self._layout,
            'SELECT hypervisor_hostname, host FROM nova.compute_nodes '
            'WHERE deleted = 0;',
        )
        pairs = (line.split('\t') for line in text.splitlines())
        return {node: host for node, host in pairs}

    def schedulable(self) -> set[str]:
        """Return the nodes that Placement offers to a build now."""
        wanted = f'CUSTOM_{registry.RESOURCE_CLASS.upper()}:1'
        response = self.cloud.placement.get(
            f'/allocation_candidates?resources={wanted}&limit=100000'
        )
        return set(response.json()['provider_summaries'])

    def allocations_count(self) -> int:
        """Return how many allocations Placement has in all."""
        return int(
            sql(self._layout, 'SELECT COUNT(*) FROM placement.allocations;')
        )

    def hosts_table(self) -> str:
        """Return who holds what and who serves whom, as a table."""
        holders, nodes = self.holders(), self.nodes()
        free: collections.Counter[str] = collections.Counter()
        pinned: collections.Counter[str] = collections.Counter()
        for node, host in holders.items():
            has = node in nodes and nodes[node].instance_id
            (pinned if has else free)[host] += 1
        serving = serving_agents(self._layout)
        rows = [
            (
                host,
                service.state,
                service.status,
                free[host],
                pinned[host],
                serving.get(host, '-'),
            )
            for host, service in self.services().items()
        ]
        columns = ('Host', 'State', 'Status', 'Free', 'Pinned', 'Served by')
        return table(columns, sorted(rows))


def serving_agents(layout: Layout) -> Mapping[str, str]:
    """Return which recorded process serves each host, from /proc."""
    serving = {}
    running = processes.Processes(layout)
    for name in running.names():
        pid = running.pid(name)
        if pid is None:
            continue
        if name.startswith('peer-'):
            serving[name.removeprefix('peer-')] = f'stock (process {pid})'
        if name.startswith('agent-'):
            for worker in processes.children(pid):
                host = worker_host(worker)
                if host:
                    serving[host] = f'{name} (worker {worker})'
    return serving


def worker_host(pid: int) -> str | None:
    """Return the host a worker process serves; None if it is no worker."""
    words = processes.arguments(pid)
    if not any(
        'ironic-compute-worker' in w or 'cmd.worker' in w for w in words
    ):
        return None
    return words[words.index('--host') + 1] if '--host' in words else None


def as_json(value: object) -> str:
    """Return a value for a person to read."""
    return json.dumps(value, indent=2, sort_keys=True, default=str)
