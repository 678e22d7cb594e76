# SPDX-License-Identifier: Apache-2.0
"""Checks of nodes in Ironic: leftovers of servers, and what is not set."""

from collections.abc import Iterator

from ironic_compute import catalogue
from ironic_compute.fsck.findings import Finding, Subject
from ironic_compute.fsck.snapshot import Snapshot
from ironic_compute.nodes.node_findings import find_in_facts
from ironic_compute.recovery.decisions import is_idle


def check_leftovers(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that a free node has no VIF and no volume target."""
    hosts = snapshot.holders()
    for node, facts in snapshot.nodes.items():
        if not is_idle(facts):
            continue
        for vif in snapshot.vifs.get(node, ()):
            yield Finding(
                catalogue.VIF_LEFT_BEHIND,
                Subject(node=node, host=hosts.get(node), other=vif),
                f'Node {node} is free and has VIF {vif}',
            )
        for target in snapshot.volume_targets.get(node, ()):
            yield Finding(
                catalogue.VOLUME_TARGET_LEFT_BEHIND,
                Subject(node=node, host=hosts.get(node), other=target),
                f'Node {node} is free and has volume target {target}',
            )


def check_states(snapshot: Snapshot) -> Iterator[Finding]:
    """Check each node by its record in Ironic alone."""
    for facts in snapshot.nodes.values():
        for check, text in find_in_facts(facts):
            yield Finding(check, Subject(node=facts.uuid), text)
