# SPDX-License-Identifier: Apache-2.0
"""Commands of ironic-computectl that show hosts: list, show.

Which daemon serves which host is read from the coordination backend. What is
wrong with a host comes from the ports of the daemons, and from Nova if no
daemon has a port.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cliff import lister, show

from hashring.group import Member, MemberState
from hashring.ring import Host, digest_of
from ironic_compute.agent.groups import describe_pool
from ironic_compute.agent_port import peers
from ironic_compute.agent_port.figures import HostFigures
from ironic_compute.agent_port.problems import Problem
from ironic_compute.cmd import agent_ports, nova_hosts
from ironic_compute.cmd.drain import describe_absence
from ironic_compute.cmd.explained_command import ExplainedCommand
from ironic_compute.cmd.hosts import (
    HostArgument,
    all_hosts,
    known_hosts,
    own_pool,
    read_members,
)
from ironic_compute.cmd.nova_access import NovaRefused
from ironic_compute.cmd.nova_hosts import NovaHost, NovaHosts
from ironic_compute.ownership.drain_order import parse_order

COLUMNS = ('Host', 'Served by', 'Machine', 'State', 'Not reached')
# ``host list`` and ``host show`` wait no longer for nova-conductor.
_LIST_NOVA_S, _SHOW_NOVA_S = 3.0, 10.0
# The first sign that a daemon has died; its lease ends later.
_SILENT = 'the port of its daemon does not answer'

Phrases = Mapping[Host, Sequence[str]]


def host_rows(
    members: Iterable[Member], phrases: Phrases
) -> list[tuple[str, ...]]:
    """Return a row of ``host list`` for each host of a pool.

    :param phrases: what is wrong with each host
    """
    members = tuple(members)
    return [
        _row(host, members, phrases.get(host, ()))
        for host in all_hosts(members)
    ]


def _row(
    host: Host, members: Sequence[Member], phrases: Sequence[str]
) -> tuple[str, ...]:
    by = server_of(host, members)
    if by is None:
        # A daemon also knows for how long.
        is_said = any(each.startswith('not served') for each in phrases)
        how = () if is_said else ('not served',)
        return host, '-', '-', '; '.join((*how, *phrases)), '-'
    how = ('home' if by.home == host else _why_adopted(host, members),)
    not_reached = ', '.join(by.failing_paths) or '-'
    return host, by.home, by.machine, '; '.join((*how, *phrases)), not_reached


def server_of(host: Host, members: Iterable[Member]) -> Member | None:
    """Return the daemon that has published to serve a host."""
    return {h: m for m in members for h in m.serving}.get(host)


def _why_adopted(host: Host, members: Iterable[Member]) -> str:
    for member in members:
        if member.home == host and member.is_half_alive:
            paths = ', '.join(member.failing_paths)
            if paths:
                return f'adopted: {host} does not reach {paths}'
            return f'adopted: {host} reaches all services again'
    return 'adopted'


def read_phrases(members: Iterable[Member]) -> Phrases:
    """Read what is wrong with each host, from the ports or from Nova."""
    members = tuple(members)
    read = agent_ports.read_problems(members)
    answers = read.problems
    if answers:
        silent = agent_ports.silent_hosts(members, read.answered)
        return {
            host: [
                *([_SILENT] if host in silent else []),
                *(each.phrase for each in found if each.phrase),
            ]
            for host in all_hosts(members)
            for found in [agent_ports.problems_of_host(host, members, answers)]
        }
    if not lacks_hosts(members):
        return {}
    found = nova_hosts.read_soon(all_hosts(members), _LIST_NOVA_S)
    if isinstance(found, NovaRefused):
        return {}
    return {host: each.phrases for host, each in found.items()}


def lacks_hosts(members: Iterable[Member]) -> bool:
    """Return whether a ring that is published lacks a host of the pool.

    Its digest shows that, and not which host it is.
    """
    members = tuple(members)
    whole = digest_of(known_hosts(members))
    return any(member.ring not in ('', whole) for member in members)


class HostList(ExplainedCommand, lister.Lister):
    """List the hosts of this pool, which agent serves each, and its state.

    The column State has what is wrong with a host. It comes from the ports of
    the daemons ([ironic_compute] agent_port); if no daemon has a port, it has
    only what the coordination backend and Nova know. The last column has the
    services that the agent has not reached lately. Examples:

      ironic-computectl host list
      ironic-computectl host list -f json
    """

    def take_action(self, parsed_args: Any) -> tuple[Any, Any]:
        """Read the agents of the pool from the coordination backend.

        :raises NovaRefused: the pool has no agent
        """
        members = tuple(read_members())
        return COLUMNS, host_rows(members, read_phrases(members))


@dataclasses.dataclass(frozen=True, slots=True)
class HostFacts:
    """What is known about one host.

    :param figures: None: the port of the daemon that serves it does not answer
    :param nova: None: nova-conductor does not answer
    """

    host: Host
    members: Sequence[Member]
    problems: Sequence[Problem] = ()
    figures: HostFigures | None = None
    nova: NovaHost | None = None


def fields(facts: HostFacts) -> dict[str, Any]:
    """Return the fields of ``host show``."""
    host, figures = facts.host, facts.figures
    phrases = [each.phrase for each in facts.problems if each.phrase]
    if not facts.problems and facts.nova is not None:
        phrases = list(facts.nova.phrases)
    row = _row(host, facts.members, phrases)
    return {
        **dict(zip(COLUMNS, row, strict=True)),
        'Daemon': _describe_daemon(host, facts.members),
        'Nodes': '-' if figures is None else figures.nodes,
        'Servers': '-' if figures is None else figures.servers,
        'Nodes with changes not in Placement': '-'
        if figures is None
        else figures.dirty,
        'Service in Nova': _describe_service(facts.nova),
        'Mapped to a cell': _describe_mapping(facts.nova),
        'Findings': '\n'.join(_list_findings(facts)) or '-',
    }


def _list_findings(facts: HostFacts) -> Iterator[str]:
    yield from map(_describe_problem, facts.problems)
    nova = facts.nova
    if nova is not None and nova.is_disabled:
        order = parse_order(nova.disabled_reason)
        absence = describe_absence(facts.host, facts.members)
        if order is not None and order.retires and absence is not None:
            yield absence


def _describe_daemon(host: Host, members: Iterable[Member]) -> str:
    """Return where the host's own daemon runs, and how it is."""
    for member in members:
        if member.home == host:
            state = '' if member.state is MemberState.UP else 'stopping, '
            url = f', {member.page}' if member.page else ''
            return f'{state}release {member.version} on {member.machine}{url}'
    return 'not up'


