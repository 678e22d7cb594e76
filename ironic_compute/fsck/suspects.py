# SPDX-License-Identifier: Apache-2.0
"""What a second look reads again, and which of its findings are confirmed.

The second look is about the findings of the first one, so it reads again only
what these are about, and takes the rest from the first one. A finding is
confirmed if both looks have it. What only the details of a provider show was
read in the second look alone. It was so at the first look, too, if the
generation of the provider has not changed since: each write of an inventory or
trait and each new allocation raises it. Without that, the finding is
unsettled, and a third look decides.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ironic_compute import catalogue
from ironic_compute.fsck import checks
from ironic_compute.fsck.findings import Finding
from ironic_compute.fsck.snapshot import ProviderDetails, Server, Snapshot
from resource_tracker.node import NodeId
from resource_tracker.provider import COMPUTE_NODE, resource_class_of

# More nodes with findings than these have a common cause, which a part of
# them shows as well. A node that is not offered, or has an unknown server, is
# the exception: each may have its allocation, and then nothing is wrong.
_DETAILS_MAX = 200

_OF_FLAVORS = frozenset(
    {catalogue.FLAVOR_WITHOUT_NODE, catalogue.FLAVOR_TRAIT_WITHOUT_NODE}
)
_OF_OFFERS = frozenset(
    {
        catalogue.OFFERED_BUT_UNUSABLE,
        catalogue.NOT_OFFERED,
        catalogue.WRONG_CLASS,
    }
)
_OF_TRAITS = frozenset(
    {
        catalogue.WITHOUT_COMPUTE_TRAIT,
        catalogue.STATUS_TRAIT_DIFFERS,
        catalogue.TRAIT_MISSING,
        catalogue.TRAIT_LEFT_BEHIND,
    }
)
# The lists alone show these; the details may show that all is well.
_EXCUSED_BY_DETAILS = frozenset(
    {catalogue.NOT_OFFERED, catalogue.UNKNOWN_SERVER}
)
_SHOWN_BY_DETAILS = frozenset(
    {
        catalogue.ALLOCATION_WITHOUT_SERVER,
        catalogue.ALLOCATION_OF_UNKNOWN,
        catalogue.ALLOCATION_OF_SHELVED,
        catalogue.ALLOCATION_ON_TWO_NODES,
        catalogue.ALLOCATION_ON_OTHER_NODE,
        catalogue.SERVER_WITHOUT_ALLOCATION,
        catalogue.WRONG_CLASS,
    }
)


@dataclasses.dataclass(frozen=True, slots=True)
class InPlacement:
    """What to read again in Placement.

    :param classes: the resource classes to list again
    :param traits: the traits to list again
    :param providers: those to read by themselves; whether somebody should
        have it
    """

    classes: frozenset[str]
    traits: frozenset[str]
    providers: Mapping[str, bool]


def need_all_nodes(findings: Iterable[Finding]) -> bool:
    """Return whether findings are about the nodes of all pools."""
    return any(finding.check in _OF_FLAVORS for finding in findings)


def nodes_of(
    findings: Sequence[Finding], snapshot: Snapshot
) -> frozenset[NodeId]:
    """Return the nodes that findings are about, of any pool or of none."""
    named = {f.subject.node for f in findings if f.subject.node is not None}
    servers = {finding.subject.server for finding in findings}
    allocated = {
        node
        for node, details in snapshot.details_by_node()
        if details.consumers & servers
    }
    return frozenset(named | allocated)


def rows_of(nodes: frozenset[NodeId], snapshot: Snapshot) -> frozenset[str]:
    """Return the uuids of the records that these nodes have or should have."""
    known = (row.uuid for row in snapshot.rows if row.node in nodes)
    return frozenset((*nodes, *known))


def servers_of(
    findings: Iterable[Finding], nodes: frozenset[NodeId], snapshot: Snapshot
) -> frozenset[str]:
    """Return the servers that findings are about, and those on their nodes."""
    named = (finding.subject.server for finding in findings)
    placed = (s.uuid for s in snapshot.servers.values() if s.node in nodes)
    facts = map(snapshot.nodes.get, nodes)
    shown = (each.instance_uuid for each in facts if each is not None)
    details = snapshot.placement.details.values()
    consumers = (consumer for each in details for consumer in each.consumers)
    return frozenset(filter(None, (*named, *placed, *shown, *consumers)))


def in_placement(
    findings: Sequence[Finding], snapshot: Snapshot
) -> InPlacement:
    """Return what findings need to have read again in Placement.

    :param snapshot: has the present nodes and records
    """
    traits = {f.subject.other for f in findings if f.check in _OF_TRAITS}
    if any(f.check is catalogue.PROVIDER_WITHOUT_NODE for f in findings):
        traits.add(COMPUTE_NODE)
    return InPlacement(
        frozenset(_classes_of(findings, snapshot)),
        frozenset(traits),
        dict(_providers_of(findings, snapshot)),
    )


def _classes_of(
    findings: Iterable[Finding], snapshot: Snapshot
) -> Iterator[str]:
    """Yield the listed classes that the nodes have or should have."""
    named = {f.subject.node for f in findings if f.check in _OF_OFFERS}
    nodes = {
        node: snapshot.nodes[node] for node in snapshot.nodes if node in named
    }
    wanted = {resource_class_of(facts) for facts in nodes.values()}
    by_node = snapshot.providers_by_node()
    providers = {uuid for node in nodes for uuid in by_node.get(node, ())}
    for name, offered in snapshot.placement.offered.items():
        if name in wanted or not providers.isdisjoint(offered):
            yield name


def _providers_of(
    findings: Iterable[Finding], snapshot: Snapshot
) -> Iterator[tuple[str, bool]]:
    """Yield the providers that only their details explain."""
    by_node = snapshot.providers_by_node()
    excused = [f for f in findings if f.check in _EXCUSED_BY_DETAILS]
    used = [f for f in findings if f.subject.server is not None]
    of_used = snapshot.nodes.keys() & nodes_of(used, snapshot)
    strange = snapshot.nodes.keys() & {f.subject.node for f in excused}
    others = sorted(of_used - strange)[:_DETAILS_MAX]
    for node in (*sorted(strange), *others):
        for uuid in by_node.get(node, ()):
            yield uuid, node in of_used


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """The findings of a later look.

    :param confirmed: those that the former look has, too
    :param unsettled: those of which one cannot say
    """

    confirmed: list[Finding]
    unsettled: list[Finding]


def compare(
    former: Sequence[Finding], first: Snapshot, second: Snapshot
) -> Comparison:
    """Compare the findings of a former look with what a later one has read.

    :param first: the snapshot of the former look
    """
    settled = frozenset(_settled(first, second))
    known = _completed(first, second, settled)
    keys = {finding.key for finding in former} | {
        f.key for f in checks.find(known) if f.check in _SHOWN_BY_DETAILS
    }
    open_nodes = {
        node
        for node, uuids in second.providers_by_node().items()
        if not settled.issuperset(uuids)
    }
    found = Comparison([], [])
    for finding in checks.find(second):
        is_open = finding.subject.node in open_nodes
        has_both = finding.key in keys
        if has_both and not (is_open and finding.check in _EXCUSED_BY_DETAILS):
            found.confirmed.append(finding)
        elif is_open and (has_both or finding.check in _SHOWN_BY_DETAILS):
            found.unsettled.append(finding)
    return found


def _settled(first: Snapshot, second: Snapshot) -> Iterator[str]:
    """Yield the providers of which both looks know the details, or would."""
    for uuid in second.placement.names:
        generations = {second.placement.generations.get(uuid)}
        details = second.placement.details.get(uuid)
        if details is not None:
            generations.add(details.generation)
        if uuid in first.placement.details:
            is_known = True
        else:
            generations.add(first.placement.generations.get(uuid))
            is_known = details is None or all(
                _is_known(consumer, first, second)
                for consumer in details.consumers
            )
        if is_known and len(generations) == 1:
            yield uuid


def _is_known(consumer: str, first: Snapshot, second: Snapshot) -> bool:
    """Return whether the first look knows a server, or would find the same."""
    server = second.servers.get(consumer)
    return (
        consumer in first.servers or server is None or _is_old(server, first)
    )


def _is_old(server: Server, first: Snapshot) -> bool:
    return server.changed_at_s <= first.now_s


def _completed(
    first: Snapshot, second: Snapshot, settled: frozenset[str]
) -> Snapshot:
    """Return the first look with the details that it would have read."""
    since: dict[str, ProviderDetails] = {
        uuid: details
        for uuid, details in second.placement.details.items()
        if uuid in settled
    }
    servers = {u: s for u, s in second.servers.items() if _is_old(s, first)}
    placement = dataclasses.replace(
        first.placement, details={**since, **first.placement.details}
    )
    return dataclasses.replace(
        first, servers={**servers, **first.servers}, placement=placement
    )
