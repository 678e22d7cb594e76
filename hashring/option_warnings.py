# SPDX-License-Identifier: Apache-2.0
"""Warnings about values of `[coordination]` with which a daemon can still run.

A daemon may have run with such a value for years. If the value were refused,
each daemon of the pool would end at its next upgrade, and no host would be
served. So the daemon logs a warning at its start, and the upgrade check shows
it, too.
"""

import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hashring import backend as backends
from hashring.backend import OPTION, Backend
from hashring.opts import GROUP, Timing

# The options of TLS files that tooz ignores if the URL does not ask for TLS.
# Those of Redis would end in an error; `hashring.backend` refuses them.
_FILES_OF_ZOOKEEPER = ('ca', 'certfile', 'keyfile')
_TLS_FILES: Mapping[str, Sequence[str]] = {
    'etcd3+http': ('ca_cert', 'cert_cert', 'cert_key'),
    'memcached': ('ca_cert', 'ssl_cert', 'ssl_key'),
    'zookeeper': _FILES_OF_ZOOKEEPER,
    'kazoo': _FILES_OF_ZOOKEEPER,
}
# Other programs give the path of these URLs a meaning.
_WITH_PATH = frozenset({'redis', 'zookeeper', 'kazoo'})


def find_warnings(conf: Any) -> Iterator[str]:
    """Yield a sentence, without a full stop, about each such value.

    :raises BackendRefused: backend_url cannot be used
    """
    yield from _warn_of_loop(Timing.from_conf(conf))
    options = conf[GROUP]
    backend = backends.parse(
        options.backend_url, term_s=float(options.lease_term_s)
    )
    yield from _warn_of_path(backend)
    yield from _warn_of_unused_tls(backend)


def _warn_of_loop(timing: Timing) -> Iterator[str]:
    """Warn of a loop that is longer than what is left of a lease.

    Workers get a new deadline in each round of the loop. A heartbeat that was
    sent just after a round counts only in the next one. If the former deadline
    has passed by then, the gates of the workers are shut meanwhile.
    """
    most_s = (
        timing.lease_term_s
        - timing.lease_margin_s
        - timing.heartbeat_interval_s
    )
    if timing.loop_interval_s >= most_s:
        yield (
            f'[coordination] loop_interval_s is {timing.loop_interval_s:g}, '
            f'so that workers may hear of a renewed lease after its end, and '
            f'wait: set it below {most_s:g}, or raise lease_term_s'
        )


def _warn_of_path(backend: Backend) -> Iterator[str]:
    """Warn of a path behind the server, which may be meant to separate clouds.

    Other programs read the path as the database of Redis, or as the root of
    their entries in ZooKeeper. tooz ignores it, so the daemons of two clouds
    are in one group. The option that does separate them changes the group, so
    no daemon of the pool may still run with the former URL.
    """
    parts = urllib.parse.urlsplit(backend.url)
    path = parts.path.strip('/')
    if not (parts.hostname and path and backend.scheme in _WITH_PATH):
        return
    is_database = backend.scheme == 'redis' and path.isdecimal()
    option = 'db' if is_database else 'namespace'
    if backend.has(option) or (is_database and path == '0'):
        return
    yield (
        f'{OPTION} has /{path} behind the server, which is ignored: remove '
        f'it; or, if it should separate two clouds, stop all daemons of the '
        f'pool and write ?{option}={path} in its place on all machines'
    )


def _warn_of_unused_tls(backend: Backend) -> Iterator[str]:
    """Warn of TLS files in a URL that does not ask for TLS.

    An operator may believe that the connection is encrypted. A template such
    as Kolla's for Cinder names an authority even if etcd has no TLS.
    """
    files = _TLS_FILES.get(backend.scheme, ())
    unused = [name for name in files if backend.has(name)]
    if not unused or backend.is_on('use_ssl'):
        return
    is_etcd = backend.scheme == 'etcd3+http'
    cure = 'write etcd3+https://' if is_etcd else 'add use_ssl=true'
    yield (
        f'{OPTION} sets {unused[0]}, but nothing is encrypted: {cure}, or '
        f'remove {unused[0]}'
    )
