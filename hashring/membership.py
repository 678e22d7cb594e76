# SPDX-License-Identifier: Apache-2.0
"""Group membership and host locks over tooz: `Group` for real backends.

This module, with the adapters of `_ADAPTERS`, is the only user of tooz's
coordination drivers. The heartbeat thread and the lock thread call it at the
same time; each method belongs to one of them (see `Group`).

A member id is the home host and the boot, so that two processes never
overwrite each other's entry. The name of a lock is the host's name alone, so
that a host is served once even if groups are misconfigured. tooz's own
heartbeat thread is not used, because it only logs failures, while this agent
must count them.

Everything that a driver raises becomes `BackendUnavailable`, because drivers
let foreign exceptions through, e.g. etcd3gw those of its HTTP library.
"""

import contextlib
import os
import tempfile
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from oslo_log import log as logging
from tooz import coordination, locking

from hashring import backend as backends
from hashring import errors, failures, zookeeper
from hashring.adapter import Adapter
from hashring.etcd import EtcdAdapter
from hashring.folder import FolderAdapter
from hashring.group import Boot, LockToken, Member, MemberState
from hashring.memcached import MemcachedAdapter
from hashring.meter import BackendMeter, NoMeter
from hashring.redis import RedisAdapter
from hashring.ring import Host
from hashring.zookeeper import ZooKeeperAdapter

LOG = logging.getLogger(__name__)

_ADAPTERS: Mapping[str, type[Adapter]] = {
    'etcd3+http': EtcdAdapter,
    'etcd3+https': EtcdAdapter,
    'file': FolderAdapter,
    'memcached': MemcachedAdapter,
    'redis': RedisAdapter,
    'zookeeper': ZooKeeperAdapter,
    'kazoo': ZooKeeperAdapter,
}

# Options of drivers that a URL cannot have.
_DRIVER_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    'zookeeper': zookeeper.DRIVER_OPTIONS,
    'kazoo': zookeeper.DRIVER_OPTIONS,
}

_LOCK_PREFIX = 'ironic-compute/host/'
_GROUP_PREFIX = 'ironic-compute.'

# Options of tooz's drivers that name files.
_FILE_OPTIONS = frozenset(
    {
        *('ca_cert', 'cert_cert', 'cert_key'),
        *('ssl_ca_certs', 'ssl_certfile', 'ssl_keyfile'),
        *('ca', 'certfile', 'keyfile', 'ssl_cert', 'ssl_key'),
    }
)


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    """Translate each error of a tooz driver into an error of hashring."""
    try:
        yield
    except errors.HashringError:
        raise
    except (coordination.MemberNotJoined, coordination.GroupNotCreated) as e:
        raise errors.NotInGroup(f'{what}: {e}') from e
    # Drivers let foreign exceptions of any class through.
    except Exception as e:
        why = f'{what}: {failures.reason(e)}'
        if failures.is_refusal(e):
            raise errors.RequestRefused(why) from e
        raise errors.BackendUnavailable(why) from e


def _quoted(name: str) -> str:
    """Quote a name, so that every driver accepts it."""
    return urllib.parse.quote(name, safe='')


def group_id(group: str) -> bytes:
    """Return the backend's name of a group; ``group`` may be any text."""
    return (_GROUP_PREFIX + _quoted(group)).encode('ascii')


def group_name(group: bytes | str) -> str | None:
    """Reverse :func:`group_id`; None if it is no group of agents."""
    name = group.decode() if isinstance(group, bytes) else group
    # In etcd, tooz lists each member of a group as a group, too.
    if not name.startswith(_GROUP_PREFIX) or '/' in name:
        return None
    return urllib.parse.unquote(name.removeprefix(_GROUP_PREFIX))


def lock_id(host: Host) -> bytes:
    """Return the backend's name of the lock of a host."""
    return (_LOCK_PREFIX + _quoted(host)).encode('ascii')


def new_boot() -> Boot:
    """Return the random id of one agent process."""
    return Boot(os.urandom(8).hex())


