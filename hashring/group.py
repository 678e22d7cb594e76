# SPDX-License-Identifier: Apache-2.0
"""Group membership and host locks: the interface to the coordination backend.

`Group` is the protocol; `membership.Membership` implements it with tooz, and
the tests have a fake. `Member` is the record that each agent publishes; only
this module converts it to and from the dict that tooz calls capabilities.
"""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, NewType, Protocol

from hashring import errors
from hashring.paths import Path
from hashring.ring import Host

# The random id of one agent process.
Boot = NewType('Boot', str)
# The backend's name of one acquisition of one lock.
LockToken = NewType('LockToken', str)
# Host -> how often an operator has forgotten it or added it again: it is
# forgotten if the number is odd. Of two numbers the higher one is newer. Only
# hosts that were ever forgotten have one; sorted.
Marks = tuple[tuple[Host, int], ...]


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class PathProof:
    """Proof that a path works that fails for the agent with this boot.

    Its publisher had an answer after it had read of the failure. An earlier
    answer proves nothing: the service may have gone for all meanwhile.
    """

    path: Path
    boot: Boot


class MemberState(enum.Enum):
    """The state that an agent publishes: up, restarting or leaving."""

    UP = 'up'
    """The agent serves its home host, or soon will."""
    RESTARTING = 'restarting'
    """The agent stops and will be back within `grace_s`."""
    LEAVING = 'leaving'
    """The agent stops for longer: its host may be adopted at once."""


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """The record of one agent in the group, as the agent published it.

    No field is an instant, because machines do not share a clock. `grace_s`
    is a duration; each reader counts it from the moment at which it first
    reads the record.
    """

    home: Host
    boot: Boot
    machine: str = ''
    state: MemberState = MemberState.UP
    grace_s: float = 0.0
    serving: tuple[Host, ...] = ()
    """The hosts whose lock this agent has."""
    with_servers: tuple[Host, ...] = ()
    """Those of them that have servers."""
    wants_home: bool = True
    """False while the worker of the home host keeps dying on this machine."""
    ring: str = ''
    """The digest of this agent's ring."""
    known: tuple[Host, ...] = ()
    """Known hosts that fewer than two other agents publish, see `pool`."""
    version: str = ''
    page: str = ''
    """The URL of the agent's port; '' if other machines cannot reach it."""
    confirmed_mappings: tuple[Host, ...] = ()
    """Of the hosts that an operator has confirmed to be mapped to a cell,
    those that fewer than two other agents publish."""
    marks: Marks | None = None
    """Hosts that an operator has forgotten or added again; None if an older
    release published this, which cannot forget a host."""
    lease_term_s: float = 0.0
    """The agent's `lease_term_s`; 0.0 if an older release published this."""
    seen_term_s: float = 0.0
    """The longest `lease_term_s` that the agent has read lately, its own one
    included; 0.0 if an older release published this."""
    working_paths: tuple[Path, ...] = ()
    """The services that the agent's workers reach."""
    failing_paths: tuple[Path, ...] = ()
    """The services that none of the agent's workers has reached lately."""
    path_proofs: tuple[PathProof, ...] = ()
    is_half_alive: bool = False
    """The agent serves no host, because it cannot and another agent can."""
    is_admitted: bool = False
    """The agent has found no other pool that has nodes of its own one; agents
    that start later end if theirs has."""

    def capabilities(self) -> dict[str, Any]:
        """Return this member as plain JSON values, for the backend."""
        return {
            'home': self.home,
            'boot': self.boot,
            'machine': self.machine,
            'state': self.state.value,
            'grace_s': self.grace_s,
            'serving': list(self.serving),
            'with_servers': list(self.with_servers),
            'wants_home': self.wants_home,
            'ring': self.ring,
            'known': list(self.known),
            'version': self.version,
            'page': self.page,
            'vouched': list(self.confirmed_mappings),
            'lease_term_s': self.lease_term_s,
            'seen_term_s': self.seen_term_s,
            'working_paths': list(self.working_paths),
            'failing_paths': list(self.failing_paths),
            'path_proofs': [[p.path, p.boot] for p in self.path_proofs],
            'half_alive': self.is_half_alive,
            'admitted': self.is_admitted,
            **({} if self.marks is None else {'marks': dict(self.marks)}),
        }

    @classmethod
    def parse(cls, raw: Mapping[str, Any] | None) -> 'Member':
        """Return the member that another agent published.

        :raises MalformedMember: no agent of this project published the record.
        """
        try:
            return cls._read({} if raw is None else raw)
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            raise errors.MalformedMember(f'{raw!r}: {exc!r}') from exc

    @classmethod
    def _read(cls, raw: Mapping[str, Any]) -> 'Member':
        return cls(
            home=Host(str(raw['home'])),
            boot=Boot(str(raw['boot'])),
            machine=str(raw['machine']),
            state=MemberState(raw['state']),
            grace_s=float(raw['grace_s']),
            serving=_hosts(raw['serving']),
            wants_home=bool(raw['wants_home']),
            ring=str(raw['ring']),
            known=_hosts(raw['known']),
            version=str(raw['version']),
            # An agent of an older release does not publish these fields.
            page=str(raw.get('page', '')),
            with_servers=_hosts(raw.get('with_servers', ())),
            confirmed_mappings=_hosts(raw.get('vouched', ())),
            lease_term_s=float(raw.get('lease_term_s', 0.0)),
            seen_term_s=float(raw.get('seen_term_s', 0.0)),
            working_paths=_paths(raw.get('working_paths', ())),
            failing_paths=_paths(raw.get('failing_paths', ())),
            path_proofs=_path_proofs(raw.get('path_proofs', ())),
            is_half_alive=bool(raw.get('half_alive', False)),
            is_admitted=bool(raw.get('admitted', True)),
            marks=parse_marks(raw['marks']) if 'marks' in raw else None,
        )


