# SPDX-License-Identifier: Apache-2.0
"""Derives the state of each host of a migration from what was read; pure.

A host matters if it is known to the pool, holds nodes of the pool, is named
by the operator, or has a nova-compute that holds no node at all.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from hashring.group import Member
from hashring.ring import Host
from ironic_compute.cmd.hosts import known_hosts
from ironic_compute.cmd.migration_plan import HostState, ServedBy
from ironic_compute.fsck.snapshot import Row
from ironic_compute.ownership.drain_order import read_order
from resource_tracker.node import NodeId

# The answers of each host that was asked more than once, whether
# ironic-compute serves it. Nobody may answer, or two in turn.
Answers = Mapping[Host, frozenset[bool]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was read of the pool, Nova and Ironic.

    :param records: Nova's Service records of nova-computes
    :param up: the hosts that Nova shows as up
    :param rows: the records of all Ironic nodes of the cell
    :param others: the hosts that hold nodes of other hypervisors
    :param nodes: the nodes of the pool in Ironic
    :param nodes_elsewhere: the nodes of other pools
    :param mapped: the hosts that are mapped to a cell; None: not known
    """

    members: tuple[Member, ...]
    records: Mapping[Host, Any]
    up: frozenset[Host]
    rows: tuple[Row, ...]
    others: frozenset[Host]
    nodes: frozenset[NodeId]
    nodes_elsewhere: frozenset[NodeId]
    mapped: frozenset[Host] | None
    wanted: frozenset[Host]

    def holders(self) -> Counter[Host]:
        """Count the nodes of the pool that each host holds."""
        return Counter(row.host for row in self.rows if row.node in self.nodes)

    def certain_hosts(self) -> frozenset[Host]:
        """Return the hosts that matter whatever they answer."""
        named = self.wanted & self.records.keys()
        return frozenset({*self.holders(), *known_hosts(self.members), *named})

    def hosts_to_ask(self) -> frozenset[Host]:
        """Return the hosts that must be asked who serves them.

        Also those that daemons serve: a nova-compute may do so, too.
        """
        forced = {h for h, r in self.records.items() if r.forced_down}
        may_answer = (self.up | forced) & self.records.keys()
        return (self.certain_hosts() | self._without_node()) & may_answer

    def _without_node(self) -> frozenset[Host]:
        """Return the hosts that are up and hold no node at all.

        With fewer nodes than hosts, a nova-compute for Ironic may hold none.
        One for virtual machines always has a record.
        """
        return self.up - self.others - {row.host for row in self.rows}

    def hosts(self, answers: Answers) -> frozenset[Host]:
        """Return the hosts that matter."""
        stock = {h for h in self._without_node() if False in _of(answers, h)}
        return self.certain_hosts() | stock

    def states(
        self,
        answers: Answers,
        servers: Counter[Host],
        tasks: Counter[Host],
    ) -> dict[Host, HostState]:
        """Return the state of each host that matters.

        :param servers: the number of servers of each host
        :param tasks: the number of those that have a task
        """
        elsewhere = Counter(
            row.host for row in self.rows if row.node in self.nodes_elsewhere
        )
        return {
            host: dataclasses.replace(
                self._state(host, answers),
                nodes_count=self.holders()[host],
                other_nodes_count=elsewhere[host],
                servers_count=servers[host],
                tasks_count=tasks[host],
            )
            for host in sorted(self.hosts(answers))
        }

    def _state(self, host: Host, answers: Answers) -> HostState:
        record = self.records.get(host)
        machines = {m.home: m.machine or m.home for m in self.members}
        served_by = self._served_by(host, answers)
        is_stock = served_by is ServedBy.NOVA_COMPUTE
        return HostState(
            served_by=served_by,
            is_doubled=False in _of(answers, host) and not is_stock,
            exists=record is not None,
            is_known=host in known_hosts(self.members),
            machine=machines.get(host),
            is_forced_down=bool(record is not None and record.forced_down),
            is_drained=read_order(record) is not None,
            is_other=host in self.others,
            is_mapped=None if self.mapped is None else host in self.mapped,
        )

    def _served_by(self, host: Host, answers: Answers) -> ServedBy:
        if any(host in member.serving for member in self.members):
            return ServedBy.DAEMON
        found = _of(answers, host)
        if not found:
            is_up = host in self.up
            return ServedBy.SILENT if is_up else ServedBy.NOBODY
        # A daemon of this pool may have begun to serve the host just now.
        is_ours = host in known_hosts(self.members)
        if True in found:
            return ServedBy.DAEMON if is_ours else ServedBy.OTHER_POOL
        return ServedBy.NOVA_COMPUTE


def _of(answers: Answers, host: Host) -> frozenset[bool]:
    return answers.get(host, frozenset())


def count_servers(
    servers: Iterable[Any],
) -> tuple[Counter[Host], Counter[Host]]:
    """Count the servers of each host, and those that have a task."""
    present = [s for s in servers if s.host is not None and not s.deleted]
    return (
        Counter(Host(server.host) for server in present),
        Counter(Host(s.host) for s in present if s.task_state is not None),
    )
