# SPDX-License-Identifier: Apache-2.0
"""What passes between the agent and whoever runs its workers.

The agent knows no process, no pipe and no Nova: it speaks to a `Workers`.
One worker serves one host in one tenure; a host that is taken again gets a
new tenure and a new worker.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

from hashring.ring import Host


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerView:
    """What each worker is told at each turn of the agent."""

    deadline_s: float
    """Gates are shut from then on (CLOCK_BOOTTIME); 0.0 means now."""
    ring: tuple[Host, ...]
    """The hosts of the ring, sorted."""
    agreed_since_s: float | None
    """Since when every live agent has published this very ring
    (CLOCK_BOOTTIME); None: not all have, or not for `settle_s` yet."""
    known: tuple[Host, ...]
    """The hosts whose Services workers should read, sorted: the known hosts
    of this agent and of every other member of its group."""
    agreed_until_s: float = 0.0
    """When the list of members was asked for that shows it
    (CLOCK_BOOTTIME)."""
    opens_s: Mapping[Host, float] = dataclasses.field(default_factory=dict)
    """Host -> when its gate may open for the first time (CLOCK_BOOTTIME).

    A host that is not named may open at once. Names appear only on
    backends that can forget a lock."""
    confirmed_mappings: tuple[Host, ...] = ()
    """The hosts that an operator has said to be mapped, sorted."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServiceFacts:
    """What Nova says of one host."""

    mapped: bool
    """It has a HostMapping: builds for it reach its cell."""
    disabled: bool
    """An operator has disabled the Service."""
    exists: bool
    """It has a Service record at all."""


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerServing:
    """The worker of this host consumes messages now."""

    host: Host
    tenure: int = 0
    """0: of the present worker, whichever that is."""


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerExited:
    """The worker of this host is dead and reaped."""

    host: Host
    status: int
    """As a shell sees it: 0 to 255, or minus the signal's number."""
    fatal: str | None = None
    """The worker's own sentence when its configuration is wrong."""
    tenure: int = 0
    """0: of the present worker, whichever that is."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServicesRead:
    """What a worker read about the hosts of the pool; newest wins."""

    services: Mapping[Host, ServiceFacts]


@dataclasses.dataclass(frozen=True, slots=True)
class HostAdded:
    """An operator has said that this host is of the pool.

    Whether it may be was looked at by the worker that was told.
    """

    host: Host


@dataclasses.dataclass(frozen=True, slots=True)
class MappingConfirmed:
    """An operator has said that this host is mapped: Nova does not tell."""

    host: Host


WorkerEvent = (
    WorkerServing | WorkerExited | ServicesRead | HostAdded | MappingConfirmed
)


class Workers(Protocol):
    """Starts, ends and informs workers; all calls from one thread."""

    def start(self, host: Host, tenure: int) -> None:
        """Begin to start a worker; returns at once.

        Its gate is shut until `deliver_view` gives a deadline in the future.
        """
        ...

    def stop(self, host: Host) -> None:
        """Ask the worker to drain and end; returns at once.

        An `WorkerExited` follows; the caller has a time-out for it.
        """
        ...

    def kill(self, host: Host) -> None:
        """End the worker now; returns when the process is dead.

        No `WorkerExited` of it is reported afterwards, or one that carries its
        tenure. Without a worker for this host it does nothing.
        """
        ...

    def deliver_view(self, view: WorkerView) -> None:
        """Pass this on to each worker; returns at once."""
        ...

    def events(self, timeout_s: float) -> Sequence[WorkerEvent]:
        """Wait up to so long for an event, then return all there are."""
        ...
