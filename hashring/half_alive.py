# SPDX-License-Identifier: Apache-2.0
"""Half alive: an agent that cannot serve lets those serve that can.

The lease proves that an agent reaches the coordination backend. It says
nothing of the services that workers need, and one controller can lose one of
them alone. An agent is half alive if a path has failed here for a while, and
an agent that fails on fewer paths proves that this one works. If nobody can
prove it, nobody moves: that is an outage.

It comes back when the paths have worked for a while, which is longer after
each relapse, or when no other agent is left that serves as well. Pure.
"""

import dataclasses
import math

import attrs

from hashring import backoff
from hashring.adoption import View
from hashring.group import Boot, Member, MemberState, PathProof
from hashring.paths import Path, PathState, PathStates, failing, working
from hashring.ring import Host

# At the end of an outage for all, this agent may notice so many seconds later
# than others that the service answers again.
_PROVEN_FOR_S = 10.0
# A member list that was requested so many seconds after a proof was read must
# still have it; a list that is older may have a proof that is withdrawn.
_LISTED_FOR_S = 5.0
# The proofs of others have come so many seconds after a failure, if any come.
_PROOF_AWAITED_S = 30.0
# All paths must have worked so many times ``half_alive_s`` before the
# agent comes back; this doubles with each relapse within an hour.
_RETURN_FACTOR = 3
_RETURN_MAX_S = 1800.0
_RELAPSE_S = 3600.0


@dataclasses.dataclass(frozen=True, slots=True)
class Cause:
    """Why an agent is half alive."""

    path: Path
    since_s: float
    """Since when the path has failed (CLOCK_BOOTTIME)."""
    why: str
    """What the last request ended with."""
    peer: Host
    """The home host of an agent for which the path works."""


