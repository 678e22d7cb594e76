# SPDX-License-Identifier: Apache-2.0
"""The hash ring over hosts: the ring target of each node.

Wraps tooz's hash ring in an immutable value; a change makes a new `Ring`, so
that readers need no lock. The members are *hosts*, not processes; therefore
a ring changes when a host is added or removed, not when an agent dies. Rings
over the same hosts give the same targets in every process and on every
machine. Agents and workers use it.
"""

import functools
import hashlib
from collections.abc import Iterable
from typing import NewType

from tooz import hashring

Host = NewType('Host', str)

# Measured with 20,000 keys and five hosts: the fullest host has 1.18 to 1.38
# times the mean with 32 partitions, and at most 1.07 times with 512. With
# 1024 the ring takes 5 ms a host to build.
PARTITIONS_PER_HOST_COUNT = 1024
# Not md5, tooz's default, because machines in FIPS mode refuse it.
HASH_FUNCTION = 'sha256'


class Ring:
    """An immutable consistent hash ring over hosts; for any thread.

    `digest` is equal for equal rings, and '' for the ring without hosts.
    """

    __slots__ = ('_ring', 'digest', 'hosts')

    hosts: frozenset[Host]
    digest: str

    def __init__(self, hosts: Iterable[Host] = ()) -> None:
        self.hosts = frozenset(hosts)
        self.digest = digest_of(self.hosts)
        self._ring = _build(self.hosts)

    def target(self, node: str) -> Host | None:
        """Return the host that should have this node.

        :param node: the node's uuid.
        :returns: None if the ring has no hosts.
        """
        if not self.hosts:
            return None
        (host,) = self._ring.get_nodes(node.encode())
        return Host(host)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ring) and self.hosts == other.hosts

    def __hash__(self) -> int:
        return hash(self.hosts)

    def __repr__(self) -> str:
        return f'Ring({", ".join(sorted(self.hosts))})'


def affinity(host: Host, candidate: str) -> bytes:
    """Return a sort key that orders the candidates for an orphaned host.

    Every agent computes the same order (rendezvous hashing). Different hosts
    have different orders, so that two orphans have different first
    candidates; a candidate that leaves does not change the order of others.
    """
    return hashlib.sha256(f'{host}\n{candidate}'.encode()).digest()


@functools.lru_cache(maxsize=16)
def _build(hosts: frozenset[Host]) -> hashring.HashRing:
    """Return tooz's ring; equal `Ring`s share it, so it is only read."""
    return hashring.HashRing(
        sorted(hosts),
        partitions=PARTITIONS_PER_HOST_COUNT,
        hash_function=HASH_FUNCTION,
    )


def digest_of(hosts: Iterable[Host]) -> str:
    """Return the digest of the ring over these hosts, without building it."""
    hosts = frozenset(hosts)
    if not hosts:
        return ''
    joined = '\n'.join(sorted(hosts)).encode()
    return hashlib.sha256(joined).hexdigest()[:16]
