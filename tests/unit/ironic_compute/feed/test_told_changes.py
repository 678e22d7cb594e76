# SPDX-License-Identifier: Apache-2.0
"""A worker that is told what changed asks Ironic only in doubt."""

import dataclasses
import logging
from typing import Any

import pytest

from ironic_compute.feed.node_feed import NodeFeed
from ironic_compute.nodes.changes_read import ChangesRead, fingerprint
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

N1, N2 = NodeId('n1'), NodeId('n2')
LATER = '2026-01-01T00:00:09+00:00'
NEXT = '2026-01-01T00:00:05+00:00'
# Of a clock whose wall time is two minutes later than the nodes' stamps.
START_S = 67_225_720.0


class _Shared:
    """The other workers; another one reads, unless ``reads`` is set."""

    silence_s = 25.0

    def __init__(self) -> None:
        self.reads = False
        self.told: list[ChangesRead] = []

    def is_reader(self) -> bool:
        return self.reads

    def tell(self, read: ChangesRead) -> None:
        self.told.append(read)

    def tell_all(self, began_s: float, nodes: Any) -> None:
        pass


class _Feed:
    """A feed that has read both nodes once, and whose clock stands still."""

    def __init__(self, conf: Any, ironic: Ironic, sink: Sink) -> None:
        self.shared = _Shared()
        clock = ManualClock(START_S)
        self.feed = NodeFeed(
            conf,
            ironic,  # type: ignore[arg-type]
            sink,
            clock,
            host='h1',  # type: ignore[arg-type]
            shared=self.shared,
        )
        self.feed._try_delta()
        ironic.asked.clear()
        sink.observed.clear()

    @property
    def since(self) -> str:
        found = self.feed._watermark.since()
        assert found is not None
        return found

    def hear(self, *reads: ChangesRead) -> float:
        """Tell it these reads; return the seconds until its next list."""
        for read in reads:
            self.feed.accept_changes(read)
        return self.feed._try_delta()


@pytest.fixture
def feed(conf: Any, ironic: Ironic, sink: Sink) -> _Feed:
    """Return such a feed."""
    return _Feed(conf, ironic, sink)


def _fingerprints(ironic: Ironic) -> dict[NodeId, str]:
    return {n: fingerprint(facts) for n, facts in ironic.nodes_by_uuid.items()}


def test_list_of_known_facts_is_not_read(
    feed: _Feed, ironic: Ironic, sink: Sink
) -> None:
    """The facts are delivered again, since threads may have crossed."""
    wait_s = feed.hear(ChangesRead(feed.since, NEXT, _fingerprints(ironic)))
    assert (wait_s, ironic.asked) == (25.0, [])
    assert sorted(sink.names()) == ['n1', 'n2']


def test_later_list_begins_where_the_reader_goes_on(
    feed: _Feed, ironic: Ironic
) -> None:
    """What the reader has seen is not asked for again."""
    feed.hear(ChangesRead(feed.since, NEXT, {}))
    assert feed.hear() == 1000.0
    assert ironic.asked == [NEXT]


def test_reader_with_a_clock_ahead_hides_nothing(
    feed: _Feed, ironic: Ironic, sink: Sink
) -> None:
    """A conductor on its machine has stamped a node in the future."""
    ahead = '2026-01-01T09:00:00+00:00'
    feed.hear(ChangesRead(feed.since, ahead, _fingerprints(ironic)))
    ironic.put('n2', updated_at='2026-01-01T00:02:30+00:00', maintenance=True)
    feed.hear(ChangesRead(LATER, ahead, _fingerprints(ironic)))
    assert sink.observed[-1].maintenance


def test_node_with_other_facts_has_the_list_read(
    feed: _Feed, ironic: Ironic, sink: Sink
) -> None:
    """Its notification was lost or is late."""
    ironic.put('n2', updated_at=LATER, maintenance=True)
    since = feed.since
    assert feed.hear(ChangesRead(since, NEXT, _fingerprints(ironic))) == 25.0
    assert ironic.asked == [since]
    assert sink.observed[-2].maintenance


def test_second_change_within_a_second_is_noticed(
    feed: _Feed, ironic: Ironic
) -> None:
    """Both have the same stamp, so the fingerprint is of the facts."""
    ironic.put('n2', maintenance=True)
    feed.hear(ChangesRead(feed.since, NEXT, _fingerprints(ironic)))
    assert len(ironic.asked) == 1


