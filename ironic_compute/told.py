# SPDX-License-Identifier: Apache-2.0
"""What the feed has told of each node, so that old news costs no reading.

A notification comes with most of what Ironic's API says of the node. Mostly
it tells of something that we did ourselves and have read since. One that
says nothing else than what was told already is no reason to read the node;
in any doubt it is.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from oslo_utils import timeutils

from resource_tracker.errors import MalformedNode
from resource_tracker.node import NodeFacts, NodeId

_UPDATED_AT = 'updated_at'
# Without these a record does not say enough to be compared. Ironic writes
# ``updated_at`` with all that a node is, but not with its traits.
_REQUIRED = frozenset({_UPDATED_AT, 'traits', 'properties'})
_COMPARED = tuple(
    field.name
    for field in dataclasses.fields(NodeFacts)
    if field.name not in (_UPDATED_AT, 'reservation')
)


class Told:
    """The facts of the nodes that were told one by one."""

    def __init__(self) -> None:
        self._facts: dict[NodeId, NodeFacts] = {}

    def add(self, facts: NodeFacts) -> None:
        """Note what was told of a node."""
        self._facts[facts.uuid] = facts

    def forget(self, node: NodeId) -> None:
        """What was told of a node is not true any more."""
        self._facts.pop(node, None)

    def knows(self, record: Mapping[str, Any]) -> bool:
        """Say whether a record of a notification says nothing new.

        Two changes within a second have the same ``updated_at``, so all that
        the record has is compared.
        """
        try:
            said = NodeFacts.parse(record)
        except MalformedNode:
            return False
        told = self._facts.get(said.uuid)
        if told is None or not record.keys() >= _REQUIRED:
            return False
        return _is_same_time(said.updated_at, told.updated_at) and all(
            getattr(said, name) == getattr(told, name)
            for name in _COMPARED
            if name in record
        )


def _is_same_time(one: str | None, other: str | None) -> bool:
    """Compare times that are written in different ways."""
    if one is None or other is None:
        return False
    naive, parse = timeutils.normalize_time, timeutils.parse_isotime
    return bool(naive(parse(one)) == naive(parse(other)))
