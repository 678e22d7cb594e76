# SPDX-License-Identifier: Apache-2.0
"""The command that evens a pool out: pool rebalance.

The command reads from the worker of each host which of its nodes other hosts
should hold. It shows the sum as a table, and requests the moves of this plan
one by one. No order is stored: what has not been requested when the command
ends is not moved. While it works, the workers refuse another such command; see
``ownership.rebalance_order``.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs
from cliff import lister
from oslo_utils import uuidutils

from hashring.clock import Clock, SystemClock
from hashring.errors import HashringError
from hashring.ring import Host
from ironic_compute.cmd.drain import LOOK_S, add_move_options, try_read
from ironic_compute.cmd.explained_command import ExplainedCommand
from ironic_compute.cmd.hosts import known_hosts, read_members
from ironic_compute.cmd.node_moves import describe_caller
from ironic_compute.cmd.nova_access import (
    NovaRefused,
    ask_worker,
    use_nova_conductor,
)
from ironic_compute.ownership.pacing import MinuteLimit
from ironic_compute.ownership.rebalance_order import VALID_S, RebalanceOrder
from resource_tracker.node import NodeId

COLUMNS = (
    'Host',
    'Nodes',
    'Nodes then',
    'Servers',
    'Servers then',
    'Waiting',
)

# Each is a ``node_moves.HostPlan``, whose module imports Nova.
Plans = Mapping[Host, Any]
_Row = tuple[str, int, int, int, int, int]


def rows(plans: Plans, *, with_servers: bool) -> list[_Row]:
    """Return a row for each host: what it has now, and at the end.

    The last column is the number of its nodes that cannot be moved now.
    """
    moves = [m for p in plans.values() for m in p.moves if m.target]
    moves = [m for m in moves if with_servers or m.server is None]
    # A target that no member has named yet has a row of its own.
    hosts = {*plans, *(Host(move.target) for move in moves)}
    return [
        _row(host, plans.get(host), moves, plans) for host in sorted(hosts)
    ]


def _row(host: Host, plan: Any, moves: list[Any], plans: Plans) -> _Row:
    own = set() if plan is None else {move.node for move in plan.moves}
    away = [move for move in moves if move.node in own]
    here = [move for move in moves if move.target == host]
    nodes = 0 if plan is None else plan.nodes_count
    servers = 0 if plan is None else plan.servers_count
    return (
        host,
        nodes,
        nodes + len(here) - len(away),
        servers,
        servers + _count_servers(here) - _count_servers(away),
        sum(move.why_not is not None for move in away),
    )


def _count_servers(moves: Iterable[Any]) -> int:
    return sum(move.server is not None for move in moves)


def describe(plans: Plans, *, with_servers: bool) -> str | None:
    """Return what is left to be moved as a sentence; None: nothing."""
    moves = [
        move
        for plan in plans.values()
        for move in plan.moves
        if with_servers or move.server is None
    ]
    if not moves:
        return None
    reasons = [move.why_not for move in moves if move.why_not]
    sentence = (
        f'{len(moves)} nodes are left, {_count_servers(moves)} of them with a '
        f'server'
    )
    return f'{sentence}. {reasons[0]}' if reasons else sentence


@attrs.define(eq=False, repr=False, slots=False)
class PoolOrder:
    """The order of one command, held at all hosts; the methods block.

    :param begin: begins or repeats the order at a host, or only checks that;
        returns None, or a sentence with the reason of a refusal
    :param end: ends the order at a host
    """

    _hosts: Iterable[Host]
    _order: RebalanceOrder
    _begin: Callable[..., str | None]
    _end: Callable[[Host, RebalanceOrder], None]
    _clock: Clock

    def __attrs_post_init__(self) -> None:
        self._begun_s = 0.0

    @property
    def key(self) -> str:
        """What the workers know the order by."""
        return self._order.key

    def begin(self, *, is_dry_run: bool = False) -> None:
        """Begin the order at each host, in the order of their names.

        :raises NovaRefused: another operator was faster, or a host does not
            answer
        """
        self._begun_s = self._clock.now_s()
        for host in sorted(self._hosts):
            why_not = _ask(
                host,
                lambda to: self._begin(to, self._order, is_dry_run=is_dry_run),
            )
            if why_not is not None:
                raise NovaRefused(why_not)

    def repeat_if_due(self) -> None:
        """Repeat the order before the workers take it for ended.

        A host that does not answer learns of it later.

        :raises NovaRefused: it has ended, and another one has begun
        """
        if self._clock.now_s() - self._begun_s < VALID_S / 6:
            return
        self._begun_s = self._clock.now_s()
        for host in sorted(self._hosts):
            why_not = try_read(functools.partial(_ask, host, self._repeat))
            if isinstance(why_not, str):
                raise NovaRefused(why_not)

    def _repeat(self, host: Host) -> str | None:
        return self._begin(host, self._order, is_dry_run=False)

    def end(self) -> None:
        """End the order at each host that answers."""
        for host in self._hosts:
            try_read(functools.partial(_ask, host, self._end_at))

    def _end_at(self, host: Host) -> None:
        self._end(host, self._order)


@attrs.define(eq=False, repr=False, slots=False)
class PoolRebalance:
    """Requests the moves of a plan; the methods block.

    :param read_hosts: reads the hosts of the pool; one may be retired or
        forgotten while the command waits
    :param read_plan: reads the plan of one host
    :param request: requests the move of one node from its holder
    :param limit: servers that are moved in a minute; None: any number
    """

    _read_hosts: Callable[[], Iterable[Host]]
    _read_plan: Callable[[Host], Any]
    _request: Callable[[Host, NodeId], Any]
    _clock: Clock
    _with_servers: bool
    _limit: int | None = None

    def __attrs_post_init__(self) -> None:
        self._moved = MinuteLimit(self._clock)
        # A move was requested and, as far as known, not made.
        self.has_failed_move = False

    def read_plans(self) -> dict[Host, Any]:
        """Return the plan of each host of the pool.

        :raises NovaRefused: a host does not answer
        """
        hosts = self._read_hosts()
        return {host: _ask(host, self._read_plan) for host in hosts}

    def move_servers(self, plans: Plans) -> Iterator[str]:
        """Request each move of a server that need not wait.

        :returns: a sentence for each
        """
        for host, plan in plans.items() if self._with_servers else ():
            for move in plan.moves:
                if move.server is not None and move.why_not is None:
                    self._clock.sleep(self._moved.wait_s(self._limit))
                    yield self._move(host, move)

    def _move(self, host: Host, move: Any) -> str:
        result = try_read(
            lambda: _ask(host, lambda to: self._request(to, move.node))
        )
        if isinstance(result, NovaRefused):
            self.has_failed_move = True
            # Else a holder that answers late would exceed the limit.
            self._moved.note_move()
            return f'{result}. It may still move node {move.node}'
        if result.why_not is not None:
            self.has_failed_move = True
            return str(result.why_not)
        self._moved.note_move()
        return (
            f'Node {move.node} with server {result.server} moved from host '
            f'{host} to host {move.target}'
        )

    def work_until_done(self, plans: Plans) -> Iterator[str]:
        """Move servers, and wait until nothing is left; yield sentences.

        It ends when it has found the same hosts twice: after an outage of the
        backend the first records may not name all of them.
        """
        yield from self.move_servers(plans)
        said, hosts = None, plans.keys()
        while True:
            found = try_read(self.read_plans)
            is_refused = isinstance(found, NovaRefused)
            left = (
                str(found)
                if is_refused
                else describe(found, with_servers=self._with_servers)
            )
            if left is None and found.keys() == hosts:
                return
            if left is not None and left != said:
                yield left
                said = left
            self._clock.sleep(LOOK_S)
            if not is_refused:
                hosts = found.keys()
                yield from self.move_servers(found)


def _ask(host: Host, request: Callable[[Host], Any]) -> Any:
    return ask_worker(
        lambda: request(host),
        no_answer=f'No daemon serves host {host}, or it does not answer; see '
        f'"ironic-computectl host list"',
        too_old=f'The daemon that serves host {host} is of an older release, '
        f'which cannot rebalance the pool, or no ironic-compute',
    )


class PoolRebalanceCommand(ExplainedCommand, lister.Lister):
    """Show how the nodes spread over the hosts of this pool, and even it out.

    Each node has one host that should hold it: the host that an operator has
    pinned it to (see "node move"), or else the one that the hash ring names.
    The table shows the nodes and servers of each host now and then, and how
    many nodes have to wait. Free nodes move by themselves. Nodes with servers
    move only with --with-servers; the servers run on. If the command is
    stopped, what has moved stays, and nothing else moves. Exit status: 1 if a
    move was refused or has no answer, unless --wait repeats it. Examples:

      ironic-computectl pool rebalance --with-servers --dry-run
      ironic-computectl pool rebalance --with-servers --limit 10 --wait
    """

    _has_failed = False

    def get_parser(self, prog_name: str) -> Any:
        """Add the options."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--with-servers',
            action='store_true',
            help='also move nodes that have a server',
        )
        add_move_options(parser)
        return parser

    def take_action(self, parsed_args: Any) -> tuple[Any, Any]:
        """Read the plans, and request the moves unless it is a dry run.

        :raises NovaRefused: a host of the pool does not answer
        """
        with_servers = parsed_args.with_servers
        hosts = sorted(known_hosts(read_members()))
        use_nova_conductor()
        order = _make_order(hosts)
        work = _make_rebalance(order, parsed_args)
        with contextlib.ExitStack() as undo:
            if with_servers and not parsed_args.dry_run:
                undo.callback(order.end)
            if with_servers:
                order.begin(is_dry_run=parsed_args.dry_run)
            plans = work.read_plans()
            if not parsed_args.dry_run:
                self._carry_out(work, plans, waits=parsed_args.wait)
        return COLUMNS, rows(plans, with_servers=with_servers)

    def _carry_out(
        self, work: PoolRebalance, plans: Plans, *, waits: bool
    ) -> None:
        act = work.work_until_done if waits else work.move_servers
        self._show(act(plans))
        self._has_failed = work.has_failed_move and not waits

    def run(self, parsed_args: Any) -> int:
        """Run the command; return the exit status."""
        super().run(parsed_args)
        return int(self._has_failed)

    def _show(self, sentences: Iterator[str]) -> None:
        try:
            for sentence in sentences:
                print(sentence, file=self.app.stderr, flush=True)
        except KeyboardInterrupt:
            print(
                'Stopped. What has moved stays; run the command again to '
                'move the rest',
                file=self.app.stderr,
            )
            raise  # What the command was told is not done.


