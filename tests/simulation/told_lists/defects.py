# SPDX-License-Identifier: Apache-2.0
"""Planted defects of told lists: real classes, each with one rule broken."""

import functools
import math
from collections.abc import Container, Mapping, Set
from typing import Any

from ironic_compute.feed.audit_schedule import AuditSchedule
from ironic_compute.feed.node_feed import NodeFeed
from ironic_compute.ownership.new_nodes import NewNodes
from ironic_compute.ownership.node_changes import NodeChanges
from ironic_compute.ownership.removal import Removal
from ironic_compute.ownership.unheld_nodes import UnheldNodes
from resource_tracker.node import NodeFacts, NodeId
from tests.simulation.told_lists.worker import AUDIT_S, DELTA_S, Parts


class ReadsNothing(NodeChanges):
    """A node that a told list shows otherwise is not read."""

    def _check_told(self, node: NodeId, told: Mapping[NodeId, str]) -> None:
        self._held_nodes.report_node(node)


class TakesListsForReads(NodeChanges):
    """A node that a told list has is not missing any more."""

    def audit_told(self, told: Mapping[NodeId, str]) -> None:
        for node in told:
            self.mark_present(node)
        super().audit_told(told)


class UsesListsWhileNodesWait(NodeChanges):
    """A told list is used although a node waits for a holder."""

    def count_differing(self, told: Mapping[NodeId, str]) -> int | None:
        return super().count_differing(told) or 0


class ChecksNoRows(NodeChanges):
    """The rows of held nodes are not audited with a told list."""

    def audit_told(self, told: Mapping[NodeId, str]) -> None:
        kept: Any = self._check_rows
        self._check_rows = lambda *, rests: None  # type: ignore[method-assign]
        super().audit_told(told)
        self._check_rows = kept  # type: ignore[method-assign]


class TakesAbsencesFor404s(Removal):
    """A node that a told list lacks counts as a 404, without a read."""

    _reads = True

    def check_absent(self, nodes: Mapping[NodeId, NodeFacts]) -> None:
        self._suspects.discard_listed(nodes)
        super().check_absent_names(nodes.keys())

    def check_absent_names(self, names: Set[NodeId]) -> None:
        self._reads = False
        super().check_absent_names(names)
        self._reads = True

    def _is_missing(self, node: NodeId) -> bool:
        return not self._reads or super()._is_missing(node)


class LooksForNoDeletedNodes(Removal):
    """A node that a told list lacks is left as it is."""

    def check_absent(self, nodes: Mapping[NodeId, NodeFacts]) -> None:
        self._suspects.discard_listed(nodes)
        super().check_absent_names(nodes.keys())

    def check_absent_names(self, names: Set[NodeId]) -> None:
        pass


class ForgetsListedNodes(UnheldNodes):
    """The rows of the nodes in a told list are not read."""

    def check_listed(
        self, names: Set[NodeId], held: Container[NodeId]
    ) -> None:
        pass


class BelievesInFormerHolders(UnheldNodes):
    """A node stays with the host that has held it, whatever its row says."""

    def forget_holder(self, node: NodeId) -> None:
        pass


class BelievesInAnyHolder(NewNodes):
    """A node in a told list is left to a host without a Service."""

    def _is_of_pool(self, holder: str | None) -> bool:
        return holder not in (None, self._held_nodes.host)


class BeginsWithToldLists(AuditSchedule):
    """A worker that has read nothing yet uses a told list.

    It reads no list of its own before the next is due, though its first
    changes request one.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._is_new = True

    def request(self) -> None:
        if not self._is_new:
            super().request()

    def note_done(self) -> None:
        self._is_new = self._is_new and self._done_s is None
        super().note_done()

    def may_use_told(self) -> bool:
        if self._done_s is None:
            return not self._is_reader()
        return super().may_use_told()


class WaitsForEver(AuditSchedule):
    """A worker that hears of no list reads none."""

    def _due_s(self, now_s: float) -> float:
        due_s = super()._due_s(now_s)
        is_silence = self._done_s and due_s > self._done_s + self._interval_s
        return math.inf if is_silence else due_s


def _feed_with(
    schedule: type[AuditSchedule], *args: Any, **named: Any
) -> NodeFeed:
    feed = NodeFeed(*args, **named)
    feed._schedule = schedule(
        feed._clock, AUDIT_S, DELTA_S, feed._shared.is_reader, feed._host
    )
    return feed


def _with_schedule(schedule: type[AuditSchedule]) -> Parts:
    return Parts(feed=functools.partial(_feed_with, schedule))


# Name of a defect -> the parts of each worker with this defect.
PARTS: dict[str, Parts] = {
    'what differs is not read': Parts(node_changes=ReadsNothing),
    'told list taken for a read': Parts(node_changes=TakesListsForReads),
    'used while a node waits': Parts(node_changes=UsesListsWhileNodesWait),
    'rows not audited': Parts(node_changes=ChecksNoRows),
    'absence taken for a 404': Parts(removal=TakesAbsencesFor404s),
    'deleted nodes not looked for': Parts(removal=LooksForNoDeletedNodes),
    'two lists at once make two 404s': Parts(
        removal=functools.partial(Removal, confirm_s=0.0)
    ),
    'listed nodes forgotten': Parts(unheld=ForgetsListedNodes),
    'former holder believed': Parts(unheld=BelievesInFormerHolders),
    'holder without a Service believed': Parts(new_nodes=BelievesInAnyHolder),
    'told list before an own one': _with_schedule(BeginsWithToldLists),
    'silence waited out for ever': _with_schedule(WaitsForEver),
}

# Name of a defect -> the first seed that detects it.
SEEDS: dict[str, int] = {
    'what differs is not read': 0,
    'told list taken for a read': 7,
    'used while a node waits': 3,
    'rows not audited': 4,
    'absence taken for a 404': 3,
    'deleted nodes not looked for': 4,
    'two lists at once make two 404s': 1,
    'listed nodes forgotten': 1,
    'former holder believed': 0,
    'holder without a Service believed': 0,
    'told list before an own one': 0,
    'silence waited out for ever': 2,
}
