# SPDX-License-Identifier: Apache-2.0
"""kill -9 of daemons between which servers are being moved."""

import enum
import itertools
import time
from collections.abc import Sequence

from onemachine.chaos.looks import Looks, Move
from onemachine.chaos.stage import Stage
from onemachine.chaos.watch import Pings
from onemachine.progress import print_line, wait_until

# A look comes up to a second after a move, and a move takes about a second.
_DELAY_MAX_S = 1.5
_MOVE_MAX_S = 300.0
_SERVED_MAX_S = 120.0


class Victim(enum.StrEnum):
    """Whose daemon is killed."""

    HOLDER = 'holder'
    TARGET = 'target'
    BOTH = 'both'

    def hosts(self, move: Move) -> list[str]:
        """Return the hosts whose daemons are killed, by the last move."""
        return {
            Victim.HOLDER: [move.source],
            Victim.TARGET: [move.target],
            Victim.BOTH: sorted({move.source, move.target}),
        }[self]


def shares(count: int, parts_count: int) -> list[list[Victim]]:
    """Return the victims of so many kills, in so many parts.

    The last parts have one more, if the parts cannot be equal.
    """
    victims = list(itertools.islice(itertools.cycle(Victim), count))
    ends = [count * n // parts_count for n in range(parts_count + 1)]
    return [victims[a:b] for a, b in itertools.pairwise(ends)]


class Killer:
    """Kills daemons, waits for others to serve, and starts them again."""

    def __init__(self, stage: Stage, looks: Looks, pings: Pings) -> None:
        self._stage = stage
        self._looks = looks
        self._pings = pings
        self.served_s: list[float] = []

    def kill_all(self, victims: Sequence[Victim], since: int) -> None:
        """Kill one after the other, each after a further server has moved.

        :param since: the number of moves when the order was given
        :raises CloudError: no further server moved, or a host was not served
        """
        for victim in victims:
            self._kill(victim, since)
            since = len(self._looks.moves)

    def _kill(self, victim: Victim, since: int) -> None:
        stage = self._stage
        move = wait_until(
            f'a server to move, to kill its {victim}',
            lambda: self._last_with_server(since),
            _MOVE_MAX_S,
            0.1,
        )
        hosts = victim.hosts(move)
        time.sleep(stage.rng.uniform(0.0, _DELAY_MAX_S))
        stage.running.kill(hosts)
        killed_s = time.time()
        took_s = [
            self._pings.await_answer(host, killed_s, _SERVED_MAX_S)
            for host in hosts
        ]
        self.served_s += took_s
        shown = ', '.join(
            f'{h} {s:.1f} s' for h, s in zip(hosts, took_s, strict=True)
        )
        print_line(f'Killed: {victim}; served again after: {shown}')
        stage.computes.start_agents(hosts, maps=False)

    def _last_with_server(self, since: int) -> Move | None:
        moves = self._looks.moves[since:]
        return next((m for m in reversed(moves) if m.server), None)