class Membership:
    """`hashring.group.Group` over a tooz driver.

    :param url: `[coordination] backend_url`.
    :param group: the name of the group; any text.
    :param term_s: the lease term in seconds; the backend's terms follow it.
    :param meter: measures each request.
    :raises BackendRefused: the URL cannot be used. A backend that is down
        makes only `connect` fail.
    """

    def __init__(
        self,
        url: str,
        group: str,
        home: Host,
        boot: Boot,
        *,
        term_s: float,
        meter: BackendMeter | None = None,
    ) -> None:
        self._meter = meter or NoMeter()
        self.backend = backends.parse(url, term_s=term_s)
        self.traits = self.backend.traits
        self.backend_name = self.backend.shown
        self.keeps_s = self.backend.keeps_s
        self._home = home
        self._group = group_id(group)
        self.boot = boot
        self._locks: dict[Host, locking.Lock] = {}
        # What this agent has published last.
        self._record: Mapping[str, Any] | None = None
        self._malformed: set[bytes | str] = set()
        if self.backend.path:
            _check_folder(self.backend.path)
        _check_files(self.backend.url)
        self._driver = _load(self.backend, f'{_quoted(home)}:{boot}')
        make = _ADAPTERS.get(self.backend.scheme, Adapter)
        self._adapter = make(self._driver, self.backend)

    @contextlib.contextmanager
    def _request(self, what: str, of: str = '') -> Iterator[None]:
        """Measure a request, and translate each error of the driver.

        :param what: the request, as it is measured
        :param of: the host of the lock that the request is about
        """
        about = f'{what} of {of}' if of else what
        with (
            self._adapter.request(),
            self._meter.time(what),
            _translated(about),
        ):
            yield

    # ---- for the heartbeat thread

    def connect(self) -> None:
        # Each server once, because an operator's tool tries only once.
        for _ in self._adapter.other_servers:
            with contextlib.suppress(errors.BackendUnavailable):
                self._connect()
        self._connect()

    def _connect(self) -> None:
        if self._driver.is_started:
            return
        with self._request('connect'):
            self._driver.start(start_heart=False)

    def join(self, me: Member) -> None:
        with self._request('join'):
            if self._record is None:
                self._restore_group()
            self._adapter.prepare_join()
            with contextlib.suppress(
                coordination.MemberNotJoined, coordination.GroupNotCreated
            ):
                self._driver.leave_group(self._group).get()
            self._driver.join_group_create(self._group, me.capabilities())
        self._record = me.capabilities()

    def _restore_group(self) -> None:
        """Write the file with the group's name anew, in a file backend.

        It may be empty after a loss of power. Then nobody can list the groups,
        although the group itself can be used.
        """
        if self.backend.path:
            with contextlib.suppress(coordination.GroupAlreadyExist):
                self._driver.create_group(self._group).get()

    def publish(self, me: Member) -> None:
        with self._request('publish'):
            self._adapter.publish(self._group, me.capabilities())
        self._record = me.capabilities()

    def heartbeat(self) -> None:
        with self._request('heartbeat'):
            self._adapter.heartbeat(self._group, self._record)

    def members(self) -> tuple[Member, ...]:
        with self._request('members'):
            raw = _read_members(self._driver, self._group)
        return self._parsed(raw)

    def other_groups(self) -> dict[str, tuple[Member, ...]]:
        mine = group_name(self._group)
        others = {
            name: tuple(filter(self._is_other, members))
            for name, members in sorted(self.pools().items())
            if name != mine
        }
        return {name: members for name, members in others.items() if members}

    def _is_other(self, member: Member) -> bool:
        """Return whether a member is no former process of this agent."""
        is_ours = member.home == self._home
        is_former = is_ours and self._home not in member.serving
        return member.state is MemberState.UP and not is_former

    def pools(self) -> dict[str, tuple[Member, ...]]:
        """Read the members of every group of agents on this backend."""
        with self._request('groups'):
            groups = self._driver.get_groups().get()
        named = {group_name(group): group for group in groups}
        return {
            name: self._members_of(group)
            for name, group in named.items()
            if name is not None
        }

    def _members_of(self, group: bytes) -> tuple[Member, ...]:
        with self._request('members of a group'):
            try:
                raw = _read_members(self._driver, group)
            except coordination.GroupNotCreated:
                return ()  # The group was deleted after the list was read.
        return self._parsed(raw)

    def reconnect(self) -> None:
        self._adapter.reconnect()

    def lost_locks(self) -> frozenset[Host]:
        if not self.traits.loses:
            return frozenset()
        # A copy, because the lock thread may add a lock meanwhile.
        held = list(self._locks.items())
        with self._request('read the locks'):
            return frozenset(
                host
                for host, lock in held
                if not self._adapter.owns(lock)
                and self._locks.get(host) is lock
            )

    # ---- for the lock thread

    def try_lock(self, host: Host) -> bool:
        # If an earlier release failed, this agent still has the lock and its
        # own new request would be refused.
        self.release(host)
        with self._request('lock', host):
            # Each request has a new lock object, because the object's token
            # names one acquisition.
            lock = self._adapter.new_lock(lock_id(host))
            if not self._acquired(lock):
                return False
        self._locks[host] = lock
        return True

    def _acquired(self, lock: locking.Lock) -> bool:
        """Request the lock once; return whether it was granted."""
        acquired = False
        try:
            acquired = bool(lock.acquire(blocking=False))
        finally:
            if not acquired:
                self._adapter.note_refused(lock)
        return acquired

    def owns_lock(self, host: Host) -> bool:
        lock = self._locks.get(host)
        if lock is None:
            return False
        with self._request('read the lock', host):
            return self._adapter.owns(lock)

    def release(self, host: Host) -> None:
        lock = self._locks.get(host)
        if lock is None:
            return
        with self._request('release', host):
            lock.release()
        self._locks.pop(host, None)
        self._adapter.note_released(lock)

    def token(self, host: Host) -> LockToken | None:
        lock = self._locks.get(host)
        return None if lock is None else self._adapter.token(lock)

    def break_lock(self, host: Host, token: LockToken) -> None:
        if not self.traits.breaks:
            return
        with self._request('break the lock', host):
            lock = self._driver.get_lock(lock_id(host))
            self._adapter.break_lock(lock, token)

    # ---- for any thread

    def close(self, *, leave: bool, timeout_s: float) -> None:
        # stop() of tooz may block while the backend is away, so it runs in a
        # thread of its own, for which this method waits at most timeout_s.
        if not leave or not self._driver.is_started:
            return
        thread = threading.Thread(
            target=self._stop, name='membership-close', daemon=True
        )
        thread.start()
        thread.join(timeout_s)

    def _stop(self) -> None:
        try:
            with self._request('stop'):
                self._driver.stop()
        except errors.BackendUnavailable as exc:
            LOG.debug('Left without a word: %(why)s', {'why': exc})

    def _parsed(self, raw: dict[bytes | str, Any]) -> tuple[Member, ...]:
        members = []
        for name, capabilities in raw.items():
            try:
                members.append(Member.parse(capabilities))
            except errors.MalformedMember as exc:
                self._log_malformed(name, exc)
        return tuple(sorted(members, key=lambda m: (m.home, m.boot)))

    def _log_malformed(self, name: bytes | str, exc: Exception) -> None:
        if name not in self._malformed:
            self._malformed.add(name)
            LOG.warning(
                'Ignored member %(name)s of the group, whose record cannot '
                'be read: %(why)s',
                {'name': name, 'why': exc},
            )


