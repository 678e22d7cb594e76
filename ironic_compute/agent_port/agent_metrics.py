# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of an agent, made from its status when they are read.

Only requests to the coordination backend are counted as they happen, by the
threads that send them. The main loop counts nothing here: a lock that it
shared with a reader could delay the lease.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import prometheus_client
from prometheus_client import core

from hashring.agent_status import AgentStatus
from hashring.clock import Clock
from hashring.counts import Counts
from hashring.ring import Host
from ironic_compute import catalogue

_PREFIX = 'ironic_compute_agent_'
# Upper bounds of the buckets. A request takes milliseconds; one that takes a
# lease term costs the lease.
_REQUEST_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15)


class BackendMetrics:
    """Measures requests to the coordination backend; any thread may call.

    ``hashring.meter.BackendMeter`` for Prometheus.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.registry = prometheus_client.CollectorRegistry()
        self._requests = prometheus_client.Histogram(
            f'{_PREFIX}backend_request_seconds',
            'Requests to the coordination backend, by request',
            ('request',),
            registry=self.registry,
            buckets=_REQUEST_BUCKETS_S,
        )
        self._errors = prometheus_client.Counter(
            f'{_PREFIX}backend_errors',
            'Requests to the coordination backend that failed, by request',
            ('request',),
            registry=self.registry,
        )

    @contextlib.contextmanager
    def time(self, request: str) -> Iterator[None]:
        """Measure the block: its duration, and whether it raises an error."""
        begun_s = self._clock.now_s()
        # Made before the first error, so that the first increase shows.
        failed = self._errors.labels(request)
        try:
            yield
        except Exception:
            failed.inc()
            raise
        finally:
            seconds = self._clock.now_s() - begun_s
            self._requests.labels(request).observe(seconds)

    def text(self) -> str:
        """Return the metrics in the text format of Prometheus."""
        return prometheus_client.generate_latest(self.registry).decode()


def describe(
    status: AgentStatus, answered: Mapping[Host, bool], now_s: float
) -> str:
    """Return the metrics of an agent in the text format of Prometheus.

    :param answered: host -> whether its worker here has sent its metrics
    """
    families = (
        *_lease(status, now_s),
        *_pool(status, now_s),
        *_hosts(status, now_s),
        _findings(status),
        *_counts(status.counts),
        _labelled(
            'worker_metrics_read',
            'Whether the worker of a host has sent its metrics in time',
            ('host',),
            {(host,): has_answered for host, has_answered in answered.items()},
        ),
    )
    return prometheus_client.generate_latest(_Families(families)).decode()


class _Families:
    """A registry of metrics that exist already."""

    def __init__(self, families: tuple[Any, ...]) -> None:
        self._families = families

    def collect(self) -> tuple[Any, ...]:
        return self._families


def _gauge(name: str, text: str, value: float) -> Any:
    return core.GaugeMetricFamily(_PREFIX + name, text, value=float(value))


def _labelled(
    name: str,
    text: str,
    labels: tuple[str, ...],
    values: Mapping[tuple[str, ...], float],
) -> Any:
    family = core.GaugeMetricFamily(_PREFIX + name, text, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(key, float(value))
    return family


def _counter(name: str, text: str, value: float) -> Any:
    return core.CounterMetricFamily(_PREFIX + name, text, value=float(value))


def _lease(status: AgentStatus, now_s: float) -> Iterator[Any]:
    me = status.me
    yield _labelled(
        'info',
        'The home host and the version of this daemon; always 1',
        ('home', 'version'),
        {(me.home, me.version): 1},
    )
    yield _gauge(
        'last_turn_seconds',
        'Time since the last turn of the main loop',
        now_s - status.turned_at_s,
    )
    yield _gauge(
        'lease_in_force',
        'Whether this daemon has its lease',
        status.has_lease(now_s),
    )
    yield _gauge(
        'ready',
        'Whether this daemon serves all hosts that it should, as /readyz says',
        status.is_ready(now_s),
    )
    age_s = status.heartbeat_age_s(now_s)
    if age_s is not None:
        yield _gauge(
            'heartbeat_age_seconds',
            'Time since the last heartbeat that counted was sent',
            age_s,
        )
    yield _gauge(
        'half_alive',
        'Whether this daemon has given its hosts away, because it does not '
        'reach a service',
        status.lost_path is not None,
    )


def _pool(status: AgentStatus, now_s: float) -> Iterator[Any]:
    yield _gauge(
        'members',
        'Daemons of this pool, with this one',
        sum(1 for _ in status.members()),
    )
    yield _labelled(
        'ring_info',
        'The digest of the ring of this daemon; always 1',
        ('digest',),
        {(status.ring.digest,): 1},
    )
    yield _gauge('ring_hosts', 'Hosts in the ring', len(status.ring.hosts))
    yield _gauge(
        'ring_agreed',
        'Whether all daemons of the pool have published this ring for '
        'settle_s',
        status.agreed_since_s is not None,
    )


def _hosts(status: AgentStatus, now_s: float) -> Iterator[Any]:
    nobody = status.served_by_nobody()
    yield _gauge('hosts_known', 'Hosts of this pool', len(status.known))
    yield _gauge(
        'hosts_served_here',
        'Hosts that this daemon serves',
        len(status.served_here(now_s)),
    )
    yield _gauge(
        'hosts_served_by_nobody',
        'Hosts of this pool whose lock no daemon has',
        len(nobody),
    )
    yield _labelled(
        'host_served',
        'Whether a daemon of this pool has the lock of a host',
        ('host',),
        {(host,): host not in nobody for host in status.known},
    )


def _findings(status: AgentStatus) -> Any:
    """Return what the agent knows of the findings of fsck."""
    rings = {member.ring for member in status.members() if member.ring}
    return _labelled(
        'findings',
        'What a check of fsck finds in the pool, by its name',
        ('check',),
        {
            (catalogue.HOST_NOT_SERVED.name,): len(status.served_by_nobody()),
            (catalogue.RINGS_DIFFER.name,): len(rings) > 1,
        },
    )


def _counts(counts: Counts) -> Iterator[Any]:
    yield _counter(
        'lease_lapses', 'How often the lease was lost', counts.lapses
    )
    yield _counter(
        'adoptions',
        'How often this daemon took the host of another daemon over',
        counts.adoptions,
    )
    yield _counter(
        'hand_backs',
        'How often this daemon gave a host back to its own daemon',
        counts.hand_backs,
    )
    yield core.HistogramMetricFamily(
        f'{_PREFIX}adoption_seconds',
        'Time from when an adopted host was without a daemon until a worker '
        'here served it',
        buckets=[
            ('+Inf' if math.isinf(bound_s) else str(bound_s), count)
            for bound_s, count in counts.adoption_s.cumulative()
        ],
        sum_value=counts.adoption_s.sum_s,
    )
    starts = core.CounterMetricFamily(
        f'{_PREFIX}worker_starts', 'Workers started, by host', labels=('host',)
    )
    for host, count in sorted(counts.worker_starts.items()):
        starts.add_metric((host,), count)
    yield starts
    exits = core.CounterMetricFamily(
        f'{_PREFIX}worker_exits',
        'Workers that have ended, by host and exit status; minus the number '
        'of a signal; killed: by this daemon',
        labels=('host', 'status'),
    )
    for (host, status), count in sorted(counts.worker_exits.items()):
        exits.add_metric((host, status), count)
    yield exits
