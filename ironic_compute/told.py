# SPDX-License-Identifier: Apache-2.0
"""What the feed has told of each node, to compare with what comes.

A notification comes with most of what Ironic's API says of the node. Mostly
it tells of something that we did ourselves and have read since. One that
says nothing else than what was told already is no reason to read the node;
in any doubt it is. One that is later than what was told is news, before an
Ironic that is busy has answered what the node is now.
"""

import dataclasses
import datetime
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
        said, told = self._both(record)
        if said is None or told is None:
            return False
        return _time(said) == _time(told) and all(
            getattr(said, name) == getattr(told, name)
            for name in _COMPARED
            if name in record
        )

    def later(self, record: Mapping[str, Any]) -> NodeFacts | None:
        """Return a node as a notification has it, if that is later news.

        What the record lacks is as it was told. None if it may be as old as
        that, or does not say enough: the node has to be read.
        """
        said, told = self._both(record)
        if said is None or told is None or _time(said) <= _time(told):
            return None
        news = {n: getattr(said, n) for n in _COMPARED if n in record}
        # As the API writes it, for whoever compares texts.
        stamp = f'{_time(said).isoformat()}+00:00'
        return dataclasses.replace(told, **news, updated_at=stamp)

    def _both(
        self, record: Mapping[str, Any]
    ) -> tuple[NodeFacts, NodeFacts] | tuple[None, None]:
        """Return what a record says and what was told, if both have times."""
        try:
            said = NodeFacts.parse(record)
        except MalformedNode:
            return None, None
        told = self._facts.get(said.uuid)
        if told is None or not record.keys() >= _REQUIRED:
            return None, None
        if said.updated_at is None or told.updated_at is None:
            return None, None
        return said, told


def _time(facts: NodeFacts) -> datetime.datetime:
    """Return when a node last changed; Ironic writes it in two ways."""
    parsed = timeutils.parse_isotime(facts.updated_at or '')
    found: datetime.datetime = timeutils.normalize_time(parsed)
    return found
