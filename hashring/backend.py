# SPDX-License-Identifier: Apache-2.0
"""Coordination backends: checks ``backend_url`` and adds its time-outs.

`hashring.membership` passes the operator's URL here before it loads a tooz
driver. Pure: no connection is made. The contract tests verify the traits in
`BACKENDS` on real servers.
"""

import contextlib
import dataclasses
import difflib
import math
import re
import urllib.parse
from collections.abc import Mapping, Sequence

from oslo_utils import strutils

from hashring import errors
from hashring.group import Traits

OPTION = '[coordination] backend_url'

# Seconds for one request. A second attempt must fit into the same term.
REQUEST_TIMEOUT_S = 3

_ETCD = Traits(forgets=False, breaks=True, shared=True)
_CACHE = Traits(forgets=True, breaks=False, shared=True)
_ZOOKEEPER = Traits(forgets=False, breaks=False, shared=True)
_FILE = Traits(forgets=False, breaks=False, shared=False)

# How several servers are written.
_HOSTS = 'HOST:PORT?hosts=HOST:PORT,HOST:PORT'
_HOSTS_CURE = (
    f'write several servers of etcd or ZooKeeper as {_HOSTS}, and those of '
    f'Redis as Sentinels'
)
_SENTINELS = (
    'redis://HOST:PORT?sentinel=NAME&sentinel_fallback=HOST:PORT, with one '
    'sentinel_fallback for each further Sentinel'
)

# The two meanings of a URL option: the time-out of one request, or the term
# after which the backend drops the entries and locks of a silent member.
_REQUEST = 'request'
_TERM = 'term'
_ETCD_OPTIONS = {
    'timeout': _REQUEST,
    'lock_timeout': _TERM,
    'membership_timeout': _TERM,
}
_REDIS_OPTIONS = {**_ETCD_OPTIONS, 'socket_connect_timeout': _REQUEST}
_MEMCACHED_OPTIONS = {**_ETCD_OPTIONS, 'leader_timeout': _TERM}
# tooz takes whole numbers for all others.
_FRACTIONS = frozenset({'socket_connect_timeout', 'membership_timeout'})
# In the URL of a file or ZooKeeper backend `timeout` sets the term.
_PLAIN_OPTIONS = {'timeout': _TERM}

_ESCAPE = re.compile('%[0-9A-Fa-f]{2}')

_URL_CURE = (
    'because of a character in its password: write / as %2F, ? as %3F and # '
    'as %23 for etcd, and choose another password for other backends'
)

# A misspelt name is so similar to the right one; two right ones are not.
_SIMILAR = 0.75

# The other options that tooz reads; `hosts` of etcd is read here.
_OTHERS_OF_ETCD = ('api_version', 'ca_cert', 'cert_cert', 'cert_key', 'hosts')
_OTHERS_OF_REDIS = (
    *('db', 'encoding', 'namespace', 'health_check_interval'),
    *('retry_on_timeout', 'socket_keepalive', 'socket_timeout'),
    *('ssl', 'ssl_ca_certs', 'ssl_certfile', 'ssl_keyfile'),
    *('sentinel', 'sentinel_fallback', 'sentinel_ssl'),
    *('sentinel_username', 'sentinel_password'),
)
_OTHERS_OF_MEMCACHED = (
    *('max_pool_size', 'use_ssl', 'ca_cert', 'ssl_cert', 'ssl_key'),
    *('ssl_key_password', 'ssl_ciphers', 'ssl_check_hostname'),
)
_OTHERS_OF_ZOOKEEPER = (
    *('hosts', 'randomize_hosts', 'namespace', 'handler'),
    *('use_ssl', 'verify_certs', 'ca', 'certfile', 'keyfile'),
    *('keyfile_password', 'connection_retry', 'command_retry'),
)

# Options that are true or false. tooz takes any other word for false.
FLAGS = frozenset(
    {
        *('ssl', 'sentinel_ssl', 'retry_on_timeout', 'socket_keepalive'),
        *('use_ssl', 'verify_certs', 'ssl_check_hostname', 'randomize_hosts'),
    }
)
# The files of Redis's client, for Redis and its Sentinels alike.
TLS_FILES = ('ssl_ca_certs', 'ssl_certfile', 'ssl_keyfile')


