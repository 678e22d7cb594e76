# SPDX-License-Identifier: Apache-2.0
"""Explains why a node is or is not offered to builds; pure functions.

``ironic-computectl node explain`` compares the node in Ironic with its record
in Nova and its provider in Placement. An obstacle that an operator may have
wanted gets a sentence and a remedy. What does not agree is found by the checks
of fsck, and has their names and cures.
"""

import dataclasses
from collections.abc import Iterator

from hashring.ring import Host
from ironic_compute import catalogue
from ironic_compute.catalogue import Check
from ironic_compute.cmd.nova_hosts import NovaHost
from ironic_compute.fsck import (
    findings,
    leftover_checks,
    provider_checks,
    record_checks,
)
from ironic_compute.fsck.snapshot import (
    Placement,
    ProviderDetails,
    Row,
    Service,
    Snapshot,
)
from ironic_compute.nodes.node_findings import find_in_facts
from ironic_compute.nodes.pins import Pin
from resource_tracker.delta import KnownProvider
from resource_tracker.node import NodeFacts
from resource_tracker.provider import (
    COMPUTE_NODE,
    COMPUTE_STATUS_DISABLED,
    Situation,
    resource_class_of,
    wanted_provider,
    why_not_schedulable,
)

_CHECKS = (
    record_checks.check_nodes_have_rows,
    provider_checks.check_numbers,
    provider_checks.check_offers,
    provider_checks.check_traits,
    leftover_checks.check_states,
)
# Ironic's last_error may be the whole output of a program, which would make
# the table unreadable. The remedy is the command that shows all of it.
_ERROR_MAX = 300
# They say nothing that another finding about the node does not say.
_COVERED = frozenset({catalogue.NOT_RESERVED})


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """An obstacle to builds as a sentence, and its remedy if there is one.

    :param check: the check of fsck that finds it; None: it may be wanted
    """

    text: str
    remedy: str = ''
    check: Check | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """The state of a node in Ironic, in Nova and in Placement.

    :param in_pool: the node has the conductor group and shard of this pool
    :param provider: the provider of the node; None if Placement has none
    :param consumers: the consumers that have an allocation on the provider
    :param holder: the host of the record in Nova; None if Nova has no record
    :param is_holder_read: False: nova-conductor did not answer
    :param row_uuid: the uuid of the record in Nova, which the provider should
        have, too
    :param nova: what Nova has of the holder; None: it was not read
    """

    facts: NodeFacts
    in_pool: bool
    provider: KnownProvider | None
    consumers: frozenset[str] = frozenset()
    holder: Host | None = None
    is_holder_read: bool = False
    row_uuid: str | None = None
    nova: NovaHost | None = None


def explain(evidence: Evidence) -> tuple[Finding, ...]:
    """Return all obstacles to builds, or else how to get the node."""
    found = (*_obstacles(evidence), *_inconsistencies(evidence))
    return found or (_offered(evidence),)


def _inconsistencies(evidence: Evidence) -> Iterator[Finding]:
    """Run the checks of fsck that are about one node and its provider."""
    if not evidence.in_pool:
        return
    snapshot = _snapshot(evidence)
    for check in _CHECKS:
        for found in check(snapshot):
            if found.check not in _COVERED:
                yield _named(found)


def _named(found: findings.Finding) -> Finding:
    return Finding(found.text, found.cure, found.check)


def _snapshot(evidence: Evidence) -> Snapshot:
    """Return what fsck would read of this node.

    Whether the host is disabled is no matter here: an obstacle says so.
    """
    facts, provider = evidence.facts, evidence.provider
    is_disabled = provider is not None and (
        COMPUTE_STATUS_DISABLED in provider.traits
    )
    host = evidence.holder
    if host is None and not evidence.is_holder_read:
        host = Host('HOST')
    uuid = evidence.row_uuid
    if uuid is None:
        uuid = provider.uuid if provider is not None else facts.uuid
    return Snapshot(
        now_s=0.0,
        nodes={facts.uuid: facts},
        rows=() if host is None else (Row(facts.uuid, uuid, host),),
        services={} if host is None else {host: Service(True, is_disabled)},
        placement=_placement(evidence),
    )


def _placement(evidence: Evidence) -> Placement:
    provider = evidence.provider
    if provider is None:
        return Placement()
    wanted = wanted_provider(evidence.facts, Situation())
    return Placement(
        names={provider.uuid: evidence.facts.uuid},
        offered=_offers(evidence, provider),
        with_trait={
            trait: frozenset(_having(provider, trait))
            for trait in wanted.traits | {COMPUTE_NODE}
        },
        details={
            provider.uuid: ProviderDetails.of(provider, evidence.consumers)
        },
    )


def _having(provider: KnownProvider, trait: str) -> set[str]:
    return {provider.uuid} if trait in provider.traits else set()


