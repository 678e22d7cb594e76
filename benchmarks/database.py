# SPDX-License-Identifier: Apache-2.0
"""Reads the nodes of Ironic and Placement directly from their databases.

Each read is one statement on one connection, so its result is consistent
and costs the servers next to nothing.
"""

from collections.abc import Collection
from typing import Any

import pymysql
from onemachine.layout import ADDRESS, Layout

from benchmarks.seen import NOT_CLEAN, TRAIT, Seen

_NODES = """
SELECT n.uuid, n.provision_state, n.maintenance,
    n.resource_class IS NOT NULL,
    EXISTS (SELECT 1 FROM ironic.node_traits t
        WHERE t.node_id = n.id AND t.trait = %s),
    EXISTS (SELECT 1 FROM placement.inventories i
        WHERE i.resource_provider_id = p.id AND i.reserved < i.total),
    EXISTS (SELECT 1 FROM placement.inventories i
        WHERE i.resource_provider_id = p.id),
    EXISTS (SELECT 1 FROM placement.resource_provider_traits r
        JOIN placement.traits t ON t.id = r.trait_id
        WHERE r.resource_provider_id = p.id AND t.name = %s),
    EXISTS (SELECT 1 FROM placement.allocations a
        WHERE a.resource_provider_id = p.id)
FROM ironic.nodes n
LEFT JOIN placement.resource_providers p ON p.uuid = n.uuid
WHERE n.uuid IN %s
"""
_ALLOCATED = """
SELECT a.consumer_id, n.uuid, n.provision_state
FROM placement.allocations a
JOIN placement.resource_providers p ON p.id = a.resource_provider_id
JOIN ironic.nodes n ON n.uuid = p.uuid
WHERE n.provision_state IN %s AND a.consumer_id NOT IN %s
"""
_SERVERS = """
SELECT uuid, vm_state FROM nova.instances
WHERE deleted = 0 AND task_state IS NULL AND uuid IN %s
UNION SELECT uuid, vm_state FROM nova_cell0.instances
WHERE deleted = 0 AND uuid IN %s
"""


class Database:
    """A connection to the cloud's database server, for one thread."""

    def __init__(self, layout: Layout) -> None:
        self._connection = pymysql.connect(
            host=ADDRESS,
            port=layout.port('mysql'),
            user='root',
            autocommit=True,
        )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, values)
            return list(cursor.fetchall())

    def nodes(self, nodes: Collection[str]) -> dict[str, Seen]:
        """Read the present state of these nodes."""
        if not nodes:
            return {}
        rows = self._rows(_NODES, TRAIT, TRAIT, tuple(nodes))
        return {
            node: Seen(node, state, *map(bool, rest))
            for node, state, *rest in rows
        }

    def on_unclean(self, except_for: Collection[str]) -> set[tuple[str, str]]:
        """Return (server, node) for allocations on nodes that are not clean.

        :param except_for: servers that were deleted and may still be listed
        """
        rows = self._rows(_ALLOCATED, NOT_CLEAN, tuple(except_for) or ('',))
        return {(server, node) for server, node, _ in rows}

    def server_states(self, servers: Collection[str]) -> dict[str, str]:
        """Return vm_state of the servers that have no task."""
        both = tuple(servers)
        return dict(self._rows(_SERVERS, both, both)) if both else {}
