# SPDX-License-Identifier: Apache-2.0
"""Of two orders to rebalance the pool, the one under way goes on."""

import pytest

from ironic_compute.ownership.rebalance_order import (
    VALID_S,
    RebalanceOrder,
    RebalanceOrders,
)
from tests.fakes.clock import ManualClock

ANN, BOB = RebalanceOrder('k1', 'ann on ctl-1'), RebalanceOrder('k2', 'bob')


class Host:
    """The orders of one host."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.orders = RebalanceOrders(self.clock)

    def begin(self, order: RebalanceOrder, is_dry_run: bool = False) -> str:
        """Return why an order is refused, or ''."""
        return self.orders.begin(order, is_dry_run=is_dry_run) or ''


@pytest.fixture
def host() -> Host:
    """A host without an order."""
    return Host()


def test_second_order_is_told_of_the_first(host: Host) -> None:
    """Also if it only asks; its end does not end the first."""
    assert host.begin(ANN) == ''
    host.clock.advance(30.0)
    for is_dry_run in (True, False):
        assert host.begin(BOB, is_dry_run) == (
            'This pool is being rebalanced already, ordered by ann on ctl-1; '
            'wait for the end of that command, or try again in 150 s if it '
            'was killed'
        )
    host.orders.end(BOB.key)
    assert host.begin(BOB)


def test_order_ends_with_its_command(host: Host) -> None:
    """It is ended, or not repeated any more."""
    host.begin(ANN)
    host.orders.end(ANN.key)
    assert host.begin(BOB) == ''
    host.clock.advance(VALID_S - 1.0)
    assert host.begin(BOB) == ''
    host.clock.advance(VALID_S - 1.0)
    assert host.begin(ANN)
    host.clock.advance(1.0)
    assert host.begin(ANN) == ''


def test_dry_run_begins_nothing(host: Host) -> None:
    """Nothing will be moved."""
    assert host.begin(ANN, is_dry_run=True) == ''
    assert host.begin(BOB) == ''


def test_only_moves_of_the_order_are_made(host: Host) -> None:
    """A command of an older release has no order."""
    assert host.orders.why_not('') is None
    host.begin(ANN)
    assert host.orders.why_not(ANN.key) is None
    assert 'ordered by ann' in (host.orders.why_not('') or '')
    assert 'ordered by ann' in (host.orders.why_not(BOB.key) or '')
    assert host.orders.by(ANN.key) == 'ann on ctl-1'
    assert host.orders.by(BOB.key) == ''
