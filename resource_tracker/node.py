# SPDX-License-Identifier: Apache-2.0
"""Ironic's record of a node, parsed into a value: ``NodeFacts``.

``ironic_compute.ironic_api`` and the feed parse records where they receive
them; no other module reads Ironic's JSON. A malformed record raises an error
for itself and does not affect the other records of its list. The fields follow
Ironic's API reference (baremetal/#list-nodes-detailed).
"""

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any, NewType

from resource_tracker import interning
from resource_tracker.errors import MalformedNode

NodeId = NewType('NodeId', str)

# Field of Ironic's API -> first microversion that has it. conductor_group
# needs 1.46, so older microversions are not supported.
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
    'parent_node': (1, 83),
}
OLDEST_MICROVERSION = (1, 46)


def fields_for(microversion: tuple[int, int]) -> tuple[str, ...]:
    """Return the names for ``fields=`` in a request of this microversion.

    Ironic refuses a request that names a field which is newer than the
    request's microversion.

    :param microversion: major and minor number
    """
    return tuple(
        field for field, since in _FIELD_SINCE.items() if since <= microversion
    )


FIELDS = fields_for(OLDEST_MICROVERSION)


@dataclasses.dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node as Ironic last returned it.

    ``updated_at`` is None in records from a list with ``fields=``, because
    Ironic refuses this name there; detailed records have it.

    ``read_at_s`` is when the request was sent that returned the record, in
    seconds of ``hashring.clock``; None if it is not known. Facts that differ
    only in it are equal.

    ``parent_node`` is the uuid of the machine that the node is a part of, as a
    smart NIC is. Ironic's lists leave such nodes out; a read of one node and
    its notifications do not.
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
    parent_node: str | None = None
    last_error: str | None = None
    fault: str | None = None
    reservation: str | None = None
    updated_at: str | None = None
    read_at_s: float | None = dataclasses.field(default=None, compare=False)

    @classmethod
    def parse(
        cls, raw: Mapping[str, Any], read_at_s: float | None = None
    ) -> 'NodeFacts':
        """Parse a node record of Ironic's API.

        A field that is absent or null gets its default, so a record of an
        older Ironic, or one with fewer fields, is accepted.

        :param read_at_s: when the request for the record was sent
        :raises MalformedNode: the uuid is missing, or a field has a wrong type
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
            read_at_s=read_at_s,
            **plain,
        )


_FLAGS = ('maintenance', 'retired')
# Texts that are not interned, because they have many values and some releases
# of Python never free an interned string. All other texts have few different
# values, or one value in all records of a node.
_NOT_INTERNED = frozenset(
    {'name', 'instance_uuid', 'last_error', 'reservation', 'updated_at'}
)
_TEXTS = tuple(
    field.name
    for field in dataclasses.fields(NodeFacts)
    if field.type == (str | None)
)


def _value(raw: Any, name: str, kind: type) -> Any:
    """Return a field, or None if it is absent or null.

    :raises MalformedNode: the field has another type than ``kind``
    """
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
    if found is None or name in _NOT_INTERNED:
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
    """Return the uuid or name of a malformed record, for the error."""
    return str(raw.get('uuid') or raw.get('name') or 'without a name')
