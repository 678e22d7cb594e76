# SPDX-License-Identifier: Apache-2.0
"""A fake coordination service, and a client of it that implements `Group`.

It has the weaknesses of the real ones, because agents must survive them: the
heartbeat of a client whose entries expired succeeds; a lock whose grant got
lost stays locked until its term ends; some services forget everything when
they restart. It passes the contract tests of the tooz drivers.
"""

import dataclasses
from collections.abc import Callable, Mapping

from hashring import errors
from hashring.group import Boot, LockToken, Member, Traits
from hashring.ring import Host

ETCD = Traits(forgets=False, breaks=True, shared=True)
CACHE = Traits(forgets=True, breaks=False, shared=True)
ZOOKEEPER = Traits(forgets=False, breaks=False, shared=True)


@dataclasses.dataclass(slots=True)
class _Entry:
    member: Member
    ends_s: float


@dataclasses.dataclass(slots=True)
class _Lock:
    token: int
    ends_s: float
    term_s: float


class Service:
    """The server: members and locks that end unless they are renewed.

    :param now_s: the server's own clock.
    :param revives: a heartbeat brings an ended entry back if the members
        were not read meanwhile, as on redis, memcached and file.
    """

    def __init__(
        self,
        now_s: Callable[[], float],
        term_s: float,
        traits: Traits,
        *,
        revives: bool = False,
    ) -> None:
        self.now_s = now_s
        self.term_s = term_s
        self.traits = traits
        self.revives = revives
        self.up = True
        self.other_groups: Mapping[str, tuple[Member, ...]] = {}
        self._entries: dict[Boot, _Entry] = {}
        self._locks: dict[Host, _Lock] = {}
        self._tokens_count = 0

    def forget(self) -> None:
        """Restart with empty memory, as memcached does."""
        self._entries.clear()
        self._locks.clear()

    def check_up(self) -> None:
        if not self.up:
            raise errors.BackendUnavailable('connection refused')

    # ---- members

    def enter(self, member: Member) -> None:
        ends_s = self.now_s() + self._term_s(member)
        self._entries[member.boot] = _Entry(member, ends_s)

    def rewrite(self, member: Member) -> None:
        entry = self._live(member.boot)
        if entry is None:
            raise errors.NotInGroup('member not joined')
        entry.member = member

    def renew(self, boot: Boot) -> None:
        entry = self._live(boot)
        if self.revives:
            entry = self._entries.get(boot)
        if entry is not None:
            entry.ends_s = self.now_s() + self._term_s(entry.member)

    def _term_s(self, member: Member) -> float:
        return member.lease_term_s or self.term_s

    def remove(self, boot: Boot) -> None:
        self._entries.pop(boot, None)

    def members(self) -> tuple[Member, ...]:
        ended = [boot for boot in self._entries if not self._live(boot)]
        for boot in ended:
            del self._entries[boot]
        live = (entry.member for entry in self._entries.values())
        return tuple(sorted(live, key=lambda m: (m.home, m.boot)))

    def _live(self, boot: Boot) -> _Entry | None:
        entry = self._entries.get(boot)
        if entry is None or self.now_s() >= entry.ends_s:
            return None
        return entry

    # ---- locks

    def take(self, host: Host, term_s: float = 0.0) -> int:
        """Return the token of a new acquisition; 0 if the lock is held.

        :param term_s: the client's own term; 0.0: that of the service
        """
        if self._lock(host) is not None:
            return 0
        self._tokens_count += 1
        term_s = term_s or self.term_s
        ends_s = self.now_s() + term_s
        self._locks[host] = _Lock(self._tokens_count, ends_s, term_s)
        return self._tokens_count

    def renew_lock(self, host: Host, token: int) -> None:
        if self.owns(host, token):
            lock = self._locks[host]
            lock.ends_s = self.now_s() + lock.term_s

    def owns(self, host: Host, token: int) -> bool:
        lock = self._lock(host)
        return lock is not None and lock.token == token

    def give_back(self, host: Host, token: int) -> None:
        if self.owns(host, token):
            del self._locks[host]

    def token(self, host: Host) -> int:
        """Return the token of the present holder; 0 if there is none."""
        lock = self._lock(host)
        return lock.token if lock is not None else 0

    def _lock(self, host: Host) -> _Lock | None:
        lock = self._locks.get(host)
        if lock is None or self.now_s() >= lock.ends_s:
            return None
        return lock


def _nothing(where: str) -> None:
    """Cause no fault."""


class FakeGroup:
    """A client of the service; implements `hashring.group.Group`.

    :param fault: called before and after each request with its name; may
        raise, or let the world's time pass.
    """

    def __init__(
        self,
        service: Service,
        boot: Boot,
        fault: Callable[[str], None] = _nothing,
    ) -> None:
        self.traits = service.traits
        self.boot = boot
        self.backend_name = 'etcd3+http://etcd:2379'
        self.keeps_s = service.term_s
        self._service = service
        self._fault = fault
        self._tokens: dict[Host, int] = {}
        self._term_s = 0.0
        self.reconnects_count = 0

    def _reach(self, what: str) -> None:
        self._fault(f'before {what}')
        self._service.check_up()

    def connect(self) -> None:
        self._reach('connect')

    def join(self, me: Member) -> None:
        self._term_s = me.lease_term_s
        self._reach('join')
        self._service.enter(me)
        self._fault('after join')

    def publish(self, me: Member) -> None:
        self._reach('publish')
        self._service.rewrite(me)
        self._fault('after publish')

    def heartbeat(self) -> None:
        self._reach('heartbeat')
        self._service.renew(self.boot)
        for host, token in self._tokens.items():
            self._service.renew_lock(host, token)
        self._fault('after heartbeat')

    def members(self) -> tuple[Member, ...]:
        self._reach('members')
        found = self._service.members()
        self._fault('after members')
        return found

    def other_groups(self) -> Mapping[str, tuple[Member, ...]]:
        self._reach('groups')
        return self._service.other_groups

    def reconnect(self) -> None:
        self.reconnects_count += 1

    def lost_locks(self) -> frozenset[Host]:
        if not self.traits.loses:
            return frozenset()
        self._reach('lost')
        held = list(self._tokens.items())
        return frozenset(h for h, t in held if not self._service.owns(h, t))

    def try_lock(self, host: Host) -> bool:
        self.release(host)
        self._reach('lock')
        token = self._service.take(host, self._term_s)
        self._fault('after lock')
        if token:
            self._tokens[host] = token
        return bool(token)

    def owns_lock(self, host: Host) -> bool:
        if host not in self._tokens:
            return False
        self._reach('prove')
        return self._service.owns(host, self._tokens[host])

    def release(self, host: Host) -> None:
        if host not in self._tokens:
            return
        self._reach('release')
        self._service.give_back(host, self._tokens[host])
        self._fault('after release')
        self._tokens.pop(host, None)

    def token(self, host: Host) -> LockToken | None:
        if host not in self._tokens or not self.traits.breaks:
            return None
        return LockToken(str(self._tokens[host]))

    def break_lock(self, host: Host, token: LockToken) -> None:
        if not self.traits.breaks:
            return
        self._reach('break')
        self._service.give_back(host, int(token))

    def close(self, *, leave: bool, timeout_s: float) -> None:
        if leave and self._service.up:
            self._service.remove(self.boot)
