# SPDX-License-Identifier: Apache-2.0
"""What Placement should say of a node. Pure: facts in, wanted state out.

A node is one resource provider with one unit of its custom resource class,
reserved unless the node can take a build now. Never VCPU, MEMORY_MB or
DISK_GB: flavors of virtual machines would land on bare metal (bug 1796920).
Never an empty inventory in place of a reserved one while something is
allocated (bugs 1751472, 1771577, 1974070).
"""

import dataclasses
from collections.abc import Mapping

import os_resource_classes
import os_traits

from resource_tracker import interning
from resource_tracker.claims import Claim
from resource_tracker.node import NodeFacts, NodeId

COMPUTE_NODE = os_traits.COMPUTE_NODE
# The scheduler of Nova 34 asks for it as soon as all computes are that new;
# older os_traits lack the name, and an older Placement is not told of it.
OWNER_NOVA = getattr(os_traits, 'OWNER_NOVA', 'OWNER_NOVA')
COMPUTE_STATUS_DISABLED = os_traits.COMPUTE_STATUS_DISABLED

# Ironic's words for it; null is what Ironic says of a power state that it
# could never read.
_AVAILABLE = 'available'
_DELETING = 'deleting'
_POWER_UNUSABLE = (None, 'error')


@dataclasses.dataclass(frozen=True, slots=True)
class Aggregates:
    """Which aggregates a provider is to be in, and which are none of ours.

    :param member: those it is to be in
    :param managed: all that we answer for; it leaves those of them that are
        not in ``member``, and others' are left alone
    """

    member: frozenset[str] = frozenset()
    managed: frozenset[str] = frozenset()

    def merged_with(self, present: frozenset[str]) -> frozenset[str]:
        """Return what a provider should be in, that is in these now."""
        return self.member | (present - self.managed)


@dataclasses.dataclass(frozen=True, slots=True)
class Situation:
    """What besides Ironic decides how a node is offered."""

    claim: Claim | None = None
    """The build that has the node, while Ironic cannot say so yet."""
    confirmed: bool = True
    """Nova's row of the node is certainly its holder's."""
    disabled: bool = False
    """The holder's Service is disabled in Nova."""
    capability_traits: frozenset[str] = frozenset()
    """What the virt driver can do, as traits."""
    aggregates: Aggregates | None = None
    """Those of the holder's host; None leaves them to others."""
    traits_of_capabilities: frozenset[str] = frozenset()
    """Keys of ``properties.capabilities`` that become CUSTOM_ traits."""
    row_id: str = ''
    """Tells Nova's row of the node from an earlier one of the same uuid."""


