# SPDX-License-Identifier: Apache-2.0
"""One worker tells the others what it has read of Ironic."""

from collections.abc import Callable

from hashring.ring import Host
from ironic_compute.feed.shared_reads import Heard, PoolReads, ReadsAlone
from ironic_compute.nodes.changes_read import ChangesRead
from ironic_compute.nodes.listed_nodes import ListPart
from resource_tracker.node import NodeFacts, NodeId

NODES = [NodeFacts(NodeId(f'n{number}')) for number in range(1001)]
HOSTS = tuple(Host(name) for name in ('c2', 'c1', 'c3'))


class _Loop:
    """A loop whose calls a test makes."""

    def __init__(
        self, name: str, act: Callable[[], float | None], first_wait_s: float
    ) -> None:
        self.act = act
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append('start')

    def wake(self) -> None:
        self.calls.append('wake')

    def stop(self) -> None:
        self.calls.append('stop')


class _Pool:
    """The pool as the worker of one host sees it; records what is sent."""

    def __init__(self, host: str) -> None:
        self.ring: list[Host] = list(HOSTS)
        self.sent: list[tuple[Host, str]] = []
        self.unreachable: set[str] = set()
        self.during_part: ChangesRead | None = None
        self.loops: list[_Loop] = []
        self.reads = PoolReads(
            Host(host),
            lambda: self.ring,
            lambda: HOSTS,
            self._send,
            self._send_part,
            10.0,
            self._new_loop,
        )

    def _new_loop(
        self, name: str, act: Callable[[], float | None], first_wait_s: float
    ) -> _Loop:
        self.loops.append(_Loop(name, act, first_wait_s))
        return self.loops[-1]

    def _send(self, host: Host, read: ChangesRead) -> None:
        if host in self.unreachable:
            raise OSError('no route to RabbitMQ')
        self.sent.append((host, read.next_since))

    def _send_part(self, host: Host, part: ListPart) -> None:
        if self.during_part is not None:
            self.reads.tell(self.during_part)
            self.during_part = None
        self.sent.append((host, f'{len(part.fingerprints)} nodes'))


def _read(next_since: str) -> ChangesRead:
    return ChangesRead('1', next_since, {})


def test_first_host_of_the_ring_reads_for_all() -> None:
    """All workers with the same ring choose the same one."""
    assert [_Pool(host).reads.is_reader() for host in HOSTS] == [
        False,
        True,
        False,
    ]


def test_nobody_reads_for_others_without_a_ring() -> None:
    """Each worker then reads for itself."""
    pool = _Pool('c1')
    pool.ring = []
    assert not pool.reads.is_reader()


def test_reader_tells_all_other_hosts() -> None:
    """The message goes out in a thread of its own, which a wake starts."""
    pool = _Pool('c1')
    pool.reads.tell(_read('2'))
    assert (pool.sent, pool.loops[0].calls) == ([], ['wake'])
    pool.loops[0].act()
    assert pool.sent == [('c2', '2'), ('c3', '2')]


def test_only_the_newest_read_is_told() -> None:
    """The broker was away: without the one before, the others read."""
    pool = _Pool('c1')
    for stamp in ('2', '3'):
        pool.reads.tell(_read(stamp))
    pool.loops[0].act()
    assert pool.sent == [('c2', '3'), ('c3', '3')]


def test_reader_tells_the_list_of_all_nodes_in_parts() -> None:
    """What has changed meanwhile does not wait for its end."""
    pool = _Pool('c1')
    pool.reads.tell_all(1.0, NODES)
    pool.during_part = _read('2')
    pool.loops[0].act()
    assert pool.sent == [
        ('c2', '1000 nodes'),
        ('c3', '1000 nodes'),
        ('c2', '2'),
        ('c3', '2'),
        ('c2', '1 nodes'),
        ('c3', '1 nodes'),
    ]


def test_newer_list_replaces_one_that_waits() -> None:
    """The broker was away for long."""
    pool = _Pool('c1')
    pool.reads.tell_all(1.0, NODES)
    pool.reads.tell_all(2.0, NODES[:2])
    pool.loops[0].act()
    assert pool.sent == [('c2', '2 nodes'), ('c3', '2 nodes')]


def test_host_that_is_not_reached_keeps_nothing_from_the_others() -> None:
    """The error is only logged."""
    pool = _Pool('c1')
    pool.unreachable.add('c2')
    pool.reads.tell(_read('2'))
    pool.loops[0].act()
    assert pool.sent == [('c3', '2')]


def test_others_tell_nothing() -> None:
    """They read because they had missed something."""
    pool = _Pool('c2')
    pool.reads.tell(_read('2'))
    pool.reads.tell_all(1.0, NODES)
    pool.loops[0].act()
    assert pool.sent == []


def test_thread_is_started_and_stopped() -> None:
    """The worker starts it with its other threads."""
    pool = _Pool('c1')
    pool.reads.start()
    pool.reads.stop()
    assert pool.loops[0].calls == ['start', 'stop']


def test_messages_are_taken_in_their_order() -> None:
    """Of many, which a frozen worker finds, the oldest are forgotten."""
    heard = Heard()
    for number in range(12):
        heard.add(_read(str(number)))
    taken = [read.next_since for read in heard.take()]
    assert taken == [str(number) for number in range(2, 12)]
    assert heard.take() == []


def test_lone_worker_reads_itself() -> None:
    """It has nobody to tell."""
    reads = ReadsAlone()
    reads.tell(_read('2'))
    reads.tell_all(1.0, NODES)
    assert reads.is_reader()
