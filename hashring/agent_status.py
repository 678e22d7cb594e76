# SPDX-License-Identifier: Apache-2.0
"""The status of an agent after one turn of its main loop, for other threads.

The main loop makes an `AgentStatus` at each turn and hands it over; what
follows from it is computed by the thread that reads it. All values are
immutable. The text of a library in it, which is the failure of a heartbeat, is
for the log only, because it may contain a URL with a password.
"""

import dataclasses
from collections.abc import Iterator, Mapping

from hashring.counts import Counts
from hashring.group import Member, MemberState
from hashring.heartbeat import HeartbeatState
from hashring.host_states import HostState, Phase
from hashring.paths import Path
from hashring.ring import Host, Ring
from hashring.workers import ServiceFacts

# Without a turn for so many seconds the main loop counts as stuck. A turn
# takes a fraction of a second, and one in which a worker is killed up to two.
TURN_MAX_S = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class AgentStatus:
    """One agent and its pool, as the agent sees them."""

    turned_at_s: float
    """When the turn ended (CLOCK_BOOTTIME)."""
    me: Member
    """The record that this agent publishes."""
    heartbeat: HeartbeatState
    deadline_s: float
    """When the gates of all workers shut (CLOCK_BOOTTIME); 0.0: they are."""
    hosts: tuple[HostState, ...]
    """Each host that this agent ever tried to serve."""
    opens_s: Mapping[Host, float]
    """Host -> when its gate may open at the earliest (CLOCK_BOOTTIME)."""
    known: frozenset[Host]
    ring: Ring
    agreed_since_s: float | None
    """Since when all members publish this ring (CLOCK_BOOTTIME)."""
    lost_path: Path | None
    """The service because of which the agent is half alive."""
    counts: Counts
    services: Mapping[Host, ServiceFacts] = dataclasses.field(
        default_factory=dict
    )
    """Host -> its Service in Nova, as workers of this agent have read it."""
    unserved_since_s: Mapping[Host, float] = dataclasses.field(
        default_factory=dict
    )
    """Host -> since when no member publishes to serve it (CLOCK_BOOTTIME)."""

    # ---- the agent

    def turns(self, now_s: float) -> bool:
        """Return whether the main loop turned within `TURN_MAX_S`."""
        return now_s - self.turned_at_s <= TURN_MAX_S

    def has_lease(self, now_s: float) -> bool:
        """Return whether the lease of this agent is in force."""
        return self.heartbeat.lease.held(now_s)

    def is_ready(self, now_s: float) -> bool:
        """Return whether the agent serves all hosts that it should."""
        well = self.turns(now_s) and self.has_lease(now_s)
        return well and not self.unserved_here(now_s)

    def heartbeat_age_s(self, now_s: float) -> float | None:
        """Return the age of the last heartbeat that counted, in seconds.

        None if none has counted since the lease was last interrupted.
        """
        lease = self.heartbeat.lease
        if not lease.counted or lease.base_s is None:
            return None
        return now_s - lease.base_s

    # ---- hosts

    def served_here(self, now_s: float) -> frozenset[Host]:
        """Return the hosts that this agent holds and serves."""
        unserved = self.unserved_here(now_s)
        held = (state.host for state in self.hosts if _is_held(state))
        return frozenset(host for host in held if host not in unserved)

    def unserved_here(self, now_s: float) -> dict[Host, str]:
        """Return the hosts that this agent should serve and does not, and why.

        They are the home host, and each host whose lock this agent has.
        """
        reasons = {
            state.host: self._why_unserved(state, now_s)
            for state in self.hosts
            if _is_held(state) or state.host == self.me.home
        }
        return {host: why for host, why in reasons.items() if why is not None}

    def _why_unserved(self, state: HostState, now_s: float) -> str | None:
        if self.lost_path is not None:
            return (
                f'this daemon does not reach {self.lost_path} and has given '
                f'its hosts away'
            )
        if state.phase is not Phase.SERVING:
            return self._why_not_serving(state, now_s)
        if not self.has_lease(now_s):
            return 'the lease is not in force, so its worker changes nothing'
        if now_s >= self.deadline_s:
            return 'its worker waits until all locks are proven to be kept'
        if state.serves_since_s is None:
            return 'its worker is starting'
        opens_s = self.opens_s.get(state.host, 0.0)
        if now_s < opens_s:
            return f'its worker may begin in {opens_s - now_s:.0f} s'
        return None

    def _why_not_serving(self, state: HostState, now_s: float) -> str:
        wait_s = state.restarts_at_s - now_s
        server = self.served_by(state.host)
        if self.me.state is not MemberState.UP:
            return 'this daemon is stopping'
        if state.phase is Phase.STOPPING:
            return 'its worker is stopping'
        if state.phase in (Phase.PAUSED, Phase.PROVING):
            return 'its worker waits until its lock is proven to be kept'
        if state.phase is Phase.RELEASING:
            return 'its worker has ended, and its lock is being released'
        if wait_s > 0:
            return f'its worker has died and starts again in {wait_s:.0f} s'
        if server is not None and server.boot != self.me.boot:
            return f'the daemon of {server.home} serves it'
        return 'this daemon does not have its lock yet'

    def served_by(self, host: Host) -> Member | None:
        """Return a member that publishes that it has the host's lock.

        This agent's own record is newer than the one in the member list.
        """
        for member in self.members():
            if host in member.serving:
                return member
        return None

    def members(self) -> Iterator[Member]:
        """Yield the members of the group; this agent's own record first."""
        yield self.me
        for member in self.heartbeat.view.members:
            if member.boot != self.me.boot:
                yield member

    def gone_homes(self) -> frozenset[Host]:
        """Return the known hosts whose own agent is not in the group.

        Empty before the first member list, which would make all of them gone.
        """
        if not self.heartbeat.view.members:
            return frozenset()
        return self.known - {member.home for member in self.members()}

    def served_by_nobody(self) -> frozenset[Host]:
        """Return the known hosts whose lock no member publishes to have."""
        served = frozenset(h for m in self.members() for h in m.serving)
        return self.known - served

    def unserved_for_s(self, host: Host, now_s: float) -> float:
        """Return for how long no member has published to serve a host.

        0.0 if a member list in which it is not served is still to come.
        """
        return now_s - self.unserved_since_s.get(host, now_s)


def _is_held(state: HostState) -> bool:
    return state.phase not in (Phase.IDLE, Phase.TRYING)