def parse_marks(raw: Mapping[str, Any]) -> Marks:
    """Return marks that were published or saved as a dict.

    :raises AttributeError, TypeError, ValueError: it is no dict of numbers
    """
    return tuple(sorted((Host(h), int(mark)) for h, mark in raw.items()))


def _hosts(raw: Any) -> tuple[Host, ...]:
    return tuple(Host(name) for name in _names(raw))


def _paths(raw: Any) -> tuple[Path, ...]:
    return tuple(Path(name) for name in _names(raw))


def _path_proofs(raw: Any) -> tuple[PathProof, ...]:
    return tuple(PathProof(Path(str(p)), Boot(str(b))) for p, b in raw)


def _names(raw: Any) -> list[str]:
    if not isinstance(raw, (list, tuple)):
        raise TypeError(f'expected a list of names, got {raw!r}')
    return [str(name) for name in raw]


@dataclasses.dataclass(frozen=True, slots=True)
class Traits:
    """The guarantees of one kind of backend about locks and members."""

    forgets: bool
    """A restart or a failover of the server can lose a lock early."""
    breaks: bool
    """Each acquisition has a token, and can be released by its token."""
    shared: bool
    """Agents on several machines can share the backend."""

    @property
    def loses(self) -> bool:
        """Whether a lock can be lost before its term ends."""
        return self.forgets or self.breaks


class Group(Protocol):
    """A connection to the group of one pool, and to the locks of all hosts.

    Every method may block for seconds and may raise `BackendUnavailable`. Only
    the heartbeat thread calls the methods from `connect` to `lost_locks`; only
    the lock thread calls those from `try_lock` to `break_lock`.
    """

    traits: Traits
    boot: Boot
    backend_name: str
    """Scheme and servers of the backend, without credentials."""
    keeps_s: float
    """For how many seconds the backend keeps entries of a dead member."""

    def connect(self) -> None:
        """Connect to the backend; called until it has succeeded once."""

    def join(self, me: Member) -> None:
        """Enter the group, even if an old entry of this agent is in it."""

    def publish(self, me: Member) -> None:
        """Replace the published record of this agent."""

    def heartbeat(self) -> None:
        """Renew the membership of this agent and every lock it holds."""

    def members(self) -> tuple[Member, ...]:
        """Read the members of the group, this agent included."""

    def other_groups(self) -> Mapping[str, tuple[Member, ...]]:
        """Read the members of other groups that are up, by the group's name.

        Those of this home host are left out unless they serve it, and groups
        without others.
        """

    def reconnect(self) -> None:
        """Have the next request open a new connection; never blocks.

        An open one may work while most new ones are reset. Does nothing on
        backends on which all requests share one connection.
        """

    def lost_locks(self) -> frozenset[Host]:
        """Read the hosts whose lock this agent has lost.

        Always empty on backends on which a lock cannot be lost before its
        term ends (`Traits.loses`).
        """

    def try_lock(self, host: Host) -> bool:
        """Request the lock once; return whether it was granted."""

    def owns_lock(self, host: Host) -> bool:
        """Read whether this agent has kept the lock since `try_lock`.

        False means that the backend cannot prove it.
        """

    def release(self, host: Host) -> None:
        """Release the lock if this agent has it."""

    def token(self, host: Host) -> LockToken | None:
        """Return the token of the lock, for `break_lock`; never blocks.

        None without a lock, and on backends without tokens.
        """

    def break_lock(self, host: Host, token: LockToken) -> None:
        """Release the lock with this token; its holder must be dead.

        Does nothing if the lock has another token by now.
        """

    def close(self, *, leave: bool, timeout_s: float) -> None:
        """Close the connection; with ``leave``, leave the group first.

        Any thread may call it once the heartbeat and lock threads have
        ended. Returns after ``timeout_s`` seconds at the latest.
        """
