# SPDX-License-Identifier: Apache-2.0
"""What a cut path does to requests, answers, messages and acknowledgements."""

import itertools
import math

import pytest

from hashring.paths import Path
from ironic_compute.paths.path_health import CONDUCTOR, IRONIC, RABBITMQ
from tests.simulation import broker, flapping, lives
from tests.simulation.environment import Environment
from tests.simulation.faults import Unreachable
from tests.simulation.kernel import Kernel, Process
from tests.simulation.paths import Loss, MachinePaths, Route

_TIMEOUT_S = 6.0


class _World(Process):
    """A world, a machine and a worker in one, which logs nothing."""

    def __init__(self) -> None:
        super().__init__('c1')
        self.kernel = Kernel(1)
        self.rng = self.kernel.rng
        self.paths = MachinePaths(self.kernel)
        self.machine = self

    def wait(self, seconds: float) -> None:
        """Let so much time pass."""
        ends_s = self.kernel.now_s + seconds
        self.kernel.at(ends_s, lambda: None)
        while self.kernel.now_s < ends_s:
            self.kernel.step()

    def send(self, service: Path) -> list[str]:
        """Send a request; return what has become of it."""
        route = Route(self, self, service, _TIMEOUT_S)
        events = []

        def run() -> None:
            try:
                route.pass_request()
                events.append('arrived')
                route.pass_answer()
                events.append('answered')
            except Unreachable:
                events.append(f'failed at {self.kernel.now_s:g}')

        self.kernel.spawn(self, run)
        self.wait(20.0)
        return events


@pytest.fixture
def world() -> _World:
    """A world with all paths whole."""
    return _World()


@pytest.mark.parametrize(
    ('loss', 'refuses', 'events'),
    [
        (Loss.ALL, False, ['failed at 6']),
        (Loss.ALL, True, ['failed at 0.1']),
        (Loss.REQUESTS, False, ['failed at 6']),
        (Loss.ANSWERS, True, ['arrived', 'failed at 6']),
        (Loss.SLOW, False, ['arrived', 'answered']),
    ],
)
def test_request_on_a_path_that_fails(
    world: _World, loss: Loss, refuses: bool, events: list[str]
) -> None:
    """One way or both ways; it fails at once or after its time-out."""
    world.paths.cut(IRONIC, loss, refuses=refuses)
    assert world.send(IRONIC) == events


def test_path_that_resets_connections_answers_some_requests(
    world: _World,
) -> None:
    """Others are reset before their request has arrived, or after it."""
    world.paths.cut(IRONIC, Loss.RESETS)
    sent = [world.send(IRONIC) for _ in range(60)]
    arrived = [events for events in sent if events[0] == 'arrived']
    answered = [events for events in arrived if events[-1] == 'answered']
    assert 0 < len(answered) < len(arrived) / 2 < 20
    assert world.paths.lost_since_s(IRONIC) == math.inf
    assert world.paths.failing_since_s(IRONIC) == 0.0


def test_nova_conductor_is_reached_through_rabbitmq(world: _World) -> None:
    """Whoever loses RabbitMQ loses nova-conductor, and not Ironic."""
    cut = world.paths.cut(RABBITMQ, Loss.ALL)
    assert world.send(CONDUCTOR) == ['failed at 6']
    assert world.send(IRONIC) == ['arrived', 'answered']
    world.paths.heal(RABBITMQ, cut)
    assert world.send(CONDUCTOR) == ['arrived', 'answered']


def test_end_of_a_cut_does_not_end_a_later_one(world: _World) -> None:
    """Two cuts of one path may overlap."""
    first = world.paths.cut(IRONIC, Loss.ALL)
    world.paths.cut(IRONIC, Loss.ANSWERS)
    world.paths.heal(IRONIC, first)
    assert world.paths.loses_answers(IRONIC)


@pytest.fixture
def queue(world: _World) -> broker.Queue:
    """A queue with one message."""
    queue = broker.Queue(world)
    queue.put(broker.Message('delete', 's1'))
    return queue


def test_message_and_acknowledgement_wait_for_the_path(
    world: _World, queue: broker.Queue
) -> None:
    """They arrive when it heals, if the connection has lasted."""
    connection = broker.Connection(queue, world, lambda: None)
    deaf = world.paths.cut(RABBITMQ, Loss.ANSWERS)
    queue.add(connection)
    assert connection.receive() is None
    world.paths.heal(RABBITMQ, deaf)
    delivered = connection.receive()
    assert delivered is not None
    mute = world.paths.cut(RABBITMQ, Loss.REQUESTS)
    connection.acknowledge(delivered.tag)
    world.wait(5.0)
    assert connection._unacknowledged
    world.paths.heal(RABBITMQ, mute)
    world.wait(5.0)
    assert not connection._unacknowledged


def test_message_returns_if_the_connection_is_given_up(
    world: _World, queue: broker.Queue
) -> None:
    """RabbitMQ delivers it to the next consumer, as redelivered."""
    first = broker.Connection(queue, world, lambda: None)
    queue.add(first)
    world.paths.cut(RABBITMQ, Loss.ALL)
    first.close()
    second = broker.Connection(queue, _World(), lambda: None)
    queue.add(second)
    delivered = second.receive()
    assert delivered is not None
    assert delivered.is_redelivered


def test_some_worlds_have_half_alive_agents() -> None:
    """In the first of them, an agent gives its hosts away and comes back."""
    seeds = filter(_has_path_faults, range(1000))
    stories = ('\n'.join(lives.run(seed).story) for seed in seeds)
    story = next(s for s in stories if 'is not half alive any more' in s)
    assert 'is half alive' in story


def _has_path_faults(seed: int) -> bool:
    return Environment(seed).has_only_path_faults


@pytest.mark.parametrize(
    ('away_s', 'fewest_count'),
    [
        (10.0, 0),
        # So long that it must be noticed: the count does see moves.
        (35.0, 1),
    ],
)
def test_path_that_comes_and_goes_moves_hosts_three_times_at_most(
    away_s: float, fewest_count: int
) -> None:
    """It is away for some seconds and there for 15, during ten minutes."""
    for seed in itertools.islice(flapping.seeds(0), 2):
        moves_count = flapping.count_moves(seed, away_s, 15.0)
        assert fewest_count <= moves_count <= 3


def test_moves_are_starts_on_another_machine() -> None:
    """A worker that starts again where it was is no move."""
    story = [
        '    1.00 start worker c1.1@c1.1',
        '    2.00 start worker c2.1@c2.1',
        '    3.00 start worker c1.2@c1.1',
        '    4.00 start worker .1@c1.1',
        '    5.00 start worker c1.2@c2.1',
        '    6.00 start worker c1.3@c1.2',
    ]
    assert flapping.count_in(story) == 2
