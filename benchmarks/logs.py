# SPDX-License-Identifier: Apache-2.0
"""What was asked, counted in log files; pure but for reading them."""

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
# Any line in the format of ``subjects``.
_LINE = re.compile(
    r'^(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) (?P<pid>\d+) '
    r'[A-Z]+ (?P<logger>\S+) \[thread:(?P<thread>.*?)\] '
    r'\[(?P<request>.*?)\] (?P<text>.*)'
)
# Lines of ``telling`` and oslo.service.
_RPC = re.compile(r'^RPC (begins|cast): (?P<what>.*)')
_TASK = re.compile(r'Running periodic task (?P<task>\S+)')

Counts = collections.Counter[str]


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One line of a compute process.

    :param at_s: since the epoch; the log has thousandths
    :param thread: its process and its name
    :param request: Nova's name of the request that is served; may be empty
    """

    at_s: float
    thread: tuple[int, str]
    request: str
    logger: str
    text: str


def at_s(stamp: str) -> float:
    """Read the time of a line; since the epoch."""
    return datetime.datetime.fromisoformat(stamp).timestamp()


def parsed(lines: Iterable[str]) -> list[Line]:
    """Read lines of a compute process; others are left out."""
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
    """Return a path without what names one thing, and without its query."""
    plain, _, query = path.partition('?')
    parts = [
        '…' if re.fullmatch(r'[0-9a-f]{8}-?[0-9a-f-]{23,}', part) else part
        for part in plain.split('/')
    ]
    return '/'.join(parts) + ('?' if query else '')


def rpcs(lines: Iterable[str]) -> Counts:
    """Count the messages a process sent, by cause, receiver and method.

    The cause is the periodic task of Nova for whose request it was sent, in
    whatever thread, else the thread's name; the heartbeat of Nova's service
    is a thread that has none.
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
    """Return how many of these RPCs are not caused by Nova's own code."""
    return sum(
        count
        for cause, count in counts.items()
        if cause.startswith(OUR_THREADS)
    )


class Tail:
    """What a file gets from now on; it need not be there yet."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def lines(self) -> list[str]:
        """Return the whole lines that are new; half a one is left."""
        if not self._path.exists():
            return []
        with self._path.open('rb') as file:
            file.seek(self._offset)
            content = file.read()
        length = content.rfind(b'\n') + 1
        self._offset += length
        return content[:length].decode(errors='replace').splitlines()


class Tally:
    """Counts what a file gets from now on.

    :param count: what to make of lines: ``requests`` or ``rpcs``
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
        """Return all counts since the tally was made."""
        self._counts += self._count(self._tail.lines())
        return self._counts
