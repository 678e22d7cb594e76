# SPDX-License-Identifier: Apache-2.0
"""What Placement acknowledged, on this machine's disk.

A worker that starts again believes a record if Placement's list shows the
very generation that the record has; so after a restart one request proves
that nothing changed. The file is worth nothing if it is lost: then each
provider is read once. Therefore nothing waits for the disk, and a disk that
fails is said once and done without.

One line a fact, with its own checksum; the newest line of a node counts. A
line that cannot be read is left out and harms only itself, so the process may
be killed between any two bytes. From time to time the file is replaced by a
shorter one that says the same.

A provider that was deleted and made anew, with as many writes as the former
had, shows in the record that Nova has of the node, which is another one then.
What this cannot see: a provider that an operator deleted alone.
"""

import json
import os
import pathlib
import sys
import threading
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from oslo_log import log as logging

from resource_tracker import interning
from resource_tracker.delta import KnownProvider
from resource_tracker.node import NodeId
from resource_tracker.provider_state import ProviderState

LOG = logging.getLogger(__name__)

FORMAT = 2
# Lines that say nothing any more before the file is replaced; the file has
# at most this many, and twice as many as there are nodes.
_SPARE_LINES_COUNT = 1000


class DiskCache(Protocol):
    """What outlives a worker; any thread may call, nothing waits long."""

    def take(self, node: NodeId) -> ProviderState | None:
        """Return what an earlier life knew of a node, once."""

    def save(self, node: NodeId, state: ProviderState) -> None:
        """Keep what Placement acknowledged of a node."""

    def discard(self, node: NodeId) -> None:
        """A node is not ours any more: what we know of it is void."""


class NoDiskCache:
    """Keeps nothing."""

    def take(self, node: NodeId) -> ProviderState | None:
        """Know nothing."""
        return None

    def save(self, node: NodeId, state: ProviderState) -> None:
        """Keep nothing."""

    def discard(self, node: NodeId) -> None:
        """There is nothing to strike."""


class FileDiskCache:
    """A ledger in one file.

    Reads the file when it is made: milliseconds for thousands of nodes.

    :param path: its folder is made if need be
    :param host: whose nodes these are; a file of another host is not read
    :param spare_lines_count: when to replace the file by a shorter one
    :param format_number: a file of another format is not read
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        host: str,
        *,
        spare_lines_count: int = _SPARE_LINES_COUNT,
        format_number: int = FORMAT,
    ) -> None:
        self._path = pathlib.Path(path)
        self._header = {'format': format_number, 'host': host}
        self._spare_lines_count = spare_lines_count
        self._lock = threading.Lock()
        self._earlier: dict[NodeId, ProviderState] = {}
        self._nodes: set[NodeId] = set()
        self._lines_count = 0
        self._fd: int | None = None
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._earlier = self._read()
            self._replace(self._earlier)
        except OSError as exc:
            self._stop_saving(exc)

    @property
    def descriptor(self) -> int | None:
        """The open file; None once the disk has failed."""
        return self._fd

    def take(self, node: NodeId) -> ProviderState | None:
        """Return what an earlier life knew of a node, once."""
        return self._earlier.pop(node, None)

    def save(self, node: NodeId, state: ProviderState) -> None:
        """Keep what Placement acknowledged of a node."""
        if state.known is not None:
            self._append(_record(node, state))

    def discard(self, node: NodeId) -> None:
        """A node is not ours any more: what we know of it is void."""
        self._earlier.pop(node, None)
        if node in self._nodes:
            self._append({'node': node})

    def close(self) -> None:
        """Keep nothing more."""
        with self._lock:
            self._close()

    def _append(self, record: Mapping[str, Any]) -> None:
        with self._lock:
            if self._fd is None:
                return
            try:
                os.write(self._fd, _line(record))
                self._count(record)
                if self._is_too_long():
                    self._replace(self._read())
            except OSError as exc:
                self._stop_saving(exc)

    def _count(self, record: Mapping[str, Any]) -> None:
        self._lines_count += 1
        if 'uuid' in record:
            self._nodes.add(record['node'])
        else:
            self._nodes.discard(record['node'])

    def _is_too_long(self) -> bool:
        spare_count = max(self._spare_lines_count, len(self._nodes))
        return self._lines_count > len(self._nodes) + spare_count

    def _read(self) -> dict[NodeId, ProviderState]:
        return _states(_lines(self._path, self._header))

    def _replace(self, states: Mapping[NodeId, ProviderState]) -> None:
        """Write what counts into a new file and put it in the old's place."""
        beside = self._path.with_name(f'{self._path.name}.new')
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        fd = os.open(beside, flags, 0o600)
        try:
            _write_all(fd, self._header, states)
            os.replace(beside, self._path)
        except BaseException:
            os.close(fd)
            raise
        self._close()
        self._fd = fd
        self._nodes = set(states)
        self._lines_count = len(states)

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _stop_saving(self, exc: OSError) -> None:
        """Go on without; the next worker will read each provider once."""
        self._close()
        LOG.warning(
            'Could not save to %(path)s what Placement acknowledged; the '
            'next start reads each provider: %(error)s',
            {'path': self._path, 'error': exc},
        )


