# SPDX-License-Identifier: Apache-2.0
"""Simulated Placement, and the reporter of one worker.

A provider is offered or reserved; the scheduler sees nothing else. Real is
the rule that decides which (``why_not_schedulable``). The requests of the
real ``Reconciler`` have tests of their own.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from resource_tracker.errors import PlacementError
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.provider import Situation, why_not_schedulable
from tests.simulation.faults import Unreachable
from tests.simulation.wire import SentRequest, Wire


class Placement:
    """The providers and their allocations."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.offered: dict[NodeId, bool] = {}
        self.allocations: dict[str, NodeId] = {}  # By server.
        self._removed: set[NodeId] = set()

    def consumers(self, node: NodeId) -> list[str]:
        return [s for s, n in self.allocations.items() if n == node]

    def write(
        self, request: SentRequest, node: NodeId, *, offered: bool
    ) -> None:
        if request.late and node in self._removed:
            # Simulated audits are so frequent that two of them pass before a
            # late write arrives. In a real cloud two audits take twenty
            # minutes and a request takes one at most.
            return
        if offered:
            self._world.check_offer(request, node)
        self.offered[node] = offered

    def drop_unused(self, node: NodeId) -> None:
        """Delete a provider with its Service, unless it has consumers."""
        if not self.consumers(node):
            self.offered.pop(node, None)

    def remove(self, request: SentRequest, node: NodeId) -> bool:
        """Delete a provider; refused while anything is allocated."""
        if self.consumers(node):
            return False
        self._world.check_removal(request, node)
        self.offered.pop(node, None)
        self._removed.add(node)
        return True


class Reporter:
    """The writer of one worker; writes the newest state of each node.

    :param wake: called when there is something to write
    """

    def __init__(
        self, world: Any, wire: Wire, gate: Any, wake: Callable[[], None]
    ) -> None:
        self._placement: Placement = world.placement
        self._wire = wire
        self._gate = gate
        self._wake = wake
        self._wanted: dict[NodeId, bool] = {}

    def submit(self, facts: NodeFacts, situation: Situation) -> None:
        node = facts.uuid
        confirmed = dataclasses.replace(situation, confirmed=True)
        is_fit = why_not_schedulable(facts, confirmed) is None
        if situation.confirmed or not is_fit:
            self._want(node, is_fit)
        elif self._placement.offered.get(node):
            self._wanted.pop(node, None)  # It stays offered.
        else:
            self._want(node, False)

    def _want(self, node: NodeId, offered: bool) -> None:
        self._wanted[node] = offered
        if self._placement.offered.get(node) != offered:
            self._wake()

    def wants(self, node: NodeId) -> bool:
        """Return whether this worker wants a node to be offered."""
        return self._wanted.get(node, False)

    def withdraw_node(self, node: NodeId, row_id: str) -> None:
        if node in self._placement.offered:
            self._want(node, False)

    def audit_providers(self) -> int:
        """Find nothing: no other client writes providers."""
        return 0

    def forget_node(self, node: NodeId) -> None:
        self._wanted.pop(node, None)

    def delete_provider(self, node: NodeId) -> bool:
        self._wanted.pop(node, None)
        self._gate.wait()
        try:
            is_deleted = self._wire.write(
                lambda request: self._placement.remove(request, node)
            )
        except Unreachable as exc:
            raise PlacementError(str(exc)) from exc
        self._wire.stick('freeze in removal')
        return bool(is_deleted)

    def write(self) -> None:
        """Write the state of each node whose provider differs."""
        for node, offered in list(self._wanted.items()):
            if self._placement.offered.get(node) == offered:
                continue
            self._gate.wait()
            # The state may have changed during the wait.
            if self._wanted.get(node) == offered:
                self._write(node, offered)

    def _write(self, node: NodeId, offered: bool) -> None:
        is_new = node not in self._placement.offered

        def arrive(request: SentRequest) -> None:
            if not is_new and node not in self._placement.offered:
                return  # 404: removed meanwhile.
            self._placement.write(request, node, offered=offered)

        self._wire.write(arrive)
        if self._wanted.get(node, offered) != offered:
            # It has changed while the request was on its way.
            self._wake()
