# SPDX-License-Identifier: Apache-2.0
"""Commands of ironic-computectl that change a pool: adopt, forget, mapped.

They send a request to any worker of the pool, which checks the request and
sends it to its agent. The functions read the members of the pools from the
coordination backend, for these commands and others.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import nova.conf
import oslo_messaging

from hashring import backend, membership
from hashring.group import Member, MemberState
from hashring.ring import Host
from ironic_compute.agent.groups import describe_pool, group_name
from ironic_compute.cmd.explained_command import ExplainedCommand, given_name
from ironic_compute.cmd.nova_access import (
    NovaRefused,
    failed,
    use_nova_conductor,
)

CONF = nova.conf.CONF

# The commands end with a sentence within 10 s if the backend does not answer;
# their start takes up to three of them.
BACKEND_TIMEOUT_S = 7.0

Pools = Mapping[str, Iterable[Member]]
Send = Callable[[Host], str | None]


def known_hosts(members: Iterable[Member]) -> set[Host]:
    """Return the known hosts of all agents of a pool."""
    return {host for m in members for host in (m.home, *m.known)}


def all_hosts(members: Iterable[Member]) -> list[Host]:
    """Return the hosts of a pool, known and served ones."""
    members = tuple(members)
    served = {host for m in members for host in m.serving}
    return sorted(known_hosts(members) | served)


def served_hosts(members: Iterable[Member]) -> list[Host]:
    """Return the hosts that are served now, home hosts first."""
    served = {host: m for m in members for host in m.serving}
    return sorted(served, key=lambda h: (served[h].home != h, h))


def adopt(host: Host, pools: Pools, pool: str, send: Send) -> str:
    """Add a host to a pool; return the result as a sentence for the operator.

    :param pool: the name of the pool
    :param send: sends the request to the worker of a served host
    :raises NovaRefused: with the reason
    """
    members = tuple(pools.get(pool, ()))
    if host in known_hosts(members):
        return f'Host {host} is already a host of this pool.'
    for name, others in pools.items():
        if name != pool and host in known_hosts(others):
            raise NovaRefused(
                f'Host {host} belongs to another pool, whose daemons are up: '
                f'{describe_pool(name)}'
            )
    send_to_any(send, served_hosts(members))
    return (
        f'Host {host} is a host of this pool now; a daemon serves it within '
        f'one lease term'
    )


def forget(host: Host, pools: Pools, pool: str, send: Send) -> str:
    """Remove a host from a pool; return the result as a sentence.

    :param pool: the name of the pool
    :param send: sends the request to the worker of a served host
    :raises NovaRefused: with the reason
    """
    members = tuple(pools.get(pool, ()))
    for member in members:
        if member.home == host:
            raise NovaRefused(
                f'The daemon of host {host} runs on {member.machine}; stop '
                f'and disable it there, and try again after its lease term'
            )
        if member.marks is None:
            raise NovaRefused(
                f'The daemon of host {member.home} is of an older release, '
                f'which cannot forget a host; upgrade it first'
            )
    if members and host not in known_hosts(members):
        return f'Host {host} is no host of this pool.'
    others = [each for each in served_hosts(members) if each != host]
    send_to_any(send, others)
    return (
        f'Host {host} is no host of this pool any more. To delete its record '
        f'in Nova, run: openstack compute service list --host {host}, then '
        f'openstack compute service delete with its ID'
    )


def send_to_any(send: Send, hosts: Iterable[Host]) -> None:
    """Send a request to the hosts in turn until one answers.

    :raises NovaRefused: the host refused with a reason, or none answered
    """
    for host in hosts:
        try:
            why_not = send(host)
        except oslo_messaging.MessagingTimeout:
            continue
        except Exception as exc:
            raise NovaRefused(failed(exc)) from exc
        if why_not is not None:
            raise NovaRefused(why_not)
        return
    raise NovaRefused(
        'No daemon of this pool answers; see "ironic-computectl host list"'
    )


def members_of(pool: str, pools: Pools, url: str) -> Iterable[Member]:
    """Return the agents of a pool.

    :param url: the coordination backend, as the operator may see it

    :raises NovaRefused: it has none; perhaps it is not the pool that is meant
    """
    members = tuple(pools.get(pool, ()))
    if members:
        return members
    others = '; '.join(
        describe_pool(name) for name in sorted(pools) if pools[name]
    )
    raise NovaRefused(
        f'No daemon of this pool ({describe_pool(pool)}) is up. On the '
        f'backend {url} there are daemons of: {others or "no pool"}. Check '
        f'[ironic] conductor_group and shard, [coordination] backend_url, and '
        f'whether the daemons run.'
    )


class HostArgument(ExplainedCommand):
    """A command with a host as its argument."""

    def get_parser(self, prog_name: str) -> Any:
        """Add the argument that names the host."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            'host', type=given_name, help='the name of the host in Nova'
        )
        return parser


