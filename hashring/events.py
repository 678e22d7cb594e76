# SPDX-License-Identifier: Apache-2.0
"""The words the assignment machine is spoken to in, and speaks.

Events go in, effects come out, in the order in which they must be carried
out. All are values; none knows a thread, a clock or a backend.
"""

import dataclasses
import enum

from hashring.adoption import NOBODY, View
from hashring.group import LockToken
from hashring.ring import Host
from hashring.workers import WorkerExited, WorkerServing


class Why(enum.Enum):
    """The reason of an effect, as the log tells it."""

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


# ---- events


@dataclasses.dataclass(frozen=True, slots=True)
class LeaseStatus:
    """Our lease as it stands, and what the group looks like under it."""

    deadline_s: float
    epoch: int
    view: View = NOBODY
    lost: frozenset[Host] = frozenset()
    """Hosts whose lock the backend has not as ours any more,"""
    read_at_s: float = 0.0
    """as of this instant."""


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """The hosts of this pool; only these are ever adopted."""

    hosts: frozenset[Host]


@dataclasses.dataclass(frozen=True, slots=True)
class Granted:
    """The lock asked for with this ticket is ours."""

    host: Host
    ticket: int
    counts: bool = True
    """False: it came too slowly to be acted on, and is to be given back."""
    token: LockToken | None = None
    """What names it to our next life, where the backend has such names."""


@dataclasses.dataclass(frozen=True, slots=True)
class Denied:
    """The lock asked for with this ticket is not ours."""

    host: Host
    ticket: int


@dataclasses.dataclass(frozen=True, slots=True)
class Proven:
    """Whether the lock survived since it was granted."""

    host: Host
    ticket: int
    ours: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Released:
    """The release asked for with this ticket was done, or failed."""

    host: Host
    ticket: int
    done: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Leave:
    """Let go of everything, in order."""

    restarting: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = (
    LeaseStatus
    | Known
    | Granted
    | Denied
    | Proven
    | Released
    | WorkerServing
    | WorkerExited
    | Leave
    | Tick
)


# ---- effects


@dataclasses.dataclass(frozen=True, slots=True)
class BreakLock:
    """Free the lock of our last life: that very acquisition or nothing."""

    host: Host
    token: LockToken


@dataclasses.dataclass(frozen=True, slots=True)
class TryLock:
    """Ask once for the lock of this host."""

    host: Host
    ticket: int


@dataclasses.dataclass(frozen=True, slots=True)
class Prove:
    """Ask whether the lock we were granted is still the same."""

    host: Host
    ticket: int


@dataclasses.dataclass(frozen=True, slots=True)
class Release:
    """Give the lock back."""

    host: Host
    ticket: int
    why: Why
    again: bool = False  # Asked before, and not done.


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """Start a worker: the lock is ours."""

    host: Host
    tenure: int
    why: Why
    waited_s: float = 0.0  # How long the host was without anybody.


@dataclasses.dataclass(frozen=True, slots=True)
class Stop:
    """Let the worker drain and end."""

    host: Host
    why: Why


@dataclasses.dataclass(frozen=True, slots=True)
class Kill:
    """End the worker now; nothing after it runs before it is dead."""

    host: Host
    why: Why


@dataclasses.dataclass(frozen=True, slots=True)
class Pause:
    """Told only: this worker's gate is shut, the lease has run out."""

    host: Host


@dataclasses.dataclass(frozen=True, slots=True)
class ResumeWorker:
    """Told only: the lock survived, this worker goes on."""

    host: Host


@dataclasses.dataclass(frozen=True, slots=True)
class Abort:
    """The agent cannot go on; it leaves with this sentence."""

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
