# SPDX-License-Identifier: Apache-2.0
"""The provider that Placement should have for a node: inventory, traits.

Pure functions: the node's record and situation in, the wanted provider out. A
node is one resource provider with one unit of its custom resource class. The
unit is reserved unless the node can take a build now. It never has VCPU,
MEMORY_MB or DISK_GB, because flavors of virtual machines would then select
bare metal (bug 1796920). A node in use keeps a reserved inventory and not an
empty one (bugs 1751472, 1771577, 1974070).
"""

import dataclasses
from collections.abc import Mapping

import os_resource_classes
import os_traits

from resource_tracker import interning
from resource_tracker.claims import Claim
from resource_tracker.node import NodeFacts, NodeId

COMPUTE_NODE = os_traits.COMPUTE_NODE
# The scheduler of Nova 34 requires this trait once all computes are that new.
# Older releases of os_traits do not have the name, and for an older Placement
# ``trait_names`` leaves it out.
OWNER_NOVA = getattr(os_traits, 'OWNER_NOVA', 'OWNER_NOVA')
COMPUTE_STATUS_DISABLED = os_traits.COMPUTE_STATUS_DISABLED

# Provision and power states of Ironic. The power state is null if Ironic could
# never read it from the machine.
_AVAILABLE = 'available'
_DELETING = 'deleting'
_POWER_UNUSABLE = (None, 'error')
# Placement refuses a longer name, and with it all traits of the provider.
_TRAIT_LENGTH_MAX = 255


@dataclasses.dataclass(frozen=True, slots=True)
class Aggregates:
    """The Placement aggregates of a provider.

    :param member: aggregates that the provider should be in
    :param managed: aggregates that this project manages. The provider is
        removed from those that are not in ``member``; all other aggregates are
        left alone
    """

    member: frozenset[str] = frozenset()
    managed: frozenset[str] = frozenset()

    def merged_with(self, present: frozenset[str]) -> frozenset[str]:
        """Return the wanted aggregates of a provider.

        :param present: the aggregates that it is in now
        """
        return self.member | (present - self.managed)


@dataclasses.dataclass(frozen=True, slots=True)
class Situation:
    """The facts beyond Ironic's record that decide a node's provider."""

    claim: Claim | None = None
    """The claim of a build on the node, while Ironic does not show it yet."""
    confirmed: bool = True
    """Whether the node's row in Nova is confirmed as this host's."""
    disabled: bool = False
    """Whether the Service of the node's host is disabled in Nova."""
    capability_traits: frozenset[str] = frozenset()
    """The virt driver's capabilities, as traits."""
    aggregates: Aggregates | None = None
    """The aggregates of the node's host; None: leave them unchanged."""
    traits_of_capabilities: frozenset[str] = frozenset()
    """Keys of ``properties.capabilities`` that become CUSTOM_ traits."""
    row_id: str = ''
    """Distinguishes the node's row in Nova from an earlier one of its uuid."""


@dataclasses.dataclass(frozen=True, slots=True)
class Inventory:
    """One unit of one resource class."""

    resource_class: str
    reserved: bool

    def body(self) -> dict[str, int | float]:
        """Return the inventory record for Placement."""
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
    """The provider that Placement should have for a node.

    :param uuid: uuid of the node; uuid and name of a new provider
    :param inventory: None: the node has no resource class
    :param traits: the traits that this project sets; other clients' traits are
        not included
    :param aggregates: None: they are left unchanged
    :param is_unconfirmed: the node's row in Nova is not confirmed yet. No
        inventory is created; an existing one is not changed, except that it is
        reserved if the node cannot take a build
    :param is_gone: Ironic does not have the node any more. All inventories of
        an existing provider are reserved, and nothing else changes
    :param row_id: see ``Situation``; a new row means a new provider
    """

    uuid: NodeId
    inventory: Inventory | None
    traits: frozenset[str]
    aggregates: Aggregates | None
    is_unconfirmed: bool = False
    is_gone: bool = False
    row_id: str = ''


