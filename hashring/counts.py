# SPDX-License-Identifier: Apache-2.0
"""Counts of what happened to one agent since its start, for its metrics.

Whoever keeps a journal is told of each host that has moved.
The agent's main thread counts; other threads read `EventCounter.counts`, an
immutable value, so that no lock can make the main loop wait. Pure.
"""

import bisect
import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping

from hashring import events, workers
from hashring.ring import Host

# Upper bounds of the buckets of adoption times. An adoption takes a lease term
# and some seconds more; after a minute, Nova shows the host as down.
ADOPTION_BUCKETS_S = (5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 45.0, 60.0, 120.0)

KILLED = 'killed'
"""The status of a worker that the agent killed, so that it has no other."""


@dataclasses.dataclass(frozen=True, slots=True)
class Durations:
    """A histogram of durations.

    :param counts: the number of durations in each bucket, and of longer ones
    """

    bounds_s: tuple[float, ...] = ADOPTION_BUCKETS_S
    counts: tuple[int, ...] = (0,) * (len(ADOPTION_BUCKETS_S) + 1)
    sum_s: float = 0.0

    def with_one(self, seconds: float) -> 'Durations':
        """Return the histogram with one more duration."""
        counts = list(self.counts)
        counts[bisect.bisect_left(self.bounds_s, seconds)] += 1
        return dataclasses.replace(
            self, counts=tuple(counts), sum_s=self.sum_s + seconds
        )

    def cumulative(self) -> tuple[tuple[float, int], ...]:
        """Return (upper bound, number of durations up to it) pairs."""
        bounds_s = (*self.bounds_s, math.inf)
        counts = itertools.accumulate(self.counts)
        return tuple(zip(bounds_s, counts, strict=True))


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """What happened to this agent since its start."""

    lapses: int = 0
    """How often the lease was lost."""
    adoptions: int = 0
    """How often a worker was started for the host of another agent."""
    hand_backs: int = 0
    """How often a host was given back to its own agent."""
    worker_starts: Mapping[Host, int] = dataclasses.field(default_factory=dict)
    worker_exits: Mapping[tuple[Host, str], int] = dataclasses.field(
        default_factory=dict
    )
    """(Host, status) -> number; the status is that of the process, minus the
    number of a signal, or `KILLED`."""
    adoption_s: Durations = Durations()
    """From when an adopted host was an orphan until its worker served."""


@dataclasses.dataclass(frozen=True, slots=True)
class HostMove:
    """A host that has moved to this agent, or away from it.

    :param why: `Why.ADOPTED`, `Why.HAND_BACK` or `Why.HALF_ALIVE`
    :param seconds: from when the adopted host was an orphan until its worker
        served; or from when its worker was to end until its lock was released
    """

    host: Host
    why: events.Why
    seconds: float


_GIVEN_AWAY = (events.Why.HAND_BACK, events.Why.HALF_ALIVE)


class EventCounter:
    """Counts the effects and events of one agent; its main thread calls it.

    :param on_move: called with each host that has moved; must not block
    """

    def __init__(
        self, on_move: Callable[[HostMove], None] = lambda move: None
    ) -> None:
        self.counts = Counts()
        self._on_move = on_move
        # Host that is being given away -> why, and since when.
        self._giving: dict[Host, tuple[events.Why, float]] = {}
        self._has_lease = False
        # Adopted host whose worker does not serve yet -> its tenure, and when
        # it became an orphan.
        self._adopting: dict[Host, tuple[int, float]] = {}

    def note_lease(self, *, held: bool) -> None:
        """Count a lapse if the lease was held and is not held any more."""
        if self._has_lease and not held:
            self._add(lapses=1)
        self._has_lease = held

    def note_effect(self, effect: events.Effect, now_s: float) -> None:
        """Count an effect that the agent carries out."""
        match effect:
            case events.Start(host=host, tenure=tenure, why=why):
                self._count_start(host)
                self._adopting.pop(host, None)
                self._giving.pop(host, None)
                if why is events.Why.ADOPTED:
                    self._add(adoptions=1)
                    orphan_since_s = now_s - effect.waited_s
                    self._adopting[host] = tenure, orphan_since_s
            case events.Stop(host=host, why=why):
                self._note_end(host, why, now_s)
                self._add(hand_backs=int(why is events.Why.HAND_BACK))
            case events.Kill(host=host, why=why):
                self._note_end(host, why, now_s)
                self._count_exit(host, KILLED)
            case events.Release(host=host) if host in self._giving:
                reason, since_s = self._giving.pop(host)
                self._on_move(HostMove(host, reason, now_s - since_s))
            case _:
                pass

    def note_event(self, event: workers.WorkerEvent, now_s: float) -> None:
        """Count an event of a worker."""
        match event:
            case workers.WorkerExited(host=workers.NO_HOST):
                pass  # The path worker serves no host.
            case workers.WorkerExited(host=host, status=status):
                self._count_exit(host, str(status))
            case workers.WorkerServing(host=host, tenure=tenure):
                begun = self._adopting.get(host)
                if begun is not None and tenure in (0, begun[0]):
                    del self._adopting[host]
                    seconds = now_s - begun[1]
                    self._add_adoption(seconds)
                    self._on_move(HostMove(host, events.Why.ADOPTED, seconds))
            case _:
                pass

    def _note_end(self, host: Host, why: events.Why, now_s: float) -> None:
        """Note when a host begins to be given away to another agent."""
        if why in _GIVEN_AWAY:
            self._giving.setdefault(host, (why, now_s))

    def _count_start(self, host: Host) -> None:
        starts = dict(self.counts.worker_starts)
        starts[host] = starts.get(host, 0) + 1
        self.counts = dataclasses.replace(self.counts, worker_starts=starts)

    def _count_exit(self, host: Host, status: str) -> None:
        self._adopting.pop(host, None)
        exits = dict(self.counts.worker_exits)
        exits[host, status] = exits.get((host, status), 0) + 1
        self.counts = dataclasses.replace(self.counts, worker_exits=exits)

    def _add_adoption(self, seconds: float) -> None:
        self.counts = dataclasses.replace(
            self.counts, adoption_s=self.counts.adoption_s.with_one(seconds)
        )

    def _add(
        self, *, lapses: int = 0, adoptions: int = 0, hand_backs: int = 0
    ) -> None:
        counts = self.counts
        self.counts = dataclasses.replace(
            counts,
            lapses=counts.lapses + lapses,
            adoptions=counts.adoptions + adoptions,
            hand_backs=counts.hand_backs + hand_backs,
        )
