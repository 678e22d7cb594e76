# SPDX-License-Identifier: Apache-2.0
"""Counts of requests and RPCs, read from log files."""

import collections
import dataclasses
import datetime
import pathlib
import re
from collections.abc import Callable, Iterable

# uWSGI: [pid: 7|…] 127.0.0.1 () {…} [date] GET /path => generated … 200) …
_ACCESS = re.compile(
    r'^\[pid: \d+\|.*?\] \S+ \(\S*\) \{.*?\} \[.*?\] '
    r'(?P<method>[A-Z]+) (?P<path>\S+) => generated .*?'
    r'\(HTTP/\S+ (?P<status>\d+)\)'
)
# A log line in the format that module ``subjects`` sets.
_LINE = re.compile(
    r'^(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) (?P<pid>\d+) '
    r'[A-Z]+ (?P<logger>\S+) \[thread:(?P<thread>.*?)\] '
    r'\[(?P<request>.*?)\] (?P<text>.*)'
)
# Lines of ``rpc_log`` and oslo.service.
_RPC = re.compile(r'^RPC (begins|cast): (?P<what>.*)')
_TASK = re.compile(r'Running periodic task (?P<task>\S+)')

Counts = collections.Counter[str]


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One line of the log of a compute process.

    :param at_s: seconds since the epoch, with the log's milliseconds
    :param thread: process id, and name of the thread
    :param request: id of the request that Nova serves; may be empty
    """

    at_s: float
    thread: tuple[int, str]
    request: str
    logger: str
    text: str


def at_s(stamp: str) -> float:
    """Return the time of a line in seconds since the epoch."""
    return datetime.datetime.fromisoformat(stamp).timestamp()


def parsed(lines: Iterable[str]) -> list[Line]:
    """Return the lines that have the format of a compute process's log."""
    return [
        Line(
            at_s(hit['stamp']),
            (int(hit['pid']), hit['thread']),
            hit['request'].strip('-'),
            hit['logger'],
            hit['text'],
        )
        for hit in map(_LINE.match, lines)
        if hit
    ]


# Names of the threads of our worker; all others are Nova's.
OUR_THREADS = (
    'audit',
    'lost',
    'path',
    'rebalance',
    'recovery',
    'resume',
    'rows',
    'services',
    'stray',
)


def requests(lines: Iterable[str]) -> Counts:
    """Count the requests of an access log, by method and kind of path."""
    found = (_ACCESS.match(line) for line in lines)
    return collections.Counter(
        f'{hit["method"]} {kind_of(hit["path"])}' for hit in found if hit
    )


def kind_of(path: str) -> str:
    """Return a URL path without its uuids and without its query's value."""
    plain, _, query = path.partition('?')
    parts = [
        '…' if re.fullmatch(r'[0-9a-f]{8}-?[0-9a-f-]{23,}', part) else part
        for part in plain.split('/')
    ]
    return '/'.join(parts) + ('?' if query else '')


def rpcs(lines: Iterable[str]) -> Counts:
    """Count the RPCs that a process sent, by cause, receiver and method.

    The cause is the periodic task of Nova whose request the RPC belongs to, in
    any thread, or else the name of the thread. The heartbeat of Nova's service
    belongs to no periodic task and counts under the name of its thread.
    """
    counts: Counts = collections.Counter()
    tasks: dict[str, str] = {}
    for line in parsed(lines):
        if task := _TASK.search(line.text):
            tasks[line.request] = task['task']
        elif hit := _RPC.match(line.text):
            plain = re.sub(r'[-_]?\d+', '', line.thread[1])
            cause = tasks.get(line.request, plain) if line.request else plain
            counts[f'{cause}: {hit["what"]}'] += 1
    return counts


def of_our_own(counts: Counts) -> int:
    """Return the number of RPCs that Nova's own code did not cause."""
    return sum(
        count
        for cause, count in counts.items()
        if cause.startswith(OUR_THREADS)
    )


class Tail:
    """The lines added to a file after this object was made.

    The file may be created later.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def lines(self) -> list[str]:
        """Return the complete lines that were added since the last call."""
        if not self._path.exists():
            return []
        with self._path.open('rb') as file:
            file.seek(self._offset)
            content = file.read()
        length = content.rfind(b'\n') + 1
        self._offset += length
        return content[:length].decode(errors='replace').splitlines()


class Tally:
    """Counts the lines added to a file after this object was made.

    :param count: the function that counts lines: ``requests`` or ``rpcs``
    """

    def __init__(
        self,
        path: pathlib.Path,
        count: Callable[[Iterable[str]], Counts],
    ) -> None:
        self._tail = Tail(path)
        self._count = count
        self._counts: Counts = collections.Counter()

    def counts(self) -> Counts:
        """Return all counts since this object was made."""
        self._counts += self._count(self._tail.lines())
        return self._counts