@attrs.define(eq=False, repr=False, slots=False)
class HalfAliveWatch:
    """Decides whether this agent is half alive; the main thread calls it.

    :param boot: the boot of this agent
    :param after_s: seconds for which a path must have failed; 0: the agent is
        never half alive
    """

    _boot: Boot
    _after_s: float

    def __attrs_post_init__(self) -> None:
        self.cause: Cause | None = None
        # When the agent became half alive, within the last hour.
        self._began_s: list[float] = []
        # Failing path -> since when.
        self._failing_since_s: dict[Path, float] = {}
        # When the newest member list was requested.
        self._requested_at_s = -math.inf
        # The present failures that the newest list has, and those of them
        # that an earlier list had, too.
        self._listed: frozenset[Path] = frozenset()
        self._listed_before: frozenset[Path] = frozenset()
        # Proof of an earlier failure, by its publisher -> until when it may
        # not have been withdrawn because its publisher is not connected.
        self._old_proofs: dict[tuple[Boot, Path], float] = {}
        # Failing path -> since when another agent has proven that it works.
        self._proven_since_s: dict[Path, float] = {}
        self._works_since_s: float | None = None
        self._needed_since_s: float | None = None

    @property
    def is_half_alive(self) -> bool:
        """Whether this agent must let other agents serve all hosts."""
        return self.cause is not None

    @property
    def return_wait_s(self) -> float:
        """Seconds for which all paths must work before the agent is back."""
        relapses_count = max(0, len(self._began_s) - 1)
        return backoff.wait_s(
            _RETURN_FACTOR * self._after_s, relapses_count, _RETURN_MAX_S
        )

    def update(
        self,
        states: PathStates,
        view: View,
        now_s: float,
        requested_at_s: float,
    ) -> None:
        """Decide anew.

        :param states: the paths of this agent
        :param view: the newest member list, read under a lease
        :param requested_at_s: when that list was requested
        """
        self._note_failures(states, now_s)
        self._note_listed_failures(view, requested_at_s)
        self._note_old_proofs(view, now_s)
        if self.cause is None:
            self.cause = self._find_cause(states, view, now_s)
            if self.cause is not None:
                self._begin(now_s)
        elif self._may_return(self.cause, states, view, now_s):
            self.cause = None

    def note_without_lease(self, states: PathStates, now_s: float) -> None:
        """Note a path that fails while nothing can be decided."""
        if self.cause and not _works_here(self.cause, states, now_s):
            self._works_since_s = None

    def _begin(self, now_s: float) -> None:
        recent = [at_s for at_s in self._began_s if now_s - at_s < _RELAPSE_S]
        self._began_s = [*recent, now_s]
        self._works_since_s = self._needed_since_s = None
        self._proven_since_s = {}

    def _note_failures(self, states: PathStates, now_s: float) -> None:
        """Note which paths fail; one that has failed anew needs a new proof.

        This agent may have published the former failure all the time, because
        its main loop stood still meanwhile.
        """
        former = self._failing_since_s
        self._failing_since_s = {
            path: states[path].failing_since_s or 0.0
            for path in failing(states, now_s)
        }
        anew = {
            path
            for path, since_s in self._failing_since_s.items()
            if since_s > former.get(path, since_s)
            and (states[path].answered_s or 0.0) > former[path]
        }
        self._listed -= anew
        self._old_proofs = {
            (boot, path): until_s
            for (boot, path), until_s in self._old_proofs.items()
            if path not in anew
        }

    def _note_listed_failures(self, view: View, requested_at_s: float) -> None:
        """Note which failures other agents can read in the newest list."""
        if requested_at_s > self._requested_at_s:
            if requested_at_s - self._requested_at_s > _PROVEN_FOR_S:
                # Without a lease, nothing is judged. Others may have had none
                # either: the list may have what they would have withdrawn.
                self._proven_since_s = {}
                self._needed_since_s = None
            self._requested_at_s = requested_at_s
            self._listed_before = self._listed
            self._listed = self._list_published_paths(view)
        self._listed &= frozenset(self._failing_since_s)
        self._listed_before &= self._listed

    def _note_old_proofs(self, view: View, now_s: float) -> None:
        """Note the proofs that were there before their failure was published.

        Nobody can have proven anything about such a failure. The proof of an
        earlier one may be listed even after the path has begun to fail again,
        if its publisher's request was slow, and this agent may have read no
        list in between; so a proof in the first list that has the failure is
        an old one, too. An agent that is listed for two terms more has read
        the newer record, and would have withdrawn it: it leaves the group one
        term after it has lost the backend, and two after its main loop has
        stood still.
        """
        former, self._old_proofs = self._old_proofs, {}
        for member in view.members:
            for proof in member.path_proofs:
                if proof.boot != self._boot:
                    continue
                key, until_s = (member.boot, proof.path), now_s
                if proof.path not in self._listed_before:
                    until_s += 2 * member.lease_term_s
                if proof.path in self._listed:
                    until_s = former.get(key, until_s)
                self._old_proofs[key] = until_s

    def _list_published_paths(self, view: View) -> frozenset[Path]:
        """Return the paths that fail here as other agents can read it."""
        return frozenset(
            path
            for member in view.members
            if member.boot == self._boot
            for path in member.failing_paths
        )

    def _find_cause(
        self, states: PathStates, view: View, now_s: float
    ) -> Cause | None:
        if not (self._after_s and self._failing_since_s):
            self._proven_since_s = {}
            return None
        provers = self._find_provers(states, view, now_s)
        self._proven_since_s = {
            path: self._proven_since_s.get(path, now_s) for path in provers
        }
        for path in failing(states, now_s, self._after_s):
            since_s, state = self._proven_since_s.get(path), states[path]
            is_proven = _has_lasted(
                since_s, _PROVEN_FOR_S, now_s
            ) and _has_lasted(since_s, _LISTED_FOR_S, self._requested_at_s)
            if is_proven and _has_failed_since(since_s, state):
                failing_since_s = state.failing_since_s or now_s
                return Cause(path, failing_since_s, state.why, provers[path])
        return None

    def _find_provers(
        self, states: PathStates, view: View, now_s: float
    ) -> dict[Path, Host]:
        """Return for each failing path the home of an agent better off.

        It fails on fewer paths, and proves that this one works.
        """
        paths = failing(states, now_s)
        return {
            path: member.home
            for path in paths
            for member in self._others(view)
            if PathProof(path, self._boot) in member.path_proofs
            and self._old_proofs.get((member.boot, path), now_s) <= now_s
            and len(member.failing_paths) < len(paths)
        }

    def _others(self, view: View) -> list[Member]:
        """Return the members that serve, other than this agent."""
        return [
            member
            for member in view.up()
            if member.boot != self._boot and not member.is_half_alive
        ]

    def _may_return(
        self, cause: Cause, states: PathStates, view: View, now_s: float
    ) -> bool:
        works = _works_here(cause, states, now_s) and not self._find_provers(
            states, view, now_s
        )
        self._works_since_s = _since(works, self._works_since_s, now_s)
        is_needed = not any(
            self._serves_as_well(member, cause, states, now_s)
            for member in view.members
        )
        self._needed_since_s = _since(is_needed, self._needed_since_s, now_s)
        return _has_lasted(
            self._works_since_s, self.return_wait_s, now_s
        ) or _has_lasted(self._needed_since_s, self._after_s, now_s)

    def _serves_as_well(
        self, member: Member, cause: Cause, states: PathStates, now_s: float
    ) -> bool:
        """Return whether another agent serves no worse than this one would.

        An agent that restarts will serve again; a member may be missing in
        one list. An agent whose workers keep dying serves no host.
        """
        if member.boot == self._boot or member.is_half_alive:
            return False
        if member.state is MemberState.LEAVING:
            return False
        if not (member.wants_home or member.working_paths):
            return False
        # Without a report of the path that has failed, nothing is known.
        is_known = cause.path in states
        failing_count = len(failing(states, now_s))
        return not (is_known and len(member.failing_paths) > failing_count)


def _works_here(cause: Cause, states: PathStates, now_s: float) -> bool:
    """Return whether no path fails here that may work for others.

    A path that fails for all, such as one with a wrong password in all
    configurations, must not keep this agent away for ever.
    """
    lasting = failing(states, now_s, _PROOF_AWAITED_S)
    fails_anew = set(failing(states, now_s)) - set(lasting)
    return cause.path in working(states) and not fails_anew


def _since(holds: bool, since_s: float | None, now_s: float) -> float | None:
    if not holds:
        return None
    return now_s if since_s is None else since_s


def _has_failed_since(since_s: float | None, state: PathState) -> bool:
    """Return whether a request has failed that was sent after ``since_s``.

    A path counts as failing for some time after its last failure, so that a
    few answers do not hide that most requests fail. If all failures are older
    than the proof that the path works for another agent, it may work here,
    too.
    """
    if since_s is None or state.failed_s is None:
        return True  # A worker of an older release does not send the time.
    return state.failed_s > since_s


def _has_lasted(since_s: float | None, wait_s: float, now_s: float) -> bool:
    return since_s is not None and now_s - since_s >= wait_s
