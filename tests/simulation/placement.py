# SPDX-License-Identifier: Apache-2.0
"""Placement, and what one worker writes there.

A provider is offered or reserved; that is all the scheduler sees. Real is
the rule of when it is offered (``why_not_schedulable``), and when that is
looked at; the
traffic of the real ``Reconciler`` has tests of its own.
"""

import dataclasses
from typing import Any

from resource_tracker.errors import PlacementError
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.provider import Situation, why_not_schedulable
from tests.simulation.faults import Unreachable
from tests.simulation.wire import Letter, Wire


class Placement:
    """Providers, and who has them."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.offered: dict[NodeId, bool] = {}
        self.allocations: dict[str, NodeId] = {}  # By server.
        self._removed: set[NodeId] = set()

    def consumers(self, node: NodeId) -> list[str]:
        return [s for s, n in self.allocations.items() if n == node]

    def write(self, letter: Letter, node: NodeId, *, offered: bool) -> None:
        if letter.late and node in self._removed:
            # Time is short here: two audits pass before a late write comes.
            # In life they take twenty minutes, and a request one at most.
            return
        if offered:
            self._world.check_offer(letter, node)
        self.offered[node] = offered

    def remove(self, letter: Letter, node: NodeId) -> bool:
        """Delete a provider; refused while anything is allocated."""
        if self.consumers(node):
            return False
        self._world.check_removal(letter, node)
        self.offered.pop(node, None)
        self._removed.add(node)
        return True


class Reporter:
    """The writer of one worker: the newest wish for a node wins."""

    def __init__(self, world: Any, wire: Wire, gate: Any) -> None:
        self._placement: Placement = world.placement
        self._wire = wire
        self._gate = gate
        self._wishes: dict[NodeId, bool] = {}

    def submit(self, facts: NodeFacts, situation: Situation) -> None:
        node = facts.uuid
        confirmed = dataclasses.replace(situation, confirmed=True)
        is_fit = why_not_schedulable(facts, confirmed) is None
        if situation.confirmed or not is_fit:
            self._wishes[node] = is_fit
        elif self._placement.offered.get(node):
            self._wishes.pop(node, None)  # Not withdrawn for that.
        else:
            self._wishes[node] = False

    def withdraw_node(self, node: NodeId) -> None:
        if node in self._placement.offered:
            self._wishes[node] = False

    def forget_node(self, node: NodeId) -> None:
        self._wishes.pop(node, None)

    def delete_provider(self, node: NodeId) -> bool:
        self._wishes.pop(node, None)
        self._gate.wait()
        try:
            return bool(
                self._wire.order(
                    lambda letter: self._placement.remove(letter, node)
                )
            )
        except Unreachable as exc:
            raise PlacementError(str(exc)) from exc

    def write(self) -> None:
        """Write what differs."""
        for node, offered in list(self._wishes.items()):
            if self._placement.offered.get(node) == offered:
                continue
            self._gate.wait()
            # What was wished before the wait may not be wished any more.
            if self._wishes.get(node) == offered:
                self._write(node, offered)

    def _write(self, node: NodeId, offered: bool) -> None:
        is_new = node not in self._placement.offered

        def arrive(letter: Letter) -> None:
            if not is_new and node not in self._placement.offered:
                return  # 404: removed meanwhile.
            self._placement.write(letter, node, offered=offered)

        self._wire.order(arrive)