def read_pools(
    url: str,
    *,
    term_s: float,
    timeout_s: float = 15.0,
    may_create: bool = False,
) -> dict[str, tuple[Member, ...]]:
    """Read the members of each group, by the group's name, without joining.

    For the operator's tools.

    :param term_s: the lease term in seconds
    :param timeout_s: seconds to block at most
    :param may_create: create the folder of a file backend, as a daemon does

    :raises BackendRefused: the URL cannot be used.
    :raises BackendUnavailable: the backend does not answer.
    """
    backend = backends.parse(url, term_s=term_s)
    if backend.path and not (may_create or os.path.isdir(backend.path)):
        # An empty folder would look like a pool without daemons.
        raise errors.BackendRefused(
            f'{backends.OPTION} is {backend.shown}, but there is no such '
            f'folder: correct the option, or start a daemon with it first.'
        )
    watcher = Membership(url, '', Host('observer'), new_boot(), term_s=term_s)
    try:
        return _read_pools(watcher, timeout_s)
    except errors.BackendUnavailable as exc:
        raise errors.BackendUnavailable(
            f'{backends.OPTION} is {backend.shown}, and it {exc.symptom} '
            f'({exc}): {exc.cure}.'
        ) from exc


def _read_pools(
    watcher: Membership, timeout_s: float
) -> dict[str, tuple[Member, ...]]:
    """Read in a thread, because some drivers try for a minute to connect.

    :raises BackendUnavailable: the backend does not answer.
    """
    answers: list[Any] = []

    def read() -> None:
        try:
            watcher.connect()
            answers.append(watcher.pools())
        except errors.BackendUnavailable as exc:
            answers.append(exc)
        finally:
            watcher.close(leave=True, timeout_s=5.0)

    thread = threading.Thread(target=read, name='observer', daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not answers:
        raise errors.BackendUnavailable(f'nothing for {timeout_s:g} s')
    (answer,) = answers
    if isinstance(answer, errors.BackendUnavailable):
        raise answer
    return dict(answer)


def _load(backend: backends.Backend, member_id: str) -> Any:
    """Return tooz's driver for this backend, not yet connected."""
    try:
        return coordination.get_coordinator(
            backend.url,
            member_id.encode('ascii'),
            **_DRIVER_OPTIONS.get(backend.scheme, {}),
        )
    # stevedore raises a RuntimeError if it finds no such driver.
    except (ImportError, RuntimeError) as exc:
        raise errors.BackendRefused(
            f'{backends.OPTION} is {backend.shown}, but tooz cannot load '
            f'its driver ({exc}): install the client library, e.g. '
            'pip install "tooz[etcd3gw,redis,zookeeper,memcached]".'
        ) from exc
    except Exception as exc:  # Each driver has errors of its own.
        raise errors.BackendRefused(
            f'{backends.OPTION} has options that its driver cannot use '
            f'({exc}): correct them; use_ssl needs ssl_cert.'
        ) from exc


def _read_members(driver: Any, group: bytes) -> dict[bytes | str, Any]:
    if hasattr(driver, 'get_members_with_capabilities'):
        found: dict[bytes | str, Any]
        found = driver.get_members_with_capabilities(group).get()
        return found
    found = {}  # tooz before 9 reads one member at a time.
    for member in driver.get_members(group).get():
        with contextlib.suppress(coordination.MemberNotJoined):
            found[member] = driver.get_member_capabilities(group, member).get()
    return found


def _check_files(url: str) -> None:
    """Check that the certificates and keys of a URL can be read.

    A driver says of one that is missing only that it could not connect.

    :raises BackendRefused: one cannot be read
    """
    query = urllib.parse.urlsplit(url).query
    for name, value in urllib.parse.parse_qsl(query):
        # Only etcd's client takes a folder, one of authorities.
        is_wrong = name != 'ca_cert' and os.path.isdir(value)
        if name in _FILE_OPTIONS and (
            is_wrong or not os.access(value, os.R_OK)
        ):
            raise errors.BackendRefused(
                f'{backends.OPTION} sets {name}={value}, a file that cannot '
                f'be read: correct the name, or let the user of this service '
                f'read it.'
            )


def _check_folder(path: str) -> None:
    """Check that this user can write the directory of a file backend.

    :raises BackendRefused: the directory cannot be created or written
    """
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as exc:
        raise errors.BackendRefused(
            f'{backends.OPTION} is file://{path}, but the folder cannot be '
            f'written ({exc.strerror}): create it for the user of this '
            'service, or name another backend.'
        ) from exc