def _describe_service(nova: NovaHost | None) -> str:
    if nova is None:
        return '-'
    if not nova.exists:
        return 'none'
    state = 'up' if nova.is_up else 'down'
    if not nova.is_disabled:
        return f'{state}, enabled'
    return f'{state}, disabled: {nova.disabled_reason or "no reason"}'


def _describe_mapping(nova: NovaHost | None) -> str:
    if nova is None or nova.is_mapped is None:
        return '-'
    return 'yes' if nova.is_mapped else 'no'


def _describe_problem(problem: Problem) -> str:
    cure = f' What to do: {problem.cure}' if problem.cure else ''
    return f'{problem.text}{cure}'


def check_known(host: Host, members: Iterable[Member], pool: str) -> None:
    """Check that a host is one of the pool.

    :param pool: the name of the pool
    :raises NovaRefused: it is not; the sentence names those that are
    """
    hosts = all_hosts(members)
    if host not in hosts:
        raise NovaRefused(
            f'Host {host} is no host of this pool ({describe_pool(pool)}), '
            f'which has: {", ".join(hosts)}'
        )


class HostShow(HostArgument, show.ShowOne):
    """Show one host of this pool: who serves it, its nodes, what is wrong.

    The numbers of nodes and the findings come from the port of the daemon that
    serves the host ([ironic_compute] agent_port). What a service does not
    answer is shown as "-". Example:

      ironic-computectl host show c3
    """

    def take_action(self, parsed_args: Any) -> tuple[Any, Any]:
        """Read the backend, the ports of the daemons, and Nova.

        :raises NovaRefused: the pool has no such host
        """
        host, members = Host(parsed_args.host), tuple(read_members())
        check_known(host, members, own_pool())
        shown = fields(read_facts(host, members))
        return tuple(shown), tuple(shown.values())


def read_facts(host: Host, members: Sequence[Member]) -> HostFacts:
    """Read what the ports and Nova know about a host."""
    answers = agent_ports.read_problems(members)
    found: NovaHosts | NovaRefused
    found = nova_hosts.read_soon([host], _SHOW_NOVA_S)
    return HostFacts(
        host,
        members,
        agent_ports.problems_of_host(host, members, answers.problems),
        _read_figures(host, members),
        None if isinstance(found, NovaRefused) else found[host],
    )


def _read_figures(host: Host, members: Iterable[Member]) -> HostFigures | None:
    server = server_of(host, members)
    if server is None:
        return None
    answers = agent_ports.read_ports([server], agent_ports.NODES)
    rows = answers.get(server.boot)
    return peers.parse_figures(rows, server.serving).get(host)
