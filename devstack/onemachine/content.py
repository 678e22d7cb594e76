# SPDX-License-Identifier: Apache-2.0
"""The nodes, servers and hosts of the cloud, through its APIs."""

import collections
import concurrent.futures
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from onemachine import registry, running
from onemachine.backends import sql
from onemachine.layout import Layout
from onemachine.naming import free_numbers, node_name, server_names
from onemachine.progress import CloudError, step, wait_until

_PARALLEL = 8
# Further nodes are copies of the first node's row in Ironic's database.
THROUGH_API_MAX = 50

_FORGET_GONE = """
USE placement;
DELETE i, t, a FROM resource_providers AS p
    LEFT JOIN inventories AS i ON i.resource_provider_id = p.id
    LEFT JOIN resource_provider_traits AS t ON t.resource_provider_id = p.id
    LEFT JOIN resource_provider_aggregates AS a
        ON a.resource_provider_id = p.id
    WHERE p.uuid NOT IN (SELECT uuid FROM ironic.nodes);
UPDATE resource_providers SET root_provider_id = NULL
    WHERE uuid NOT IN (SELECT uuid FROM ironic.nodes);
DELETE FROM resource_providers
    WHERE uuid NOT IN (SELECT uuid FROM ironic.nodes);
DELETE FROM nova.compute_nodes
    WHERE uuid NOT IN (SELECT uuid FROM ironic.nodes);
"""


