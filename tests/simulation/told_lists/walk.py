# SPDX-License-Identifier: Apache-2.0
"""A walk: a storm of random steps, then a calm, then the checks of its end."""

from collections.abc import Callable

from hashring.ring import Host
from tests.simulation.lives import silence
from tests.simulation.told_lists import ends
from tests.simulation.told_lists.worker import AUDIT_S, Parts, Worker
from tests.simulation.told_lists.world import World

HOSTS = tuple(map(Host, ('c1', 'c2', 'c3')))
# In half of the walks there is one more, which an operator dismantles in the
# storm or in the calm.
DISMANTLED = Host('c4')
FEWEST_STEPS, MOST_STEPS = 100, 600
# In a walk without told lists, eight audits of each worker.
CALM_S = int(13 * AUDIT_S)
# In the calm, Ironic does not find a node for longer than between two lists,
# which show it. Then there are changes that only a list shows.
HIDE_AT_S, SHOW_AT_S, CHANGE_AT_S = 60, 150, 200
# Meanwhile a worker starts anew, whose first audit is late: others tell it
# their list before.
LATE, LATE_S = HOSTS[-1], range(65, 145)
# After the last audit, to place what it has made due.
LAST_ROUNDS = 5

# How often, and what is done.
Choice = tuple[float, Callable[[], object]]


def live(seed: int, parts: Parts | None = None) -> list[str]:
    """Live a walk; return what was broken, a sentence each."""
    with silence():
        return Walk(seed, parts or Parts()).live()


class Walk:
    """One walk, which its seed determines.

    :param parts: the classes of each worker
    """

    def __init__(self, seed: int, parts: Parts) -> None:
        self._parts = parts
        self._world = World(seed, self._step)
        self._rng = self._world.rng
        hosts = (*HOSTS, DISMANTLED)[: self._rng.choice((3, 4))]
        self._workers: dict[Host, Worker] = {}
        for host in hosts:
            self._start(host)
        for worker in self._workers.values():
            worker.read_services()
        self._ring = hosts
        self._show(agreed=True)

    def live(self) -> list[str]:
        """Live the storm and the calm; return what was broken."""
        self._world.is_calm = False
        for _ in range(self._rng.randrange(FEWEST_STEPS, MOST_STEPS)):
            self._step()
        self._world.calm_down()
        self._world.clock.advance(10.0)
        self._ring = tuple(self._workers)
        self._show(agreed=True)
        for second in range(CALM_S):
            self._pass_second(second)
        for _ in range(LAST_ROUNDS):
            self._place_nodes()
        at_end = ends.find_broken(self._world.cloud, self._workers)
        return [*self._world.broken, *at_end]

    # The storm

    def _step(self) -> None:
        """Have chance choose what happens next, and do it."""
        able = [h for h in self._workers if h != self._world.blocked]
        worker = self._workers[self._rng.choice(able)]
        choices = [*self._of_worker(worker), (6.0, self._change_a_node)]
        if not self._world.is_nested:
            choices += self._rare(worker)
        weights = [weight for weight, _ in choices]
        [(_, act)] = self._rng.choices(choices, weights)
        act()

    def _of_worker(self, worker: Worker) -> list[Choice]:
        return [
            (20.0, worker.run_round),
            (12.0, worker.read_delta),
            (8.0, worker.audit),
            (12.0, worker.read_nodes),
            (8.0, worker.tell),
            (4.0, worker.remove),
            (2.0, worker.read_services),
            (20.0, self._deliver),
            (12.0, lambda: self._pass((0.2, 1.0, 3.0))),
        ]

    def _rare(self, worker: Worker) -> list[Choice]:
        """Return what happens only while no request is on its way."""
        return [
            (2.0, self._change_ring),
            (1.0, lambda: self._restart(worker.host)),
            (1.0, lambda: self._cut_off_or_back(worker.host)),
            (2.0, self._world.hide_or_show),
            (1.0, lambda: self._pass((20.0, 70.0))),
            (0.3, self._dismantle),
        ]

    def _pass(self, seconds: tuple[float, ...]) -> None:
        self._world.clock.advance(self._rng.choice(seconds))

    def _change_a_node(self) -> None:
        """Change a node; some workers are notified."""
        node = self._world.change_a_node()
        for worker in self._workers.values():
            if self._rng.random() < 0.3:
                worker.feed.request_read(node)

    def _deliver(self) -> None:
        if (found := self._world.next_message()) is not None:
            to, message = found
            if to in self._workers:
                message(self._workers[to])

    # Workers

    def _start(self, host: Host) -> None:
        self._world.cloud.hosts.pop(host, None)
        self._workers[host] = Worker(self._world, host, self._parts)

    def _restart(self, host: Host) -> None:
        self._world.cut_off.discard(host)
        self._start(host)
        self._workers[host].owner.show(*self._ring)

    def _cut_off_or_back(self, host: Host) -> None:
        self._world.cut_off ^= {host}

    def _change_ring(self) -> None:
        """Have two or more hosts in the ring; agents may disagree."""
        count = self._rng.randint(2, len(self._workers))
        self._ring = tuple(sorted(self._rng.sample([*self._workers], count)))
        self._show(agreed=self._rng.random() < 0.8)

    def _show(self, *, agreed: bool) -> None:
        for worker in self._workers.values():
            if agreed or self._rng.random() < 0.5:
                worker.owner.show(*self._ring, agreed=agreed)

    def _dismantle(self) -> None:
        """End the worker of the host to be dismantled; delete its Service.

        With its rows; but a request that comes late may leave them.
        """
        if self._workers.pop(DISMANTLED, None) is None:
            return
        cloud = self._world.cloud
        del cloud.hosts[DISMANTLED], cloud.nova.services[DISMANTLED]
        has_rows_left = self._rng.random() < 0.5
        for node, row in cloud.nova.rows.items():
            if row.host == DISMANTLED and not has_rows_left:
                row.deleted = True
                cloud.providers.pop(node, None)
        self._ring = tuple(h for h in self._ring if h != DISMANTLED) or HOSTS
        self._show(agreed=True)

    # The calm

    def _pass_second(self, second: int) -> None:
        """Have each thread do what it does in this second."""
        self._disturb(second)
        for worker in self._workers.values():
            if second % 5 == 0:
                worker.read_delta()
            if worker.host != LATE or second not in LATE_S:
                worker.audit()
            worker.tell()
            if second % 10 == 0:
                worker.read_services()
                worker.remove()
        self._place_nodes()

    def _disturb(self, second: int) -> None:
        """Do what is due in this second of the calm; see ``HIDE_AT_S``."""
        if second == HIDE_AT_S:
            node = self._world.hide_a_node()
            for worker in self._workers.values():
                worker.feed.request_read(node)
        elif second == LATE_S.start:
            self._restart(LATE)
        elif second == SHOW_AT_S:
            self._world.cloud.hidden.clear()
        elif second == CHANGE_AT_S:
            self._world.change_unseen()
            self._world.restore_rows()
            self._dismantle()
            self._lose_rows()

    def _lose_rows(self) -> None:
        """Have somebody delete the record of one node of each host.

        No worker is told of it, and no host is gone.
        """
        cloud = self._world.cloud
        live = (row for row in cloud.nova.rows.values() if not row.deleted)
        for row in {row.host: row for row in live}.values():
            row.deleted = True
            cloud.providers.pop(row.node, None)

    def _place_nodes(self) -> None:
        """Let a second pass, with a round and single reads of all workers."""
        self._world.clock.advance(1.0)
        while self._world.messages:
            self._deliver()
        for worker in self._workers.values():
            worker.read_nodes()
            worker.run_round()
