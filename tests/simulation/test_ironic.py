# SPDX-License-Identifier: Apache-2.0
"""The simulated Ironic: stamps, lists of changes, and notifications."""

import types
from collections.abc import Mapping
from typing import Any

import pytest

from hashring.ring import Host
from ironic_compute.feed.notifications import NodeEvents, Quality
from ironic_compute.paths.path_health import RABBITMQ
from resource_tracker.node import NodeId
from tests.simulation.environment import Environment
from tests.simulation.faults import Faults
from tests.simulation.ironic import Ironic
from tests.simulation.kernel import Kernel, Process
from tests.simulation.notifications import KEPT_COUNT, Listener
from tests.simulation.paths import Loss, MachinePaths

HOST = Host('c1')
N1, N2 = NodeId('n1'), NodeId('n2')


class _World:
    """What the simulated Ironic needs of a world."""

    homes = (HOST,)

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.environment = Environment(seed)
        self.kernel = Kernel(seed)
        self.rng = self.kernel.rng
        self.faults = Faults(self.kernel)
        self.faults.disarm()
        self.feed_checks = types.SimpleNamespace(
            note_change=lambda *change: None
        )
        self.ironic = Ironic(self)

    def run(self, until_s: float) -> None:
        """Let time pass."""
        is_over = []
        self.kernel.at(until_s, lambda: is_over.append(True))
        while not is_over:
            self.kernel.step()


class _Worker(Process):
    """A worker that only listens, and records what it receives."""

    host = HOST

    def __init__(self, world: _World) -> None:
        super().__init__('worker')
        self.machine = Process('machine')
        self.machine.paths = MachinePaths(world.kernel)  # type: ignore[attr-defined]
        self._kernel = world.kernel
        self.received: list[tuple[str, Quality]] = []
        self.listener = Listener(world, self, NodeEvents(self._receive, 0.0))

    def spawn(self, run: Any, delay_s: float = 0.0) -> Any:
        """Start a thread."""
        return self._kernel.spawn(self, run, delay_s)

    def _receive(self, record: Mapping[str, Any], quality: Quality) -> None:
        self.received.append((record['uuid'], quality))

    def listen(self) -> None:
        """Start the listener."""
        self.spawn(lambda: self.listener.start(1))


def _seed_with(loss: float, lateness: float) -> int:
    """Return a seed whose notifications are lost and late so often."""
    for seed in range(1000):
        found = _World(seed).ironic.notifications
        if (found._loss, found._lateness) == (loss, lateness):
            return seed
    raise AssertionError('no such seed')


@pytest.fixture
def world() -> _World:
    """Return a world that loses no notification."""
    return _World(_seed_with(0.0, 0.0))


def test_changes_are_listed_from_a_stamp_on(world: _World) -> None:
    """The newest is the first; a node that did not change is left out."""
    world.ironic.enroll(N1)
    world.ironic.enroll(N2)
    world.run(5.0)
    world.ironic.change(N1, 'update.end', maintenance=True)
    stamp = world.ironic.nodes[N1].updated_at or ''
    found = world.ironic.changed_since(stamp)
    assert [facts.uuid for facts in found] == [N1]
    found = world.ironic.changed_since('')
    assert [facts.uuid for facts in found] == [N1, N2]


def test_conductors_have_clocks_of_their_own() -> None:
    """In some worlds two nodes that change at once have unlike stamps."""
    seeds = [s for s in range(100) if len(_World(s).environment._ahead_s) > 1]
    assert 5 < len(seeds) < 50
    world = _World(seeds[0])
    world.ironic.enroll(N1)
    world.ironic.enroll(N2)
    stamps = {facts.updated_at for facts in world.ironic.nodes.values()}
    assert len(stamps) == 2


def test_notification_says_how_far_it_can_be_used(world: _World) -> None:
    """The real endpoint reads the event and the record."""
    worker = _Worker(world)
    worker.listen()
    world.run(1.0)
    world.ironic.enroll(N1)
    world.run(2.0)
    world.ironic.change(N1, 'provision_set.end', provision_state='active')
    world.run(3.0)
    world.ironic.remove(N1)
    world.run(4.0)
    assert worker.received == [
        (N1, Quality.NO_SHARD),
        (N1, Quality.COMPLETE),
        (N1, Quality.DELETED),
    ]


def test_queue_keeps_what_comes_before_the_listener(world: _World) -> None:
    """A queue exists longer than a worker, and has a limit."""
    world.ironic.enroll(N1)
    for _ in range(KEPT_COUNT + 5):
        world.ironic.change(N1, 'update.end', maintenance=True)
    worker = _Worker(world)
    worker.listen()
    world.run(1.0)
    assert len(worker.received) == KEPT_COUNT


def test_cut_path_holds_notifications_up(world: _World) -> None:
    """They arrive when the path heals."""
    worker = _Worker(world)
    worker.listen()
    world.run(1.0)
    paths = worker.machine.paths  # type: ignore[attr-defined]
    cut = paths.cut(RABBITMQ, Loss.ALL)
    world.ironic.enroll(N1)
    world.run(10.0)
    assert worker.received == []
    paths.heal(RABBITMQ, cut)
    world.run(12.0)
    assert [node for node, _ in worker.received] == [N1]


def test_some_worlds_lose_notifications() -> None:
    """A world that loses all of them delivers none."""
    world = _World(_seed_with(1.0, 0.0))
    worker = _Worker(world)
    worker.listen()
    world.run(1.0)
    world.ironic.enroll(N1)
    world.run(20.0)
    assert worker.received == []


def test_late_notifications_are_out_of_order() -> None:
    """One of them overtakes another one sooner or later."""
    world = _World(_seed_with(0.0, 0.4))
    worker = _Worker(world)
    worker.listen()
    world.run(1.0)
    nodes = [NodeId(f'n{number}') for number in range(1, 30)]
    for node in nodes:
        world.ironic.enroll(node)
    world.run(30.0)
    received = [node for node, _ in worker.received]
    assert sorted(received) == sorted(nodes)
    assert received != nodes