@dataclasses.dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of backend: its traits, and its URL options' meanings.

    :param others: options that the driver reads and that are no time-outs
    """

    traits: Traits
    options: Mapping[str, str]
    others: Sequence[str] = ()

    @property
    def all_options(self) -> frozenset[str]:
        """The names of all options that have an effect."""
        return frozenset((*self.options, *self.others))


BACKENDS: Mapping[str, _Kind] = {
    'etcd3+http': _Kind(_ETCD, _ETCD_OPTIONS, _OTHERS_OF_ETCD),
    'etcd3+https': _Kind(_ETCD, _ETCD_OPTIONS, _OTHERS_OF_ETCD),
    'redis': _Kind(_CACHE, _REDIS_OPTIONS, _OTHERS_OF_REDIS),
    'memcached': _Kind(_CACHE, _MEMCACHED_OPTIONS, _OTHERS_OF_MEMCACHED),
    'zookeeper': _Kind(_ZOOKEEPER, _PLAIN_OPTIONS, _OTHERS_OF_ZOOKEEPER),
    'kazoo': _Kind(_ZOOKEEPER, _PLAIN_OPTIONS, _OTHERS_OF_ZOOKEEPER),
    'file': _Kind(_FILE, _PLAIN_OPTIONS),
}
_OF_ETCD = frozenset({'etcd3+http', 'etcd3+https'})
_OF_ZOOKEEPER = frozenset({'zookeeper', 'kazoo'})
WITHOUT_GROUPS = frozenset(
    {'mysql', 'postgresql', 'pgsql', 'ipc', 'kubernetes'}
)
# Schemes that Redis's own client knows, and what to write here.
_OTHER_SCHEMES = {'rediss': 'redis://HOST:PORT?ssl=true'}
_CURE = (
    'use etcd3+http://HOST:2379, zookeeper://HOST:2181, '
    'redis://HOST:6379 or memcached://HOST:11211, or file:///FOLDER for a '
    'single machine'
)


@dataclasses.dataclass(frozen=True, slots=True)
class Server:
    """Where one server of a backend listens."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f'[{self.host}]' if ':' in self.host else self.host
        return f'{host}:{self.port}'


@dataclasses.dataclass(frozen=True, slots=True)
class Credentials:
    """A user of the backend."""

    user: str
    password: str = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Backend:
    """A valid backend URL, complete with all time-outs.

    :param path: the directory of a file backend; '' for the others
    :param servers: all servers that the URL names, of a backend that has
        several: members of etcd, servers of ZooKeeper, or Sentinels
    :param term_s: the lease term in seconds
    """

    url: str = dataclasses.field(repr=False)
    scheme: str
    traits: Traits
    path: str
    servers: Sequence[Server] = ()
    term_s: float = 0.0

    @property
    def keeps_s(self) -> float:
        """For how many seconds it keeps entries and locks of a dead member.

        A file backend frees locks at once.
        """
        meanings = BACKENDS[self.scheme].options
        return max(
            float(seconds)
            for name, seconds in self._options.items()
            if meanings.get(name) == _TERM
        )

    @property
    def has_sentinel(self) -> bool:
        """Whether Sentinel names the server of Redis to be used."""
        return self.scheme == 'redis' and 'sentinel' in self._options

    def has(self, option: str) -> bool:
        """Whether the URL sets this option."""
        return option in self._options

    def is_on(self, flag: str) -> bool:
        """Whether this option of the URL is true."""
        return _is_on(self._options, flag)

    @property
    def _options(self) -> Mapping[str, str]:
        query = urllib.parse.urlsplit(self.url).query
        return dict(urllib.parse.parse_qsl(query))

    @property
    def credentials(self) -> Credentials | None:
        """The user and the password in the URL, if it has a password."""
        parts = urllib.parse.urlsplit(self.url)
        if not parts.password:
            return None
        return Credentials(
            urllib.parse.unquote(parts.username or ''),
            urllib.parse.unquote(parts.password),
        )

    @property
    def shown(self) -> str:
        """The URL without credentials and options, for messages.

        It has all servers, although the URL names others in an option.
        """
        parts = urllib.parse.urlsplit(self.url)
        place = parts.netloc.rpartition('@')[2].partition(',')[0]
        others = ''.join(f',{server}' for server in self.servers[1:])
        return f'{parts.scheme}://{place}{others}{parts.path}'