def _read_hosts() -> list[Host]:
    """Read the hosts of the pool again.

    :raises NovaRefused: the coordination backend does not answer
    """
    try:
        return sorted(known_hosts(read_members()))
    except HashringError as exc:
        raise NovaRefused(str(exc)) from exc


def _make_order(hosts: Iterable[Host]) -> PoolOrder:
    from ironic_compute.ownership import peer_rpc

    clock = SystemClock()
    return PoolOrder(
        hosts,
        RebalanceOrder(
            uuidutils.generate_uuid(), describe_caller(clock.wall_s())
        ),
        peer_rpc.request_begin_rebalance,
        peer_rpc.request_end_rebalance,
        clock,
    )


def _make_rebalance(order: PoolOrder, parsed_args: Any) -> PoolRebalance:
    from ironic_compute.ownership import peer_rpc

    with_servers, changes_zone = (
        parsed_args.with_servers,
        parsed_args.change_zone,
    )

    def read_plan(host: Host) -> Any:
        if with_servers:
            order.repeat_if_due()
        return peer_rpc.request_rebalance_plan(host, changes_zone=changes_zone)

    def request(holder: Host, node: NodeId) -> Any:
        order.repeat_if_due()
        return peer_rpc.request_rebalance_node(
            holder, node, order.key, changes_zone=changes_zone
        )

    return PoolRebalance(
        _read_hosts,
        read_plan,
        request,
        SystemClock(),
        with_servers,
        parsed_args.limit,
    )
