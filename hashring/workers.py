# SPDX-License-Identifier: Apache-2.0
"""Workers as the agent sees them: the protocol, its events, and the view.

`hashring.agent` starts and stops workers through `Workers`, which
`ironic_compute.agent.worker_processes` implements with processes and pipes.
One worker serves one host for one tenure; the next tenure of the same host
has a new worker. `WorkerView` travels to the worker as JSON.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

from hashring.paths import Path, PathStates
from hashring.ring import Host

# A worker of this host serves nothing: it only observes its paths, for an
# agent that serves no host.
NO_HOST = Host('')


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerView:
    """The lease deadline, ring and hosts, sent to each worker at each turn."""

    deadline_s: float
    """When the lease gates shut (CLOCK_BOOTTIME); ``lease.SHUT_NOW_S``:
    now, whatever the deadline was before."""
    ring: tuple[Host, ...]
    """The hosts of the ring, sorted."""
    agreed_since_s: float | None
    """Since when every live agent with a ring has published this very ring
    (CLOCK_BOOTTIME); None: not all have, or not for `settle_s` yet."""
    known: tuple[Host, ...]
    """The hosts whose Services workers should read, sorted: the known hosts
    of this agent and of every other member of its group."""
    agreed_until_s: float = 0.0
    """When the member list was requested that shows this agreement
    (CLOCK_BOOTTIME)."""
    opens_s: Mapping[Host, float] = dataclasses.field(default_factory=dict)
    """Host -> when its gate may open at the earliest (CLOCK_BOOTTIME).

    The gate of any other host may open at once. Only backends that can
    forget a lock cause entries."""
    confirmed_mappings: tuple[Host, ...] = ()
    """The hosts that an operator has confirmed to be mapped, sorted."""
    doubted_paths: tuple[Path, ...] = ()
    """The paths that fail for another agent: they are to be tested now."""
    member_homes: tuple[Host, ...] = ()
    """The home hosts of all agents in the group, also of those that are half
    alive or are ending, sorted."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServiceFacts:
    """The Service and cell mapping of one host, as a worker read them."""

    mapped: bool
    """The host has a HostMapping, so builds for it reach its cell."""
    disabled: bool
    """An operator has disabled the Service."""
    exists: bool
    """The host has a Service record."""
    has_servers: bool | None = None
    """The host has servers; None if the worker that read this serves another
    host."""
    service_id: int | None = None
    """The id of the Service record; a record that is made anew has another
    one."""


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerServing:
    """The worker of this host consumes RPC messages now."""

    host: Host
    tenure: int = 0
    """The tenure of the worker; 0 means the present one."""


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerExited:
    """The worker process of this host has ended and is reaped."""

    host: Host
    status: int
    """The exit status, 0 to 255, or minus the number of a signal."""
    fatal: str | None = None
    """The worker's error message if its configuration is wrong."""
    tenure: int = 0
    """The tenure of the worker; 0 means the present one."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServicesRead:
    """A worker has read the Services of the pool's hosts."""

    services: Mapping[Host, ServiceFacts]


@dataclasses.dataclass(frozen=True, slots=True)
class PathsObserved:
    """The worker of this host has observed its paths to other services."""

    host: Host
    states: PathStates
    tenure: int = 0
    """The tenure of the worker; 0 means the present one."""


@dataclasses.dataclass(frozen=True, slots=True)
class HostAdded:
    """An operator has requested that this host be added to the pool.

    The worker that took the request has checked that it may be added.
    """

    host: Host


@dataclasses.dataclass(frozen=True, slots=True)
class HostForgotten:
    """An operator has requested that this host leave the pool.

    The worker that took the request has checked that it may leave.
    """

    host: Host


@dataclasses.dataclass(frozen=True, slots=True)
class HostRetired:
    """The worker of this host has ended it, because an operator wanted that.

    The host is empty and has no Service any more. Its own agent ends, too.
    """

    host: Host


@dataclasses.dataclass(frozen=True, slots=True)
class MappingConfirmed:
    """An operator has confirmed that this host is mapped to a cell."""

    host: Host


OperatorRequest = HostAdded | HostForgotten | MappingConfirmed
WorkerEvent = (
    WorkerServing
    | WorkerExited
    | ServicesRead
    | PathsObserved
    | OperatorRequest
    | HostRetired
)


class Workers(Protocol):
    """Starts and stops workers; only the agent's main thread calls it."""

    def start(
        self, host: Host, tenure: int, has_servers: bool = False
    ) -> None:
        """Begin to start a worker for a host; returns at once.

        The gate of the worker is shut until `deliver_view` delivers a
        deadline in the future.

        :param host: may be `NO_HOST`
        :param has_servers: the host has servers, so it is started before
            others that wait
        """

    def stop(self, host: Host) -> None:
        """Make the worker of a host drain and exit; returns at once.

        A `WorkerExited` follows; the caller has a time-out for it.
        """

    def kill(self, host: Host) -> None:
        """Kill the worker of a host; returns when it cannot act any more.

        A `WorkerExited` may follow, with the tenure of that worker. Without a
        worker for this host it does nothing.
        """

    def deliver_view(self, view: WorkerView) -> None:
        """Send the view to each worker; returns at once."""

    def events(self, timeout_s: float) -> Sequence[WorkerEvent]:
        """Wait up to ``timeout_s`` for an event; return all events."""
