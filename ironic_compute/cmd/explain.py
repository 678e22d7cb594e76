# SPDX-License-Identifier: Apache-2.0
"""Explains why a node is or is not offered to builds; pure functions.

``ironic-computectl node explain`` compares the node in Ironic with its
provider in Placement. Each obstacle gets a sentence and a remedy.
"""

import dataclasses
from collections.abc import Iterator

from ironic_compute.nodes.pins import Pin
from resource_tracker.delta import KnownProvider
from resource_tracker.node import NodeFacts
from resource_tracker.provider import (
    COMPUTE_NODE,
    COMPUTE_STATUS_DISABLED,
    Situation,
    resource_class_of,
    why_not_schedulable,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """An obstacle to builds as a sentence, and its remedy if there is one."""

    text: str
    remedy: str = ''


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """The state of a node in Ironic and in Placement.

    :param in_pool: the node has the conductor group and shard of this pool
    :param provider: the provider of the node; None if Placement has none
    :param consumers: the consumers that have an allocation on the provider
    """

    facts: NodeFacts
    in_pool: bool
    provider: KnownProvider | None
    consumers: frozenset[str] = frozenset()


def explain(evidence: Evidence) -> tuple[Finding, ...]:
    """Return all obstacles to builds, or else how to get the node."""
    return tuple(_obstacles(evidence)) or (_offered(evidence),)


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
    if not evidence.in_pool:
        yield Finding(
            f'The node is not in this pool: its conductor group is '
            f'"{facts.conductor_group}", its shard {facts.shard or "not set"}',
            'run this command with a nova.conf that has these values in '
            '[ironic], or change the node; if a host of this pool still '
            f'holds the node: ironic-computectl node forget {facts.uuid}',
        )
    reason = why_not_schedulable(facts, Situation())
    if reason is not None:
        yield Finding(f'Ironic: {reason}', _remedy(facts))
    yield from _of_placement(evidence, is_free=reason is None)


def _remedy(facts: NodeFacts) -> str:
    node = facts.uuid
    if not facts.resource_class:
        return f'openstack baremetal node set --resource-class CLASS {node}'
    if facts.maintenance:
        return f'openstack baremetal node maintenance unset {node}'
    if facts.retired:
        return f'openstack baremetal node unset --retired {node}'
    if facts.instance_uuid is not None:
        return f'openstack server show {facts.instance_uuid}'
    error = f' (last error: {facts.last_error})' if facts.last_error else ''
    return f'openstack baremetal node show {node}{error}'


def _of_placement(evidence: Evidence, *, is_free: bool) -> Iterator[Finding]:
    provider = evidence.provider
    if provider is None:
        yield Finding(
            'Placement: no provider yet, because no daemon has created it',
            'check that a host is served (ironic-computectl host list) and '
            'mapped (nova-manage cell_v2 discover_hosts --by-service)',
        )
        return
    for consumer in sorted(evidence.consumers):
        yield Finding(
            f'Placement: {consumer} has an allocation on the node',
            f'openstack server show {consumer}; if Nova has no such server, '
            f'another client made the allocation or it was left behind '
            f'(openstack resource provider allocation show {consumer})',
        )
    if COMPUTE_STATUS_DISABLED in provider.traits:
        yield Finding(
            "Placement: the compute service of the node's host is disabled",
            'openstack compute service list',
        )
    if is_free and not evidence.consumers:
        yield from _of_inventory(evidence.facts, provider)


def _of_inventory(
    facts: NodeFacts, provider: KnownProvider
) -> Iterator[Finding]:
    """Compare a free node's inventory in Placement with Ironic."""
    late = (
        'wait a minute; then search for "Placement" and the node in the log '
        'of the daemon that holds the node'
    )
    wanted = resource_class_of(facts)
    found = provider.inventories.get(wanted or '')
    if not provider.inventories:
        yield Finding(
            "Placement: the provider has no inventory yet; the node's record "
            'in Nova is not confirmed yet, or the write to Placement is late',
            late,
        )
    elif found is None:
        others = ', '.join(sorted(provider.inventories))
        yield Finding(
            f'Placement: the provider has {others} in place of {wanted}', late
        )
    elif found.get('reserved'):
        yield Finding(
            'Placement: the node is reserved; a build has just claimed it, '
            'its record in Nova is not confirmed yet, or the write is late',
            late,
        )
    if COMPUTE_NODE not in provider.traits:
        yield Finding(f'Placement: the trait {COMPUTE_NODE} is missing', late)


def _offered(evidence: Evidence) -> Finding:
    assert evidence.provider is not None  # noqa: S101 - else an obstacle
    own = sorted(evidence.facts.traits) or ['none']
    return Finding(
        f'The node is offered to flavors with '
        f'resources:{resource_class_of(evidence.facts)}=1 (its own traits: '
        f'{", ".join(own)})',
        "openstack allocation candidate list, with the flavor's resources",
    )
