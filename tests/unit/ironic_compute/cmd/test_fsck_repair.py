# SPDX-License-Identifier: Apache-2.0
"""The repair by fsck asks the right workers, until nothing is left to mend."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from hashring.ring import Host
from ironic_compute import catalogue
from ironic_compute.cmd import fsck_repair
from ironic_compute.fsck import checks
from ironic_compute.fsck.findings import Finding, Subject
from ironic_compute.fsck.look import Look
from ironic_compute.fsck.snapshot import Snapshot
from resource_tracker.node import NodeId
from tests.unit.ironic_compute.fsck import clouds
from tests.unit.ironic_compute.fsck.clouds import C1, C2, C9

BROKEN = clouds.with_servers(clouds.server(deleted=True))


def look_at(snapshot: Snapshot) -> Look:
    """Return a look that finds what is wrong."""
    return Look(snapshot, checks.find(snapshot))


class Pool:
    """A pool that is clean after so many requests.

    It is the looker and what sends the requests.
    """

    def __init__(self, mended_after: int, broken: Snapshot = BROKEN) -> None:
        self.first = look_at(broken)
        self._mended_after = mended_after
        self.sent: list[tuple[Host, list[str], list[NodeId]]] = []
        self.waited_s: list[float] = []

    def look_again(self, former: Look, wait_s: float) -> Look:
        """Look after the workers did."""
        self.waited_s.append(wait_s)
        is_mended = len(self.waited_s) >= self._mended_after
        return look_at(clouds.CLEAN) if is_mended else former

    def send(
        self, host: Host, servers: Sequence[str], nodes: Sequence[NodeId]
    ) -> None:
        """Note a request."""
        self.sent.append((host, list(servers), list(nodes)))

    def repair(self) -> Look:
        """Repair the pool."""
        looker: Any = self
        return fsck_repair.repair(looker, self.first, 7.0, self.send)


def test_clean_pool_is_left_alone() -> None:
    """Nobody is asked for anything."""
    pool = Pool(1, clouds.CLEAN)
    assert pool.repair() is pool.first
    assert pool.sent == []


def test_what_no_worker_mends_is_left_alone() -> None:
    """It stays in the list, and takes no time."""
    pool = Pool(1, clouds.change(clouds.CLEAN, mapped=frozenset({C1})))
    assert pool.repair().findings == pool.first.findings != []
    assert pool.sent == []
    assert pool.waited_s == []


def test_holder_is_asked_until_it_has_mended_all() -> None:
    """It gets the servers and nodes that may need a repair."""
    pool = Pool(2)
    assert pool.repair().findings == []
    assert pool.sent == [(C2, [clouds.SERVER], [])] * 2
    assert pool.waited_s == [7.0, 7.0]


def test_what_does_not_go_away_is_listed_at_last() -> None:
    """Three requests are enough."""
    pool = Pool(99)
    assert pool.repair().findings == pool.first.findings != []
    assert len(pool.sent) == 3


def test_node_without_a_served_host_concerns_all() -> None:
    """Any of them may be the one that takes it."""
    served = frozenset({C1, C2})

    def finding(host: Host | None) -> Finding:
        return Finding(catalogue.NODE_WITHOUT_ROW, Subject(host=host), '')

    assert fsck_repair.hosts_of([finding(C1)], served) == {C1}
    assert fsck_repair.hosts_of([finding(None)], served) == served
    assert fsck_repair.hosts_of([finding(C1), finding(C9)], served) == served


def test_servers_go_to_their_own_host_only() -> None:
    """Another host would find that it does not have them."""
    pool = Pool(1)
    (found,) = pool.first.findings
    other = Subject(node=NodeId('n9'), host=C1, server='other')
    both = [found, dataclasses.replace(found, subject=other)]
    pool.first = dataclasses.replace(pool.first, findings=both)
    pool.repair()
    assert pool.sent == [
        (C1, ['other'], []),
        (C2, [clouds.SERVER], []),
    ]


def test_nodes_with_something_of_a_former_server_are_named() -> None:
    """The audits see other nodes by themselves."""
    pool = Pool(1)
    subject = Subject(node=NodeId('n9'), host=C2)
    left = Finding(catalogue.VIF_LEFT_BEHIND, subject, '')
    reserved = dataclasses.replace(left, check=catalogue.NOT_OFFERED)
    pool.first = dataclasses.replace(pool.first, findings=[left])
    pool.repair()
    pool.first = dataclasses.replace(pool.first, findings=[reserved])
    pool.waited_s.clear()
    pool.repair()
    assert pool.sent == [(C2, [], ['n9']), (C2, [], [])]
