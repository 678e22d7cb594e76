# SPDX-License-Identifier: Apache-2.0
"""Planted defects of nodes that change their pool; see ``defects``."""

import dataclasses
from collections.abc import Iterable, Mapping

from hashring.ring import Host
from ironic_compute.ownership.departures import Asker, Departures
from ironic_compute.ownership.eviction import Evictor
from ironic_compute.ownership.movability import Found, why_not_movable
from ironic_compute.ownership.new_nodes import NewNodes
from resource_tracker.node import NodeFacts, NodeId
from tests.simulation.makeup import Makeup, with_parts


class GivesToAnyPool(Evictor):
    """A server goes to the pool that asks, wherever its node is in Ironic."""

    def _why_not(self, found: Found) -> str | None:
        return why_not_movable(
            dataclasses.replace(found, why_not_in_pool=None)
        )


class TakesNodesOfOtherPools(NewNodes):
    """The ring target takes a node that a host of another pool holds."""

    def _leave(self, facts: NodeFacts, holder: Host) -> None:
        row = self._compute_nodes.read_by_name(facts.uuid)
        service_id = self._held_nodes.host_status.service_id
        in_pool = holder in self._pool.known
        if not in_pool and row is not None and service_id is not None:
            here = self._held_nodes.host
            self._compute_nodes.take_row(
                row, here, service_id, lambda: self._is_wanted(facts.uuid)
            )
        super()._leave(facts, holder)


class ForgetsRequests(Departures):
    """A node stays with its holder although its new pool asks for it."""

    def request_nodes(self, nodes: Iterable[NodeId], asker: Asker) -> None:
        pass


class ForgetsServersOfOtherPools(Departures):
    """Only free nodes go to another pool."""

    def _give(self, node: NodeId, asker: Asker) -> None:
        facts = self._held_nodes.facts(node)
        if facts is None or facts.instance_uuid is None:
            super()._give(node, asker)


MAKEUPS: Mapping[str, Makeup] = {
    'server given to any pool': with_parts(
        'moves', 'pools', evictor=GivesToAnyPool
    ),
    'node of another pool taken': with_parts(
        'moves', 'pools', new_nodes=TakesNodesOfOtherPools
    ),
    'request of another pool forgotten': with_parts(
        'moves', 'pools', departures=ForgetsRequests
    ),
    'servers never leave their pool': with_parts(
        'moves', 'pools', departures=ForgetsServersOfOtherPools
    ),
}

# Name of a defect -> a seed that detects it.
SEEDS: Mapping[str, int] = {
    'server given to any pool': 50,
    'node of another pool taken': 9,
    'request of another pool forgotten': 9,
    'servers never leave their pool': 60014,
}
