# SPDX-License-Identifier: Apache-2.0
"""The lease: until when an agent may act, computed from its heartbeats.

The deadline is one term, less the margin, after the last counted heartbeat
was *sent*, because the backend starts its own term at some later moment.

A heartbeat counts if it returned within one term of the sending of the
heartbeat before it, and if the member list has this agent. The first
condition is needed because, after a freeze or an outage longer than the
term, tooz's heartbeat succeeds even for locks that another agent holds by
then. The heartbeat thread keeps the lease; all values are frozen. Pure.
"""

import dataclasses
import enum

# The deadline without a lease: nobody may act, although an earlier deadline
# may not have passed yet.
SHUT_NOW_S = 0.0


class Verdict(enum.Enum):
    """Whether a heartbeat counted, or why not."""

    COUNTED = 'counted'
    """The heartbeat extends the lease."""
    LATE = 'it came back later than one term after the one before'
    """Locks may be lost: a new epoch starts with this heartbeat."""
    NOT_LISTED = 'the member list does not show us'
    """This agent is not in the group and must join again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Beat:
    """One heartbeat's times, and whether the member list had this agent."""

    sent_s: float  # When the heartbeat was sent (CLOCK_BOOTTIME).
    returned_s: float  # When the member list had been read.
    is_listed: bool  # The member list has an entry of this boot.


@dataclasses.dataclass(frozen=True, slots=True)
class Lease:
    """The lease's deadline, and its epoch, which counts interruptions.

    Within one epoch no lock of this agent can have been lost because its
    term ended.
    """

    term_s: float
    margin_s: float  # The agent stops acting so long before its term ends.
    base_s: float | None = None  # When the last heartbeat was sent.
    counted: bool = False  # Whether that heartbeat counted.
    epoch: int = 0

    def __post_init__(self) -> None:
        assert 0 < self.margin_s < self.term_s  # noqa: S101 (else a bug)

    @property
    def deadline_s(self) -> float:
        """When this agent must have stopped acting."""
        if not self.counted or self.base_s is None:
            return SHUT_NOW_S
        return self.base_s + self.term_s - self.margin_s

    def held(self, now_s: float) -> bool:
        """Return whether the lease is in force, so that this agent may act."""
        return now_s < self.deadline_s

    def joined(self, sent_s: float) -> 'Lease':
        """Return the lease after a join: a new epoch, and no deadline yet."""
        return dataclasses.replace(
            self, base_s=sent_s, counted=False, epoch=self.epoch + 1
        )

    def after(self, beat: Beat) -> tuple['Lease', Verdict]:
        """Return the lease after a heartbeat, and whether it counted."""
        assert beat.sent_s <= beat.returned_s  # noqa: S101 (else a bug)
        if not beat.is_listed:
            return self._broken(None), Verdict.NOT_LISTED
        base_s = self.base_s
        if base_s is None or beat.returned_s - base_s > self.term_s:
            return self._broken(beat.sent_s), Verdict.LATE
        renewed = dataclasses.replace(self, base_s=beat.sent_s, counted=True)
        return renewed, Verdict.COUNTED

    def _broken(self, base_s: float | None) -> 'Lease':
        return dataclasses.replace(
            self, base_s=base_s, counted=False, epoch=self.epoch + 1
        )

    def grant_counts(self, sent_s: float, returned_s: float) -> bool:
        """Return whether a lock was granted quickly enough to be used.

        The lock's own term starts at some moment after ``sent_s``. A
        heartbeat that was sent during the request did not renew the lock but
        may have moved the deadline, by at most the duration of the request.
        Therefore the duration may be half the margin at most.

        :param sent_s: when the lock request was sent (CLOCK_BOOTTIME)
        :param returned_s: when its result arrived
        """
        return returned_s - sent_s <= self.margin_s / 2
