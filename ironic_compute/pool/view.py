# SPDX-License-Identifier: Apache-2.0
"""A worker's view of its pool: the hash ring and the known hosts.

The agent decides which hosts are in the ring and sends each new view to its
workers. A worker keeps the newest view, the ring that is built from it, and
the time since which the ring has not changed.
"""

import dataclasses
import threading
from collections.abc import Callable

from hashring.clock import Clock
from hashring.lease import SHUT_NOW_S
from hashring.paths import Path
from hashring.ring import Host, Ring
from hashring.workers import WorkerView
from ironic_compute.gate import LeaseGate


@dataclasses.dataclass(frozen=True, slots=True)
class RingStatus:
    """A ring with its age and agreement, as they were at one moment."""

    ring: Ring
    settled_for_s: float
    """Seconds since the ring last changed."""
    agreed_for_s: float | None = None
    """Seconds for which all live agents agree on the ring; None: they differ.
    """
    agreed_until_s: float = 0.0
    """When the list of agents that agree was read, by the worker's clock."""

    @property
    def agreed(self) -> bool:
        """Whether all live agents have had this ring for ``settle_s``."""
        return self.agreed_for_s is not None


class PoolView:
    """The newest view of the pool; any thread may read it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ring = Ring()
        self._known: tuple[Host, ...] = ()
        self._confirmed_mappings: frozenset[Host] = frozenset()
        self._doubted_paths: frozenset[Path] = frozenset()
        self._member_homes: frozenset[Host] = frozenset()
        self._agreed_since_s: float | None = None
        self._agreed_until_s = 0.0
        self._ring_since_s = clock.now_s()
        self._on_services_stale: Callable[[], None] = lambda: None

    def on_services_stale(self, callback: Callable[[], None]) -> None:
        """Set the function to call when the Service records may be stale.

        That is when a host was added, when the mapping of a host was
        confirmed, or when the agents do not agree on the ring any more: one
        worker has read that a host was enabled or disabled, and others have
        not. The thread that calls ``update`` calls the function.
        """
        self._on_services_stale = callback

    def update(self, view: WorkerView) -> None:
        """Replace the view by a newer one of the agent."""
        with self._lock:
            if frozenset(view.ring) != self._ring.hosts:
                self._ring = Ring(view.ring)
                self._ring_since_s = self._clock.now_s()
            is_stale = bool(set(view.known) - set(self._known))
            is_stale |= bool(
                set(view.confirmed_mappings) - self._confirmed_mappings
            )
            was_agreed = self._agreed_since_s is not None
            is_stale |= was_agreed and view.agreed_since_s is None
            self._confirmed_mappings = frozenset(view.confirmed_mappings)
            self._doubted_paths = frozenset(view.doubted_paths)
            self._member_homes = frozenset(view.member_homes)
            self._known = view.known
            self._agreed_since_s = view.agreed_since_s
            self._agreed_until_s = view.agreed_until_s
        if is_stale:
            self._on_services_stale()

    @property
    def known(self) -> tuple[Host, ...]:
        """The hosts that belong to this pool."""
        return self._known

    @property
    def confirmed_mappings(self) -> frozenset[Host]:
        """The hosts whose mapping an operator has confirmed."""
        return self._confirmed_mappings

    def is_doubted(self, path: Path) -> bool:
        """Return whether another agent fails to reach a service."""
        return path in self._doubted_paths

    def has_member(self, home: Host) -> bool:
        """Return whether the own agent of a host is in the group.

        That agent may be half alive, so that another one serves the host.
        """
        return home in self._member_homes

    def ring_status(self) -> RingStatus:
        """Return the ring with its age and agreement.

        One call returns all of them, because values of two calls could belong
        to two different rings (bug 1792872 of Ironic).
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
    """Apply a view of the agent to the worker's pool and lease gate.

    The gate is extended to the deadline of the view, unless the view has a
    later time until which the gate of ``host`` must stay shut. Then the first
    view after that time opens the gate. It shuts at once if the agent has
    lost its lease before the deadline: the group does not list it any more,
    because the backend lost its data, or because the machine was paused and
    its clock stood still. Another agent may serve the host then.
    """
    pool.update(view)
    if view.deadline_s == SHUT_NOW_S:
        gate.shut()
    elif clock.now_s() >= view.opens_s.get(host, 0.0):
        gate.extend(view.deadline_s)
