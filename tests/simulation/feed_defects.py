# SPDX-License-Identifier: Apache-2.0
"""Planted defects of the node feed and of what it hears; see ``defects``."""

from collections.abc import Set
from typing import Any

from ironic_compute.feed.node_feed import NodeFeed
from ironic_compute.feed.redelivery import Redelivery
from ironic_compute.feed.watermark import Watermark
from ironic_compute.ownership.removal import Removal
from resource_tracker.node import NodeFacts, NodeId
from tests.simulation.makeup import Makeup, with_parts


class StepsWithoutOverlap(Watermark):
    """The next delta list starts at the newest stamp that was seen."""

    def since(self) -> str | None:
        return self._newest


class AsksOnce(Redelivery):
    """A node that Ironic did not find is not read again."""

    def add_failed(self, node: NodeId) -> None:
        pass


class RemovesWhatAListLacks(Removal):
    """A node that a list lacks counts as a 404, without a read."""

    def _is_missing(self, node: NodeId) -> bool:
        return True


class RemovesAtTheFirst404(Removal):
    """One 404 is enough for a node that a list lacks."""

    def _suspect(self, missing: Set[NodeId]) -> None:
        self._remove_deleted(missing)


class TakesItsFactsForNewest(NodeFeed):
    """What another worker has read is not compared with the own facts."""

    def _find(self, node: NodeId, wanted: str) -> NodeFacts | None:
        return self._delivered.facts(node)


def _feed_that_waits_for_ever(*arguments: Any) -> NodeFeed:
    feed = NodeFeed(*arguments)
    feed._shared.silence_s = 1e6
    return feed


def _feed_without_overlap(*arguments: Any) -> NodeFeed:
    feed = NodeFeed(*arguments)
    feed._watermark = StepsWithoutOverlap(feed._clock)
    return feed


def _feed_that_asks_once(*arguments: Any) -> NodeFeed:
    feed = NodeFeed(*arguments)
    feed._missing = AsksOnce()
    return feed


# Name of a defect -> the makeup with this defect.
MAKEUPS: dict[str, Makeup] = {
    'delta list without overlap': with_parts(
        'conductor clocks', feed=_feed_without_overlap
    ),
    'missing node not asked for again': with_parts(feed=_feed_that_asks_once),
    'told changes not compared': with_parts(
        'shared reads', feed=TakesItsFactsForNewest
    ),
    'dead reader waited for': with_parts(
        'shared reads', 'crash', feed=_feed_that_waits_for_ever
    ),
    'delete by a short or empty list': with_parts(
        removal=RemovesWhatAListLacks
    ),
    'delete at the first 404': with_parts(removal=RemovesAtTheFirst404),
}

# Name of a defect -> a seed that detects it.
SEEDS: dict[str, int] = {
    'delta list without overlap': 60101,
    'missing node not asked for again': 61557,
    'told changes not compared': 60049,
    'dead reader waited for': 60156,
    'delete by a short or empty list': 60092,
    'delete at the first 404': 60014,
}
