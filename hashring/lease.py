# SPDX-License-Identifier: Apache-2.0
"""An agent's right to act: arithmetic on its own clock, nothing else.

The deadline is counted from *before* the last counted heartbeat was sent,
because the backend counts its term from some moment after that.

A heartbeat counts only if it came back within one term of the sending of
the one before it, and the member list shows us. After a freeze or an
outage longer than the term, tooz's drivers say "heartbeat ok" for locks
that somebody else holds by now; only the gap tells.
"""

import dataclasses
import enum


class Verdict(enum.Enum):
    """What a heartbeat was worth."""

    COUNTED = 'counted'
    """The lease goes on."""
    LATE = 'it came back later than one term after the one before'
    """Locks may have changed hands: a new epoch starts with this beat."""
    UNSEEN = 'the member list does not show us'
    """We are not in the group: join again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Beat:
    """One heartbeat that came back."""

    sent_s: float  # Read before it was sent.
    returned_s: float  # Read after the member list came back.
    shown: bool  # The list has us, with our boot.


@dataclasses.dataclass(frozen=True, slots=True)
class Lease:
    """How long we may act, and under which unbroken run of heartbeats.

    Between two values of the same `epoch` no lock of ours can have been
    lost by time alone.
    """

    term_s: float
    margin_s: float  # We stop this early, so that a peer may start on time.
    base_s: float | None = None  # Sending of the last beat of this run.
    counted: bool = False  # base_s is a counted heartbeat.
    epoch: int = 0

    def __post_init__(self) -> None:
        assert 0 < self.margin_s < self.term_s  # noqa: S101 (our own mistake)

    @property
    def deadline_s(self) -> float:
        """When we must have stopped; 0.0 without a lease."""
        if not self.counted or self.base_s is None:
            return 0.0
        return self.base_s + self.term_s - self.margin_s

    def held(self, now_s: float) -> bool:
        return now_s < self.deadline_s

    def joined(self, sent_s: float) -> 'Lease':
        """We entered the group: a new epoch, and no right to act yet."""
        return dataclasses.replace(
            self, base_s=sent_s, counted=False, epoch=self.epoch + 1
        )

    def after(self, beat: Beat) -> tuple['Lease', Verdict]:
        """The lease after this heartbeat, and what it was worth."""
        assert beat.sent_s <= beat.returned_s  # noqa: S101 (our own mistake)
        if not beat.shown:
            return self._broken(None), Verdict.UNSEEN
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
        """Whether a lock granted between these instants may be used.

        The lock's own term runs from some moment after `sent_s`. A
        heartbeat sent while the request was under way did not renew it,
        yet may have moved the deadline by as much as the request took.
        Half the margin is what we let that eat.
        """
        return returned_s - sent_s <= self.margin_s / 2
