# SPDX-License-Identifier: Apache-2.0
"""Checks of nodes in Ironic: leftovers of servers, and what is not set."""

from collections.abc import Iterator

from ironic_compute import catalogue
from ironic_compute.fsck.findings import Finding, Subject
from ironic_compute.fsck.snapshot import Snapshot
from ironic_compute.ironic_api.states import Meaning, ProvisionState, meaning
from ironic_compute.recovery.decisions import is_idle
from resource_tracker.node import NodeFacts

_FAILED = (ProvisionState.DEPLOYFAIL, ProvisionState.ERROR)


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
        for check, text in _of_state(facts):
            yield Finding(check, Subject(node=facts.uuid), text)


def _of_state(facts: NodeFacts) -> Iterator[tuple[catalogue.Check, str]]:
    node = facts.uuid
    state = ProvisionState.parse(facts.provision_state)
    is_usable = meaning(facts.provision_state) is not Meaning.OUT_OF_REACH
    if is_usable and not facts.resource_class:
        yield (
            catalogue.NODE_WITHOUT_CLASS,
            f'Node {node} has no resource_class in Ironic',
        )
    if state in _FAILED and facts.instance_uuid is None:
        yield (
            catalogue.DEPLOY_FAILED,
            f'Node {node} is in {facts.provision_state} and has no server',
        )
    if state is ProvisionState.DEPLOYING and facts.reservation is None:
        yield (
            catalogue.DEPLOY_WITHOUT_CONDUCTOR,
            f'Node {node} is in deploying, and no conductor has reserved it',
        )
