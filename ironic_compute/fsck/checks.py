# SPDX-License-Identifier: Apache-2.0
"""All checks as functions of a snapshot, and which nodes to read in detail."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from ironic_compute.fsck import (
    allocation_checks,
    flavor_checks,
    host_checks,
    leftover_checks,
    provider_checks,
    record_checks,
    server_checks,
)
from ironic_compute.fsck.findings import Finding
from ironic_compute.fsck.snapshot import Snapshot
from resource_tracker.node import NodeId

_Check = Callable[[Snapshot], Iterator[Finding]]

CHECKS: Sequence[_Check] = (
    host_checks.check_hosts,
    host_checks.check_rings,
    host_checks.check_aggregates,
    host_checks.check_zones,
    record_checks.check_nodes_have_rows,
    record_checks.check_rows_have_nodes,
    record_checks.check_rows,
    provider_checks.check_numbers,
    provider_checks.check_orphans,
    provider_checks.check_offers,
    provider_checks.check_traits,
    allocation_checks.check_consumers,
    allocation_checks.check_single,
    allocation_checks.check_servers,
    server_checks.check_strays,
    server_checks.check_places,
    server_checks.check_sharing,
    server_checks.check_progress,
    server_checks.check_deletes,
    leftover_checks.check_leftovers,
    leftover_checks.check_states,
    flavor_checks.check_flavors,
)


def find(snapshot: Snapshot) -> list[Finding]:
    """Run all checks; return what they find, in their order."""
    return [finding for check in CHECKS for finding in check(snapshot)]


def needs_all_nodes(snapshot: Snapshot) -> bool:
    """Return whether the nodes of all pools are needed for an answer."""
    return flavor_checks.lacks_node(snapshot)


def nodes_elsewhere(snapshot: Snapshot) -> frozenset[NodeId]:
    """Return the nodes that Nova or Placement name and the pool has not.

    Whether Ironic has them in another pool is needed for an answer.
    """
    rows = (r.node for r in snapshot.rows if r.host in snapshot.pool.known)
    places = (node for _, node in server_checks.servers_at_rest(snapshot))
    orphans = provider_checks.orphan_providers(snapshot)
    return frozenset((*rows, *places, *orphans)) - snapshot.nodes.keys()


def confirm(
    first: Iterable[Finding], second: Iterable[Finding]
) -> list[Finding]:
    """Return the findings of the second look that the first one had too.

    What is under way in a busy pool is over by the second look.
    """
    keys = {finding.key for finding in first}
    return [finding for finding in second if finding.key in keys]