@pytest.mark.parametrize(
    'change',
    [
        {'since': LATER},
        {'fingerprints': None},
        {'fingerprints': {NodeId('new'): '00'}},
    ],
)
def test_list_is_read_in_doubt(
    change: dict[str, Any], feed: _Feed, ironic: Ironic
) -> None:
    """A message was lost, too many nodes changed, or a node is unknown."""
    told = ChangesRead(feed.since, NEXT, {})
    feed.hear(dataclasses.replace(told, **change))
    assert len(ironic.asked) == 1


def test_missing_node_is_asked_for(
    feed: _Feed, ironic: Ironic, sink: Sink
) -> None:
    """Ironic denied it to this worker, and has shown it to another one."""
    sink.gone.add('n1')
    feed.hear(ChangesRead(feed.since, NEXT, _fingerprints(ironic)))
    assert len(ironic.asked) == 1


def test_worker_that_hears_nothing_reads(feed: _Feed, ironic: Ironic) -> None:
    """The reader is gone, or this worker is cut off from RabbitMQ."""
    assert feed.hear() == 1000.0
    assert len(ironic.asked) == 1


def test_one_doubtful_message_of_several_is_enough(
    feed: _Feed, ironic: Ironic
) -> None:
    """A worker that was frozen finds several."""
    first = ChangesRead(feed.since, NEXT, {})
    feed.hear(first, ChangesRead(NEXT, LATER, {NodeId('new'): '00'}))
    assert ironic.asked == [NEXT]


def test_reader_reads_and_tells(feed: _Feed, ironic: Ironic) -> None:
    """It does not believe another one that takes itself for the reader."""
    feed.shared.reads = True
    since = feed.since
    feed.hear(ChangesRead(since, LATER, {}))
    assert ironic.asked == [since]
    assert feed.shared.told[-1].since == since
    assert feed.shared.told[-1].fingerprints == _fingerprints(ironic)


def test_first_list_is_told_to_nobody(
    conf: Any, ironic: Ironic, sink: Sink
) -> None:
    """It has no beginning, so nobody could rely on it."""
    assert _Feed(conf, ironic, sink).shared.told == []


def test_worker_that_has_read_no_list_takes_no_notice(
    conf: Any, ironic: Ironic, sink: Sink
) -> None:
    """Its first audit reads both lists."""
    feed = NodeFeed(conf, ironic, sink, ManualClock(), host='h1')  # type: ignore[arg-type]
    feed.accept_changes(ChangesRead('', NEXT, {}))
    assert feed._heard.take() == []


def test_failed_list_is_told_to_nobody(feed: _Feed, ironic: Ironic) -> None:
    """The others then read themselves, and one of them may succeed."""
    feed.shared.reads = ironic.is_down = True
    feed.hear()
    assert feed.shared.told == []


def test_worker_whose_list_has_failed_reads(
    feed: _Feed, ironic: Ironic, caplog: pytest.LogCaptureFixture
) -> None:
    """Only its own request shows that Ironic answers it again."""
    caplog.set_level(logging.INFO)
    ironic.is_down = True
    feed.hear()
    ironic.is_down = False
    told = ChangesRead(feed.since, NEXT, {})
    assert feed.hear(told) == 1000.0
    assert len(ironic.asked) == 1
    assert 'Ironic answers again' in caplog.text
    assert feed.hear(told) == 25.0


def test_told_worker_still_reads_nodes_that_wait(
    feed: _Feed, ironic: Ironic, sink: Sink
) -> None:
    """A delivery that has failed is repeated without a list."""
    sink.broken.add('n1')
    feed.hear(ChangesRead(feed.since, NEXT, _fingerprints(ironic)))
    assert N1 in feed.feed._read_queue._waiting


def test_facts_of_another_node_are_no_proof(
    feed: _Feed, ironic: Ironic
) -> None:
    """A fingerprint has the uuid in it."""
    facts = NodeFacts(N2, updated_at='2026-01-01T00:00:00+00:00')
    feed.hear(ChangesRead(feed.since, NEXT, {N1: fingerprint(facts)}))
    assert len(ironic.asked) == 1
