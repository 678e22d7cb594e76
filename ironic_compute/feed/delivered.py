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
import functools
import threading
from collections.abc import Iterable, Mapping, Set
from typing import Any

from oslo_utils import timeutils

from ironic_compute.nodes.changes_read import TIMELESS_FIELDS
from resource_tracker.errors import MalformedNode
from resource_tracker.node import NodeFacts, NodeId

# A record without these fields is incomplete and cannot be compared. Ironic
# updates ``updated_at`` with every field of a node, but not with its traits.
_REQUIRED = frozenset({'updated_at', 'traits', 'properties'})


class Delivered:
    """The facts last delivered for each node; any thread may call.

    The ``accept_*`` methods record facts that the caller then delivers. If
    that delivery fails, the caller must call :meth:`forget_node`; otherwise
    the same facts would count as delivered and would not be delivered again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._facts: dict[NodeId, NodeFacts] = {}
        # Nodes whose facts come from a notification, not from a read.
        self._notified: set[NodeId] = set()
        # Nodes that the last list of all nodes did not have.
        self._unlisted: frozenset[NodeId] = frozenset()

    def accept_read(self, facts: NodeFacts) -> bool:
        """Record facts that a read of the single node has returned.

        :returns: False if the facts may be older than those of a notification
            that came during the read. The node is then forgotten, and the
            caller must read it again.
        """
        with self._lock:
            is_notified = facts.uuid in self._notified
            rival = self._facts[facts.uuid] if is_notified else None
            return self._accept(facts, rival)

    def accept_listed(self, facts: NodeFacts) -> bool:
        """Record facts that come from a list of nodes.

        :returns: False if the facts may be older than those delivered last,
            because a list takes longer to read than a single node. The node
            is then forgotten, and the caller must read it again.
        """
        with self._lock:
            return self._accept(facts, self._facts.get(facts.uuid))

    def _accept(self, facts: NodeFacts, rival: NodeFacts | None) -> bool:
        """Record facts unless they may be older than ``rival``."""
        node = facts.uuid
        if rival is not None and _may_be_older(facts, rival):
            self._remove(node)
            return False
        if rival is None or _is_later(facts, rival):
            self._notified.discard(node)
            self._facts[node] = facts
        return True

    def accept_notification(
        self, record: Mapping[str, Any]
    ) -> NodeFacts | None:
        """Record and return the facts of a notification, if it is later.

        Fields that the record lacks keep the value delivered last, except the
        reservation: a notification of an end means that the lock is released.
        The facts have no ``read_at_s``. With that of the facts delivered last
        they would count as older than a list that was read in between.

        :returns: None if the record may not be later than the facts delivered
            last, is incomplete, or has other traits. Traits have no time
            stamp, so they may be older than the record. The caller must read
            the node.
        """
        with self._lock:
            notified, last = self._parse_and_find(record)
            if notified is None or last is None:
                return None
            if notified.traits != last.traits or not _is_later(notified, last):
                return None
            fields = {
                n: getattr(notified, n) for n in TIMELESS_FIELDS if n in record
            }
            # The format of Ironic's API, because stamps are compared as texts.
            time = _time(notified)
            stamp = None if time is None else f'{time.isoformat()}+00:00'
            facts = dataclasses.replace(
                last,
                **fields,
                reservation=None,
                updated_at=stamp,
                read_at_s=None,
            )
            self._facts[facts.uuid] = facts
            self._notified.add(facts.uuid)
            return facts

    def facts(self, node: NodeId) -> NodeFacts | None:
        """Return the facts delivered last for a node; None if forgotten."""
        return self._facts.get(node)

    def forget_node(self, node: NodeId) -> None:
        """Remove a node, because its facts were not delivered or are stale."""
        with self._lock:
            self._remove(node)

    def forget_unlisted(self, names: Set[NodeId]) -> None:
        """Forget the nodes that two lists of all nodes in a row did not have.

        Without a notification, nobody reads a deleted node of another host.
        One list may be older than a new node.

        :param names: the nodes of the list
        """
        with self._lock:
            unlisted = frozenset(self._facts.keys() - names)
            for node in unlisted & self._unlisted:
                self._remove(node)
            self._unlisted = unlisted

    def _remove(self, node: NodeId) -> None:
        self._facts.pop(node, None)
        self._notified.discard(node)

    def is_unchanged(self, record: Mapping[str, Any]) -> bool:
        """Return whether a notification's record equals the facts delivered.

        All fields of the record are compared, because two changes within a
        second have the same ``updated_at``.
        """
        notified, last = self._parse_and_find(record)
        if notified is None or last is None:
            return False
        return _time(notified) == _time(last) and _same(
            notified,
            last,
            [name for name in TIMELESS_FIELDS if name in record],
        )

    def _parse_and_find(
        self, record: Mapping[str, Any]
    ) -> tuple[NodeFacts, NodeFacts] | tuple[None, None]:
        """Return a record's facts and the facts last delivered for its node.

        :returns: two None if the record is malformed or incomplete, the node
            is unknown, or one of the two has no usable ``updated_at``
        """
        try:
            notified = NodeFacts.parse(record)
        except MalformedNode:
            return None, None
        last = self._facts.get(notified.uuid)
        if last is None or not record.keys() >= _REQUIRED:
            return None, None
        if _time(notified) is None or _time(last) is None:
            return None, None
        return notified, last


def _time(facts: NodeFacts) -> datetime.datetime | None:
    """Return ``updated_at``, cut to whole seconds, in UTC without a zone.

    None if there is no ``updated_at``, or if it is not a time.
    Ironic's API and its notifications write it in different formats, and some
    databases store fractions of a second, which notifications never have.
    """
    return _parse_stamp(facts.updated_at or '')


@functools.lru_cache(maxsize=1024)
def _parse_stamp(stamp: str) -> datetime.datetime | None:
    # The cache, because one delivery compares the same two stamps some times.
    try:
        parsed = datetime.datetime.fromisoformat(stamp)
        found: datetime.datetime = timeutils.normalize_time(parsed)
    except (ValueError, OverflowError):
        return None
    return found.replace(microsecond=0)


def _same(one: NodeFacts, other: NodeFacts, names: Iterable[str]) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _is_later(one: NodeFacts, other: NodeFacts) -> bool:
    """Return whether ``one`` is later; False if either has no time stamp."""
    time, other_time = _time(one), _time(other)
    return bool(time and other_time and time > other_time)


def _may_be_older(answer: NodeFacts, known: NodeFacts) -> bool:
    """Return whether ``answer`` may be older than ``known``.

    That is possible if they differ and the stamp of ``answer`` is not later.
    """
    return not _is_later(answer, known) and not _same(
        answer, known, TIMELESS_FIELDS
    )
