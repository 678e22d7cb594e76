# SPDX-License-Identifier: Apache-2.0
"""The command that shows what has moved: history.

Each daemon keeps a journal on its own disk (``ironic_compute.journal``). The
command asks one worker of each daemon for the newest entries, and shows the
newest of all. What it cannot ask is named on the standard error output.
"""

import argparse
import datetime
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from cliff import lister
from oslo_utils import uuidutils

from hashring.clock import SystemClock
from hashring.group import Member
from hashring.ring import Host
from ironic_compute.cmd.explained_command import ExplainedCommand, given_name
from ironic_compute.cmd.hosts import known_hosts, read_members
from ironic_compute.cmd.node_moves import find_node
from ironic_compute.cmd.nova_access import (
    NovaRefused,
    ask_worker,
    use_nova_conductor,
)
from ironic_compute.journal.moves import LIMIT_MAX, Move, Query
from resource_tracker.node import NodeId

COLUMNS = (
    *('Time (UTC)', 'Move', 'Host', 'Node', 'Server', 'From', 'To'),
    *('Why', 'Seconds', 'Ordered by'),
)
_AGO = re.compile(r'(\d+)([smhd])')
_UNITS_S = {'s': 1, 'm': 60, 'h': 3600, 'd': 86400}

Ask = Callable[[Host, Query], list[Move]]


def since(text: str, now_s: float) -> float:
    """Return the moment that an operator names, in seconds since 1970.

    :param text: an age such as 2h, or a time in ISO 8601; UTC, unless it says
        otherwise
    :raises argparse.ArgumentTypeError: it is neither
    """
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return now_s - int(ago[1]) * _UNITS_S[ago[2]]
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(
            f'{text} is neither an age, such as 90s, 30m, 2h or 7d, nor a '
            f'time, such as 2026-01-31 or 2026-01-31T18:00'
        ) from exc
    if found.tzinfo is None:
        found = found.replace(tzinfo=datetime.UTC)
    return found.timestamp()


def limit(text: str) -> int:
    """Parse the number of entries that an operator wants.

    :raises argparse.ArgumentTypeError: it is too small or too large
    """
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= LIMIT_MAX:
        raise argparse.ArgumentTypeError(
            f'{text} is no number from 1 to {LIMIT_MAX}'
        )
    return value


def row(move: Move) -> tuple[str, ...]:
    """Return an entry as a row of the table."""
    at = time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(move.at_s))
    texts = (
        *(move.kind, move.host, move.node, move.server),
        *(move.source, move.target, move.reason),
    )
    seconds = f'{move.seconds:.1f}'
    return (at, *(text or '-' for text in texts), seconds, move.by or '-')


def read_history(
    members: Iterable[Member],
    query: Query,
    ask: Ask,
    note: Callable[[str], None],
) -> list[Move]:
    """Return the newest entries of all daemons that answer.

    :param ask: asks the worker of a host
    :param note: shows a sentence about entries that are missing
    :raises NovaRefused: no daemon answers
    """
    members = sorted(members, key=lambda member: member.home)
    found: list[Move] = []
    silent: list[str] = []
    for member in members:
        try:
            found += _ask_daemon(member, query, ask)
        except NovaRefused as exc:
            silent.append(str(exc))
    if len(silent) == len(members):
        raise NovaRefused(silent[0])
    for sentence in (*silent, *_describe_absent(members)):
        note(sentence)
    return query.newest(found)


def _ask_daemon(member: Member, query: Query, ask: Ask) -> list[Move]:
    """Return the entries of one daemon, from any of its workers.

    :raises NovaRefused: there are none, with the reason
    """
    why = NovaRefused(
        f'The daemon of {member.home} serves no host, so it cannot be asked '
        f'for what it has moved'
    )
    home_first = sorted(member.serving, key=lambda host: host != member.home)
    for host in home_first:
        try:
            return ask(host, query)
        except NovaRefused as exc:
            why = exc
    raise why


def _describe_absent(members: Iterable[Member]) -> Iterator[str]:
    members = tuple(members)
    for host in sorted(known_hosts(members) - {m.home for m in members}):
        yield (
            f'The daemon of {host} is not up; what it has moved is not shown'
        )


def ask_for_moves(host: Host, query: Query) -> list[Move]:
    """Return the entries of the daemon that serves a host; blocks.

    :raises NovaRefused: it does not answer, or keeps no journal
    """
    from ironic_compute.ownership import peer_rpc

    return ask_worker(
        lambda: peer_rpc.request_moves(host, query),
        no_answer=f'The daemon that serves host {host} does not answer; what '
        f'it has moved is not shown',
        too_old=f'The daemon that serves host {host} is of an older release, '
        f'which keeps no journal; what it has moved is not shown',
    )


def find_uuid(name: str, find: Callable[[str], NodeId]) -> NodeId:
    """Return the uuid of a node as the journals have it.

    Ironic is not asked for a uuid: the node may be gone.

    :param name: a name; or a uuid, also in capitals or without hyphens
    :param find: finds the uuid of a name in Ironic
    """
    if uuidutils.is_uuid_like(name):
        return NodeId(str(uuid.UUID(name)))
    return find(name)


class History(ExplainedCommand, lister.Lister):
    """Show which nodes and hosts have moved, when, where and why.

    The newest moves come first. Each daemon keeps the last ten thousand moves
    and more of each host; what a daemon that is not up has moved is missing.
    Examples:

      ironic-computectl history --node bm-17
      ironic-computectl history --host c3 --since 2h --limit 500 -f json
    """

    def get_parser(self, prog_name: str) -> Any:
        """Add the options."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--host',
            type=given_name,
            help='only moves of this host, from it or to it',
        )
        parser.add_argument(
            '--node',
            type=given_name,
            help='only moves of this node: uuid or name',
        )
        parser.add_argument(
            '--since',
            type=lambda text: since(text, SystemClock().wall_s()),
            default=0.0,
            metavar='WHEN',
            help='no older moves; an age (90s, 30m, 2h, 7d) or a time in UTC '
            '(2026-01-31T18:00)',
        )
        parser.add_argument(
            '--limit',
            type=limit,
            default=50,
            metavar='N',
            help='the newest N moves (default: %(default)d)',
        )
        return parser

    def take_action(self, parsed_args: Any) -> tuple[Any, Any]:
        """Ask all daemons of the pool.

        :raises NovaRefused: none is up, or none answers
        """
        members, node = tuple(read_members()), parsed_args.node or ''
        if node:
            node = find_uuid(node, find_node)
        use_nova_conductor()
        query = Query(
            host=parsed_args.host or '',
            node=node,
            since_s=parsed_args.since,
            limit=parsed_args.limit,
        )
        moves = read_history(members, query, ask_for_moves, self._note)
        return COLUMNS, [row(move) for move in moves]

    def _note(self, sentence: str) -> None:
        print(sentence, file=self.app.stderr, flush=True)
