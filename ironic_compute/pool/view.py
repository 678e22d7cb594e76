# SPDX-License-Identifier: Apache-2.0
"""What a worker knows of its pool: the newest view its agent sent.

The agent owns the truth; the worker keeps the last view and the ring built
from it, and remembers since when that ring has been what it is.
"""

import dataclasses
import threading
from collections.abc import Callable

from hashring.clock import Clock
from hashring.ring import Host, Ring
from hashring.workers import WorkerView
from ironic_compute.gate import LeaseGate


@dataclasses.dataclass(frozen=True, slots=True)
class RingStatus:
    """A ring and what is true of this very ring; to be read as one."""

    ring: Ring
    settled_for_s: float
    """Since the ring last changed."""
    agreed_for_s: float | None = None
    """Since when all live agents say they have this ring; None: not all."""
    agreed_until_s: float = 0.0
    """When they were last asked (the worker's clock)."""

    @property
    def agreed(self) -> bool:
        """All live agents say they have this ring, and have for a while."""
        return self.agreed_for_s is not None


class PoolView:
    """The newest view of the pool; any thread may read it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ring = Ring()
        self._known: tuple[Host, ...] = ()
        self._vouched: frozenset[Host] = frozenset()
        self._agreed_since_s: float | None = None
        self._agreed_until_s = 0.0
        self._ring_since_s = clock.now_s()
        self._on_news: Callable[[], None] = lambda: None

    def on_services_stale(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called when Nova may have something to tell.

        Hosts are known or vouched for that were not, or somebody has another
        ring than we: he has seen a host enabled or disabled, or we have.
        """
        self._on_news = callback

    def update(self, view: WorkerView) -> None:
        """Take over what the agent says now."""
        with self._lock:
            if frozenset(view.ring) != self._ring.hosts:
                self._ring = Ring(view.ring)
                self._ring_since_s = self._clock.now_s()
            has_news = bool(set(view.known) - set(self._known))
            has_news |= bool(set(view.confirmed_mappings) - self._vouched)
            was_agreed = self._agreed_since_s is not None
            has_news |= was_agreed and view.agreed_since_s is None
            self._vouched = frozenset(view.confirmed_mappings)
            self._known = view.known
            self._agreed_since_s = view.agreed_since_s
            self._agreed_until_s = view.agreed_until_s
        if has_news:
            self._on_news()

    @property
    def known(self) -> tuple[Host, ...]:
        """The hosts that belong to this pool."""
        return self._known

    @property
    def mapping_confirmed(self) -> frozenset[Host]:
        """The hosts that an operator has said to be mapped."""
        return self._vouched

    def ring_status(self) -> RingStatus:
        """The ring now, with whether it is agreed and for how long it is.

        Read apart, one could be of the ring before (ironic's bug 1792872).
        """
        with self._lock:
            now_s, since_s = self._clock.now_s(), self._agreed_since_s
            return RingStatus(
                self._ring,
                now_s - self._ring_since_s,
                None if since_s is None else now_s - since_s,
                self._agreed_until_s,
            )


def update_pool_and_gate(
    view: WorkerView, host: Host, pool: PoolView, gate: LeaseGate, clock: Clock
) -> None:
    """Heed what the agent says: the pool it sees, and until when we may act.

    A gate that is to stay shut at first opens with the first view after
    that.
    """
    pool.update(view)
    if clock.now_s() >= view.opens_s.get(host, 0.0):
        gate.extend(view.deadline_s)
