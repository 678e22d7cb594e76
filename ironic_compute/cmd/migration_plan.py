# SPDX-License-Identifier: Apache-2.0
"""Plans the way from nova-computes to one pool, and the way back; pure.

A plan has the steps that are left, in the order in which they are safe. When
a step is done, a new plan begins with the next one; at the end it is empty.
"""

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping

from hashring.ring import Host
from ironic_compute.cmd.nova_access import NovaRefused


class ServedBy(enum.Enum):
    """Who serves a host."""

    DAEMON = enum.auto()
    """A daemon of this pool."""
    NOVA_COMPUTE = enum.auto()
    """A nova-compute of Nova."""
    SILENT = enum.auto()
    """Nova shows it as up, and nobody answers: stopped just now, or hung."""
    OTHER_POOL = enum.auto()
    """A daemon which is not in this pool, or has another backend."""
    NOBODY = enum.auto()
    """Nova shows it as down, or has no Service of it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """One host, as Nova, Ironic and the pool show it.

    :param exists: Nova has a Service of it
    :param is_known: it is a known host of the pool
    :param machine: the machine of its own daemon, if that is up
    :param is_doubled: a nova-compute serves it beside a daemon
    :param is_drained: it is disabled by an order of ours
    :param is_other: it holds nodes of another hypervisor
    :param is_mapped: None: not known
    :param nodes_count: nodes of this pool that it holds
    :param other_nodes_count: nodes of other pools that it holds
    :param tasks_count: its servers that have a task
    """

    served_by: ServedBy = ServedBy.NOBODY
    exists: bool = True
    is_known: bool = False
    machine: str | None = None
    is_forced_down: bool = False
    is_doubled: bool = False
    is_drained: bool = False
    is_other: bool = False
    is_mapped: bool | None = None
    nodes_count: int = 0
    other_nodes_count: int = 0
    servers_count: int = 0
    tasks_count: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether it has neither nodes of this pool nor servers."""
        return not (self.nodes_count or self.servers_count)

    @property
    def may_run_nova_compute(self) -> bool:
        """Whether a nova-compute serves it, or may do so."""
        stock = (ServedBy.NOVA_COMPUTE, ServedBy.SILENT)
        return self.is_doubled or self.served_by in stock


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """What there is before a migration, or in the middle of one.

    :param pool: the description of the pool, for sentences
    :param hosts: the hosts of the pool, and those that hold its nodes
    :param has_group: ``[ironic] conductor_group`` is set
    :param has_shard: ``[ironic] shard`` is set
    """

    pool: str
    hosts: Mapping[Host, HostState]
    has_group: bool = False
    has_shard: bool = False

    def state(self, host: Host) -> HostState:
        """Return the state of a host, also of one that Nova does not know."""
        return self.hosts.get(host, HostState(exists=False))

    @property
    def daemons(self) -> tuple[Host, ...]:
        """The hosts whose own daemon is up."""
        return tuple(h for h in sorted(self.hosts) if self.hosts[h].machine)


