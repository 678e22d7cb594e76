# SPDX-License-Identifier: Apache-2.0
"""Commands of ironic-computectl that empty a host: drain, retire, undrain.

They send the order to the worker of the host, which stores it in Nova and
carries it out. The drain goes on when the command has ended; with ``--wait``
the command shows what is left.
"""

import argparse
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import oslo_messaging
from cliff import lister

from hashring.clock import Clock, SystemClock
from hashring.group import Member
from hashring.ring import Host
from ironic_compute.cmd.hosts import HostArgument, all_hosts, read_members
from ironic_compute.cmd.nova_access import (
    NovaRefused,
    ask_worker,
    remote_name,
    use_nova_conductor,
)
from ironic_compute.ownership.drain_order import read_order

COLUMNS = ('Node', 'Server', 'To host', 'Waits because')
# Seconds between two looks at what is left.
LOOK_S = 5.0


# Each is a ``draining.PlannedMove``, whose module imports Nova.
Plan = Sequence[Any]
ReadPlan = Callable[[Host], Plan]
ReadService = Callable[[Host], Any]


def rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return a row for each node of a plan."""
    return [
        (m.node or '-', m.server or '-', m.target or '-', m.why_not or '-')
        for m in plan
    ]


def ask(host: Host, request: Callable[[], Any], then: str = '') -> Any:
    """Return the answer of a host's worker.

    :param then: what to say besides if there is no answer
    :raises NovaRefused: it does not answer, or cannot drain
    """
    return ask_worker(
        request,
        no_answer=f'No daemon serves host {host}, or it does not answer; see '
        f'"ironic-computectl host list"{then}',
        too_old=f'The daemon that serves host {host} is of an older release, '
        f'which cannot drain a host, or no ironic-compute',
    )


def order(
    host: Host,
    request: Callable[[Host], str | None],
    then: str = '. The order may be carried out all the same',
) -> None:
    """Send an order to a host's worker.

    :param then: see :func:`ask`
    :raises NovaRefused: with the reason
    """
    why_not = ask(host, lambda: request(host), then)
    if why_not is not None:
        raise NovaRefused(why_not)


def describe(host: Host, plan: Plan) -> str:
    """Return what is left to be moved, and one reason, as a sentence."""
    if not any(move.node or move.server for move in plan):
        return f'Host {host} is empty. {plan[0].why_not}'
    nodes = [move for move in plan if move.node]
    with_server = sum(move.server is not None for move in nodes)
    sentence = (
        f'Host {host} has {len(nodes)} nodes left, {with_server} of them with '
        f'a server'
    )
    reasons = [move.why_not for move in plan if move.why_not]
    return f'{sentence}. {reasons[0]}' if reasons else sentence


def wait_until_empty(
    host: Host, read_plan: ReadPlan, read_service: ReadService, clock: Clock
) -> Iterator[str]:
    """Yield each new sentence about what is left, until nothing is.

    :raises NovaRefused: somebody has ended the order
    """

    def describe_rest(record: Any | None) -> str | None:
        _check_drains(host, record)
        return _describe_rest(host, read_plan)

    return _each_new(lambda: read_service(host), describe_rest, clock)


def wait_until_retired(
    host: Host,
    read_plan: ReadPlan,
    read_service: ReadService,
    clock: Clock,
) -> Iterator[str]:
    """Yield each new sentence about what is left, until Nova has no Service.

    :raises NovaRefused: somebody has ended the order
    """

    def describe_rest(record: Any | None) -> str | None:
        if record is None:
            return None
        _check_retires(host, record)
        return _describe_rest(host, read_plan) or (
            f'Host {host} is empty, and is retired in two minutes at most'
        )

    return _each_new(lambda: read_service(host), describe_rest, clock)


def _each_new(
    read_record: Callable[[], Any],
    describe_rest: Callable[[Any | None], str | None],
    clock: Clock,
) -> Iterator[str]:
    """Look every few seconds; yield what differs, until nothing is left.

    :param read_record: reads the Service record of the host
    :param describe_rest: returns what is left as a sentence, or None
    """
    said = ''
    while True:
        record = try_read(read_record)
        is_unread = isinstance(record, NovaRefused)
        sentence = str(record) if is_unread else describe_rest(record)
        if sentence is None:
            return
        if sentence != said:
            yield sentence
            said = sentence
        clock.sleep(LOOK_S)


def _check_drains(host: Host, record: Any | None) -> None:
    if record is None:
        raise NovaRefused(
            f'Nova has no Service record of host {host} any more: somebody '
            f'has retired the host, or deleted its Service'
        )
    if read_order(record) is None:
        raise NovaRefused(
            f'Host {host} is not drained any more: somebody has ended that'
        )


def _check_retires(host: Host, record: Any) -> None:
    order = read_order(record)
    if order is None or not order.retires:
        raise NovaRefused(
            f'Host {host} is not to be retired any more: somebody has '
            f'ended that, or its daemon was started as that of a new host'
        )


def _describe_rest(host: Host, read_plan: ReadPlan) -> str | None:
    """Return what is left of a host as a sentence; None if nothing is."""
    plan = try_read(lambda: ask(host, lambda: read_plan(host)))
    if isinstance(plan, NovaRefused):
        return str(plan)
    return describe(host, plan) if plan else None


def try_read(read: Callable[[], Any]) -> Any:
    """Return what is read, or the refusal: a command that waits goes on."""
    try:
        return read()
    except NovaRefused as exc:
        return exc
    except oslo_messaging.MessagingTimeout:
        return NovaRefused('nova-conductor does not answer')
    except Exception as exc:
        name = remote_name(exc)
        if name is None:
            raise
        # Its database may be away.
        return NovaRefused(f'nova-conductor has failed ({name})')


def read_service(host: Host) -> Any | None:
    """Read the Service record of a host through nova-conductor; blocks."""
    from nova import context as nova_context

    from ironic_compute.pool import services

    return services.read_record(nova_context.get_admin_context(), host)


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(
            f'{text} is not a whole number of 1 or more'
        )
    return number


def add_move_options(parser: Any) -> None:
    """Add the options of the commands that move many nodes."""
    parser.add_argument(
        '--dry-run',
        action='store_true',
        help='only show what would be moved',
    )
    parser.add_argument(
        '--limit',
        type=_positive,
        metavar='N',
        help='move no more than N servers in a minute',
    )
    parser.add_argument(
        '--change-zone',
        action='store_true',
        help='also move servers to hosts in another availability zone or in '
        'other host aggregates; their users see the new zone',
    )
    parser.add_argument(
        '--wait',
        action='store_true',
        help='end when that is done; say meanwhile what is left',
    )


class _EmptyingCommand(HostArgument, lister.Lister):
    """A command that shows what is to be moved, and orders it."""

    RETIRES = False

    def get_parser(self, prog_name: str) -> Any:
        """Add the options."""
        parser = super().get_parser(prog_name)
        add_move_options(parser)
        return parser

    def take_action(self, parsed_args: Any) -> tuple[Any, Any]:
        """Read the plan, send the order unless it is a dry run, and wait.

        :raises NovaRefused: with the reason
        """
        from ironic_compute.ownership import peer_rpc

        host, changes_zone = Host(parsed_args.host), parsed_args.change_zone
        read_plan = functools.partial(
            peer_rpc.request_drain_plan, changes_zone=changes_zone
        )
        use_nova_conductor()
        plan = ask(host, lambda: read_plan(host))
        self._check_members(host)
        if parsed_args.dry_run:
            order(host, self._why_not, then='')
            return COLUMNS, rows(plan)
        limit = parsed_args.limit
        order(host, lambda to: self._request(to, limit, changes_zone))
        if parsed_args.wait:
            self._show(self._wait(host, read_plan), host)
        return COLUMNS, rows(plan)

    def _why_not(self, host: Host) -> str | None:
        """Return why the worker would refuse the order, or None."""
        from ironic_compute.ownership import peer_rpc

        return peer_rpc.request_drain_check(host, retires=self.RETIRES)

    def _check_members(self, host: Host) -> None:
        """Check the daemons of the pool, if the order needs others.

        :raises NovaRefused: with the reason
        """

    def _request(
        self, host: Host, limit: int | None, changes_zone: bool
    ) -> str | None:
        raise NotImplementedError

    def _wait(self, host: Host, read_plan: ReadPlan) -> Iterator[str]:
        raise NotImplementedError

    def _show(self, sentences: Iterator[str], host: Host) -> None:
        try:
            for sentence in sentences:
                print(sentence, file=self.app.stderr, flush=True)
        except KeyboardInterrupt:
            print(
                f'It goes on; "ironic-computectl host undrain {host}" ends it',
                file=self.app.stderr,
            )
            raise  # What the command waits for is not done.


class HostDrain(_EmptyingCommand):
    """Give all nodes of a host to other hosts, also those with servers.

    The host is disabled in Nova, so that it gets no more builds. Its free
    nodes go first. The others follow with their servers, as soon as a server
    has no task; the servers run on. The table shows each node of the host, and
    why a node has to wait. The drain goes on if the command is stopped.
    Examples:

      ironic-computectl host drain c3 --dry-run
      ironic-computectl host drain c3 --limit 10 --wait
    """

    def _request(
        self, host: Host, limit: int | None, changes_zone: bool
    ) -> str | None:
        from ironic_compute.ownership import peer_rpc

        return peer_rpc.request_drain(host, limit, changes_zone=changes_zone)

    def _wait(self, host: Host, read_plan: ReadPlan) -> Iterator[str]:
        return wait_until_empty(host, read_plan, read_service, SystemClock())


def check_others_are_up(host: Host, members: Iterable[Member]) -> None:
    """Check that another host's daemon is up, since the own one will end.

    :raises NovaRefused: no other one is, or the host is of another pool
    """
    members = tuple(members)
    hosts = all_hosts(members)
    if host not in hosts:
        raise NovaRefused(
            f'Host {host} is no host of this pool, which has: '
            f'{", ".join(hosts) or "none, as no daemon of it is up"}. For a '
            f'host of another pool, run the command with the nova.conf of its '
            f'own pool'
        )
    if all(member.home == host for member in members):
        raise NovaRefused(
            f'No daemon of another host is up, so nobody would serve the '
            f'hosts of this pool after the end of host {host}; start one'
        )


def describe_absence(host: Host, members: Iterable[Member]) -> str | None:
    """Return that a host's daemon is up, but does not serve it; else None."""
    for member in members:
        if member.home == host and host not in member.serving:
            return (
                f'The daemon of host {host} on {member.machine} is up, and '
                f'does not serve its host now. The host is retired when that '
                f'daemon serves it again, or when you have stopped it there'
            )
    return None


