# SPDX-License-Identifier: Apache-2.0
"""An operator's orders to move nodes, and what their dry runs have promised.

A dry run is compared with what was then seen in the databases, line by line.
"""

import collections
import dataclasses
import json
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from onemachine.chaos.looks import Look, Move
from onemachine.layout import Layout
from onemachine.progress import CloudError, print_line

_NONE = '-'
Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What a command has answered."""

    status: int
    out: str
    error: str
    took_s: float

    def rows(self) -> list[Row]:
        """Return the rows of its table.

        :raises CloudError: it has failed
        """
        if self.status:
            raise CloudError(f'an order was refused: {self.error.strip()}')
        rows: list[Row] = json.loads(self.out)
        return rows


class UnderWay:
    """A command that runs."""

    def __init__(self, process: 'subprocess.Popen[str]') -> None:
        self._process = process
        self._begun_s = time.monotonic()

    def wait(self, timeout_s: float) -> Answer:
        """Wait until the command ends.

        :raises CloudError: it did not end in time, and has been ended
        """
        try:
            out, error = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as exc:
            self._process.terminate()
            out, error = self._process.communicate()
            raise CloudError(
                f'an order has not ended within {timeout_s:.0f} s: '
                f'{error.strip()[-500:]}'
            ) from exc
        took_s = time.monotonic() - self._begun_s
        return Answer(self._process.returncode, out, error, took_s)


class Operator:
    """Runs ``ironic-computectl`` with the configuration of one pool.

    :param files: the arguments that name the files
    """

    def __init__(self, layout: Layout, files: Sequence[str]) -> None:
        self._layout = layout
        self._files = files

    def start(self, *words: str) -> UnderWay:
        """Start a command."""
        print_line(f'$ ironic-computectl {" ".join(words)}')
        return UnderWay(
            subprocess.Popen(
                [self._layout.bin('ironic-computectl'), *self._files, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=self._layout.environment(),
            )
        )

    def run(self, *words: str, timeout_s: float = 300.0) -> Answer:
        """Run a command to its end.

        :raises CloudError: it did not end in time
        """
        return self.start(*words).wait(timeout_s)


@dataclasses.dataclass(frozen=True, slots=True)
class Compared:
    """A dry run, compared with what was done.

    :param lines_count: lines of the dry run
    :param by_users: lines that differ only in the server, because a user has
        deleted or booted it meanwhile
    :param different: the other lines that differ
    """

    lines_count: int
    by_users: int
    different: Sequence[str]

    @property
    def summary(self) -> str:
        """For the table of the report."""
        equal = self.lines_count - self.by_users - len(self.different)
        return f'{equal} of {self.lines_count}, {self.by_users} by users'


def compare_drain(
    host: str, rows: Sequence[Row], moves: Sequence[Move], after: Look
) -> Compared:
    """Compare the dry run of a drain with the moves from its host.

    :param moves: all moves since the dry run
    :param after: what was seen when the host was empty
    """
    first: dict[str, Move] = {}
    for move in moves:
        if move.source == host:
            first.setdefault(move.node, move)
    by_users, different = 0, []
    for row in rows:
        move = first.pop(row['Node'], None)
        if move is None or move.target != row['To host']:
            different.append(f'{dict(row)} became {move}')
        elif (move.server or _NONE) != row['Server']:
            if _is_by_users(row['Server'], move.server, after):
                by_users += 1
            else:
                different.append(f'{dict(row)} became {move}')
    different += [f'without a line: {move}' for move in first.values()]
    return Compared(len(rows), by_users, different)


def _is_by_users(planned: str, moved: str | None, after: Look) -> bool:
    """Return whether users have booted or deleted what was on a node."""
    return planned == _NONE or planned not in after.servers or moved is None


def compare_rebalance(
    rows: Sequence[Row], before: Look, after: Look, hosts: Collection[str]
) -> Compared:
    """Compare the dry run of a rebalance with two looks.

    Servers are counted on the nodes that had one during the dry run, so that
    what users boot and delete meanwhile makes no difference.

    :param before: what was seen during the dry run
    """
    was, now = before.holder, after.holder
    with_server = before.on_node
    seen = {
        'Nodes': collections.Counter(was.values()),
        'Nodes then': collections.Counter(now[n] for n in was if n in now),
        'Servers': collections.Counter(
            was[n] for n in with_server if n in was
        ),
        'Servers then': collections.Counter(
            now[n] for n in with_server if n in now
        ),
    }
    shown = {row['Host']: row for row in rows}
    different = [
        f'{host}: {what} {shown.get(host, {}).get(what)}, seen {counts[host]}'
        for host in sorted(hosts)
        for what, counts in seen.items()
        if shown.get(host, {}).get(what) != counts[host]
    ]
    return Compared(len(rows), 0, different)


def did(sentence: str) -> str:
    """Return what a real run says instead of the sentence of a dry run."""
    if 'within seconds' in sentence:
        sentence = sentence.replace('would move', 'moves')
    for would, does in (('would move', 'moved'), ('would be', 'is')):
        sentence = sentence.replace(would, does)
    return sentence
