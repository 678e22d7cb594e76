# SPDX-License-Identifier: Apache-2.0
"""What was asked, counted in log files; pure but for reading them."""

import collections
import pathlib
import re
from collections.abc import Iterable

# uWSGI: [pid: 7|…] 127.0.0.1 () {…} [date] GET /path => generated … 200) …
_ACCESS = re.compile(
    r'^\[pid: \d+\|.*?\] \S+ \(\S*\) \{.*?\} \[.*?\] '
    r'(?P<method>[A-Z]+) (?P<path>\S+) => generated .*?'
    r'\(HTTP/\S+ (?P<status>\d+)\)'
)
# oslo.messaging at DEBUG, see ``subjects``.
_RPC = re.compile(r'Calling RPC method (?P<method>\S+) on target (?P<to>\S+)')

Counts = collections.Counter[str]


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
    """Count the messages a process sent, by receiver and method."""
    found = (_RPC.search(line) for line in lines)
    return collections.Counter(
        f'{hit["to"]} {hit["method"]}' for hit in found if hit
    )


class Tail:
    """What a file gets from now on; one that is not there yet is empty."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._offset = self._size()

    def lines(self) -> list[str]:
        """Return the whole lines since the tail was made."""
        if not self._path.exists():
            return []
        with self._path.open('rb') as file:
            file.seek(self._offset)
            content = file.read()
        whole, newline, _ = content.rpartition(b'\n')
        return (whole + newline).decode(errors='replace').splitlines()

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0