class HostRetire(_EmptyingCommand):
    """Give all nodes of a host to other hosts, then remove the host for good.

    The host is drained; see "host drain". When it has been empty for a while,
    its Service and its host mapping are deleted in Nova, no daemon of the pool
    serves it any more, and its own daemon ends. If that daemon is started
    again, its host is a new one for Nova and the pool. Example:

      ironic-computectl host retire c3 --wait
    """

    RETIRES = True

    def _check_members(self, host: Host) -> None:
        members = tuple(read_members())
        check_others_are_up(host, members)
        absence = describe_absence(host, members)
        if absence is not None:
            print(absence, file=self.app.stderr)

    def _request(
        self, host: Host, limit: int | None, changes_zone: bool
    ) -> str | None:
        from ironic_compute.ownership import peer_rpc

        return peer_rpc.request_retire(host, limit, changes_zone=changes_zone)

    def _wait(self, host: Host, read_plan: ReadPlan) -> Iterator[str]:
        return wait_until_retired(host, read_plan, read_service, SystemClock())


class HostUndrain(HostArgument):
    """End the drain of a host, also of one that is to be retired.

    The host is enabled, unless somebody had disabled it before the drain: then
    it has its former reason again. Free nodes come back to an enabled host as
    the hash ring says. Nodes with servers that have moved stay where they are.
    """

    def take_action(self, parsed_args: Any) -> None:
        """Send the order to the worker of the host.

        :raises NovaRefused: with the reason
        """
        from ironic_compute.ownership import peer_rpc

        host = Host(parsed_args.host)
        use_nova_conductor()
        order(host, peer_rpc.request_undrain)
        record = try_read(lambda: read_service(host))
        print(describe_state(host, record), file=self.app.stdout)


def describe_state(host: Host, record: Any | None) -> str:
    """Return whether a host is enabled, as a sentence.

    :param record: its Service record, or why it cannot be read
    """
    if isinstance(record, NovaRefused):
        return (
            f'Host {host} is not drained any more. Whether it is enabled is '
            f'not known: {record}.'
        )
    if record is not None and record.disabled:
        return (
            f'Host {host} is not drained any more, and disabled as before, '
            f'with the reason {record.disabled_reason or "none"}.'
        )
    return f'Host {host} is enabled.'