def each(act: Callable[[Any], Any], things: Iterable[Any]) -> list[Any]:
    """Call a function for all items, a few at once."""
    with concurrent.futures.ThreadPoolExecutor(_PARALLEL) as pool:
        return list(pool.map(act, things))


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Format a table."""
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
    """Reads and changes a cloud through its APIs, as its users do."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.cloud = registry.connect(layout)
        self.metal = registry.connect(layout, system=True).baremetal

    # Nodes

    def nodes(self) -> dict[str, Any]:
        """Return all nodes of Ironic, by uuid."""
        return {node.id: node for node in self.metal.nodes(details=True)}

    def enroll(self, count: int) -> None:
        """Create nodes until there are so many; make them available."""
        present = self.nodes().values()
        new_count = max(0, count - len(present))
        numbers = free_numbers({node.name for node in present}, new_count)
        if not numbers:
            return
        through_api = max(0, min(count, THROUGH_API_MAX) - len(present))
        with step(f'Enrolling {len(numbers)} nodes'):
            each(self._enroll_one, numbers[:through_api])
            self._copy_nodes(numbers[through_api:])

    def _enroll_one(self, number: int) -> None:
        node = self.metal.create_node(
            name=node_name(number),
            driver='fake-hardware',
            resource_class=registry.RESOURCE_CLASS,
            properties={'cpu_arch': 'x86_64', 'capabilities': 'boot:uefi'},
        )
        high, low = divmod(number, 256)
        self.metal.create_port(
            node_id=node.id, address=f'52:54:00:00:{high:02x}:{low:02x}'
        )
        self.metal.set_node_provision_state(
            node, 'manage', wait=True, timeout=120
        )
        self._power_on(node)
        self.metal.set_node_provision_state(
            node, 'provide', wait=True, timeout=120
        )

    def power_on(self) -> None:
        """Power on all free nodes, as :meth:`enroll` does with new nodes."""
        each(
            self._power_on,
            [
                node
                for node in self.nodes().values()
                if node.power_state != 'power on' and not node.instance_id
            ],
        )

    def _power_on(self, node: Any) -> None:
        # A deploy of the fake hardware does not power a node on, and to Nova
        # a server on a node without power is stopped.
        self.metal.set_node_power_state(
            node, 'power on', wait=True, timeout=120
        )

    def _copy_nodes(self, numbers: Sequence[int]) -> None:
        """Copy the row of a free node: a thousand in a second or two."""
        if not numbers:
            return
        columns = sql(
            self._layout,
            'SELECT column_name FROM information_schema.columns WHERE '
            "table_schema='ironic' AND table_name='nodes';",
        ).split()
        own = {'id', 'uuid', 'name', 'reservation', 'instance_uuid'}
        # Running daemons find new nodes by this field.
        own.add('updated_at')
        copied = ', '.join(f'`{c}`' for c in columns if c not in own)
        statements = [
            'INSERT INTO ironic.nodes '  # noqa: S608
            f'(updated_at, uuid, name, {copied}) '
            f"SELECT UTC_TIMESTAMP(), '{uuid.uuid4()}', "
            f"'{node_name(number)}', {copied} "
            "FROM ironic.nodes WHERE provision_state='available' LIMIT 1;"
            for number in numbers
        ]
        sql(self._layout, '\n'.join(statements))

    def withdraw(self, count: int) -> None:
        """Delete free nodes until there are so many, the newest first."""
        nodes = self.nodes().values()
        free = [n for n in nodes if n.provision_state == 'available']
        doomed = sorted(free, key=lambda n: n.name)[::-1]
        surplus_count = max(0, len(nodes) - count)
        if surplus_count > len(doomed):
            raise CloudError(f'only {len(doomed)} nodes are free to go')
        if surplus_count:
            with step(f'Deleting {surplus_count} nodes'):
                each(self.metal.delete_node, doomed[:surplus_count])

    def nodes_table(self) -> str:
        """Return all nodes as a table."""
        holders = self.holders()
        rows = [
            (
                n.name,
                n.id,
                n.provision_state,
                n.power_state,
                holders.get(n.id, '-'),
                n.instance_id or '-',
            )
            for n in self.nodes().values()
        ]
        columns = ('Name', 'UUID', 'State', 'Power', 'Holder', 'Server')
        return table(columns, sorted(rows))

    # Servers

    def servers(self) -> list[Any]:
        """Return all servers of all projects."""
        return list(self.cloud.compute.servers(all_projects=True))

    def server(self, server_id: str) -> Any:
        """Return one server as nova-api shows it."""
        return self.cloud.compute.get_server(server_id)

    def create_servers(
        self,
        names: Iterable[str],
        host: str | None = None,
        port: str | None = None,
        config_drive: bool = False,
    ) -> list[Any]:
        """Create servers, some at once; return when nova-api has them.

        :param host: the host of the servers; None: the scheduler chooses
        :param port: the port of a server; None: Nova makes one
        :param config_drive: Nova makes one, which describes the networks
        """
        cloud = self.cloud
        # The connection finds its services at first use, which is not safe
        # in several threads; therefore it is used once here.
        flavor = cloud.compute.find_flavor(registry.FLAVOR, False)
        image = cloud.image.find_image(registry.IMAGE, False)
        network = cloud.network.find_network(registry.NETWORK, False)

        def create(name: str) -> Any:
            return cloud.compute.create_server(
                name=name,
                flavor_id=flavor.id,
                image_id=image.id,
                networks=[{'port': port} if port else {'uuid': network.id}],
                config_drive=config_drive,
                **({'host': host} if host else {}),
            )

        return each(create, names)

    def create_from_volumes(
        self, names: Sequence[str], volumes: Sequence[Any], **more: Any
    ) -> list[Any]:
        """Create servers that boot from volumes; see ``create_servers``.

        :param more: further items of the block device mapping
        """
        cloud = self.cloud
        flavor = cloud.compute.find_flavor(registry.FLAVOR, False)
        network = cloud.network.find_network(registry.NETWORK, False)
        disk = {
            'boot_index': 0,
            'source_type': 'volume',
            'destination_type': 'volume',
            **more,
        }
        return [
            cloud.compute.create_server(
                name=name,
                flavor_id=flavor.id,
                networks=[{'uuid': network.id}],
                block_device_mapping=[{**disk, 'uuid': volume.id}],
            )
            for name, volume in zip(names, volumes, strict=True)
        ]

    def boot(self, count: int, timeout_s: float = 180) -> list[Any]:
        """Boot so many servers and wait until all are ACTIVE."""
        return self.boot_all(server_names(str(count)), timeout_s)

    def boot_all(self, names: Sequence[str], timeout_s: float) -> list[Any]:
        """Boot servers and wait until all are ACTIVE."""
        with step(f'Booting {len(names)} servers'):
            return self.all_active(self.create_servers(names), timeout_s)

    def all_active(
        self, servers: Sequence[Any], timeout_s: float = 180
    ) -> list[Any]:
        """Wait until all of these servers are ACTIVE."""
        return [self.await_active(s.id, timeout_s) for s in servers]

    def named(self, names: Sequence[str]) -> list[Any]:
        """Return the servers with these names or ids.

        :raises CloudError: there is no such server
        """
        servers = self.servers()
        known = {key for s in servers for key in (s.name, s.id)}
        for name in names:
            if name not in known:
                raise CloudError(f'there is no server {name}')
        return [s for s in servers if s.name in names or s.id in names]

    def reboot(self, servers: Sequence[Any], timeout_s: float = 180) -> None:
        """Reboot servers (hard), and wait until the reboots have ended."""
        with step(f'Rebooting {len(servers)} servers'):
            each(self.request_reboot, servers)
            for server in servers:
                self.await_rebooted(server, timeout_s)

    def request_reboot(self, server: Any) -> None:
        """Request a hard reboot; return at once."""
        self.cloud.compute.reboot_server(server, 'HARD')

    def await_rebooted(self, server: Any, timeout_s: float = 180) -> None:
        """Wait until the newest reboot of a server has ended.

        :raises CloudError: Nova recorded it as failed
        """

        def is_done() -> bool:
            actions = self.cloud.compute.server_actions(server.id)
            newest = next((a for a in actions if a.action == 'reboot'), None)
            if newest is None:
                return False
            if newest.message:
                raise CloudError(
                    f'the reboot of {server.name} is recorded as failed: '
                    f'{newest.message}'
                )
            now = self.server(server.id)
            return bool(now.status == 'ACTIVE' and now.task_state is None)

        wait_until(f'{server.name} rebooted', is_done, timeout_s)

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
        doomed = self.named(names) if names else self.servers()
        if not doomed:
            return 0
        with step(f'Deleting {len(doomed)} servers'):
            each(lambda s: self.cloud.compute.delete_server(s.id), doomed)
            self.await_gone(doomed, timeout_s)
        return len(doomed)

    def delete_server(self, server: Any, timeout_s: float = 180) -> None:
        """Delete one server and wait until it is gone."""
        self.cloud.compute.delete_server(server.id)
        self.await_gone([server], timeout_s)

    def await_gone(
        self, servers: Iterable[Any], timeout_s: float = 180
    ) -> None:
        """Wait until nova-api has none of these servers."""
        ids = {server.id for server in servers}
        wait_until(
            'the servers to be gone',
            lambda: not ids & {s.id for s in self.servers()},
            timeout_s,
        )

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

    def forget_hosts(self, but: Iterable[str]) -> None:
        """Delete the Services of other hosts, and so their records."""
        for host, service in self.services().items():
            if host not in but:
                self.cloud.compute.delete_service(service)

    def forget_gone_nodes(self) -> None:
        """Delete the records of nodes that Ironic does not have.

        No daemon may run. Daemons do the same only a minute after their first
        list of all nodes, and builds are sent to such nodes until that list.
        """
        sql(self._layout, _FORGET_GONE)

    def mapped_hosts(self) -> set[str]:
        """Return the hosts that are mapped to a cell."""
        hosts = 'SELECT host FROM nova_api.host_mappings;'
        return set(sql(self._layout, hosts).split())

    def service_ages_s(self) -> dict[str, float]:
        """Return the seconds since each Service's last heartbeat."""
        text = sql(
            self._layout,
            'SELECT host, TIMESTAMPDIFF(MICROSECOND, last_seen_up, '
            'UTC_TIMESTAMP(6)) / 1000000 FROM nova.services WHERE '
            "deleted = 0 AND `binary` = 'nova-compute' "
            'AND last_seen_up IS NOT NULL;',
        )
        pairs = (line.split('\t') for line in text.splitlines())
        return {host: float(age_s) for host, age_s in pairs}

    def holders(self) -> dict[str, str]:
        """Return the holder of each node, from Nova's records."""
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
        """Return the number of allocations in Placement."""
        return int(
            sql(self._layout, 'SELECT COUNT(*) FROM placement.allocations;')
        )

    def hosts_table(self) -> str:
        """Return hosts, their nodes and their processes as a table."""
        holders, nodes = self.holders(), self.nodes()
        free: collections.Counter[str] = collections.Counter()
        pinned: collections.Counter[str] = collections.Counter()
        for node, host in holders.items():
            has = node in nodes and nodes[node].instance_id
            (pinned if has else free)[host] += 1
        serving = running.Running(self._layout).serving()
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