def parse(url: str, *, term_s: float) -> Backend:
    """Check an operator's URL and add the time-outs that it does not set.

    :param term_s: the lease term in seconds; the backend must keep a silent
        member at least so long.
    :raises BackendRefused: the URL cannot work; the message names the option
        and the cure.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port
    except ValueError as exc:
        are_several = ',' in url.partition('?')[0].rpartition('@')[2]
        why = f'({exc}): {_HOSTS_CURE if are_several else _CURE}'
        if '@' in url:  # The error may have a part of the password.
            why = f'({_HOSTS_CURE})' if are_several else _URL_CURE
        raise errors.BackendRefused(f'{OPTION} is not a URL {why}.') from (
            None if '@' in url else exc
        )
    kind = _kind(parts.scheme)
    _check_place(parts)
    _check_credentials(parts)
    _check_names(parts.query, sorted(kind.all_options))
    _check_flags(parts.query)
    _check_sentinel(parts.query)
    _check_tls(parts.query)
    query = _completed(parts.query, kind.options, int(term_s))
    if parts.scheme in _OF_ZOOKEEPER:
        query = _with_fixed_order(query)
    full = urllib.parse.urlunsplit(parts._replace(query=query))
    path = parts.path if parts.scheme == 'file' else ''
    servers = _servers(parts)
    return Backend(full, parts.scheme, kind.traits, path, servers, term_s)


def _kind(scheme: str) -> _Kind:
    kind = BACKENDS.get(scheme)
    if kind is not None:
        return kind
    if scheme.partition('+')[0] in WITHOUT_GROUPS:
        raise errors.BackendRefused(
            f'{OPTION} is {scheme}://, a backend that knows no groups, so '
            f'agents could not see each other: {_CURE}.'
        )
    other = _OTHER_SCHEMES.get(scheme)
    cure = f'write {other}' if other else _CURE
    raise errors.BackendRefused(
        f'{OPTION} has the unknown scheme "{scheme}": {cure}.'
    )


def _check_place(parts: urllib.parse.SplitResult) -> None:
    if parts.scheme == 'file':
        if parts.netloc or not parts.path.strip('/'):
            raise errors.BackendRefused(
                f'{OPTION} names no folder: write file:///FOLDER, with '
                'three slashes.'
            )
    elif not parts.hostname and not (parts.scheme == 'redis' and parts.path):
        raise errors.BackendRefused(
            f'{OPTION} names no server: write {parts.scheme}://HOST:PORT.'
        )


def _check_credentials(parts: urllib.parse.SplitResult) -> None:
    """Refuse a password that tooz would ignore, or send as another one."""
    names = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
    is_cut = '@' in parts.path or any('@' in name for name in names)
    if parts.scheme in _OF_ZOOKEEPER:  # kazoo cuts at each comma.
        is_cut = is_cut or ',' in parts.netloc.rpartition('@')[0]
    if is_cut and parts.scheme != 'file':
        # The password has a slash, a question mark or a comma. What comes
        # before is taken for the server, and the rest would be shown.
        raise errors.BackendRefused(f'{OPTION} is not a URL {_URL_CURE}.')
    if '@' not in parts.netloc:
        return
    if parts.scheme == 'memcached':
        raise errors.BackendRefused(
            f'{OPTION} has a password, but memcached knows none: remove it, '
            f'or use another backend.'
        )
    needs_user = parts.scheme != 'redis'
    if not parts.password or (needs_user and not parts.username):
        raise errors.BackendRefused(
            f'{OPTION} has an incomplete password: write '
            f'{parts.scheme}://USER:PASSWORD@HOST:PORT.'
        )
    if parts.scheme not in _OF_ETCD and _ESCAPE.search(parts.netloc):
        raise errors.BackendRefused(
            f'{OPTION} has an escape such as %40 in its user or password, '
            f'which {parts.scheme}:// would send as it is written: choose a '
            f'password of letters and digits.'
        )


def _check_names(query: str, known: Sequence[str]) -> None:
    """Refuse an option that tooz would ignore, such as a misspelt one."""
    for name, _value in urllib.parse.parse_qsl(query, keep_blank_values=True):
        if name not in known:
            cure = _cure_of_name(name, known)
            raise errors.BackendRefused(
                f'{OPTION} sets {name}, an option that this backend does not '
                f'have: {cure}, or use one of {", ".join(known)}.'
            )


def _cure_of_name(name: str, known: Sequence[str]) -> str:
    shared = name.removeprefix('sentinel_')
    if shared in TLS_FILES and shared in known:
        return f'write {shared}, which is for Sentinels, too'
    near = difflib.get_close_matches(name, known, 1, _SIMILAR)
    return f'write {near[0]}' if near else 'remove it'


def _check_flags(query: str) -> None:
    """Refuse a word that is neither true nor false.

    A misspelt one would switch off TLS, or the check of certificates.
    """
    for name, value in urllib.parse.parse_qsl(query, keep_blank_values=True):
        if name not in FLAGS:
            continue
        try:
            strutils.bool_from_string(value, strict=True)
        except ValueError:
            raise errors.BackendRefused(
                f'{OPTION} sets {name}={value}, which is neither true nor '
                f'false: correct it, or remove {name} from the URL.'
            ) from None


def _is_on(options: Mapping[str, str], flag: str) -> bool:
    return bool(strutils.bool_from_string(options.get(flag, '')))


def _check_tls(query: str) -> None:
    """Refuse files of Redis's client that would have no effect."""
    options = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
    files = [name for name in TLS_FILES if name in options]
    if not files:
        return
    if not (_is_on(options, 'ssl') or _is_on(options, 'sentinel_ssl')):
        both = 'ssl=true&sentinel_ssl=true'
        raise errors.BackendRefused(
            f'{OPTION} sets {files[0]}, but not ssl=true, so nothing would be '
            f'encrypted: add {both if "sentinel" in options else "ssl=true"}, '
            f'or remove {files[0]}.'
        )
    if 'ssl_keyfile' in files and 'ssl_certfile' not in files:
        raise errors.BackendRefused(
            f'{OPTION} sets ssl_keyfile, but not ssl_certfile, the '
            f'certificate of this key: add it, or remove ssl_keyfile.'
        )


