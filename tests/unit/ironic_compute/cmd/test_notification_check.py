# SPDX-License-Identifier: Apache-2.0
"""Why Ironic's notifications do not arrive is one sentence each."""

import types
from collections.abc import Mapping

import pytest

from hashring.ring import Host
from ironic_compute.cmd import notification_check

C1, C2 = Host('c1'), Host('c2')
OPTIONS = types.SimpleNamespace(
    notification_exchange='ironic', notification_topics=['one', 'two']
)


class FakeBroker:
    """A RabbitMQ of which the test knows all."""

    def __init__(
        self,
        readers: Mapping[str, int],
        refused: Mapping[str, str],
        exchanges: tuple[str, ...] = ('ironic',),
    ) -> None:
        self._readers = readers
        self._refused = refused
        self._exchanges = exchanges

    def has_exchange(self, exchange: str) -> bool:
        return exchange in self._exchanges

    def why_not_bound(self, exchange: str, topic: str) -> str | None:
        assert exchange in self._exchanges
        return self._refused.get(topic)

    def readers_count(self, queue: str) -> int:
        return self._readers.get(queue, 0)


@pytest.mark.parametrize(
    ('broker', 'words'),
    [
        (FakeBroker({'ironic-compute-c1': 1, 'ironic-compute-c2': 4}, {}), []),
        (
            FakeBroker({}, {'one': 'no', 'two': 'no'}, ('nova',)),
            ['RabbitMQ has no exchange ironic, so no Ironic has sent a'],
        ),
        (
            FakeBroker({'ironic-compute-c1': 1}, {'two': 'no right'}),
            [
                'to topic two of exchange ironic (no right): give the user',
                'serves host c2, and nobody reads queue ironic-compute-c2 in',
            ],
        ),
    ],
)
def test_each_reason_is_named(broker: FakeBroker, words: list[str]) -> None:
    """Without the exchange, nothing else can be found out."""
    found = list(notification_check.of_broker(broker, OPTIONS, [C2, C1]))
    assert len(found) == len(words)
    for sentence, part in zip(found, words, strict=True):
        assert part in sentence
