# SPDX-License-Identifier: Apache-2.0
"""What the node feed promises, and whether it is kept.

If a worker serves a node, a change of the node in Ironic shows in Placement
within some seconds, whether its notification came or not; and a node that was
given to the worker is held by it, although Ironic did not answer at first. Of
the changes only those of the calm are checked.
"""

import math
from typing import Any

from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.provider import Situation, why_not_schedulable
from tests.simulation.compute import DELTA_S

# Seconds of the calm after which a change counts.
SETTLED_S = 12.0
# Seconds until Placement is written after a read or a notification.
WRITTEN_S = 3.0
NOTIFIED_S = WRITTEN_S
# Two delta lists: the first one may have begun just before the change.
LISTED_S = 2 * DELTA_S + WRITTEN_S
# If the worker that reads for the others dies, they wait so long for it.
READER_GONE_S = 3 * DELTA_S
# Seconds in which a given node must be held.
GIVEN_S = 30.0

_FREE = Situation()


class FeedChecks:
    """The checks of one world."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._settled_s = math.inf
        is_shared = world.environment.has_shared_reads
        self._listed_s = LISTED_S + (READER_GONE_S if is_shared else 0.0)
        self._pending_count = 0
        # Worker -> node -> since when it should hold it.
        self._given: dict[Any, dict[NodeId, float]] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether a change is not checked yet."""
        return self._pending_count > 0

    def begin_calm(self) -> None:
        """Check the changes that come when the workers have recovered."""
        self._settled_s = self._world.kernel.now_s + SETTLED_S

    # Changes

    def note_change(
        self, before: NodeFacts, facts: NodeFacts, is_prompt: bool
    ) -> None:
        """Check later whether Placement shows this change of a node.

        :param is_prompt: all workers had a notification in time
        """
        was_fit = why_not_schedulable(before, _FREE) is None
        if was_fit == (why_not_schedulable(facts, _FREE) is None):
            return
        # By a wrong clock of its machine, a notification is too old.
        if self._world.environment.has_wrong_clocks:
            is_prompt = False
        self._check_later(facts, NOTIFIED_S if is_prompt else self._listed_s)

    def note_denial_over(self, node: NodeId) -> None:
        """Check later whether a node that was denied is offered again."""
        facts = self._world.ironic.nodes.get(node)
        if facts is not None:
            self._check_later(facts, self._listed_s)

    def _check_later(self, facts: NodeFacts, within_s: float) -> None:
        if self._world.kernel.now_s < self._settled_s:
            return
        worker = self._find_server(facts.uuid)
        # No list of its pool contains a node that has left it.
        if worker is not None and worker.client.is_in_pool(facts):
            self._plan(worker, facts, within_s)

    def _plan(
        self, worker: Any, facts: NodeFacts, within_s: float, tries: int = 2
    ) -> None:
        self._pending_count += 1
        self._world.kernel.later(
            within_s, lambda: self._check(worker, facts, tries)
        )

    def _find_server(self, node: NodeId) -> Any:
        """Return the worker that serves a node; None if none does surely."""
        row = self._world.nova.live_row(node)
        for worker in self._world.workers():
            if row is not None and worker.host == row.host:
                held = worker.may_act and worker.held_nodes.row(node)
                return worker if held else None
        return None

    def _check(self, worker: Any, facts: NodeFacts, tries: int) -> None:
        """Check what Placement shows of a node that has not changed since.

        If the worker wants to write it, its claim has ended just now.
        """
        self._pending_count -= 1
        node, ironic = facts.uuid, self._world.ironic
        if ironic.nodes.get(node) is not facts:
            return
        if (
            self._world.kernel.now_s
            < ironic.denied_until_s(node) + self._listed_s
        ):
            # It is checked again that long after the end of the denial.
            return
        if self._find_server(node) is not worker or worker.draining:
            return
        situation = worker.held_nodes.situation(node)
        if situation.claim is not None:
            # A build or a handover has begun; Placement is not told of it.
            self._plan(worker, facts, WRITTEN_S, tries)
            return
        wanted = why_not_schedulable(facts, situation) is None
        offered = self._world.placement.offered.get(node, False)
        if not situation.confirmed or offered == wanted:
            return
        if tries > 1 and worker.reporter.wants(node) == wanted:
            self._plan(worker, facts, WRITTEN_S, tries - 1)
            return
        self._world.fail(
            f'{worker.name} serves {node}, whose change is not shown'
        )

    # Nodes that were given

    def note_given(self, worker: Any, node: NodeId) -> None:
        """Note that a worker was told that it holds a node now."""
        given = self._given.setdefault(worker, {})
        given.setdefault(node, self._world.kernel.now_s)

    def check_given(self, worker: Any) -> None:
        """Check that a worker holds each node that was given to it in time.

        The time counts from the end of what may keep a worker from that.
        """
        given, now_s = self._given.get(worker, {}), self._world.kernel.now_s
        for node, since_s in list(given.items()):
            if not self._is_owed(worker, node):
                del given[node]
            elif self._is_disturbed(worker, node, since_s):
                given[node] = now_s
            elif now_s - since_s > GIVEN_S:
                self._world.fail(
                    f'{worker.name} was given {node} and does not hold it'
                )

    def _is_owed(self, worker: Any, node: NodeId) -> bool:
        """Return whether a worker should hold a node, and does not."""
        row = self._world.nova.live_row(node)
        facts = self._world.ironic.nodes.get(node)
        if row is None or facts is None or not worker.client.is_in_pool(facts):
            return False
        return row.host == worker.host and not worker.held_nodes.row(node)

    def _is_disturbed(self, worker: Any, node: NodeId, since_s: float) -> bool:
        """Return whether a worker could not take a node since then."""
        ironic = self._world.ironic
        return (
            not worker.may_act
            or worker.thaws_s > since_s
            or ironic.ill_until_s > since_s
            or ironic.is_denied(node)
            or (
                self._world.environment.has_path_faults
                and not self._world.faults.calm
            )
        )
