# SPDX-License-Identifier: Apache-2.0
"""What Ironic says of one node, parsed once where it enters.

Behind this line nobody looks into Ironic's JSON. A record that cannot be
read harms itself, not the list it came in. Fields follow Ironic's API
reference (baremetal/#list-nodes-detailed).
"""

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any, NewType

from resource_tracker import interning
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
OLDEST_MICROVERSION = (1, 46)


def fields_for(microversion: tuple[int, int]) -> tuple[str, ...]:
    """Return what to ask an Ironic of this microversion for in ``fields=``.

    Ironic refuses a request that names a field it does not know at the
    microversion of the request, so newer fields are left out for an older one.
    """
    return tuple(
        field for field, since in _FIELD_SINCE.items() if since <= microversion
    )


FIELDS = fields_for(OLDEST_MICROVERSION)


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

        A field that is absent or null has its default, so that a record of
        an older Ironic, or one with fewer fields, is a node all the same.

        :raises MalformedNode: it has no uuid, or a field of another type
        """
        plain: dict[str, Any] = {
            **{name: _flag(raw, name) for name in _FLAGS},
            **{name: _text(raw, name) for name in _TEXTS},
        }
        return cls(
            uuid=NodeId(_uuid(raw)),
            conductor_group=_text(raw, 'conductor_group') or '',
            traits=_traits(raw),
            properties=_properties(raw),
            **plain,
        )


_FLAGS = ('maintenance', 'retired')
# Fields that many nodes, or many records of a node, say the same in. Some
# releases of Python never let go of what is interned, so a stamp or an error
# would be kept for ever.
_INTERNED = frozenset(
    {
        'uuid',
        'resource_class',
        'provision_state',
        'target_provision_state',
        'power_state',
        'target_power_state',
        'conductor_group',
        'shard',
        'owner',
        'lessee',
        'fault',
    }
)
_TEXTS = tuple(
    field.name
    for field in dataclasses.fields(NodeFacts)
    if field.type == (str | None)
)


def _value(raw: Any, name: str, kind: type) -> Any:
    """Return a field of this type, or None if it is absent or null."""
    if not isinstance(raw, Mapping):
        raise MalformedNode(repr(raw)[:80], name)
    value = raw.get(name)
    if value is not None and not isinstance(value, kind):
        raise MalformedNode(_name_of(raw), name)
    return value


def _uuid(raw: Any) -> str:
    found = _text(raw, 'uuid')
    if not found:
        raise MalformedNode(_name_of(raw), 'uuid')
    return found


def _text(raw: Any, name: str) -> str | None:
    found: str | None = _value(raw, name, str)
    if found is None or name not in _INTERNED:
        return found
    return sys.intern(found)


def _flag(raw: Any, name: str) -> bool:
    return bool(_value(raw, name, bool))


def _traits(raw: Any) -> frozenset[str]:
    found = _value(raw, 'traits', list) or ()
    if not all(isinstance(trait, str) for trait in found):
        raise MalformedNode(_name_of(raw), 'traits')
    return interning.names(frozenset(found))


def _properties(raw: Any) -> Mapping[str, Any]:
    return interning.record(dict(_value(raw, 'properties', Mapping) or {}))


def _name_of(raw: Mapping[str, Any]) -> str:
    """Return what a person may find the record by."""
    return str(raw.get('uuid') or raw.get('name') or 'without a name')
