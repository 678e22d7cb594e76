# SPDX-License-Identifier: Apache-2.0
"""Reads the databases of a cloud's services: holders, leaks, rows."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from onemachine.backends import sql
from onemachine.content import Content
from onemachine.layout import Layout

_TRACES = """
SELECT CONCAT(
    (SELECT CONCAT(COALESCE(host, 'no host'), ', ',
        COALESCE(task_state, 'no task'))
        FROM nova.instances WHERE uuid = '{server}'),
    '; node ', COALESCE((SELECT CONCAT(provision_state,
        IF(instance_info LIKE '%image_source%', ', described', ''))
        FROM ironic.nodes WHERE instance_uuid = '{server}'), 'not reserved'),
    '; ', (SELECT CONCAT(COUNT(*), ' ports, ',
        COALESCE(SUM(b.host <> ''), 0), ' bound') FROM neutron.ports p
        JOIN neutron.ml2_port_bindings b ON b.port_id = p.id
        WHERE p.device_id = '{server}'),
    '; ', (SELECT COUNT(*) FROM placement.allocations
        WHERE consumer_id = '{server}'), ' allocation');
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """The holders of nodes, servers and allocations at one moment."""

    holders: Mapping[str, str]  # Node -> host.
    hosts: Mapping[str, str]  # Instance -> host.
    providers: frozenset[str]
    consumers: Mapping[str, str]  # Provider -> consumer.
    offers: Mapping[
        str, str
    ]  # Provider -> its inventory, with the reserved units.
    touched: Mapping[str, str]  # Node -> when Ironic last changed it.

    def moved(self, later: 'Snapshot') -> list[str]:
        """Return the nodes and servers that have another host later."""
        return [
            f'{what} from {was[what]} to {now[what]}'
            for was, now in (
                (self.holders, later.holders),
                (self.hosts, later.hosts),
            )
            for what in was
            if what in now and was[what] != now[what]
        ]

    def needless_writes(
        self, later: 'Snapshot', written: Iterable[str]
    ) -> list[str]:
        """Return the providers that were written without a reason.

        A reason is a change of the node in Ironic or of its consumer, or that
        the write made a difference: if a host is killed before it has written
        a change, its successor writes it.

        :param written: the providers that hosts wrote between the snapshots
        """
        return [
            provider
            for provider in sorted(set(written))
            if self.touched.get(provider) == later.touched.get(provider)
            and self.consumers.get(provider) == later.consumers.get(provider)
            and self.offers.get(provider) == later.offers.get(provider)
        ]

    def lost_nodes(self, later: 'Snapshot') -> list[str]:
        """Return the nodes without a holder or without a provider."""
        return [
            node
            for node in self.holders
            if node not in later.holders or node not in later.providers
        ]


class Evidence:
    """Reads a cloud's databases."""

    def __init__(self, layout: Layout, content: Content) -> None:
        self._layout = layout
        self._content = content

    def snapshot(self) -> Snapshot:
        """Return the present state."""
        return Snapshot(
            self._content.holders(),
            self._pairs(
                'SELECT uuid, host FROM nova.instances WHERE deleted = 0 '
                'AND host IS NOT NULL;'
            ),
            frozenset(
                row[0]
                for row in self._rows(
                    'SELECT uuid FROM placement.resource_providers;'
                )
            ),
            self._pairs(
                'SELECT p.uuid, a.consumer_id FROM placement.allocations a '
                'JOIN placement.resource_providers p '
                'ON p.id = a.resource_provider_id;'
            ),
            self._pairs(
                'SELECT p.uuid, GROUP_CONCAT(i.resource_class_id, ":", '
                'i.total, ":", i.reserved) FROM placement.inventories i '
                'JOIN placement.resource_providers p '
                'ON p.id = i.resource_provider_id GROUP BY p.uuid;'
            ),
            self._pairs(
                'SELECT uuid, COALESCE(updated_at, created_at) '
                'FROM ironic.nodes;'
            ),
        )

    def leaks(self) -> list[str]:
        """Return the remains of deleted servers, one line each."""
        return [
            *self._leaked_nodes(),
            *(
                f'allocation of {" on ".join(row)}'
                for row in self._without_instance(
                    'a.consumer_id, p.uuid FROM placement.allocations a '
                    'JOIN placement.resource_providers p '
                    'ON p.id = a.resource_provider_id',
                    'a.consumer_id',
                )
            ),
            *(
                f'port {" of ".join(row)}'
                for row in self._without_instance(
                    'p.id, p.device_id FROM neutron.ports p', 'p.device_id'
                )
            ),
        ]

    def _leaked_nodes(self) -> list[str]:
        rows = self._rows(
            'SELECT n.uuid, n.provision_state, n.instance_uuid FROM '
            'ironic.nodes n LEFT JOIN nova.instances i '
            'ON i.uuid = n.instance_uuid AND i.deleted = 0 '
            "WHERE n.provision_state <> 'available' AND i.uuid IS NULL;"
        )
        return [f'node {" ".join(row)}' for row in rows]

    def _without_instance(self, columns: str, key: str) -> list[list[str]]:
        """Return rows whose server does not exist.

        :param columns: the columns and tables of the rows
        :param key: the column with the uuid of the server
        """
        return self._rows(
            f'SELECT {columns} LEFT JOIN nova.instances i '
            f'ON i.uuid = {key} AND i.deleted = 0 WHERE i.uuid IS NULL;'
        )

    def not_received(self, servers: Sequence[str]) -> list[str]:
        """Return the servers that no nova-conductor has received.

        nova-conductor creates a server's row before any other request, so a
        server without a row was not received.
        """
        rows = self._rows('SELECT uuid FROM nova.instances;')
        known = {row[0] for row in rows}
        return [server for server in servers if server not in known]

    def traces(self, server: str) -> str:
        """Return in words what the databases have of one server."""
        return sql(self._layout, _TRACES.format(server=server)).strip()

    def shares(self) -> collections.Counter[str]:
        """Return how many nodes each host holds."""
        return collections.Counter(self._content.holders().values())

    def _pairs(self, statement: str) -> dict[str, str]:
        return {row[0]: row[1] for row in self._rows(statement)}

    def _rows(self, statement: str) -> list[list[str]]:
        text = sql(self._layout, statement)
        return [line.split('\t') for line in text.splitlines()]
