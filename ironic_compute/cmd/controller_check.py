# SPDX-License-Identifier: Apache-2.0
"""What is wrong with this controller itself, as sentences for operators.

Its clock, its state folder, and whether a nova-compute runs under a host of
the pool. Nothing is changed.
"""

import email.utils
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping

from hashring.ring import Host
from ironic_compute.cmd.nova_hosts import NovaHost
from ironic_compute.ironic_api.timestamps import SKEW_S

_MOUNTS = pathlib.Path('/proc/self/mounts')
# Other machines see what is on them, and they may hang.
_SHARED = frozenset(
    {
        *('ceph', 'cifs', 'glusterfs', 'gpfs', 'lustre', 'nfs', 'nfs4'),
        *('ocfs2', 'smb3', 'fuse.ceph', 'fuse.glusterfs', 'fuse.sshfs'),
    }
)


def of_hosts(
    hosts: Mapping[Host, NovaHost], served: Iterable[Host]
) -> Iterator[str]:
    """Yield a sentence for each host that somebody else seems to serve.

    :param hosts: the hosts of the pool, as Nova has them
    :param served: those that a daemon of the pool serves
    """
    up = {host for host, each in hosts.items() if each.is_up}
    for host in sorted(up.difference(served)):
        yield (
            f'Host {host} is up in Nova, and no daemon of this pool serves '
            f'it: if a nova-compute runs under this name, stop it before a '
            f'daemon serves the host; if a daemon has just been stopped, '
            f'check again in a minute'
        )


def of_folder(
    folder: pathlib.Path, mounts: str, is_writable: Callable[[str], bool]
) -> Iterator[str]:
    """Yield what is wrong with the state folder.

    :param mounts: what /proc/self/mounts has
    :param is_writable: whether this user may write in a folder
    """
    # Unlike Path.is_dir, it is false for a folder in one that is closed to us.
    there = next(p for p in (folder, *folder.parents) if os.path.isdir(p))
    if not is_writable(str(there)):
        yield (
            f'[ironic_compute] state_path {folder} cannot be written: make '
            f'this folder, with the user of the daemon as its owner'
        )
    # It may be a link to another disk.
    kind = filesystem_of(pathlib.Path(os.path.realpath(folder)), mounts)
    if kind in _SHARED:
        yield (
            f'[ironic_compute] state_path {folder} is on {kind}: it must be '
            f'on a local disk, because each controller has its own'
        )


def filesystem_of(folder: pathlib.Path, mounts: str) -> str:
    """Return the kind of the file system that a folder is on, or will be."""
    kinds = {}
    for line in mounts.splitlines():
        _, place, kind, *_ = line.split(' ')
        # A mount that comes later hides an earlier one.
        kinds[pathlib.Path(place.replace('\\040', ' '))] = kind
    parents = (folder, *folder.parents)
    return next((kinds[p] for p in parents if p in kinds), '')


def of_clock(dates: Mapping[str, str | None], now_s: float) -> Iterator[str]:
    """Yield a sentence for each service whose clock differs from ours.

    :param dates: service -> the ``Date`` of an answer that has just come;
        None: it has none
    :param now_s: in seconds since 1970
    """
    for service, date in sorted(dates.items()):
        if date is None:
            continue
        ahead_s = now_s - email.utils.parsedate_to_datetime(date).timestamp()
        if abs(ahead_s) > SKEW_S:
            how = 'ahead of' if ahead_s > 0 else 'behind'
            yield (
                f'The clock of this controller is {abs(ahead_s):.0f} s {how} '
                f'that of {service}: more than {SKEW_S:.0f} s lose changes of '
                f'nodes until the next audit; run a time service on both'
            )


def read_mounts() -> str:
    """Return what is mounted; empty where /proc does not say it."""
    try:
        return _MOUNTS.read_text()
    except OSError:
        return ''


def is_writable(folder: str) -> bool:
    """Return whether this user may create files in a folder."""
    return os.access(folder, os.W_OK | os.X_OK)
