# SPDX-License-Identifier: Apache-2.0
"""A driver on an Ironic whose work takes time, for tests of locks and waits.

The Ironic of ``fake`` ends its work when the driver reads a node. This one
ends it at a time of the bench's clock, whatever the driver reads or sends, and
holds the lock of the node until then, as a real Ironic does.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from ironic_compute import errors
from ironic_compute.nodes.node_cache import NodeCache
from resource_tracker.node import NodeFacts, NodeId
from tests.fakes import ironic_machine
from tests.fakes.clock import ManualClock
from tests.fakes.ironic import NODE, FakeIronic

from . import fake

# The time from an accepted change of the provision state to its end.
WORK_S = 200.0


class AdvancingCache(NodeCache):
    """A node cache in which a wait advances the clock at once."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self._manual = clock

    def _wait_for_change(self, node: NodeId, timeout_s: float) -> None:
        self._manual.advance(timeout_s)


class TimedIronic(FakeIronic):
    """An Ironic in memory that ends its work at times of a clock.

    ``reads_count`` is the number of reads of single nodes; ``begun`` has the
    accepted changes of the provision state, in order.
    """

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.reads_count = 0
        self.begun: list[str] = []
        self._clock = clock
        self._due: list[tuple[float, Callable[[], None]]] = []

    def change_after(self, seconds: float, **fields: Any) -> None:
        """Change the node so many seconds from now."""
        self._call_after(seconds, lambda: self.change(NODE, **fields))

    def settle(self, node: str) -> None:
        """End the work whose time has come, and no other work."""
        now_s = self._clock.now_s()
        due = [each for each in self._due if each[0] <= now_s]
        self._due = [each for each in self._due if each[0] > now_s]
        for _, act in sorted(due, key=lambda each: each[0]):
            act()

    def read_node(self, node: str) -> NodeFacts:
        """See IronicClient."""
        self.reads_count += 1
        self.settle(node)
        return super().read_node(node)

    def read_node_of_instance(self, instance_uuid: str) -> NodeFacts | None:
        """See IronicClient."""
        self.reads_count += 1
        self.settle(NODE)
        return super().read_node_of_instance(instance_uuid)

    def set_provision_state(
        self, node: str, target: str, **arguments: Any
    ) -> None:
        """See IronicClient; the node is locked until the work ends."""
        self.settle(node)
        super().set_provision_state(node, target, **arguments)
        self.begun.append(target)
        if self.nodes[node].provision_state in ironic_machine.WORKING:
            self.change(node, reservation='conductor')
        self._call_after(WORK_S, lambda: super(TimedIronic, self).settle(node))

    def _call_after(self, seconds: float, act: Callable[[], None]) -> None:
        self._due.append((self._clock.now_s() + seconds, act))


@dataclasses.dataclass
class TimedBench(fake.Bench):
    """A driver on an Ironic whose work takes time."""

    ironic: TimedIronic


def bench(**node: Any) -> TimedBench:
    """Return a driver whose Ironic has one node, which is held.

    :param node: fields of the node that differ from an available node; a
        node in a state in which Ironic works is locked
    """
    made, clock = fake.bench(), ManualClock()
    ironic, node_cache = TimedIronic(clock), AdvancingCache(clock)
    if node.get('provision_state') in ironic_machine.WORKING:
        node.setdefault('reservation', 'conductor')
    ironic.add(**node)
    node_cache.update_facts(ironic.nodes[NODE])
    feed: Any = fake.FakeFeed(ironic, node_cache)
    made.driver.set_up(ironic, node_cache, feed, clock)  # type: ignore[arg-type]
    return TimedBench(ironic, made.driver, node_cache, clock)


def break_after_change(bench: TimedBench, seconds: float) -> None:
    """Let Ironic answer no read for some time after the first change."""
    ironic, clock, began_s = bench.ironic, bench.clock, list[float]()

    def unless_away(read: Callable[[str], Any]) -> Any:
        def answer(name: str) -> Any:
            if ironic.calls and not began_s:
                began_s.append(clock.now_s())
            if began_s and clock.now_s() - began_s[0] < seconds:
                raise errors.IronicNotReached('connection refused')
            return read(name)

        return answer

    for name in ('read_node', 'read_node_of_instance'):
        setattr(ironic, name, unless_away(getattr(ironic, name)))
