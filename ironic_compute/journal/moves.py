# SPDX-License-Identifier: Apache-2.0
"""Moves as values: a node went to another host, or a host to another daemon.

Whoever has made a move tells a `MoveLog`, which neither blocks nor fails. The
text of an entry is for people, and its names never change, because scripts
and metrics use them. Pure, but for the clock.
"""

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from hashring.clock import Clock

# The entries that one answer may have: some 2 MB.
LIMIT_MAX = 5000
# Nobody needs more of what an operator is called.
_BY_LENGTH_MAX = 200


class Kind(enum.StrEnum):
    """What has moved."""

    PUSH = 'push'
    """A free node was given to the host that should hold it."""
    EVICT = 'evict'
    """A node was given to another host, with the server on it."""
    FOLLOW = 'follow'
    """A node was given to the host that had its server already."""
    TAKE = 'take'
    """A free node was taken that had no holder any more."""
    ADOPTION = 'adoption'
    """A daemon serves the host of another daemon."""
    HAND_BACK = 'hand-back'
    """A daemon does not serve a host any more that another one will serve."""
    RETIREMENT = 'retirement'
    """A host has left the pool and Nova."""


class Reason(enum.StrEnum):
    """Why it has moved."""

    RING = 'ring'
    """The hash ring names the new host."""
    PIN = 'pin'
    """An operator has pinned the node to the new host."""
    DISABLED = 'disabled'
    """The former host takes no nodes."""
    DRAIN = 'drain'
    """An operator has had the former host drained."""
    RETIRE = 'retire'
    """An operator has had the former host retired."""
    REBALANCE = 'rebalance'
    """An operator has had the pool rebalanced."""
    SERVER = 'server'
    """Nova has the server of the node on the new host."""
    POOL = 'pool'
    """The node is in another conductor group or shard."""
    HOST_DELETED = 'host-deleted'
    """Nova has no Service of the former host."""
    DAEMON_GONE = 'daemon-gone'
    """No daemon of the host is up, or it has no worker."""
    DAEMON_BACK = 'daemon-back'
    """The daemon of the host is up."""
    HALF_ALIVE = 'half-alive'
    """The former daemon does not reach a service that others reach."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cause:
    """Why something moves.

    :param by: the operator who has ordered it, and when; for people
    """

    reason: Reason
    by: str = ''


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """One entry of the journal.

    Either a node moves between two hosts, or a host between two daemons, which
    go by the names of their home hosts.

    :param at_s: when the move had been made, in seconds since 1970
    :param kind: one of `Kind`, or one that a later release has added
    :param reason: one of `Reason`, likewise
    :param source: the former host; '' if it is not known
    :param target: the new host; '' if there is none, or it is not known
    :param host: the host that has moved; '' if a node has
    :param node: the node that has moved; '' if a host has
    :param server: the server that was on the node; '' if it was free
    :param seconds: for how long the move was under way
    :param by: the operator who has ordered it; '' if nobody has
    """

    at_s: float
    kind: str
    reason: str
    source: str
    target: str
    host: str = ''
    node: str = ''
    server: str = ''
    seconds: float = 0.0
    by: str = ''

    def as_json(self) -> dict[str, Any]:
        """Return the move as JSON values."""
        return dataclasses.asdict(self)


_TEXTS = (
    *('kind', 'reason', 'source', 'target'),
    *('host', 'node', 'server', 'by'),
)


def parse_move(raw: Any) -> Move:
    """Return a move that was JSON; fields of later releases are ignored.

    :raises ValueError: it is none
    """
    if not isinstance(raw, Mapping):
        raise ValueError(f'no move: {raw!r}')
    try:
        return Move(
            at_s=float(raw['at_s']),
            seconds=float(raw['seconds']),
            **{name: str(raw[name]) for name in _TEXTS},
        )
    except (KeyError, TypeError) as exc:
        raise ValueError(f'no move: {raw!r}') from exc


@dataclasses.dataclass(frozen=True, slots=True)
class Query:
    """Which moves somebody wants to see.

    :param host: of this host, from it or to it; '' means any
    :param node: of this node; '' means any
    :param since_s: not before this moment, in seconds since 1970
    :param limit: the newest ones, no more than so many
    """

    host: str = ''
    node: str = ''
    since_s: float = 0.0
    limit: int = 50

    def matches(self, move: Move) -> bool:
        """Return whether a move is wanted."""
        return (
            self.host in ('', move.host, move.source, move.target)
            and self.node in ('', move.node)
            and move.at_s >= self.since_s
        )

    def newest(self, moves: Any) -> list[Move]:
        """Return the moves that are wanted, each once, the newest first."""
        wanted = dict.fromkeys(filter(self.matches, moves))
        ordered = sorted(wanted, key=lambda move: move.at_s, reverse=True)
        return ordered[: self.limit]


class MoveLog(Protocol):
    """What is told of each move; any thread may call, and nothing blocks."""

    def now_s(self) -> float:
        """Return the time as ``begun_s`` is measured."""

    def add(
        self,
        kind: Kind,
        cause: Cause,
        *,
        begun_s: float,
        source: str,
        target: str,
        host: str = '',
        node: str = '',
        server: str = '',
    ) -> None:
        """Note a move that was made just now; raises no error."""


class NoMoveLog:
    """Notes nothing."""

    def now_s(self) -> float:
        """Return 0."""
        return 0.0

    def add(self, kind: Kind, cause: Cause, **what: Any) -> None:
        """Do nothing."""


class MoveRecorder:
    """Makes an entry of each move.

    :param keep: keeps an entry; must not block, and raises no error
    """

    def __init__(self, clock: Clock, *keep: Callable[[Move], None]) -> None:
        self._clock = clock
        self._keep = keep

    def now_s(self) -> float:
        """Return the time of the clock."""
        return self._clock.now_s()

    def add(
        self,
        kind: Kind,
        cause: Cause,
        *,
        begun_s: float,
        source: str,
        target: str,
        host: str = '',
        node: str = '',
        server: str = '',
    ) -> None:
        """Make an entry, and keep it."""
        move = Move(
            at_s=round(self._clock.wall_s(), 3),
            kind=kind.value,
            reason=cause.reason.value,
            source=source,
            target=target,
            host=host,
            node=node,
            server=server,
            seconds=round(max(self._clock.now_s() - begun_s, 0.0), 3),
            by=cause.by[:_BY_LENGTH_MAX],
        )
        for keep in self._keep:
            keep(move)
