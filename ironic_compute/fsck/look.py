# SPDX-License-Identifier: Apache-2.0
"""Reads snapshots of a pool, and reports what two looks in a row have found.

A look reads lists only. What remains open about a node with a finding is read
for this node. A second look is made only if the first one has found something.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from hashring.clock import Clock
from ironic_compute.fsck import checks
from ironic_compute.fsck.findings import Finding
from ironic_compute.fsck.nova_reader import NovaReader
from ironic_compute.fsck.placement_reader import PlacementReader
from ironic_compute.fsck.server_checks import servers_at_rest
from ironic_compute.fsck.snapshot import OtherNodes, PoolHosts, Snapshot
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.provider import (
    Situation,
    resource_class_of,
    wanted_provider,
)

_NODES_PER_PAGE = 1000
# More nodes with findings than these have a common cause, which a part of
# them shows as well.
_DETAILS_MAX = 200


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """What one look has read and found."""

    snapshot: Snapshot
    findings: list[Finding]


@attrs.define(eq=False, repr=False, slots=False)
class Looker:
    """Looks at one pool; every method blocks.

    :param ironic: an ``IronicReader``
    :param read_pool: reads what the daemons of the pool publish
    :param note: called with a sentence about what could not be read
    :param is_deep: read each provider and each server's actions by itself, and
        list the ports of Ironic
    """

    _ironic: Any
    _nova: NovaReader
    _placement: PlacementReader
    _read_pool: Callable[[], PoolHosts]
    _clock: Clock
    _note: Callable[[str], None]
    _default_zone: str = 'nova'
    _capability_traits: frozenset[str] = frozenset()
    _is_deep: bool = False

    def look_twice(self, wait_s: float) -> Look:
        """Look, and once more if something was found; return the second look.

        It has the findings of both looks.

        :param wait_s: seconds between the two
        """
        first = self.look()
        if not first.findings:
            return first
        return self.look_again(first, wait_s)

    def look_again(self, former: Look, wait_s: float) -> Look:
        """Look after a wait; return what is still found."""
        self._clock.sleep(wait_s)
        new = self.look()
        both = checks.confirm(former.findings, new.findings)
        return dataclasses.replace(new, findings=both)

    def look(self) -> Look:
        """Read one snapshot and run all checks on it."""
        snapshot = self._read_lists()
        if checks.needs_all_nodes(snapshot):
            snapshot = dataclasses.replace(
                snapshot, all_nodes=self._read_all_nodes()
            )
        odd = checks.nodes_of(checks.find(snapshot), snapshot)[:_DETAILS_MAX]
        read = list(snapshot.nodes) if self._is_deep else odd
        snapshot = self._with_details(snapshot, read)
        return Look(snapshot, checks.find(snapshot))

    def _read_lists(self) -> Snapshot:
        pool = self._read_pool()
        nodes = {
            facts.uuid: facts
            for facts in self._ironic.list_nodes(limit=_NODES_PER_PAGE)
        }
        targets = self._ironic.list_all_volume_targets()
        snapshot = Snapshot(
            now_s=self._clock.wall_s(),
            pool=pool,
            nodes=nodes,
            volume_targets={NodeId(n): t for n, t in targets.items()},
            vifs=self._ironic.list_all_vifs() if self._is_deep else {},
            rows=self._nova.read_rows(),
            servers=self._nova.read_servers(pool.known),
            services=self._nova.read_services(),
            mapped=self._nova.read_mapped(),
            aggregates=self._nova.read_aggregates(),
            default_zone=self._default_zone,
            flavors=self._nova.read_flavors(),
            placement=self._placement.read_lists(nodes.values()),
            capability_traits=self._capability_traits,
        )
        if self._is_deep:
            snapshot = self._with_deletes(snapshot)
        users = (facts.instance_uuid for facts in nodes.values())
        return self._with_servers(snapshot, filter(None, users))

    def _read_all_nodes(self) -> OtherNodes | None:
        """List the nodes of all pools.

        With lesser credentials a node may exist that Ironic does not list.
        """
        if not self._ironic.can_list_all_nodes():
            self._note(
                'Not checked: whether nodes exist in Ironic, because it does '
                'not show us all nodes: the user below [ironic] in nova.conf '
                'needs the rules baremetal:node:list_all and '
                'baremetal:node:get'
            )
            return None
        return self._classify(self._ironic.list_nodes_of_all_pools())

    def _classify(self, nodes: Iterable[NodeFacts]) -> OtherNodes:
        situation = Situation(traits_of_capabilities=self._capability_traits)
        classes: dict[NodeId, str | None] = {}
        traits: dict[str, frozenset[str]] = {}
        for facts in nodes:
            name = classes[facts.uuid] = resource_class_of(facts)
            if name is not None:
                wanted = wanted_provider(facts, situation).traits
                traits[name] = traits.get(name, frozenset()) | wanted
        return OtherNodes(classes, traits)

    def _with_details(
        self, snapshot: Snapshot, nodes: Iterable[NodeId]
    ) -> Snapshot:
        """Read the providers of some nodes, and then their consumers."""
        providers = snapshot.providers_by_node()
        placement = self._placement.with_details(
            snapshot.placement,
            [uuid for node in nodes for uuid in providers.get(node, ())],
        )
        details = placement.details.values()
        consumers = {c for each in details for c in each.consumers}
        return self._with_servers(
            dataclasses.replace(snapshot, placement=placement), consumers
        )

    def _with_servers(
        self, snapshot: Snapshot, uuids: Iterable[str]
    ) -> Snapshot:
        """Read the servers that Ironic or Placement name and no host has."""
        unread = set(uuids) - snapshot.servers.keys()
        found = self._nova.read_servers_by_uuid(unread)
        return dataclasses.replace(
            snapshot, servers={**snapshot.servers, **found}
        )

    def _with_deletes(self, snapshot: Snapshot) -> Snapshot:
        resting = (server for server, _ in servers_at_rest(snapshot))
        found = self._nova.read_deletes(resting)
        return dataclasses.replace(
            snapshot, servers={**snapshot.servers, **found}
        )
