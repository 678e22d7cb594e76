# SPDX-License-Identifier: Apache-2.0
"""Orders that must be refused: with one sentence, and nothing changed."""

import contextlib
import dataclasses
import re
import uuid
from collections.abc import Iterator, Sequence

from onemachine.backends import sql
from onemachine.chaos.orders import Answer, Operator
from onemachine.chaos.report import Report
from onemachine.content import Content
from onemachine.layout import Layout

REFUSED = 1
_ZONE = 'chaos-zone'
_RECORDS = """
SELECT host, disabled, disabled_reason FROM nova.services WHERE deleted = 0
    AND `binary` = 'nova-compute' ORDER BY host;
SELECT host FROM nova_api.host_mappings ORDER BY host;
SELECT uuid, host, node, availability_zone FROM nova.instances
    WHERE deleted = 0 ORDER BY uuid;
SELECT hypervisor_hostname, host, stats LIKE '%ironic_compute_pin%'
    FROM nova.compute_nodes WHERE deleted = 0 ORDER BY 1;
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """An order that must be refused.

    :param sentence: a regular expression of the sentence
    """

    name: str
    words: Sequence[str]
    sentence: str


def why_wrong(answer: Answer, sentence: str) -> str | None:
    """Return why an answer is no refusal with this sentence, or None."""
    lines = [line for line in answer.error.splitlines() if line.strip()]
    if answer.status != REFUSED:
        return f'exit status {answer.status}: {answer.out}{answer.error}'
    if len(lines) != 1:
        return f'{len(lines)} lines: {answer.error.strip()}'
    if not re.search(sentence, lines[0]):
        return lines[0]
    return None


def unknown_hosts(node: str) -> tuple[Order, ...]:
    """Return the orders that name what is not there.

    :param node: a node with a server
    """
    nobody = 'No daemon serves host nobody'
    return (
        Order('drain of an unknown host', ('host', 'drain', 'nobody'), nobody),
        Order(
            'retirement of an unknown host',
            ('host', 'retire', 'nobody'),
            nobody,
        ),
        Order(
            'move to an unknown host',
            ('node', 'move', node, 'nobody'),
            'nobody is not a host of this pool',
        ),
        Order(
            'move of a node that Ironic has not',
            ('node', 'move', str(uuid.UUID(int=7)), 'c1'),
            'Ironic|could not be found|no node',
        ),
        Order(
            'forgetting a host that is up',
            ('host', 'forget', 'c1'),
            'The daemon of host c1 runs on',
        ),
    )


def unmapped(node: str, host: str) -> Order:
    """Return the order to move a node to a host that is not mapped."""
    words = ('node', 'move', node, host)
    return Order('move to an unmapped host', words, 'takes no nodes yet')


def other_zone(node: str, host: str) -> Order:
    """Return the order to move a node to a host in another zone."""
    words = ('node', 'move', node, host)
    return Order('move to another zone', words, 'zone.*--change-zone')


def without_daemon() -> Order:
    """Return the order to a pool that has no daemon."""
    words = ('pool', 'rebalance', '--with-servers')
    return Order('rebalance without a daemon', words, 'No daemon of this pool')


def without_backend() -> tuple[Order, ...]:
    """Return the orders that need the coordination backend."""
    gone = 'does not answer|refused|cannot be reached'
    return (
        Order(
            'rebalance without backend',
            ('pool', 'rebalance', '--with-servers'),
            gone,
        ),
        Order('retirement without backend', ('host', 'retire', 'c1'), gone),
    )


class Refusals:
    """Gives such orders while nothing else moves."""

    def __init__(
        self, layout: Layout, contents: Content, report: Report
    ) -> None:
        self._layout = layout
        self._content = contents
        self._report = report

    def check(
        self, operator: Operator, orders: Sequence[Order], *, moves: bool
    ) -> None:
        """Give each order, and report which were not refused properly.

        :param moves: whether nodes may move meanwhile for other reasons
        """
        for order in orders:
            before = self._records()
            wrong = why_wrong(operator.run(*order.words), order.sentence)
            found = [] if wrong is None else [wrong]
            if not moves and self._records() != before:
                found.append('records have changed')
            self._report.none(f'{order.name}: not refused properly', found)

    def _records(self) -> str:
        return sql(self._layout, _RECORDS)

    @contextlib.contextmanager
    def zone(self, host: str) -> Iterator[None]:
        """Put a host with nodes and no server into another zone meanwhile."""
        self._remove_zone()
        compute = self._content.cloud.compute
        try:
            aggregate = compute.create_aggregate(
                name=_ZONE, availability_zone=_ZONE
            )
            compute.add_host_to_aggregate(aggregate, host)
            yield
        finally:
            self._remove_zone()

    def _remove_zone(self) -> None:
        compute = self._content.cloud.compute
        for aggregate in compute.aggregates():
            if aggregate.name == _ZONE:
                for host in aggregate.hosts or ():
                    compute.remove_host_from_aggregate(aggregate, host)
                compute.delete_aggregate(aggregate)
