# SPDX-License-Identifier: Apache-2.0
"""The facts last delivered for each node, to find out what is new or stale.

A notification carries most of a node's record. If it differs in nothing from
the facts that were delivered last, the node is not read again; most such
notifications come from changes that this worker made and has read already. If
its time is later, its facts are delivered before Ironic has answered a read.
In doubt the node is read. An answer stamped with the same second as a newer
notification may be older than it, and is not delivered.
"""

import dataclasses
import datetime
import threading
from collections.abc import Iterable, Mapping
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


class Delivered:
    """The facts of the nodes that were told one by one; any thread may call.

    What is entered here is to be told; ``forget`` it if that failed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._facts: dict[NodeId, NodeFacts] = {}
        self._heard: set[NodeId] = set()

    def read(self, facts: NodeFacts) -> bool:
        """Enter what a node was when it was read by itself.

        :returns: False if what was heard of it meanwhile may be later;
            nothing is known of the node then, and it is to be read again
        """
        with self._lock:
            heard = facts.uuid in self._heard
            return self._enter(
                facts, self._facts[facts.uuid] if heard else None
            )

    def listed(self, facts: NodeFacts) -> bool:
        """Enter what a node was in a list, which takes longer to come.

        :returns: False if what was read or heard meanwhile may be later
        """
        with self._lock:
            return self._enter(facts, self._facts.get(facts.uuid))

    def _enter(self, facts: NodeFacts, rival: NodeFacts | None) -> bool:
        node = facts.uuid
        if rival is not None and _may_be_older(facts, rival):
            self._drop(node)
            return False
        if rival is None or _is_later(facts, rival):
            self._heard.discard(node)
            self._facts[node] = facts
        return True

    def heard(self, record: Mapping[str, Any]) -> NodeFacts | None:
        """Enter a node as a notification has it, if that is later news.

        What the record lacks is as it was told, but whatever ends sets the
        node free. None if it may be as old as that, or does not say enough:
        the node has to be read. Traits have no stamp, so others than were
        told may be older.
        """
        with self._lock:
            said, told = self._both(record)
            if said is None or told is None or said.traits != told.traits:
                return None
            if not _is_later(said, told):
                return None
            news = {n: getattr(said, n) for n in _COMPARED if n in record}
            # As the API writes it, for whoever compares texts.
            stamp = f'{_time(said).isoformat()}+00:00'
            facts = dataclasses.replace(
                told, **news, reservation=None, updated_at=stamp
            )
            self._facts[facts.uuid] = facts
            self._heard.add(facts.uuid)
            return facts

    def forget(self, node: NodeId) -> None:
        """What was told of a node is not true any more."""
        with self._lock:
            self._drop(node)

    def _drop(self, node: NodeId) -> None:
        self._facts.pop(node, None)
        self._heard.discard(node)

    def knows(self, record: Mapping[str, Any]) -> bool:
        """Say whether a record of a notification says nothing new.

        Two changes within a second have the same ``updated_at``, so all that
        the record has is compared.
        """
        said, told = self._both(record)
        if said is None or told is None:
            return False
        return _time(said) == _time(told) and _same(
            said, told, [name for name in _COMPARED if name in record]
        )

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
    """Return the second a node last changed in.

    Ironic writes it in two ways, and with some databases less than seconds,
    which its notifications never have.
    """
    parsed = timeutils.parse_isotime(facts.updated_at or '')
    found: datetime.datetime = timeutils.normalize_time(parsed)
    return found.replace(microsecond=0)


def _same(one: NodeFacts, other: NodeFacts, names: Iterable[str]) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _is_later(one: NodeFacts, other: NodeFacts) -> bool:
    """Say whether facts are; those without a time are not."""
    if one.updated_at is None or other.updated_at is None:
        return False
    return _time(one) > _time(other)


def _may_be_older(answer: NodeFacts, known: NodeFacts) -> bool:
    """Say whether an answer may be from before what is known."""
    return not _is_later(answer, known) and not _same(answer, known, _COMPARED)
