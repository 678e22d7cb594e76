# SPDX-License-Identifier: Apache-2.0
"""Commands of ironic-computectl that show pools: list, show, doctor.

All is read from the coordination backend, where each daemon publishes its
state. Only for how long the rings have agreed comes from a daemon's port.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cliff import lister, show

from hashring.group import Boot, Member, MemberState
from hashring.paths import Path
from hashring.ring import Host
from ironic_compute.agent.groups import pool_options
from ironic_compute.agent_port.state import PATHS
from ironic_compute.cmd import agent_ports
from ironic_compute.cmd.explained_command import ExplainedCommand
from ironic_compute.cmd.hosts import (
    Pools,
    all_hosts,
    own_pool,
    read_members,
    read_pools,
    shown_url,
)
from ironic_compute.cmd.nova_access import NovaRefused

COLUMNS = (
    *('Conductor group', 'Shard', 'Daemons', 'Hosts', 'Not served'),
    'In nova.conf',
)
DOCTOR_COLUMNS = ('Daemon', 'Machine', *PATHS, 'State')
_WORKS, _FAILS, _NOT_KNOWN = 'works', 'fails', 'not known'
_UP = 'up'
# Each other state of a daemon, and what it means.
_STOPPING, _AWAY = 'stopping', 'half alive'
_DYING, _NOT_UP, _ADOPTED = 'worker keeps dying', 'not up', 'adopted'
_IDLE = 'host not served'
_MEANINGS = {
    _STOPPING: 'The daemon of {home} on {machine} is stopping',
    _AWAY: 'The daemon of {home} has given its hosts away, because others '
    'reach a service that it does not reach, or has not reached lately',
    _DYING: 'The worker of host {home} keeps dying on {machine}: see the log '
    'there',
    _IDLE: 'The daemon of {home} on {machine} is up, and no daemon serves its '
    'host: if it was not started just now, see the log there',
    _NOT_UP: 'No daemon of {home} is up: start it, or if it is gone for good: '
    'ironic-computectl host forget {home}',
    _ADOPTED: 'No daemon of {home} is up, and another one serves the host: '
    'start it, or if it is gone for good: ironic-computectl host retire '
    '{home}',
}


def unserved_hosts(members: Iterable[Member]) -> list[Host]:
    """Return the hosts of a pool that no daemon serves."""
    members = tuple(members)
    served = {host for m in members for host in m.serving}
    return [host for host in all_hosts(members) if host not in served]


def pool_rows(pools: Pools, own: str, url: str) -> list[tuple[Any, ...]]:
    """Return a row of ``pool list`` for each pool that has a daemon.

    :param own: the name of the pool in nova.conf
    :param url: the coordination backend, as the operator may see it
    :raises NovaRefused: no pool has one
    """
    rows = [
        (
            *pool_options(name),
            len(members),
            len(all_hosts(members)),
            len(unserved_hosts(members)),
            'yes' if name == own else '-',
        )
        for name, members in sorted(
            (name, tuple(members)) for name, members in pools.items()
        )
        if members
    ]
    if not rows:
        raise NovaRefused(
            f'On the backend {url} there is no daemon of any pool. Check '
            f'[coordination] backend_url, and whether the daemons run.'
        )
    return rows


class PoolList(ExplainedCommand, lister.Lister):
    """List all pools on the coordination backend that have a daemon.

    A pool has the nodes of one conductor group and shard ([ironic]
    conductor_group, shard). The last column marks the pool that the other
    commands show with this nova.conf. Example:

      ironic-computectl pool list
    """

    def take_action(self, parsed_args: Any) -> tuple[Any, Any]:
        """Read the members of all pools.

        :raises NovaRefused: there is no pool
        """
        return COLUMNS, pool_rows(read_pools(), own_pool(), shown_url())


def fields(
    members: Iterable[Member], pool: str, url: str, agreed_for_s: float | None
) -> dict[str, Any]:
    """Return the fields of ``pool show``.

    :param pool: the name of the pool
    :param agreed_for_s: for how long all daemons have had this ring; None: no
        port of a daemon has answered that
    """
    members = sorted(members, key=lambda member: member.home)
    conductor_group, shard = pool_options(pool)
    releases = {m.home: m.version for m in members}
    terms = {m.home: f'{m.lease_term_s:g} s' for m in members}
    rings = {m.home: m.ring for m in members if m.ring}
    return {
        'Conductor group': conductor_group,
        'Shard': shard,
        'Backend': url,
        'Daemons': ', '.join(f'{m.home} on {m.machine}' for m in members),
        'Hosts': ', '.join(all_hosts(members)),
        'Not served': ', '.join(unserved_hosts(members)) or '-',
        'Ring': _describe_values(rings),
        'Rings agree': _describe_agreement(rings, agreed_for_s),
        'Releases': _describe_values(releases),
        'Lease terms': _describe_values(terms),
    }


def _describe_values(values: Mapping[Host, str]) -> str:
    """Return the value that all have, or each value with who has it."""
    if len(set(values.values())) <= 1:
        return next(iter(values.values()), '-')
    by_value = sorted(values, key=lambda host: (values[host], host))
    return '; '.join(
        f'{value}: {", ".join(hosts)}'
        for value, hosts in itertools.groupby(by_value, values.__getitem__)
    )


def _describe_agreement(
    rings: Mapping[Host, str], agreed_for_s: float | None
) -> str:
    if not rings:
        return '-'
    if len(set(rings.values())) > 1:
        return 'no'
    if agreed_for_s is None:
        return 'yes'
    return f'yes, for {agreed_for_s:.0f} s'


def agreed_for_s(answers: Mapping[Boot, Any]) -> float | None:
    """Return the shortest time for which the daemons say that they agree.

    :param answers: those of the ports for ``/api/v1/ring``
    :returns: None if none says it
    """
    found = [
        float(answer['agreed_for_s'])
        for answer in answers.values()
        if isinstance(answer, dict)
        and isinstance(answer.get('agreed_for_s'), int | float)
    ]
    return min(found, default=None)


class PoolShow(ExplainedCommand, show.ShowOne):
    """Show this pool: its daemons and hosts, its ring, releases, lease terms.

    Where the daemons differ, each value is followed by the home hosts of the
    daemons that have it. While the rings do not agree, the pool takes no new
    nodes. Example:

      ironic-computectl pool show
    """

    def take_action(self, parsed_args: Any) -> tuple[Any, Any]:
        """Read the members of the pool, and the ports of its daemons.

        :raises NovaRefused: the pool has no daemon
        """
        members = tuple(read_members())
        answers = agent_ports.read_ports(members, agent_ports.RING)
        agreed_s = agreed_for_s(answers)
        shown = fields(members, own_pool(), shown_url(), agreed_s)
        return tuple(shown), tuple(shown.values())


def doctor_rows(members: Iterable[Member]) -> list[tuple[str, ...]]:
    """Return a row of ``pool doctor`` for each host of a pool.

    It has the daemon that has this host as its home, or says that none is up.
    """
    members = tuple(members)
    daemons = {member.home: member for member in members}
    unserved = unserved_hosts(members)
    return [
        _daemon_row(daemons[host], is_served=host not in unserved)
        if host in daemons
        else _missing_row(host, is_served=host not in unserved)
        for host in all_hosts(members)
    ]


def _missing_row(home: Host, *, is_served: bool) -> tuple[str, ...]:
    state = _ADOPTED if is_served else _NOT_UP
    return home, '-', *(_NOT_KNOWN for _ in PATHS), state


def _daemon_row(daemon: Member, *, is_served: bool) -> tuple[str, ...]:
    paths = (_path_state(daemon, path) for path in PATHS)
    state = _daemon_state(daemon, is_served=is_served)
    return daemon.home, daemon.machine, *paths, state


def _path_state(daemon: Member, path: Path) -> str:
    if path in daemon.failing_paths:
        return _FAILS
    return _WORKS if path in daemon.working_paths else _NOT_KNOWN


def _daemon_state(daemon: Member, *, is_served: bool) -> str:
    if daemon.state is not MemberState.UP:
        return _STOPPING
    if daemon.is_half_alive:
        return _AWAY
    if not daemon.wants_home:
        return _DYING
    return _UP if is_served else _IDLE


def sentences(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield what is wrong in the rows of ``pool doctor``, for a person."""
    for home, machine, *paths, state in rows:
        failing = [
            path
            for path, each in zip(PATHS, paths, strict=True)
            if each == _FAILS
        ]
        if failing:
            yield (
                f'The daemon of {home} does not reach {", ".join(failing)}: '
                f'look at the service, and at the network of {machine}'
            )
        if state in _MEANINGS:
            yield _MEANINGS[state].format(home=home, machine=machine)


class PoolDoctor(ExplainedCommand, lister.Lister):
    """Show which daemon of this pool reaches which service.

    Each daemon tests all the time whether it reaches RabbitMQ, nova-conductor,
    Ironic, Placement and Neutron; "not known" if it has sent no request there
    yet. If a service fails for one daemon only, look at the network of its
    machine; if it fails for all, at the service. Exit status: 0 if all is
    well, 1 if something fails, or a daemon is not up, or a host is not served.
    Example:

      ironic-computectl pool doctor
    """

    _has_found = False

    def take_action(self, parsed_args: Any) -> tuple[Any, Any]:
        """Read the members of the pool.

        :raises NovaRefused: the pool has no daemon
        """
        rows = doctor_rows(read_members())
        for sentence in sentences(rows):
            self._has_found = True
            print(sentence, file=self.app.stderr, flush=True)
        return DOCTOR_COLUMNS, rows

    def run(self, parsed_args: Any) -> int:
        """Run the command; return the exit status."""
        super().run(parsed_args)
        return int(self._has_found)
