# SPDX-License-Identifier: Apache-2.0
"""What each thing costs in requests to Placement and Ironic.

A guard against what grows unseen: it counts requests and no seconds. The
limits are the counts of today; what is batched or repeated by chance has a
little room.
"""

import collections
import dataclasses
import time
import types
from collections.abc import Mapping
from typing import Any

from ironic_compute.pool.services import ServiceDirectory
from ironic_compute.recovery.interrupted_tasks import InterruptedTasks
from tests.functional import pool
from tests.functional.counting import (
    Counted,
    CountedIronic,
    count_rpcs,
    name_of,
)

_LONG_S = 600.0
# Longer than any batch, delay or repetition of what follows a change.
_QUIET_S = 3.0
# Pages of changes, and the tests of the path to Ironic.
_PERIODIC = frozenset({'list_changed_nodes', 'list_nodes', 'check_access'})
_PERIODIC_RPCS = frozenset(
    name_of(f.__module__, f.__code__)
    # The records of services, and the rounds of the recovery loop, whose
    # first follows a start by some seconds.
    for f in (ServiceDirectory.read_records, InterruptedTasks._list_servers)
)


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """The most that something may cost, by kind of request.

    :param rpcs_count: RPCs of our own threads, without what is periodic
    """

    placement: Mapping[str, int]
    ironic: Mapping[str, int]
    rpcs_count: int


_NODES_COUNT = 16
_ONE_WRITE = {'PUT inventories': 1}
# Nova has written the allocation meanwhile: Placement refuses the first write
# for its generation, and the second follows a reading.
_WRITE_BESIDE_NOVA = {
    'PUT inventories': 2,
    'GET inventories': 1,
    'GET traits': 1,
}
_FIRST = Cost(
    {
        'POST resource_providers': _NODES_COUNT,
        'PUT traits': _NODES_COUNT,
        'PUT inventories': _NODES_COUNT,
        # Each of two workers lists what is there.
        'GET resource_providers': 2,
        'GET traits': 2,
        'PUT resource_classes': 2,
    },
    {},
    2 * _NODES_COUNT,
)
_CHANGE = Cost(_ONE_WRITE, {'read_node': 2}, 4)
_BUILD = Cost(
    _WRITE_BESIDE_NOVA,
    {
        # Ironic's work is looked at until it ends.
        'read_node': 8,
        **dict.fromkeys(
            (
                'list_volume_targets',
                'patch_node',
                'read_node_of_instance',
                'reserve_node',
                'set_provision_state',
                'validate_node',
            ),
            1,
        ),
    },
    4,
)
_DELETE = Cost(
    _WRITE_BESIDE_NOVA,
    {
        'read_node': 6,
        'list_volume_targets': 1,
        'read_node_of_instance': 1,
        'set_provision_state': 1,
    },
    4,
)
# Nothing has changed meanwhile, and the disk cache says what Placement has.
_RESTART = Cost({'GET resource_providers': 2, 'GET traits': 1}, {}, 12)


class CostsTest(pool.PoolTestCase):
    """Two workers at work, without most of what is periodic."""

    NODES_COUNT = _NODES_COUNT
    OPTIONS = types.MappingProxyType(
        dict.fromkeys(
            ('lost_build_s', 'unfinished_s', 'upkeep_interval_s'), _LONG_S
        )
    )
    AGGREGATES_INTERVAL_S = _LONG_S

    def start_compute(self, host: str, manager: str | None = None) -> Any:
        """Count from the first worker's start on."""
        if not isinstance(pool.TheCloud.ironic, CountedIronic):
            self.rpcs = count_rpcs(self.addCleanup)
            self.meter = pool.TheCloud.placement._meter = Counted()
            self.counted = CountedIronic(pool.TheCloud.ironic, _PERIODIC)
            pool.TheCloud.ironic = self.counted  # type: ignore[assignment]
        return super().start_compute(host, manager)

    def test_nothing_costs_more_than_it_did(self) -> None:
        """First report, change, build, delete, restart, in this order."""
        self._check('first report', _FIRST)
        node = min(self.held('c1'))
        for is_in_maintenance in (True, False):
            self.ironic.change(node, maintenance=is_in_maintenance)
            self._await_offered(_NODES_COUNT - is_in_maintenance)
            self._check('change', _CHANGE)
        server = self.boot(self.flavor)
        self._check('build', _BUILD)
        self.delete(server)
        self._await_offered(_NODES_COUNT)
        self._check('delete', _DELETE)
        self._restart('c1')
        self._check('restart', _RESTART)

    def _restart(self, host: str) -> None:
        self.workers[host].stop()
        self.components(host).stop()
        self.workers[host] = self.start_compute(host, pool.MANAGER)
        self.until(
            lambda: self.components(host).node_changes.has_audited, 'audited'
        )
        self.until(self._hold_all, 'all held again')

    def _await_offered(self, count: int) -> None:
        self.until(lambda: self.offered() == count, f'{count} nodes offered')

    def _check(self, what: str, most: Cost) -> None:
        """Check what was sent since the last call."""
        self._await_quiet()
        requests, self.meter.requests[:] = list(self.meter.requests), []
        ironic = dict(self.counted.counts)
        self.counted.counts.clear()
        rpcs = {c: n for c, n in self.rpcs.items() if c not in _PERIODIC_RPCS}
        self.rpcs.clear()
        placement = collections.Counter(f'{m} {kind}' for m, kind in requests)
        self._compare(f'{what}, Placement', placement, most.placement)
        self._compare(f'{what}, Ironic', ironic, most.ironic)
        self.assertLessEqual(sum(rpcs.values()), most.rpcs_count, (what, rpcs))

    def _compare(
        self, what: str, seen: Mapping[str, int], most: Mapping[str, int]
    ) -> None:
        grown = {k: n for k, n in seen.items() if n > most.get(k, 0)}
        self.assertEqual({}, grown, f'{what}: {dict(seen)}')

    def _await_quiet(self) -> None:
        """Wait until no request was sent for a while."""
        seen_count, since_s = -1, 0.0

        def is_quiet() -> bool:
            nonlocal seen_count, since_s
            count = len(self.meter.requests) + self.counted.counts.total()
            if count != seen_count:
                seen_count, since_s = count, time.monotonic()
            return time.monotonic() - since_s >= _QUIET_S

        self.until(is_quiet, 'no requests any more')
