# SPDX-License-Identifier: Apache-2.0
"""A worker that is told the list of all nodes does not read it as well."""

from typing import Any

import pytest

from hashring.ring import Host
from ironic_compute import errors
from ironic_compute.feed.node_feed import NodeFeed
from ironic_compute.nodes.changes_read import ChangesRead
from ironic_compute.nodes.listed_nodes import split
from resource_tracker.node import NodeFacts, NodeId
from tests.fakes.clock import ManualClock
from tests.unit.ironic_compute.feed.test_node_feed import (
    Ironic,
    Sink,
    conf,
    ironic,
    sink,
)

__all__ = ['conf', 'ironic', 'sink']

AUDIT_S = 1800.0
OTHERS = 'h0'
# A host that uses a told list at once, since its name has the checksum 0.
HOST = 'w1226'


class _Shared:
    """The other workers; another one reads, unless ``reads`` is set."""

    silence_s = 25.0

    def __init__(self) -> None:
        self.reads = False
        self.lists: list[list[str]] = []

    def is_reader(self) -> bool:
        return self.reads

    def tell(self, read: ChangesRead) -> None:
        pass

    def tell_all(self, began_s: float, nodes: Any) -> None:
        self.lists.append([facts.uuid for facts in nodes])


class _Feed(NodeFeed):
    """A feed on a clock that stands still, which has read nothing yet."""

    def __init__(self, conf: Any, ironic: Ironic, sink: Sink) -> None:
        conf.set_override('audit_interval_s', AUDIT_S, 'ironic_compute')
        self.others, self.clock = _Shared(), ManualClock()
        self.ironic, self.sink = ironic, sink
        client: Any = ironic
        super().__init__(
            conf,
            client,
            sink,
            self.clock,
            host=HOST,  # type: ignore[arg-type]
            shared=self.others,
        )

    def hear(self, *nodes: NodeFacts) -> float:
        """Hear of a list; return the seconds until the next audit."""
        for part in split(Host(OTHERS), self.clock.now_s(), nodes):
            self.accept_listed(part)
        return self._try_audit()

    def hear_of_all(self) -> float:
        """Hear of a list of the nodes that Ironic has."""
        return self.hear(*self.ironic.nodes_by_uuid.values())

    def counts(self) -> tuple[int, int]:
        """Return how often it has read all nodes, and used a told list."""
        return len(self.sink.audits), len(self.sink.told)


@pytest.fixture
def feed(conf: Any, ironic: Ironic, sink: Sink) -> _Feed:
    """Return such a feed, after its first audit."""
    made = _Feed(conf, ironic, sink)
    assert made._try_audit() == AUDIT_S
    assert made.counts() == (1, 0)
    return made


def test_told_list_replaces_an_own_one(feed: _Feed) -> None:
    """The next one of its own is due if it hears of none for long."""
    feed.clock.advance(AUDIT_S)
    assert feed.hear_of_all() == AUDIT_S
    assert feed.counts() == (1, 1)
    assert list(feed.sink.told[0]) == ['n1', 'n2']
    feed.clock.advance(AUDIT_S)
    assert feed._try_audit() == AUDIT_S / 2
    feed.clock.advance(AUDIT_S / 2)
    assert feed._try_audit() == AUDIT_S
    assert feed.counts() == (2, 1)


def test_list_without_a_part_is_not_used(feed: _Feed) -> None:
    """A node of the lost part would seem to be gone."""
    nodes = [NodeFacts(f'n{number}') for number in range(1001)]  # type: ignore[arg-type]
    for part in list(split(Host(OTHERS), 1.0, nodes))[:1]:
        feed.accept_listed(part)
    feed._try_audit()
    assert feed.counts() == (1, 0)


def test_first_list_is_an_own_one(
    conf: Any, ironic: Ironic, sink: Sink
) -> None:
    """Without facts, a worker cannot tell what has changed."""
    feed = _Feed(conf, ironic, sink)
    feed.hear_of_all()
    assert feed.counts() == (1, 0)