class Action(enum.Enum):
    """What an operator does in a step."""

    STOP_NOVA_COMPUTE = enum.auto()
    START_DAEMON = enum.auto()
    """Start the daemon of a host that Nova knows."""
    ADD_DAEMON = enum.auto()
    """Start the daemon of a new host."""
    MARK_UP = enum.auto()
    """Take back that the host is forced down."""
    MAP_HOSTS = enum.auto()
    ADOPT_HOST = enum.auto()
    RETIRE_HOST = enum.auto()
    UNDRAIN_HOST = enum.auto()
    ENABLE_HOST = enum.auto()
    """End the drain of a host for which no daemon can do that."""
    AWAIT_TASKS = enum.auto()
    """Wait until no server has a task."""
    STOP_DAEMON = enum.auto()
    START_NOVA_COMPUTE = enum.auto()
    DELETE_QUEUES = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan."""

    action: Action
    hosts: tuple[Host, ...]


Plan = tuple[Step, ...]


def _steps(action: Action, hosts: Iterable[Host]) -> Iterator[Step]:
    return (Step(action, (host,)) for host in sorted(hosts))


def plan_pool(found: Found, wanted: frozenset[Host] = frozenset()) -> Plan:
    """Return the steps until one pool of daemons serves all its nodes.

    :param wanted: the hosts that shall have a daemon of their own at the end,
        also new ones; empty: those that there are
    :raises NovaRefused: with the reason and the cure
    """
    kept = wanted or frozenset(found.hosts)
    _check_way_there(found, kept)
    leaving = [h for h in sorted(found.hosts) if h not in kept]
    new = [host for host in sorted(kept) if not found.state(host).exists]
    return (
        # A daemon may remember hosts of an earlier pool. It would adopt them,
        # also if a nova-compute serves them; therefore all are stopped first.
        *_steps(
            Action.STOP_NOVA_COMPUTE,
            [h for h, s in found.hosts.items() if s.may_run_nova_compute],
        ),
        *_start(found, sorted(kept), wanted),
        *_steps(
            Action.ADD_DAEMON, [h for h in new if not found.state(h).machine]
        ),
        *_map(found, kept),
        # Without --hosts nobody has said that a drain should end.
        *_steps(
            Action.UNDRAIN_HOST,
            [host for host in wanted if found.state(host).is_drained],
        ),
        *_retire(found, leaving),
    )


def _check_way_there(found: Found, kept: frozenset[Host]) -> None:
    """Check that the way to the pool can be planned.

    :raises NovaRefused: with the reason and the cure
    """
    if not kept:
        raise NovaRefused(
            f'No host in Nova holds a node of this pool ({found.pool}), and '
            f'no daemon is up, so nothing is to be migrated. Check [ironic] '
            f'conductor_group and shard; for a new cloud follow the '
            f'installation guide'
        )
    _check_hosts(found)
    for host, state in sorted(found.hosts.items()):
        if state.other_nodes_count and not state.is_known:
            raise NovaRefused(
                f'Host {host} holds {state.nodes_count} nodes of this pool '
                f'({found.pool}) and {state.other_nodes_count} others. Use '
                f'the conductor_group and shard of its nova-compute, or '
                f'remove both options for one pool of all nodes'
            )


def _check_hosts(found: Found) -> None:
    for host, state in sorted(found.hosts.items()):
        if state.is_other:
            raise NovaRefused(
                f'Host {host} has no nodes of Ironic but another hypervisor; '
                f'name only hosts of this pool in --hosts'
            )
        if state.served_by is ServedBy.OTHER_POOL:
            raise NovaRefused(
                f'Host {host} is served by a daemon that is not in this pool '
                f'({found.pool}). Run the command with the nova.conf and '
                f'ironic-compute.conf of that daemon'
            )


def _start(
    found: Found, kept: Iterable[Host], wanted: frozenset[Host]
) -> Iterator[Step]:
    """Yield the steps that start the daemons of hosts that Nova knows."""
    for host in kept:
        state = found.state(host)
        if not state.exists:
            continue
        if state.is_forced_down:
            yield Step(Action.MARK_UP, (host,))
        is_served = state.served_by is ServedBy.DAEMON and host not in wanted
        if state.machine is None and not is_served:
            yield Step(Action.START_DAEMON, (host,))


def _map(found: Found, hosts: Iterable[Host]) -> Iterator[Step]:
    """Yield the step that maps hosts to a cell, if one is not mapped."""
    unmapped = [
        host
        for host in sorted(hosts)
        if found.state(host).is_mapped is False or not found.state(host).exists
    ]
    if unmapped:
        yield Step(Action.MAP_HOSTS, tuple(unmapped))


def _retire(found: Found, hosts: Iterable[Host]) -> Iterator[Step]:
    """Yield the steps that empty hosts and delete them in Nova."""
    for host in hosts:
        state = found.hosts[host]
        if not state.exists and not state.is_known:
            continue  # The pool takes nodes of a host without a Service.
        if not state.is_known:
            yield Step(Action.ADOPT_HOST, (host,))
        yield Step(Action.RETIRE_HOST, (host,))


def plan_way_back(found: Found, wanted: frozenset[Host] = frozenset()) -> Plan:
    """Return the steps until nova-computes serve all nodes of a pool.

    :param wanted: the hosts that shall have a nova-compute at the end; empty:
        each that has nodes or servers
    :raises NovaRefused: with the reason and the cure
    """
    in_use = {h for h, s in found.hosts.items() if not s.is_empty}
    kept = wanted or frozenset(in_use)
    leaving = [h for h in sorted(found.hosts) if h not in kept]
    _check_way_back(found, kept, leaving)
    missing = [
        host
        for host in sorted(kept)
        if found.state(host).served_by is not ServedBy.NOVA_COMPUTE
    ]
    drained = [h for h in kept if found.state(h).is_drained]
    return (
        *(
            _leave_pool(found, kept, leaving)
            if found.daemons
            else _steps(Action.ENABLE_HOST, drained)
        ),
        *_steps(
            Action.MARK_UP,
            [h for h in missing if found.state(h).is_forced_down],
        ),
        *_steps(Action.START_NOVA_COMPUTE, missing),
        *(
            (Step(Action.DELETE_QUEUES, tuple(sorted(kept))),)
            if missing or found.daemons
            else ()
        ),
    )


def _leave_pool(
    found: Found, kept: Iterable[Host], leaving: Iterable[Host]
) -> Iterator[Step]:
    """Yield the steps until no daemon runs.

    All daemons stop before a nova-compute starts, because each would take
    free nodes from the others. Only daemons can move servers.
    """
    retired = list(_retire(found, leaving))
    gone = {step.hosts[0] for step in retired}
    drained = [h for h in kept if found.state(h).is_drained]
    busy = tuple(h for h in sorted(kept) if found.state(h).tasks_count)
    yield from _steps(Action.UNDRAIN_HOST, drained)
    yield from retired
    if busy:
        yield Step(Action.AWAIT_TASKS, busy)
    # The daemon of a retired host has ended by itself.
    yield from _steps(Action.STOP_DAEMON, set(found.daemons) - gone)


def _check_way_back(
    found: Found, kept: frozenset[Host], leaving: Iterable[Host]
) -> None:
    """Check that the way back can be planned.

    :raises NovaRefused: with the reason and the cure
    """
    if not kept:
        raise NovaRefused(
            f'No host in Nova holds a node of this pool ({found.pool}). '
            f'Check [ironic] conductor_group and shard; in a cloud without '
            f'nodes, name the hosts that get a nova-compute with --hosts'
        )
    _check_hosts(found)
    for host in sorted(kept):
        if not found.state(host).exists:
            raise NovaRefused(
                f'Nova has no host {host}: a nova-compute goes on with the '
                f'name of a host that there is ({", ".join(found.hosts)})'
            )
    if found.has_shard and len(kept) > 1:
        raise NovaRefused(
            f'[ironic] shard is set, and Nova allows one nova-compute for a '
            f'shard: name the host that remains, for example --hosts '
            f'{min(kept)}'
        )
    _check_leaving(found, kept, leaving)


def _check_leaving(
    found: Found, kept: frozenset[Host], leaving: Iterable[Host]
) -> None:
    """Check that daemons can empty the hosts that are not to remain.

    :raises NovaRefused: with the reason and the cure
    """
    stock = [
        host
        for host in sorted(found.hosts)
        if found.hosts[host].served_by is ServedBy.NOVA_COMPUTE
    ]
    for host in leaving:
        state = found.hosts[host]
        has = f'{state.nodes_count} nodes and {state.servers_count} servers'
        if state.is_empty and not found.daemons:
            continue
        if stock:
            raise NovaRefused(
                f'Host {host} has {has}, and is not to remain, but a '
                f'nova-compute serves {", ".join(stock)}, and only daemons '
                f'move servers. Name {host} in --hosts, too, or stop the '
                f'nova-compute and start the daemons of all hosts first'
            )
        if not found.daemons:
            raise NovaRefused(
                f'Host {host} has {has}, and is not to remain, but no daemon '
                f'is up that moves them. Start the daemons again, or name '
                f'{host} in --hosts, too'
            )
        if not kept & set(found.daemons):
            raise NovaRefused(
                f'The daemons of {", ".join(sorted(kept))} are not up, so '
                f'nobody takes the nodes of host {host}; start one of them'
            )
