# SPDX-License-Identifier: Apache-2.0
"""Checks of ComputeNode records: one for each node, on a host of the pool."""

from collections.abc import Iterator, Sequence

from ironic_compute import catalogue
from ironic_compute.fsck.findings import Finding, Subject
from ironic_compute.fsck.snapshot import Row, Snapshot
from ironic_compute.ironic_api.states import Meaning, meaning
from resource_tracker.node import NodeFacts, NodeId


def check_nodes_have_rows(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that each node of the pool has a record.

    A node that was just enrolled may have none yet; it takes no builds.
    """
    rows = snapshot.rows_by_node()
    for node, facts in snapshot.nodes.items():
        if node not in rows and _is_enrolled(facts):
            yield Finding(
                catalogue.NODE_WITHOUT_ROW,
                Subject(node=node),
                f'Ironic has node {node}, and Nova has no record of it',
            )


def _is_enrolled(facts: NodeFacts) -> bool:
    return meaning(facts.provision_state) is not Meaning.OUT_OF_REACH


def check_rows_have_nodes(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that each record of the pool's hosts is of a node of the pool."""
    if snapshot.all_nodes is None:
        return
    for row in snapshot.rows:
        if row.host not in snapshot.pool.known or row.node in snapshot.nodes:
            continue
        subject = Subject(node=row.node, host=row.host)
        if row.node in snapshot.all_nodes.nodes:
            yield Finding(
                catalogue.NODE_OF_OTHER_POOL,
                subject,
                f'Host {row.host} has a record of node {row.node}, which is '
                f'in another conductor group or shard in Ironic',
            )
        else:
            yield Finding(
                catalogue.ROW_WITHOUT_NODE,
                subject,
                f'Host {row.host} has a record of node {row.node}, which '
                f'Ironic does not have',
            )


def check_rows(snapshot: Snapshot) -> Iterator[Finding]:
    """Check the records of each node of the pool."""
    for node, rows in snapshot.rows_by_node().items():
        if node in snapshot.nodes:
            yield from _several(node, rows)
            for row in rows:
                yield from _of_row(row, snapshot)


def _several(node: NodeId, rows: Sequence[Row]) -> Iterator[Finding]:
    if len(rows) > 1:
        hosts = ', '.join(sorted(row.host for row in rows))
        yield Finding(
            catalogue.TWO_ROWS,
            Subject(node=node),
            f'Nova has {len(rows)} records of node {node}, on hosts {hosts}',
        )


def _of_row(row: Row, snapshot: Snapshot) -> Iterator[Finding]:
    subject = Subject(node=row.node, host=row.host)
    if row.uuid != row.node:
        yield Finding(
            catalogue.ROW_WITH_OTHER_UUID,
            subject,
            f"Nova's record of node {row.node} has the uuid {row.uuid}",
        )
    if row.host in snapshot.pool.known:
        return
    if row.host in snapshot.services:
        yield Finding(
            catalogue.ROW_ON_FOREIGN_HOST,
            subject,
            f'Host {row.host}, which is not of this pool, has the record of '
            f'node {row.node}',
        )
    else:
        yield Finding(
            catalogue.ROW_ON_UNKNOWN_HOST,
            subject,
            f'The record of node {row.node} names host {row.host}, which '
            f'Nova does not have',
        )
