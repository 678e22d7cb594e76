# SPDX-License-Identifier: Apache-2.0
"""What the rest of the package knows of the coordination backend.

Values that members exchange, and one protocol, `Group`, with two bodies:
`membership.Membership` over tooz, and the fake of the tests. Capabilities
turn into a `Member` here and nowhere else; behind this line nobody reads
a dict.
"""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, NewType, Protocol

from hashring import errors
from hashring.ring import Host

Boot = NewType('Boot', str)
# One acquisition of one lock, as the backend itself calls it.
LockToken = NewType('LockToken', str)


class MemberState(enum.Enum):
    """What a member says about itself."""

    UP = 'up'
    """Serves its home host, or is about to."""
    RESTARTING = 'restarting'
    """Stops, and means to be back within `grace_s`."""
    LEAVING = 'leaving'
    """Stops for longer: its hosts may be adopted at once."""


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """One agent in the group, as it described itself.

    No instant is among the fields: members do not share a clock. `grace_s`
    is a duration that each observer counts from its own first sight.
    """

    home: Host
    boot: Boot
    machine: str = ''
    state: MemberState = MemberState.UP
    grace_s: float = 0.0
    serving: tuple[Host, ...] = ()
    wants_home: bool = True
    ring: str = ''
    known: tuple[Host, ...] = ()
    version: str = ''
    confirmed_mappings: tuple[Host, ...] = ()

    def capabilities(self) -> dict[str, Any]:
        """This member as plain JSON values, for the backend."""
        return {
            'home': self.home,
            'boot': self.boot,
            'machine': self.machine,
            'state': self.state.value,
            'grace_s': self.grace_s,
            'serving': list(self.serving),
            'wants_home': self.wants_home,
            'ring': self.ring,
            'known': list(self.known),
            'version': self.version,
            'vouched': list(self.confirmed_mappings),
        }

    @classmethod
    def parse(cls, raw: Mapping[str, Any] | None) -> 'Member':
        """Read what another member published.

        :raises MalformedMember: when the record is not one of ours.
        """
        try:
            return cls._read({} if raw is None else raw)
        except (KeyError, TypeError, ValueError) as exc:
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
            # An older peer, during an upgrade, has no such field.
            confirmed_mappings=_hosts(raw.get('vouched', ())),
        )


def _hosts(raw: Any) -> tuple[Host, ...]:
    if not isinstance(raw, (list, tuple)):
        raise TypeError(f'expected a list of hosts, got {raw!r}')
    return tuple(Host(str(host)) for host in raw)


@dataclasses.dataclass(frozen=True, slots=True)
class Traits:
    """What a backend promises, as far as the protocol cares."""

    forgets: bool
    """A restart or a failover can lose a lock while its term still runs."""
    breaks: bool
    """An acquisition has a token, by which it can be freed, and no other."""
    shared: bool
    """Members on several machines can use it."""

    @property
    def loses(self) -> bool:
        """A lock can go before its term does: forgotten, or freed."""
        return self.forgets or self.breaks


class Group(Protocol):
    """A connection to the group of one pool.

    Methods may block for seconds and raise `BackendUnavailable`. Those of
    the first block are called by the heartbeat thread alone, those of the
    second by the lock thread alone; no other thread calls either.
    """

    traits: Traits
    boot: Boot

    def connect(self) -> None:
        """Reach the backend; once it returned, it is not called again."""
        ...

    def join(self, me: Member) -> None:
        """Enter the group, also when a trace of us is still there."""
        ...

    def publish(self, me: Member) -> None:
        """Replace what the others see of us."""
        ...

    def heartbeat(self) -> None:
        """Renew our membership and each lock we hold."""
        ...

    def members(self) -> tuple[Member, ...]:
        """Everybody in the group now, us included if we are in it."""
        ...

    def neighbours(self) -> tuple[str, ...]:
        """The names of other groups that somebody else is up in."""
        ...

    def lost(self) -> frozenset[Host]:
        """Hosts whose lock the backend no longer has as ours.

        Only asked where it can go before its term does: forgotten, or freed
        by its token or by hand; others say nothing.
        """
        ...

    def try_lock(self, host: Host) -> bool:
        """Try once; True when the lock is ours."""
        ...

    def still_ours(self, host: Host) -> bool:
        """Whether the acquisition `try_lock` made survived until now.

        False means 'not proven'.
        """
        ...

    def release(self, host: Host) -> None:
        """Free the lock if it is ours, and forget it either way."""
        ...

    def token(self, host: Host) -> LockToken | None:
        """What names the acquisition `try_lock` made, to `break_lock`.

        None without one, and where the backend has none.
        """
        ...

    def break_lock(self, host: Host, token: LockToken) -> None:
        """Free a lock whose holder is known to be dead.

        This very acquisition is freed or nothing, however late it comes.
        """
        ...

    def close(self, *, leave: bool, timeout_s: float) -> None:
        """End the connection; with `leave`, vanish from the group.

        Callable from any thread once the two others have ended. Returns
        after `timeout_s` at the latest, whatever the backend does.
        """
        ...
