# SPDX-License-Identifier: Apache-2.0
"""What Ironic says of one node, parsed once where it enters.

Behind this line nobody looks into Ironic's JSON. A record that cannot be
read harms itself, not the list it came in. Fields follow Ironic's API
reference (baremetal/#list-nodes-detailed).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NewType

from resource_tracker.errors import MalformedNode

NodeId = NewType('NodeId', str)

# Field of Ironic's API -> first microversion that has it. Traits are 1.37,
# conductor_group 1.46, so anything below 1.46 is not supported.
_FIELD_SINCE = {
    'uuid': (1, 1),
    'name': (1, 5),
    'resource_class': (1, 21),
    'provision_state': (1, 1),
    'target_provision_state': (1, 1),
    'power_state': (1, 1),
    'target_power_state': (1, 1),
    'maintenance': (1, 1),
    'instance_uuid': (1, 1),
    'traits': (1, 37),
    'properties': (1, 1),
    'conductor_group': (1, 46),
    'last_error': (1, 1),
    'fault': (1, 42),
    'reservation': (1, 1),
    'owner': (1, 50),
    'retired': (1, 61),
    'lessee': (1, 65),
    'shard': (1, 82),
}
FIELDS = tuple(_FIELD_SINCE)


def fields_for(microversion: tuple[int, int]) -> tuple[str, ...]:
    """Return what to ask an Ironic of this microversion for."""
    return tuple(
        field for field, since in _FIELD_SINCE.items() if since <= microversion
    )


@dataclasses.dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node as Ironic last described it.

    ``updated_at`` is None where the list did not carry it: Ironic refuses
    it in ``fields=`` and shows it in detailed records only.
    """

    uuid: NodeId
    name: str | None = None
    resource_class: str | None = None
    provision_state: str | None = None
    target_provision_state: str | None = None
    power_state: str | None = None
    target_power_state: str | None = None
    maintenance: bool = False
    retired: bool = False
    instance_uuid: str | None = None
    traits: frozenset[str] = frozenset()
    properties: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    conductor_group: str = ''
    shard: str | None = None
    owner: str | None = None
    lessee: str | None = None
    last_error: str | None = None
    fault: str | None = None
    reservation: str | None = None
    updated_at: str | None = None

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> 'NodeFacts':
        """Read a record of Ironic's API.

        :raises MalformedNode: it has no uuid, or a field of another type
        """
        try:
            values = {
                field.name: raw[field.name]
                for field in dataclasses.fields(cls)
                if raw.get(field.name) is not None
            }
            values['uuid'] = NodeId(str(raw['uuid']))
            values['traits'] = frozenset(raw.get('traits') or ())
            values['properties'] = dict(raw.get('properties') or {})
            return cls(**values)
        except (KeyError, TypeError, ValueError) as exc:
            raise MalformedNode(
                f'Ironic sent a node record without a usable {exc}'
            ) from exc