def test_reader_uses_no_list_of_another_worker(feed: _Feed) -> None:
    """Two workers take themselves for the reader for a while."""
    feed.others.reads = True
    feed.hear_of_all()
    assert feed.counts() == (1, 0)


def test_list_is_told_as_it_was_read(feed: _Feed) -> None:
    """``PoolReads`` drops it if this worker is not the reader."""
    assert feed.others.lists == [['n1', 'n2']]


@pytest.mark.parametrize(('count', 'is_used'), [(100, True), (101, False)])
def test_many_differences_are_read_with_one_list(
    feed: _Feed, count: int, is_used: bool
) -> None:
    """So many reads of one node would cost Ironic more."""
    feed.clock.advance(AUDIT_S)
    feed.sink.differing_count = count
    feed.hear_of_all()
    assert feed.counts() == ((1, 1) if is_used else (2, 0))


def test_list_is_not_used_while_a_node_waits_for_a_holder(
    feed: _Feed,
) -> None:
    """The newest facts of all nodes are needed then, as early as before."""
    feed.sink.differing_count = None
    feed.clock.advance(AUDIT_S - 60.0)
    assert feed.hear_of_all() == 60.0
    assert feed.counts() == (1, 0)
    feed.clock.advance(60.0)
    assert feed._try_audit() == AUDIT_S
    assert feed.counts() == (2, 0)
    feed.clock.advance(AUDIT_S)
    assert feed._try_audit() == AUDIT_S / 2


def test_own_list_shows_that_ironic_answers_again(feed: _Feed) -> None:
    """What another worker reads says nothing about this worker's path."""
    feed.ironic.is_down = True
    assert not feed._try_read(feed._read_delta)
    feed.hear_of_all()
    assert feed.counts() == (1, 0)


def test_reader_that_starts_again_and_again_makes_few_audits(
    feed: _Feed,
) -> None:
    """Its worker dies every two minutes; each start of it tells a list."""
    for _ in range(10):
        feed.clock.advance(120.0)
        feed.hear_of_all()
    assert feed.counts() == (1, 2)


def test_requested_audit_is_not_replaced_by_a_told_list(feed: _Feed) -> None:
    """Both came while the thread was in an audit."""
    feed.clock.advance(AUDIT_S)
    feed.request_audit()
    feed.hear_of_all()
    assert feed.counts() == (2, 0)


def test_requested_audit_reads_ironic(feed: _Feed) -> None:
    """More nodes have changed than the delta list reads."""
    feed.request_audit()
    feed._try_audit()
    assert feed.counts() == (2, 0)


def test_error_in_a_told_list_waits_for_the_next_one(
    feed: _Feed, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a list of its own."""
    feed.clock.advance(AUDIT_S)
    feed.sink.is_broken = True
    assert feed.hear_of_all() == AUDIT_S
    assert 'Could not process a list of all nodes' in caplog.text


def test_failed_list_is_tried_again_until_it_is_told(feed: _Feed) -> None:
    """A told list does not end an outage."""

    def fail(pause: Any = None) -> Any:
        raise errors.IronicUnavailable('504 at the ninth page')

    feed.ironic.list_nodes = fail  # type: ignore[method-assign]
    feed.request_audit()
    assert feed._try_audit() == feed._interval_s
    assert feed.hear_of_all() == 300.0
    assert feed.counts() == (1, 0)


@pytest.mark.parametrize('reads', [True, False])
def test_facts_of_deleted_nodes_are_forgotten(
    feed: _Feed, *, reads: bool
) -> None:
    """Nobody reads such a node of another host without a notification."""
    feed.others.reads = reads
    for node in ('kept', 'deleted'):
        feed.ironic.put(node)
    feed._read_delta()
    del feed.ironic.nodes_by_uuid['deleted']
    for is_forgotten in (False, True):
        feed.clock.advance(AUDIT_S)
        if reads:
            feed._try_audit()
        else:
            feed.hear_of_all()
        gone = feed._delivered.facts(NodeId('deleted'))
        assert (gone is None) is is_forgotten
        assert feed._delivered.facts(NodeId('kept')) is not None