def _check_sentinel(query: str) -> None:
    """Refuse options of Sentinels without ``sentinel``.

    tooz would pass them to Redis's client, which does not know them.
    """
    names = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
    lone = [name for name in names if name.startswith('sentinel_')]
    if lone and not names.get('sentinel'):
        raise errors.BackendRefused(
            f'{OPTION} sets {lone[0]}, but not sentinel, the name of the '
            f'master in sentinel.conf: write {_SENTINELS}, or remove it.'
        )


def _servers(parts: urllib.parse.SplitResult) -> Sequence[Server]:
    """Return the server of the URL, and those that its options add.

    ``hosts`` of etcd is named and written as the one of tooz's ZooKeeper
    driver.

    :raises BackendRefused: one is not HOST:PORT. tooz's drivers would only
        log, again and again, that they cannot connect.
    """
    options = urllib.parse.parse_qs(parts.query)
    names = [parts.netloc]
    if parts.scheme in _OF_ETCD:
        port, cure = 2379, f'{parts.scheme}://{_HOSTS}'
        names += _listed(options)
    elif parts.scheme in _OF_ZOOKEEPER:
        port, cure = 2181, f'{parts.scheme}://{_HOSTS}'
        # kazoo accepts several here, too, if only the last has a port.
        names = [*parts.netloc.split(','), *_listed(options)]
    elif 'sentinel' in options:
        port, cure = None, _SENTINELS
        names += options.get('sentinel_fallback', [])
    else:
        if parts.hostname:  # Else the URL names a folder or a socket.
            _server(parts.netloc, 1, f'{parts.scheme}://HOST:PORT')
        return ()
    return tuple(_server(name, port, cure) for name in names)


def _listed(options: Mapping[str, Sequence[str]]) -> list[str]:
    given = ','.join(options.get('hosts', ()))
    return [name for name in given.split(',') if name]


def _server(name: str, default_port: int | None, cure: str) -> Server:
    parts = urllib.parse.urlsplit(f'//{name}')
    try:
        port = parts.port or default_port
    except ValueError:
        port = None
    host = parts.hostname
    if not host or port is None or parts.path or ',' in host:
        shown = name.rpartition('@')[2]
        raise errors.BackendRefused(
            f'{OPTION} names the server "{shown}", which is not HOST:PORT: '
            f'write {cure}.'
        )
    return Server(host, port)


def _completed(query: str, options: Mapping[str, str], term_s: int) -> str:
    pairs = urllib.parse.parse_qsl(query, keep_blank_values=True)
    given = dict(pairs)
    for name, meaning in options.items():
        if name not in given:
            value = term_s if meaning == _TERM else REQUEST_TIMEOUT_S
            pairs.append((name, str(value)))
            continue
        takes_fractions = name in _FRACTIONS and options is _REDIS_OPTIONS
        seconds = _seconds(
            name, given[name], float if takes_fractions else int
        )
        if meaning == _TERM:
            _check_term(name, seconds, term_s)
    return urllib.parse.urlencode(pairs)


def _with_fixed_order(query: str) -> str:
    """Return the options of ZooKeeper with its servers in a fixed order.

    In a random order kazoo may return to a server that it has just left.
    """
    pairs = urllib.parse.parse_qsl(query, keep_blank_values=True)
    if 'randomize_hosts' not in dict(pairs):
        pairs.append(('randomize_hosts', 'false'))
    return urllib.parse.urlencode(pairs)


def _seconds(name: str, value: str, number: type[float] | type[int]) -> float:
    """Return the value of a time-out.

    :raises BackendRefused: tooz would not take it, or no request could end in
        so little time
    """
    with contextlib.suppress(ValueError):
        seconds = number(value)
        if 0 < seconds < math.inf:
            return seconds
    whole = 'whole ' if number is int else ''
    raise errors.BackendRefused(
        f'{OPTION} sets {name}={value}, which is no {whole}number of seconds '
        f'above 0: correct it, or remove {name} from the URL.'
    )


def _check_term(name: str, seconds: float, term_s: int) -> None:
    if seconds < term_s:
        raise errors.BackendRefused(
            f'{OPTION} sets {name}={seconds:g}, but a member or lock must '
            f'live for at least [coordination] lease_term_s ({term_s}): '
            f'remove {name} from the URL or raise it.'
        )
