# SPDX-License-Identifier: Apache-2.0
"""Ironic and Nova, as one worker of a walk meets them.

Ironic's answer is that of the moment at which the request arrives; other
threads act before the worker has it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from hashring.ring import Host
from ironic_compute import errors
from resource_tracker.node import NodeFacts, NodeId
from tests.simulation.told_lists.answers import Answers
from tests.simulation.told_lists.world import World


class Ironic:
    """IronicClient, for the feed or for the removal of one worker."""

    has_shard = False

    def __init__(self, world: World, host: Host, answers: Answers) -> None:
        self._world = world
        self._cloud = world.cloud
        self._host = host
        self._answers = answers
        self.lists_count = 0
        self.is_in_pool = world.cloud.is_in_pool
        self.can_list_all_nodes = world.cloud.can_list_all_nodes

    def is_in_group(self, group: str) -> bool:
        """See IronicClient."""
        return group == ''

    def list_nodes(self, pause: Any = None) -> tuple[NodeFacts, ...]:
        """Return all nodes of the pool; a hidden one is lacking at times."""
        self._refuse_maybe()
        hidden = self._cloud.hidden if self._world.happens(0.5) else ()
        found = [f for f in self._pool() if f.uuid not in hidden]
        answer = tuple(_as_read(f, self._now_s(), None) for f in found)
        self._world.let_others_act(0.5, 6)
        self.lists_count += 1
        return answer

    def list_changed_nodes(self, since: str | None) -> list[NodeFacts]:
        """Return the nodes that changed since a time, the newest first."""
        self._refuse_maybe()
        stamped = [(f.updated_at or '', f) for f in self._pool()]
        stamped.sort(key=lambda each: each[0], reverse=True)
        answer = [
            _as_read(facts, self._now_s(), stamp)
            for stamp, facts in stamped
            if stamp >= (since or '')
        ]
        self._world.let_others_act(0.5, 3)
        return answer

    def read_node(self, node: NodeId) -> NodeFacts:
        """Return one node, of whatever pool."""
        self._refuse_maybe()
        asked_s = self._now_s()
        try:
            facts = self._cloud.read_node(node)
        except errors.NodeNotFound:
            self._world.let_others_act(0.5, 3)
            self._answers.note_404(node, asked_s)
            raise
        self._world.let_others_act(0.5, 3)
        self._answers.note_found(node)
        return _as_read(facts, asked_s, facts.updated_at)

    def _pool(self) -> list[NodeFacts]:
        return [f for f in self._cloud.nodes.values() if self.is_in_pool(f)]

    def _now_s(self) -> float:
        return self._world.clock.now_s()

    def _refuse_maybe(self) -> None:
        if self._host in self._world.cut_off:
            raise errors.IronicUnavailable('Ironic does not answer')


def _as_read(
    facts: NodeFacts, read_at_s: float, updated_at: str | None
) -> NodeFacts:
    return dataclasses.replace(
        facts, read_at_s=read_at_s, updated_at=updated_at
    )


class Wire:
    """Carries the requests of one worker to Nova; some fail.

    Only other workers act meanwhile, as the thread may hold a node's lock.
    """

    def __init__(self, world: World, wire: Any, host: Host) -> None:
        self._world = world
        self._wire = wire
        self._host = host

    def read(self, act: Callable[[], Any]) -> Any:
        """Send a reading request."""
        self._world.fail_maybe()
        answer = self._wire.read(act)
        self._world.let_others_act(0.3, 3, blocked=self._host)
        return answer

    def write(self, act: Callable[[Any], Any], *, gated: bool = True) -> Any:
        """Send a changing request; it may be carried out without an answer."""
        self._world.fail_maybe()
        answer = self._wire.write(act, gated=gated)
        self._world.fail_maybe()
        return answer