class _HostCommand(HostArgument):
    """A command that sends a host to a worker of its pool."""

    def _send(
        self,
        parsed_args: Any,
        act: Callable[[Host, Pools, str, Send], str],
        request: Callable[[Host, Host], str | None],
    ) -> None:
        """Check the host, send it to a worker of this pool, print the result.

        :param act: checks the host and chooses the worker
        :param request: sends the host to the worker of a served host
        :raises NovaRefused: with the reason
        """
        host, pools = Host(parsed_args.host), read_pools()
        members_of(own_pool(), pools, shown_url())
        use_nova_conductor()
        result = act(host, pools, own_pool(), lambda to: request(to, host))
        print(result, file=self.app.stdout)


class HostAdopt(_HostCommand):
    """Add a host to this pool, so that it is served again.

    Use it for a host whose own daemon does not come back, if no daemon of the
    pool has the host in its state folder any more. A host is refused if Nova
    has no Service record of it, if a daemon or a nova-compute serves it, or if
    its nodes belong to another pool.
    """

    def take_action(self, parsed_args: Any) -> None:
        """Send the host to a worker, whose agent adds it to the pool.

        :raises NovaRefused: with the reason
        """
        from ironic_compute.ownership import peer_rpc

        self._send(parsed_args, adopt, peer_rpc.request_adopt_host)


class HostForget(_HostCommand):
    """Remove a host from this pool, because it is gone for good.

    Use it for a controller that was dismantled: otherwise the other daemons
    go on serving its host. All daemons remember it, also those that are down
    now. The host is refused while its daemon runs, while it is enabled in
    Nova, and while it has nodes or servers. To undo it, start a daemon of this
    host again, or run "host adopt". Example:

      ironic-computectl host drain c3 --wait
      ironic-computectl host forget c3
    """

    def take_action(self, parsed_args: Any) -> None:
        """Send the host to a worker, whose agent removes it from the pool.

        :raises NovaRefused: with the reason
        """
        from ironic_compute.ownership import peer_rpc

        self._send(parsed_args, forget, peer_rpc.request_forget_host)


class HostMapped(_HostCommand):
    """Confirm that a host is mapped to a cell, if the pool cannot read it.

    Use it in a pool whose nova-conductor has no API database, and whose user
    of [placement] may not read /os-hosts of nova-api. Run "nova-manage cell_v2
    discover_hosts --by-service" first: servers that are scheduled to a host
    without a mapping fail. If Nova can be read, its answer counts and not the
    confirmation.
    """

    def take_action(self, parsed_args: Any) -> None:
        """Send the host to a worker, which reads its mapping from Nova.

        :raises NovaRefused: with the reason
        """
        from ironic_compute.ownership import peer_rpc

        host, members = Host(parsed_args.host), read_members()
        use_nova_conductor()
        send_to_any(
            lambda to: peer_rpc.request_confirm_mapping(to, host),
            served_hosts(members),
        )
        print(f'Host {host} now counts as mapped.', file=self.app.stdout)


def read_members() -> Iterable[Member]:
    """Read the agents of this pool from the coordination backend.

    :raises NovaRefused: there is none
    """
    return members_of(own_pool(), read_pools(), shown_url())


def own_pool() -> str:
    """Return the name of the group of this pool's agents."""
    return group_name(CONF.ironic.conductor_group, CONF.ironic.shard)


def read_pools() -> dict[str, tuple[Member, ...]]:
    """Read the agents of all pools from the coordination backend."""
    pools = membership.read_pools(
        CONF.coordination.backend_url,
        term_s=CONF.coordination.lease_term_s,
        timeout_s=BACKEND_TIMEOUT_S,
    )
    return {pool: without_ended(members) for pool, members in pools.items()}


def without_ended(members: Iterable[Member]) -> tuple[Member, ...]:
    """Leave out the ended process of each agent that has started again.

    An agent that restarts leaves its record behind, which keeps its hosts for
    its successor; it is there until its lease has ended.
    """
    members = tuple(members)
    up = {
        (member.home, member.machine)
        for member in members
        if member.state is MemberState.UP
    }
    return tuple(
        member
        for member in members
        if member.state is not MemberState.RESTARTING
        or (member.home, member.machine) not in up
    )


def shown_url() -> str:
    """Return the coordination backend, without a password."""
    options = CONF.coordination
    return backend.parse(
        options.backend_url, term_s=options.lease_term_s
    ).shown
