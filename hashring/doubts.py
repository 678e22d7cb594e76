# SPDX-License-Identifier: Apache-2.0
"""Doubts: what an operator should correct in `[coordination]`, not must.

A daemon may have run for years with it, as well as it can. If it were refused,
each daemon of the pool would end at its next upgrade, and no host would be
served. So the daemon says it at its start, and so does the upgrade check.
"""

import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hashring import backend as backends
from hashring.backend import OPTION, Backend
from hashring.opts import GROUP, Timing

# The files of TLS that tooz ignores without TLS. Those of Redis would end in
# an error; `hashring.backend` refuses them.
_FILES_OF_ZOOKEEPER = ('ca', 'certfile', 'keyfile')
_TLS_FILES: Mapping[str, Sequence[str]] = {
    'etcd3+http': ('ca_cert', 'cert_cert', 'cert_key'),
    'memcached': ('ca_cert', 'ssl_cert', 'ssl_key'),
    'zookeeper': _FILES_OF_ZOOKEEPER,
    'kazoo': _FILES_OF_ZOOKEEPER,
}
_WITH_PATH = frozenset({'redis', 'zookeeper', 'kazoo'})


def find_doubts(conf: Any) -> Iterator[str]:
    """Yield a sentence about each doubt.

    :raises BackendRefused: backend_url cannot be used
    """
    yield from _of_loop(Timing.from_conf(conf))
    options = conf[GROUP]
    backend = backends.parse(
        options.backend_url, term_s=float(options.lease_term_s)
    )
    yield from _of_path(backend)
    yield from _of_tls(backend)


def _of_loop(timing: Timing) -> Iterator[str]:
    """Doubt a loop that is longer than what is left of a lease.

    Workers get a new deadline with each round, and one may come a heartbeat
    late. If the former deadline has passed, their gates are shut until then.
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


def _of_path(backend: Backend) -> Iterator[str]:
    """Doubt a path behind the server, which may be meant to separate clouds.

    Other programs take it for the database of Redis, or the root of their
    entries in ZooKeeper; tooz ignores it. The daemons of two clouds would be
    in one group. With the option that has the meant effect they are in another
    group than before, so no daemon may run with the former URL.
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


def _of_tls(backend: Backend) -> Iterator[str]:
    """Doubt certificates in a URL that sends all in the clear.

    Its operator may take the connection for an encrypted one. Templates such
    as Kolla's for Cinder name an authority for etcd without TLS as well.
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