def _write_all(
    fd: int,
    header: Mapping[str, Any],
    states: Mapping[NodeId, ProviderState],
) -> None:
    """Write a whole file."""
    with open(fd, 'wb', closefd=False) as file:
        file.write(_line(header))
        file.writelines(_line(_record(n, m)) for n, m in states.items())


def _line(record: Mapping[str, Any]) -> bytes:
    body = json.dumps(record, separators=(',', ':')).encode()
    return b'%08x %s\n' % (zlib.crc32(body), body)


def _lines(
    path: pathlib.Path, header: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    """Return the records that can be read; none of a foreign file."""
    try:
        file = path.open('rb')
    except FileNotFoundError:
        return
    with file:
        if _parsed(file.readline()) != header:
            LOG.info(
                'Did not use %(path)s: it was written for another host '
                'or version',
                {'path': path},
            )
            return
        yield from filter(None, map(_parsed, file))


def _parsed(line: bytes) -> Mapping[str, Any] | None:
    checksum, _, body = line.rstrip(b'\n').partition(b' ')
    if not body or checksum != b'%08x' % zlib.crc32(body):
        return None
    record: Mapping[str, Any] = json.loads(body)
    return record


def _states(
    records: Iterator[Mapping[str, Any]],
) -> dict[NodeId, ProviderState]:
    states: dict[NodeId, ProviderState] = {}
    for record in records:
        node = NodeId(sys.intern(record['node']))
        states.pop(node, None)
        if 'uuid' in record:
            states[node] = _state(record)
    return states


def _record(node: NodeId, state: ProviderState) -> dict[str, Any]:
    known = state.known
    assert known is not None  # noqa: S101 - see note
    aggregates = known.aggregates
    return {
        'node': node,
        'uuid': known.uuid,
        'generation': known.generation,
        'inventories': {k: dict(v) for k, v in known.inventories.items()},
        'traits': sorted(known.traits),
        'aggregates': None if aggregates is None else sorted(aggregates),
        'ours': sorted(state.our_traits),
        'inferred': state.is_inferred,
        'record': state.row_id,
    }


def _state(record: Mapping[str, Any]) -> ProviderState:
    aggregates = record['aggregates']
    return ProviderState(
        known=KnownProvider(
            uuid=sys.intern(record['uuid']),
            generation=record['generation'],
            inventories=interning.record(record['inventories']),
            traits=interning.names(frozenset(record['traits'])),
            aggregates=None
            if aggregates is None
            else interning.names(frozenset(aggregates)),
        ),
        our_traits=interning.names(frozenset(record['ours'])),
        # Files from before this was kept have none.
        is_inferred=record.get('inferred', False),
        row_id=record['record'],
    )
