# SPDX-License-Identifier: Apache-2.0
"""Events and effects: the input and output values of `Assignment`.

`hashring.agent` makes the events from heartbeats, lock results, workers and
signals, and carries out the effects in their order. All are frozen values.
A ticket is the number of a lock request; its result carries the same number.
"""

import dataclasses
import enum

from hashring.adoption import NOBODY, View
from hashring.group import LockToken
from hashring.ring import Host
from hashring.workers import WorkerExited, WorkerServing


class Why(enum.Enum):
    """The reason for an effect; the value is the text of the log."""

    HOME = 'it is the home host'
    ADOPTED = 'its own agent is gone'
    HAND_BACK = 'its own agent is back'
    LEAVING = 'this agent stops'
    UNKNOWN = 'it is no host of this pool any more'
    EXITED = 'its worker ended'
    NOT_PROVEN = 'the lease was interrupted and the lock cannot be proven'
    FORGOTTEN = 'the backend has lost the lock'
    OVERDUE = 'its worker did not end in time'
    LAPSED = 'the lease ran out while its worker was ending'
    USELESS = 'the lock came too late to be used'
    HALF_ALIVE = 'this agent cannot serve it, and another one can'


# ---- events


@dataclasses.dataclass(frozen=True, slots=True)
class LeaseStatus:
    """The lease, the member list and the lost locks after a heartbeat."""

    deadline_s: float
    """When the lease ends (CLOCK_BOOTTIME); 0.0 without a lease."""
    epoch: int
    """The number of the unbroken run of heartbeats."""
    view: View = NOBODY
    lost: frozenset[Host] = frozenset()
    """The hosts whose lock this agent no longer has in the backend."""
    read_at_s: float = 0.0
    """When the first lock was about to be read for `lost`
    (CLOCK_BOOTTIME)."""


@dataclasses.dataclass(frozen=True, slots=True)
class KnownHosts:
    """The known hosts of this pool; the agent adopts no others."""

    hosts: frozenset[Host]


@dataclasses.dataclass(frozen=True, slots=True)
class HalfAlive:
    """Whether this agent must let other agents serve all hosts."""

    is_half_alive: bool


@dataclasses.dataclass(frozen=True, slots=True)
class LockGranted:
    """The lock request with this ticket was granted."""

    host: Host
    ticket: int
    counts: bool = True
    """False if the grant took so long that the lock must be released."""
    token: LockToken | None = None
    """The token of the lock, on backends that have tokens."""


@dataclasses.dataclass(frozen=True, slots=True)
class LockRefused:
    """The lock request with this ticket was refused or failed."""

    host: Host
    ticket: int


@dataclasses.dataclass(frozen=True, slots=True)
class LockChecked:
    """The result of `Prove`: whether the lock was kept since its grant."""

    host: Host
    ticket: int
    ours: bool
    """Whether this agent kept the lock; False also without an answer."""


@dataclasses.dataclass(frozen=True, slots=True)
class LockReleased:
    """The result of `Release`: whether the lock was released."""

    host: Host
    ticket: int
    done: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Leave:
    """A request to drain all workers, release all locks and exit.

    With ``restarting`` other agents wait ``restart_grace_s`` for this one to
    come back; otherwise they adopt its home host at once.
    """

    restarting: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; nothing else happened."""


Event = (
    LeaseStatus
    | KnownHosts
    | HalfAlive
    | LockGranted
    | LockRefused
    | LockChecked
    | LockReleased
    | WorkerServing
    | WorkerExited
    | Leave
    | Tick
)


# ---- effects


@dataclasses.dataclass(frozen=True, slots=True)
class BreakLock:
    """Release the lock with this token, which a dead process left behind."""

    host: Host
    token: LockToken


@dataclasses.dataclass(frozen=True, slots=True)
class TryLock:
    """Request the lock of this host once, without waiting for it."""

    host: Host
    ticket: int


@dataclasses.dataclass(frozen=True, slots=True)
class Prove:
    """Read from the backend whether the lock was kept since its grant."""

    host: Host
    ticket: int


@dataclasses.dataclass(frozen=True, slots=True)
class Release:
    """Release the lock of this host."""

    host: Host
    ticket: int
    why: Why
    again: bool = False
    """Whether an earlier request to release this lock failed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """Start a worker for this host, whose lock was granted."""

    host: Host
    tenure: int
    why: Why
    waited_s: float = 0.0
    """Seconds for which the host was an orphan before its adoption."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stop:
    """Request that the worker of this host drains and exits."""

    host: Host
    why: Why


@dataclasses.dataclass(frozen=True, slots=True)
class Kill:
    """Kill the worker of this host, and wait until it cannot act any more."""

    host: Host
    why: Why


@dataclasses.dataclass(frozen=True, slots=True)
class Pause:
    """Log that the lease has ended, so that this worker's gate is shut."""

    host: Host


@dataclasses.dataclass(frozen=True, slots=True)
class ResumeWorker:
    """Log that the lock was kept, so that this worker goes on."""

    host: Host


@dataclasses.dataclass(frozen=True, slots=True)
class Abort:
    """The agent must exit with this error message and exit status."""

    message: str
    status: int


Effect = (
    BreakLock
    | TryLock
    | Prove
    | Release
    | Start
    | Stop
    | Kill
    | Pause
    | ResumeWorker
    | Abort
)