def resource_class_of(facts: NodeFacts) -> str | None:
    """Return the custom class of a node; None if Ironic has no class for it.

    Normalised like ``resources:CUSTOM_…`` in the flavors of Nova's own Ironic
    driver: gold.x-large becomes CUSTOM_GOLD_X_LARGE.
    """
    if not facts.resource_class:
        return None
    normalized: str = os_resource_classes.normalize_name(facts.resource_class)
    return normalized


def why_not_schedulable(facts: NodeFacts, situation: Situation) -> str | None:
    """Return why a node cannot take a build now, as a phrase; None: it can.

    The node's owner and lessee have no influence. Nor has a disabled Service,
    because a trait keeps builds off its nodes. A part of a machine, such as a
    smart NIC, is in no pool, but an older release may have made its record.
    """
    reasons = (
        (not facts.resource_class, 'its resource_class is not set in Ironic'),
        (facts.maintenance, 'it is in maintenance'),
        (facts.retired, 'it is retired'),
        (
            facts.parent_node is not None,
            f'it is a part of machine {facts.parent_node}',
        ),
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
    """Return whether a server has the node and is not being deleted."""
    has_server = facts.instance_uuid is not None
    return has_server and facts.provision_state != _DELETING


def wanted_provider(facts: NodeFacts, situation: Situation) -> WantedProvider:
    """Return the provider that Placement should have for a node."""
    resource_class = resource_class_of(facts)
    inventory = None
    if resource_class is not None:
        # An unconfirmed row is no reason to reserve the inventory, because a
        # new holder would then withdraw a node that its last holder had
        # confirmed and offered.
        confirmed = dataclasses.replace(situation, confirmed=True)
        reserved = why_not_schedulable(facts, confirmed) is not None
        inventory = Inventory(resource_class, reserved)
    return WantedProvider(
        uuid=facts.uuid,
        inventory=inventory,
        traits=_traits(facts, situation),
        aggregates=situation.aggregates,
        # The confirmation may show that the row belongs to another host. Until
        # then no inventory is created, so the node gets no build. Its traits
        # are written, because they are the same for any host.
        is_unconfirmed=not situation.confirmed,
        row_id=situation.row_id,
    )


def withdrawn_provider(node: NodeId, row_id: str = '') -> WantedProvider:
    """Return the wanted provider of a node that Ironic does not have any more.

    The provider is deleted later; until then no build must get the node.

    :param row_id: see ``Situation``
    """
    return WantedProvider(
        node, None, frozenset(), None, is_gone=True, row_id=row_id
    )


def capabilities_of(facts: NodeFacts) -> dict[str, str]:
    """Parse ``properties.capabilities``, for example ``k1:v1,k2:v2``."""
    raw = facts.properties.get('capabilities')
    if isinstance(raw, Mapping):
        return {str(key): str(value) for key, value in raw.items()}
    pairs = (part.split(':') for part in str(raw or '').split(','))
    return {p[0].strip(): p[1] for p in pairs if len(p) == 2 and all(p)}


def overlong_capabilities(
    facts: NodeFacts, situation: Situation
) -> tuple[str, ...]:
    """Return the capabilities that are too long to become traits."""
    traits = _capability_traits(facts, situation.traits_of_capabilities)
    return tuple(
        key for key in sorted(traits) if len(traits[key]) > _TRAIT_LENGTH_MAX
    )


def _traits(facts: NodeFacts, situation: Situation) -> frozenset[str]:
    named = _capability_traits(facts, situation.traits_of_capabilities)
    ours = {COMPUTE_NODE, OWNER_NOVA}
    if situation.disabled:
        ours.add(COMPUTE_STATUS_DISABLED)
    return interning.names(
        facts.traits
        | situation.capability_traits
        | {t for t in named.values() if len(t) <= _TRAIT_LENGTH_MAX}
        | ours
    )


def _capability_traits(
    facts: NodeFacts, keys: frozenset[str]
) -> dict[str, str]:
    """Return traits such as CUSTOM_BOOT_MODE_UEFI for boot_mode:uefi, by key.

    :param keys: the keys of the capabilities that become traits
    """
    if not keys:
        return {}
    return {
        # Only the key is stripped before, as in Nova; "key: value" is valid.
        key: os_traits.normalize_name(f'{key}_{value.strip()}')
        for key, value in capabilities_of(facts).items()
        if key in keys
    }
