# SPDX-License-Identifier: Apache-2.0
"""What the workers of a walk have in common: Ironic, messages, and faults.

In the storm, nodes come, go and change, Ironic hides some or does not answer
a worker, requests to Nova fail, and messages are lost, late or repeated. In
the calm all of that ends, except that in some worlds no told list arrives any
more.
"""

import collections
import dataclasses
import random
from collections.abc import Callable
from typing import Any

from hashring.ring import Host
from ironic_compute import errors
from ironic_compute.ironic_api import timestamps
from resource_tracker.node import NodeFacts, NodeId
from tests.unit.ironic_compute.hosts import Cloud

# What a message does to the worker that gets it.
Message = Callable[[Any], None]

FIRST_COUNT = 8
FEWEST = 3
OTHER_GROUP = 'other'


class LostRequest(Exception):
    """A request to Nova failed, or its answer was lost."""


class World:
    """Ironic, Nova, Placement, the clock and RabbitMQ of one walk.

    :param act: takes one step of the walk
    """

    def __init__(self, seed: int, act: Callable[[], None]) -> None:
        self.rng = rng = random.Random(seed)
        self.cloud = Cloud([])
        self.clock = self.cloud.clock
        self.is_calm = True
        # What the checks during the storm have found.
        self.broken: list[str] = []
        self.messages: collections.deque[tuple[Host, Message]]
        self.messages = collections.deque()
        # The workers that Ironic does not answer.
        self.cut_off: set[Host] = set()
        # Whether a request is on its way while other threads act, and the
        # worker that does not act meanwhile: its thread may hold a lock.
        self.is_nested = False
        self.blocked: Host | None = None
        self._act = act
        self._loss = rng.choice((0.0, 0.02, 0.1))
        self._loses_lists_in_calm = rng.random() < 0.25
        self._count = 0
        for _ in range(FIRST_COUNT):
            self.enroll()

    def happens(self, probability: float) -> bool:
        """Return whether chance has a thing happen; never in the calm."""
        return not self.is_calm and self.rng.random() < probability

    def let_others_act(
        self, probability: float, most: int, *, blocked: Host | None = None
    ) -> None:
        """Take some steps while a request is on its way.

        :param most: fewer steps than this
        :param blocked: the worker that does not act meanwhile
        """
        if self.is_nested or not self.happens(probability):
            return
        self.is_nested, self.blocked = True, blocked
        try:
            for _ in range(self.rng.randrange(most)):
                self._act()
        finally:
            self.is_nested, self.blocked = False, None

    def fail_maybe(self) -> None:
        """Have a request to Nova fail, as often as in this world."""
        if self.happens(self._loss):
            raise LostRequest

    def calm_down(self) -> None:
        """Have nothing fail any more."""
        self.is_calm = True
        self.cut_off.clear()
        self.cloud.hidden.clear()

    # Ironic

    def enroll(self) -> NodeId:
        """Have Ironic have a new node."""
        self._count += 1
        node = NodeId(f'n{self._count}')
        self.cloud.nodes[node] = NodeFacts(node, updated_at=self._stamp())
        return node

    def change_a_node(self) -> NodeId:
        """Create, delete or change a node in Ironic; return which one."""
        node, kind = (
            self.rng.choice(sorted(self.cloud.nodes)),
            self.rng.random(),
        )
        if kind < 0.25:
            return self.enroll()
        if kind < 0.45 and len(self.cloud.nodes) > FEWEST:
            del self.cloud.nodes[node]
        else:
            self.cloud.nodes[node] = self._changed(self.cloud.nodes[node])
        return node

    def _changed(self, facts: NodeFacts) -> NodeFacts:
        """Return other facts; new traits leave the time stamp as it was.

        So no delta list shows them.
        """
        changes: dict[str, Any]
        match self.rng.randrange(10):
            case 0 | 1 | 2 | 3:
                traits = frozenset({f'T{self.rng.randrange(4)}'})
                return dataclasses.replace(facts, traits=traits)
            case 4 | 5 | 6:
                changes = {'maintenance': not facts.maintenance}
            case _:
                group = '' if facts.conductor_group else OTHER_GROUP
                changes = {'conductor_group': group}
        return dataclasses.replace(facts, updated_at=self._stamp(), **changes)

    def _stamp(self) -> str:
        return timestamps.at(self.clock.wall_s())

    def hide_or_show(self) -> None:
        """Have Ironic answer 404 for a node that it has, or for none."""
        if self.cloud.hidden and self.rng.random() < 0.6:
            self.cloud.hidden.clear()
        else:
            self.hide_a_node()

    def hide_a_node(self) -> NodeId:
        """Have Ironic answer 404 for a node that it has; return which one."""
        node = self.rng.choice(sorted(self.cloud.nodes))
        self.cloud.hidden[node] = errors.NodeNotFound(node)
        return node

    def change_unseen(self) -> None:
        """Delete a node and change the traits of all others.

        Nobody is notified, and no delta list shows it.
        """
        nodes = self.cloud.nodes
        del nodes[self.rng.choice(sorted(nodes))]
        traits = frozenset({'CUSTOM_NEW'})
        for node, facts in nodes.items():
            nodes[node] = dataclasses.replace(facts, traits=traits)

    def restore_rows(self) -> None:
        """Have Nova have the rows of deleted nodes again.

        As if requests of former workers that create them came late.
        """
        for node, row in self.cloud.nova.rows.items():
            is_of_live = row.host in self.cloud.nova.services
            if is_of_live and node not in self.cloud.nodes:
                row.deleted = False

    # Messages

    def post(self, to: Host, message: Message) -> None:
        """Send a message to a worker."""
        if not self.happens(0.1):
            self.messages.append((to, message))

    def post_list(self, to: Host, message: Message) -> None:
        """Send a part of a told list to a worker."""
        if not (self.is_calm and self._loses_lists_in_calm):
            self.post(to, message)

    def next_message(self) -> tuple[Host, Message] | None:
        """Take a message out of the queue; None if there is none.

        The storm may take a later one first, or leave it in the queue as well.
        """
        if not self.messages:
            return None
        if self.happens(0.2):
            self.messages.rotate(-self.rng.randrange(len(self.messages)))
        if self.messages[0][0] == self.blocked:
            return None
        to, message = self.messages.popleft()
        if self.happens(0.05):
            self.messages.append((to, message))
        return to, message