@dataclasses.dataclass(frozen=True, slots=True)
class Inventory:
    """One unit of one class."""

    resource_class: str
    reserved: bool

    def body(self) -> dict[str, int | float]:
        """Return Placement's record of it."""
        return {
            'total': 1,
            'reserved': int(self.reserved),
            'min_unit': 1,
            'max_unit': 1,
            'step_size': 1,
            'allocation_ratio': 1.0,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class WantedProvider:
    """What Placement should hold of a node.

    :param uuid: the node's, and so the provider's uuid and name
    :param inventory: None: nothing can be asked of the node
    :param traits: those that we answer for; others' are not in here
    :param aggregates: None: they are left as they are
    :param waits: it is not to be offered yet, nor withdrawn for that: its
        inventory is not made, and one that is there is at most reserved
    :param is_gone: nothing of it is to be had, and nothing else is said;
        there is none if there was none
    :param row_id: see Situation; the provider goes and comes with it
    """

    uuid: NodeId
    inventory: Inventory | None
    traits: frozenset[str]
    aggregates: Aggregates | None
    is_unconfirmed: bool = False
    is_gone: bool = False
    row_id: str = ''


def resource_class_of(facts: NodeFacts) -> str | None:
    """Return the custom class a node offers; None if Ironic has none.

    Normalised as flavors' ``resources:CUSTOM_…`` are written for Nova's own
    driver, "gold.x-large" to CUSTOM_GOLD_X_LARGE.
    """
    if not facts.resource_class:
        return None
    normalized: str = os_resource_classes.normalize_name(facts.resource_class)
    return normalized


def why_not_schedulable(facts: NodeFacts, situation: Situation) -> str | None:
    """Return why a node cannot take a build now, as a phrase; None: it can.

    The owner or lessee of a node changes nothing here, nor does a disabled
    host: its nodes are kept from builds by a trait.
    """
    reasons = (
        (not facts.resource_class, 'its resource_class is not set in Ironic'),
        (facts.maintenance, 'it is in maintenance'),
        (facts.retired, 'it is retired'),
        (
            facts.instance_uuid is not None,
            f'it has instance {facts.instance_uuid}',
        ),
        (
            facts.provision_state != _AVAILABLE,
            f'its provision state is {facts.provision_state}, not available',
        ),
        (
            facts.power_state in _POWER_UNUSABLE,
            f'its power state is {facts.power_state or "unknown"}',
        ),
        (situation.claim is not None, 'a build has claimed it'),
        (not situation.confirmed, 'its record in Nova is not confirmed yet'),
    )
    return next((phrase for holds, phrase in reasons if holds), None)


def has_server(facts: NodeFacts) -> bool:
    """Say whether a server has a node, and is not about to leave it."""
    has_server = facts.instance_uuid is not None
    return has_server and facts.provision_state != _DELETING


def wanted_provider(facts: NodeFacts, situation: Situation) -> WantedProvider:
    """Return what Placement should hold of a node."""
    resource_class = resource_class_of(facts)
    inventory = None
    if resource_class is not None:
        # Whether it waits for its row is not told by a reservation: who comes
        # after a holder that had confirmed it would take it back.
        confirmed = dataclasses.replace(situation, confirmed=True)
        reserved = why_not_schedulable(facts, confirmed) is not None
        inventory = Inventory(resource_class, reserved)
    return WantedProvider(
        uuid=facts.uuid,
        inventory=inventory,
        traits=_traits(facts, situation),
        aggregates=situation.aggregates,
        # Its row may turn out to be another's. Without an inventory nobody
        # can be sent to it, and what describes it is the same from anybody.
        is_unconfirmed=not situation.confirmed,
        row_id=situation.row_id,
    )


def withdrawn_provider(node: NodeId) -> WantedProvider:
    """Return what Placement should hold of a node that Ironic denies.

    It may be deleted later; until then no build must be sent to it.
    """
    return WantedProvider(node, None, frozenset(), None, is_gone=True)


def capabilities_of(facts: NodeFacts) -> dict[str, str]:
    """Parse ``properties.capabilities``, ``k1:v1,k2:v2``."""
    raw = facts.properties.get('capabilities')
    if isinstance(raw, Mapping):
        return {str(key): str(value) for key, value in raw.items()}
    pairs = (part.split(':') for part in str(raw or '').split(','))
    return {p[0].strip(): p[1] for p in pairs if len(p) == 2 and all(p)}


def _traits(facts: NodeFacts, situation: Situation) -> frozenset[str]:
    ours = {COMPUTE_NODE, OWNER_NOVA}
    if situation.disabled:
        ours.add(COMPUTE_STATUS_DISABLED)
    return interning.names(
        facts.traits
        | situation.capability_traits
        | _capability_traits(facts, situation.traits_of_capabilities)
        | ours
    )


def _capability_traits(
    facts: NodeFacts, keys: frozenset[str]
) -> frozenset[str]:
    """Return boot_mode:uefi as CUSTOM_BOOT_MODE_UEFI, for chosen keys."""
    if not keys:
        return frozenset()
    return frozenset(
        os_traits.normalize_name(f'{key}_{value}')
        for key, value in capabilities_of(facts).items()
        if key in keys
    )
