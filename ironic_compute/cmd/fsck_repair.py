# SPDX-License-Identifier: Apache-2.0
"""Repair by fsck: the workers check at once what they hold, and mend it.

The command changes nothing itself. It sends each worker that serves a host
with a finding the request to make its audits now, and to read again the
servers and nodes with findings. The worker writes only with the lease, and
deletes nothing because of an error.
"""

from collections.abc import Callable, Iterable, Sequence

from hashring.ring import Host
from ironic_compute import catalogue
from ironic_compute.fsck.findings import Finding
from ironic_compute.fsck.look import Look, Looker
from resource_tracker.node import NodeId

Send = Callable[[Host, Sequence[str], Sequence[NodeId]], None]

# One audit of a worker reads one half of the records, the next one the other;
# the third is for what needed both.
_REQUESTS_MAX = 3

# The worker reads a node with one of these again; the audits see the others.
_OF_NODES = (
    catalogue.ALLOCATION_WITHOUT_SERVER,
    catalogue.VIF_LEFT_BEHIND,
    catalogue.VOLUME_TARGET_LEFT_BEHIND,
)


def repair(looker: Looker, look: Look, wait_s: float, send: Send) -> Look:
    """Have the workers mend what they can; return what is left.

    :param wait_s: seconds that the workers get after each request
    :param send: sends a host the request to check all, with its servers and
        nodes that have findings
    """
    for _ in range(_REQUESTS_MAX):
        mendable = [each for each in look.findings if each.check.is_mended]
        if not mendable:
            break
        served = look.snapshot.pool.served
        for host in sorted(hosts_of(mendable, served)):
            of_host = [f for f in mendable if f.subject.host == host]
            send(host, sorted(servers_of(of_host)), sorted(nodes_of(of_host)))
        look = looker.look_again(look, wait_s)
    return look


def hosts_of(
    findings: Iterable[Finding], served: frozenset[Host]
) -> frozenset[Host]:
    """Return the hosts whose workers have to check.

    That is every host if a finding names none that is served: the hash ring
    says which host takes a node without a holder.
    """
    named = {finding.subject.host for finding in findings}
    found = frozenset(host for host in named if host in served)
    return found if found == named else served


def servers_of(findings: Iterable[Finding]) -> set[str]:
    """Return the servers that have a finding."""
    servers = (finding.subject.server for finding in findings)
    return {server for server in servers if server is not None}


def nodes_of(findings: Iterable[Finding]) -> set[NodeId]:
    """Return the nodes that may have something of a former server."""
    found = (f.subject.node for f in findings if f.check in _OF_NODES)
    return {node for node in found if node is not None}
