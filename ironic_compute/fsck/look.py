# SPDX-License-Identifier: Apache-2.0
"""Reads snapshots of a pool, and reports what two looks in a row have found.

The first look reads lists only. If it has found something, a second look reads
again what the findings are about (see ``suspects``): some nodes by themselves
or all in lists, whichever takes fewer requests to Ironic; their records and
servers in one RPC each; the lists of Placement that they are in, and, where
these leave a finding open, one or two requests for each provider. A third look
is made only for a provider that was written meanwhile.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs

from hashring.clock import Clock
from ironic_compute.errors import NodeNotFound
from ironic_compute.fsck import checks, suspects
from ironic_compute.fsck.findings import Finding
from ironic_compute.fsck.nova_reader import NovaReader
from ironic_compute.fsck.placement_reader import PlacementReader
from ironic_compute.fsck.server_checks import servers_at_rest
from ironic_compute.fsck.snapshot import (
    OtherNodes,
    PoolHosts,
    Row,
    Snapshot,
)
from resource_tracker.errors import MalformedNode
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.provider import (
    Situation,
    resource_class_of,
    wanted_provider,
)

_NODES_PER_PAGE = 1000


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
        """Look, and once more if something was found; return the last look.

        It has the findings of both looks. What cannot be compared, because a
        provider was written between the two, is looked at a third time.

        :param wait_s: seconds between two looks
        """
        first = self.look()
        if not first.findings:
            return first
        second, unsettled = self._look_again(first, wait_s)
        if not unsettled:
            return second
        findings = [*second.findings, *unsettled]
        former = dataclasses.replace(second, findings=findings)
        return self.look_again(former, wait_s)

    def look_again(self, former: Look, wait_s: float) -> Look:
        """Look after a wait; return what is still found."""
        look, _unsettled = self._look_again(former, wait_s)
        return look

    def _look_again(
        self, former: Look, wait_s: float
    ) -> tuple[Look, list[Finding]]:
        """Return the next look, and what it cannot compare with the former."""
        self._clock.sleep(wait_s)
        if self._is_deep:
            new = self.look()
            both = checks.confirm(former.findings, new.findings)
            return Look(new.snapshot, both), []
        snapshot = self._read_suspects(former)
        found = suspects.compare(former.findings, former.snapshot, snapshot)
        return Look(snapshot, found.confirmed), found.unsettled

    def look(self) -> Look:
        """Read one snapshot and run all checks on it."""
        snapshot = self._read_lists()
        snapshot = dataclasses.replace(
            snapshot, all_nodes=self._read_nodes_elsewhere(snapshot)
        )
        if self._is_deep:
            snapshot = self._with_details(snapshot)
        return Look(snapshot, checks.find(snapshot))

    def _read_lists(self) -> Snapshot:
        pool = self._read_pool()
        nodes = self._list_pool()
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

    def _list_pool(self) -> dict[NodeId, NodeFacts]:
        listed = self._ironic.list_nodes(limit=_NODES_PER_PAGE)
        return {facts.uuid: facts for facts in listed}

    def _read_suspects(self, former: Look) -> Snapshot:
        """Return a snapshot with what findings are about as it is now."""
        findings, old = former.findings, former.snapshot
        suspected = suspects.nodes_of(findings, old)
        pool = self._read_pool()
        nodes, all_nodes = self._read_nodes_again(findings, suspected, old)
        targets = self._ironic.list_all_volume_targets()
        new = dataclasses.replace(
            old,
            now_s=self._clock.wall_s(),
            pool=pool,
            nodes=nodes,
            all_nodes=all_nodes,
            volume_targets={NodeId(n): t for n, t in targets.items()},
            rows=self._read_rows_again(suspected, old),
            services=self._nova.read_services(),
            mapped=self._nova.read_mapped(),
            aggregates=self._nova.read_aggregates(),
            flavors=self._nova.read_flavors(),
        )
        left = checks.confirm(findings, checks.find(new))
        placement = self._placement.read_again(
            new.placement, suspects.in_placement(left, new)
        )
        new = dataclasses.replace(new, placement=placement)
        # After the allocations: Nova removes that of a server as the last.
        servers = suspects.servers_of(findings, suspected, new)
        return self._with_servers_again(new, servers)

    def _read_nodes_again(
        self,
        findings: Iterable[Finding],
        suspected: frozenset[NodeId],
        old: Snapshot,
    ) -> tuple[Mapping[NodeId, NodeFacts], OtherNodes | None]:
        """Return the nodes of the pool, and those of all pools if needed.

        Suspects are read by themselves, unless lists are fewer requests.
        """
        if suspects.need_all_nodes(findings):
            return self._list_pool(), self._list_all_nodes()
        known = old.nodes.items()
        nodes = {n: facts for n, facts in known if n not in suspected}
        if len(suspected) > _pages_count(old.nodes):
            nodes = self._list_pool()
            if old.all_nodes is None:
                return nodes, None
        missing = suspected - nodes.keys()
        if len(missing) > _pages_count(old.nodes):
            return nodes, self._list_all_nodes()
        read = list(self._read_each(missing))
        nodes |= {f.uuid: f for f in read if self._ironic.is_in_pool(f)}
        return nodes, None if old.all_nodes is None else self._classify(read)

    def _read_each(self, nodes: Iterable[NodeId]) -> Iterator[NodeFacts]:
        """Read nodes one by one, of any pool; leave out what Ironic has not.

        A malformed record is left out as well, as in a list.
        """
        for node in sorted(nodes):
            with contextlib.suppress(NodeNotFound, MalformedNode):
                yield self._ironic.read_node(node)

    def _read_rows_again(
        self, suspected: frozenset[NodeId], old: Snapshot
    ) -> tuple[Row, ...]:
        wanted = suspects.rows_of(suspected, old)
        kept = (row for row in old.rows if row.uuid not in wanted)
        return (*kept, *self._nova.read_rows_by_uuid(wanted))

    def _with_servers_again(
        self, snapshot: Snapshot, uuids: frozenset[str]
    ) -> Snapshot:
        """Read servers again; their flavors do not change."""
        found = self._nova.read_servers_by_uuid(uuids)
        old = snapshot.servers
        servers = {u: old[u] for u in old.keys() - uuids}
        for uuid, server in found.items():
            known = old[uuid].requests_node if uuid in old else None
            servers[uuid] = dataclasses.replace(server, requests_node=known)
        return dataclasses.replace(snapshot, servers=servers)

    def _read_nodes_elsewhere(self, snapshot: Snapshot) -> OtherNodes | None:
        """Read nodes of other pools if the checks need them.

        With lesser credentials a node may exist that Ironic does not show.
        """
        is_all = checks.needs_all_nodes(snapshot)
        named = checks.nodes_elsewhere(snapshot)
        if not is_all and not named:
            return None
        if not self._ironic.can_list_all_nodes():
            self._note(
                'Not checked: whether nodes exist in Ironic, because it does '
                'not show us all nodes: the user below [ironic] in nova.conf '
                'needs the rules baremetal:node:list_all and '
                'baremetal:node:get'
            )
            return None
        if is_all or len(named) > _pages_count(snapshot.nodes):
            return self._list_all_nodes()
        return self._classify(self._read_each(named))

    def _list_all_nodes(self) -> OtherNodes:
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

    def _with_details(self, snapshot: Snapshot) -> Snapshot:
        """Read the providers of all nodes, and then their consumers."""
        providers = snapshot.providers_by_node()
        placement = self._placement.with_details(
            snapshot.placement,
            [
                uuid
                for node in snapshot.nodes
                for uuid in providers.get(node, ())
            ],
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


def _pages_count(nodes: Mapping[NodeId, NodeFacts]) -> int:
    """Return the number of requests that list the nodes of the pool."""
    return len(nodes) // _NODES_PER_PAGE + 1