def _offers(
    evidence: Evidence, provider: KnownProvider
) -> dict[str, frozenset[str]]:
    """Return the classes of the node and its provider, each with its offer."""
    own = resource_class_of(evidence.facts)
    names = {*provider.inventories, *([own] if own else ())}
    return {
        name: frozenset({provider.uuid})
        if not evidence.consumers
        and name in provider.inventories
        and not provider.inventories[name].get('reserved')
        else frozenset()
        for name in names
    }


def explain_pin(pin: Pin | Exception | None) -> tuple[Finding, ...]:
    """Return that a node is pinned, or why that is not known.

    :param pin: an exception: it could not be read
    """
    if pin is None:
        return ()
    if isinstance(pin, Exception):
        return (
            Finding(
                f'Nova: it is not known whether the node is pinned: {pin}',
                'check nova-conductor and RabbitMQ',
            ),
        )
    return (
        Finding(
            f'The node is pinned to host {pin.host} by {pin.by}',
            'to let the hash ring choose its host: ironic-computectl node '
            'unpin, with the node',
        ),
    )


def _obstacles(evidence: Evidence) -> Iterator[Finding]:
    facts = evidence.facts
    if facts.parent_node is not None:
        yield Finding(
            f'The node is a part of machine {facts.parent_node} in Ironic, so '
            f'it is in no pool',
            'nothing, if it is one, such as a smart NIC; else openstack '
            'baremetal node unset --parent-node, with the node',
        )
    elif not evidence.in_pool:
        yield Finding(
            f'The node is not in this pool: its conductor group is '
            f'"{facts.conductor_group}", its shard {facts.shard or "not set"}',
            'run this command with a nova.conf that has these values in '
            '[ironic], or change the node; a host of this pool that still '
            'holds it gives it to a daemon with these values, if one is up',
        )
    reason = why_not_schedulable(facts, Situation())
    is_named = facts.parent_node is not None or _is_class_missed(facts)
    if reason is not None and not is_named:
        yield Finding(f'Ironic: {reason}', _remedy(facts))
    yield from _of_host(evidence)
    yield from _of_placement(evidence)


def _of_host(evidence: Evidence) -> Iterator[Finding]:
    """Yield why nova-scheduler sends no build to the host of the node.

    Placement offers the node all the same, so no other finding shows it.
    """
    host, nova = evidence.holder, evidence.nova
    if host is None or nova is None:
        return
    if not nova.exists:
        check = catalogue.ROW_ON_UNKNOWN_HOST
        yield Finding(
            f'Nova has no Service record of host {host}, which holds the node',
            check.cure,
            check,
        )
        return
    if nova.is_mapped is False:
        check = catalogue.HOST_NOT_MAPPED
        yield Finding(
            f'Nova has mapped host {host}, which holds the node, to no cell',
            check.cure,
            check,
        )
    if not nova.is_up:
        yield Finding(
            f'Nova: host {host}, which holds the node, is down',
            f'ironic-computectl host show {host}; if somebody has declared it '
            f'to be down: openstack compute service set --up {host} '
            f'nova-compute',
        )


def _is_class_missed(facts: NodeFacts) -> bool:
    """Return whether fsck says of a node that it has no resource class.

    It does not of one that is being enrolled.
    """
    found = (check for check, _text in find_in_facts(facts))
    return catalogue.NODE_WITHOUT_CLASS in found


def _remedy(facts: NodeFacts) -> str:
    node = facts.uuid
    if not facts.resource_class:
        return catalogue.NODE_WITHOUT_CLASS.cure.format(node=node)
    if facts.maintenance:
        return f'openstack baremetal node maintenance unset {node}'
    if facts.retired:
        return f'openstack baremetal node unset --retired {node}'
    if facts.instance_uuid is not None:
        return f'openstack server show {facts.instance_uuid}'
    error = ' '.join((facts.last_error or '').split())
    if len(error) > _ERROR_MAX:
        error = f'{error[:_ERROR_MAX]} ...'
    last = f' (last error: {error})' if error else ''
    return f'openstack baremetal node show {node}{last}'


def _of_placement(evidence: Evidence) -> Iterator[Finding]:
    for consumer in sorted(evidence.consumers):
        yield Finding(
            f'Placement: {consumer} has an allocation on the node',
            f'openstack server show {consumer}; if Nova has no such server, '
            f'another client made the allocation or it was left behind '
            f'(openstack resource provider allocation show {consumer})',
        )
    provider = evidence.provider
    if provider is not None and COMPUTE_STATUS_DISABLED in provider.traits:
        yield Finding(
            "Placement: the compute service of the node's host is disabled",
            'openstack compute service list',
        )


def _offered(evidence: Evidence) -> Finding:
    assert evidence.provider is not None  # noqa: S101 - else an obstacle
    own = sorted(evidence.facts.traits) or ['none']
    return Finding(
        f'The node is offered to flavors with '
        f'resources:{resource_class_of(evidence.facts)}=1 (its own traits: '
        f'{", ".join(own)})',
        "openstack allocation candidate list, with the flavor's resources",
    )
