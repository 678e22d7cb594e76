# SPDX-License-Identifier: Apache-2.0
"""The order to rebalance the pool, as the worker of one host knows it.

``ironic-computectl pool rebalance --with-servers`` requests its moves one by
one. To keep a second operator from doing the same meanwhile, the command
begins its order at the worker of each host, in the order of the hosts' names,
so that the first host decides between two commands. It repeats that while it
works, and ends the order at last. Nothing is stored: the order of a command
that was killed ends after three minutes, and a worker that was started anew
learns of it when the command repeats it.
"""

import dataclasses
import threading

from hashring.clock import Clock

# A command repeats its order sooner, also while it waits for its limit of
# servers a minute and for a host that does not answer.
VALID_S = 180.0


@dataclasses.dataclass(frozen=True, slots=True)
class RebalanceOrder:
    """An operator's order to rebalance the pool.

    :param key: distinguishes two orders of one operator
    :param by: who has given it, where and when; for people
    """

    key: str
    by: str


class RebalanceOrders:
    """Knows the order that is under way; any thread may call."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._order: RebalanceOrder | None = None
        self._heard_s = 0.0

    def begin(self, order: RebalanceOrder, *, is_dry_run: bool) -> str | None:
        """Begin an order, or repeat it.

        :param is_dry_run: only return what would be returned now
        :returns: None, or a sentence with the reason of a refusal
        """
        with self._lock:
            why_not = self._why_not(order.key)
            if why_not is None and not is_dry_run:
                self._order, self._heard_s = order, self._clock.now_s()
            return why_not

    def end(self, key: str) -> None:
        """End an order; one that is not under way any more has ended."""
        with self._lock:
            if self._order is not None and self._order.key == key:
                self._order = None

    def why_not(self, key: str) -> str | None:
        """Return why nothing may be moved for an order, or None.

        :param key: '' for a command of an older release, which has no order
        """
        with self._lock:
            return self._why_not(key)

    def by(self, key: str) -> str:
        """Return who has given an order; '' if it is not known."""
        with self._lock:
            order = self._order
        return order.by if order is not None and order.key == key else ''

    def _why_not(self, key: str) -> str | None:
        order, age_s = self._order, self._clock.now_s() - self._heard_s
        if order is None or order.key == key or age_s >= VALID_S:
            return None
        return (
            f'This pool is being rebalanced already, ordered by {order.by}; '
            f'wait for the end of that command, or try again in '
            f'{VALID_S - age_s:.0f} s if it was killed'
        )
