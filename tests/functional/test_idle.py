# SPDX-License-Identifier: Apache-2.0
"""What a pool costs while nothing changes."""

import collections
import re
import time
import types
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from ironic_compute import opts
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.pool.host_aggregates import HostAggregates
from ironic_compute.pool.services import ServiceDirectory
from ironic_compute.recovery import interrupted_tasks, loop
from ironic_compute.recovery.interrupted_tasks import InterruptedTasks
from ironic_compute.recovery.lost_builds import LostBuilds
from ironic_compute.recovery.neglected_servers import NeglectedServers
from resource_tracker import opts as tracker_opts
from resource_tracker.meter import NoMeter
from tests.free_ports import find_free_ports
from tests.functional import pool
from tests.functional.counting import Counted, count_rpcs, name_of

# By how much the default intervals are shortened here.
_SPEED = 20.0
_MINUTES_COUNT = 4
_RPCS_A_MINUTE = 3.0
# By then the recovery loop has begun, and the rows that other workers made
# have been read again.
_SETTLES_S = 12.0
_NODES = re.compile(r'^ironic_compute_nodes\{(.*)\} (\S+)$', re.MULTILINE)


def _default(options: list[Any], name: str) -> float:
    return float(next(o.default for o in options if o.name == name))


def _a_minute(name: str, rpcs_count: float) -> float:
    every_s = _default([*opts.ALL, *tracker_opts.ALL], name)
    return rpcs_count * 60.0 / every_s


# How often a minute each function of ours sends an RPC at rest.
_FREQUENCIES: dict[Callable[..., Any], float] = {
    ServiceDirectory.read_records: _a_minute('services_interval_s', 1),
    HostAggregates.read_for: _a_minute('aggregates_interval_s', 1),
    InterruptedTasks._list_servers: _a_minute(
        'upkeep_interval_s', 1 + 1 / interrupted_tasks.WITHOUT_TASK_EVERY
    ),
    LostBuilds._list_without_host: _a_minute('lost_build_s', 2),
    NeglectedServers._list_page: _a_minute(
        'audit_interval_s', 1 / loop.NEGLECTED_EVERY
    ),
    # The test does not last until the next audit: each second audit reads the
    # rows of 5,000 own nodes, and each other one some rows of the cell.
    ComputeNodes.list_by_nodes: _a_minute('audit_interval_s', 8) / 2,
    ComputeNodes.read_page: _a_minute('audit_interval_s', 3) / 2,
    # Nor does the test have servers on held nodes.
    ComputeNodes.read_servers: _a_minute('audit_interval_s', 1),
}
_CAUSES = {
    name_of(function.__module__, function.__code__): frequency
    for function, frequency in _FREQUENCIES.items()
}
# So frequent that the test would see none only if it looked at no thread.
_FREQUENT = frozenset(
    name_of(function.__module__, function.__code__)
    for function in (
        ServiceDirectory.read_records,
        InterruptedTasks._list_servers,
    )
)


class IdleTest(pool.PoolTestCase):
    """Two workers at default intervals, all of them shortened alike."""

    OPTIONS: Mapping[str, Any] = types.MappingProxyType(
        {
            name: _default(opts.ALL, name) / _SPEED
            for name in (
                'services_interval_s',
                'upkeep_interval_s',
                'lost_build_s',
            )
        }
    )
    AGGREGATES_INTERVAL_S = (
        _default(tracker_opts.ALL, 'aggregates_interval_s') / _SPEED
    )

    def setUp(self) -> None:
        """Serve metrics on ports that no other test has."""
        self.port = find_free_ports(2)
        self.OPTIONS = {**self.OPTIONS, 'metrics_port': self.port}
        super().setUp()

    def test_idle_pool_sends_three_rpcs_a_minute_and_none_to_placement(
        self,
    ) -> None:
        """An idle pool sends three RPCs a minute, none to Placement."""
        time.sleep(_SETTLES_S)
        requests, rpcs, minutes = self._watch()
        if requests or not set(rpcs) <= set(_CAUSES):
            # A busy machine may still do what the start has left over; what
            # is done for ever is seen here as well.
            requests, rpcs, minutes = self._watch()
        self.assertEqual([], requests)
        self.assertLessEqual(_FREQUENT, set(rpcs))
        minutes *= len(self.workers)
        for cause, count in rpcs.items():
            # One more of each, as the while may begin just before it.
            allowed = _CAUSES.get(cause, 0) * minutes + len(self.workers)
            self.assertIn(cause, _CAUSES)
            self.assertLessEqual(count, allowed, rpcs)
        self.assertLessEqual(
            sum(rpcs.values()), minutes * _RPCS_A_MINUTE + len(rpcs), rpcs
        )
        self._see_metrics()

    def _watch(self) -> tuple[list[Any], collections.Counter[str], float]:
        """Return requests to Placement, RPCs, and of how many minutes."""
        began_s = time.monotonic()
        meter, rpcs = Counted(), count_rpcs(self.addCleanup)
        pool.TheCloud.placement._meter = meter
        time.sleep(_MINUTES_COUNT * 60.0 / _SPEED)
        pool.TheCloud.placement._meter = NoMeter()
        counts = rpcs.copy()
        minutes = (time.monotonic() - began_s) * _SPEED / 60.0
        return meter.requests, counts, minutes

    def _see_metrics(self) -> None:
        """Each worker shows its own nodes, on a port of its own."""
        counts: collections.Counter[str] = collections.Counter()
        for port in range(self.port, self.port + len(self.workers)):
            url = f'http://127.0.0.1:{port}/metrics'
            with urllib.request.urlopen(url, timeout=60) as answer:
                text = answer.read().decode()
            for labels, count in _NODES.findall(text):
                self.assertIn('state="available"', labels)
                host = re.search(r'host="(.*?)"', labels)
                counts[host.group(1)] += int(float(count))  # type: ignore[union-attr]
            self.assertIn('ironic_compute_dirty_nodes{', text)
            self.assertIn('path="RabbitMQ"} 0.0', text)
        self.assertEqual(
            {host: len(self.held(host)) for host in self.workers}, counts
        )


def test_intervals_add_up_to_three_rpcs_a_minute() -> None:
    """The default intervals of all requests add up to at most three."""
    assert sum(_CAUSES.values()) <= _RPCS_A_MINUTE
