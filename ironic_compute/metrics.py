# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of a worker; no metric causes a request.

The agent reads them for its port, and they may have a port of their own; both
are off by default. Counters count events as they happen;
gauges (nodes, waiting changes) are computed when Prometheus reads them. No
label holds a node's name or uuid, so the number of series stays small.
"""

import collections
import contextlib
import errno
import re
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import AbstractContextManager
from typing import Any, Protocol

import prometheus_client
from oslo_log import log as logging
from prometheus_client import core

from hashring.clock import Clock
from hashring.paths import PathStates
from hashring.ring import Host
from ironic_compute import errors
from ironic_compute.agent_port import worker_metrics
from ironic_compute.catalogue import Check
from ironic_compute.journal.moves import Move
from resource_tracker.node import NodeFacts, NodeId

LOG = logging.getLogger(__name__)

_PORTS_COUNT = 16
_UUID = re.compile(r'\s*[0-9a-f]{8}-[0-9a-f-]{27}.*')
# Upper bounds of the histograms' buckets. A request takes milliseconds; a
# change may wait for hours until Placement works again.
_REQUEST_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)
_REPORT_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 3600)


class Gauges(Protocol):
    """The source of the numbers that the gauges show."""

    def held_facts(self) -> Iterable[NodeFacts]:
        """Return the newest facts of each held node."""

    def pinned_count(self) -> int:
        """Return the number of held nodes that an operator has pinned."""

    def waiting(self) -> tuple[int, float]:
        """Return the number of waiting changes and the age of the oldest.

        A change waits until it is written to Placement; the age is in seconds.
        """

    def misplaced(self) -> Mapping[NodeId, Host]:
        """Return the nodes that another host should hold, and which."""


class Metrics:
    """The metrics of one worker; any thread may call.

    :param host: the host of the worker, a label of all its metrics
    """

    def __init__(self, host: str, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        self.registry = prometheus_client.CollectorRegistry()
        self._placement = self._histogram(
            'placement_request_seconds',
            'Requests to Placement, by method, what they are about and the '
            'status of the answer (409: somebody else wrote)',
            ('method', 'what', 'status'),
        )
        self._ironic = self._histogram(
            'ironic_request_seconds',
            'Requests to Ironic, by request and result',
            ('what', 'result'),
        )
        self._reported = self._histogram(
            'report_seconds',
            'Time from a change until it was written to Placement',
            (),
            _REPORT_BUCKETS_S,
        ).labels(host)
        self._drift = prometheus_client.Counter(
            'ironic_compute_audit_drift',
            'Providers that an audit found to be written by others',
            ('host',),
            registry=self.registry,
        ).labels(host)
        self._lost = prometheus_client.Counter(
            'ironic_compute_builds_lost',
            'Builds that went to ERROR, because their request was lost',
            ('host',),
            registry=self.registry,
        ).labels(host)
        self._moves = prometheus_client.Counter(
            'ironic_compute_moves',
            'Moves of nodes and hosts that this worker has made, by kind and '
            'reason',
            ('host', 'kind', 'reason'),
            registry=self.registry,
        )

    def _histogram(
        self,
        name: str,
        text: str,
        labels: tuple[str, ...],
        buckets_s: tuple[float, ...] = _REQUEST_BUCKETS_S,
    ) -> prometheus_client.Histogram:
        return prometheus_client.Histogram(
            f'ironic_compute_{name}',
            text,
            ('host', *labels),
            registry=self.registry,
            buckets=buckets_s,
        )

    # For the resource tracker (resource_tracker.meter.Meter)

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context of no effect: a request is counted at its end."""
        return contextlib.nullcontext()

    def count_request(
        self, method: str, what: str, status: str, seconds: float
    ) -> None:
        """Count a request to Placement."""
        labels = self._host, method, what, status
        self._placement.labels(*labels).observe(seconds)

    def count_report(self, seconds: float) -> None:
        """Count a change that was written to Placement."""
        self._reported.observe(seconds)

    def count_drift(self, count: int) -> None:
        """Count providers that an audit found changed by others."""
        self._drift.inc(count)

    # For the journal

    def count_move(self, move: Move) -> None:
        """Count a move that was made."""
        self._moves.labels(self._host, move.kind, move.reason).inc()

    # For the recovery

    def count_lost_build(self) -> None:
        """Count a build that went to ERROR, because its request was lost."""
        self._lost.inc()

    # For Ironic

    @contextlib.contextmanager
    def time_ironic_request(self, what: str) -> Iterator[None]:
        """Measure the duration of a request to Ironic.

        Uuids in ``what`` are removed, so that no label names a node.
        """
        begun_s, result = self._clock.now_s(), 'ok'
        try:
            yield
        except errors.IronicComputeError as exc:
            result = type(exc).__name__
            raise
        finally:
            seconds = self._clock.now_s() - begun_s
            labels = self._host, _UUID.sub('', what), result
            self._ironic.labels(*labels).observe(seconds)

    # For Prometheus

    def register_gauges(self, watched: Gauges) -> None:
        """Register the gauges; their numbers are read from ``watched``."""
        self.registry.register(_States(self._host, watched))

    def register_paths(self, read_states: Callable[[], PathStates]) -> None:
        """Register the gauge of the paths; ``read_states`` returns them."""
        self.registry.register(_Paths(self._host, self._clock, read_states))

    def register_findings(
        self, count: Callable[[], Mapping[Check, int]]
    ) -> None:
        """Register the gauge of findings; ``count`` returns their numbers."""
        self.registry.register(_Findings(self._host, count))

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return prometheus_client.generate_latest(self.registry)

    def serve(
        self, options: Any, agent_fd: int | None, *, is_first: bool
    ) -> None:
        """Serve metrics to the agent and on a port, if either is wanted.

        :param options: of group ``[ironic_compute]``
        :param agent_fd: the inherited socket on which the agent requests
            them; None if it does not
        :param is_first: this worker has the port itself, not one after it
        """
        if agent_fd is not None:
            worker_metrics.answer_requests(agent_fd, self.text, self._clock)
        if options.metrics_port:
            port = options.metrics_port + (0 if is_first else 1)
            self.serve_port(options.metrics_address, port)

    def serve_port(self, address: str, port: int) -> int | None:
        """Serve metrics over HTTP on the first free port from ``port`` on.

        :returns: the port; None if none is free, which is logged
        """
        for candidate in range(port, min(port + _PORTS_COUNT, 65536)):
            try:
                prometheus_client.start_http_server(
                    candidate, address, self.registry
                )
            except OSError as exc:
                if exc.errno == errno.EADDRINUSE:
                    continue
                _warn_no_port(address, candidate, exc)
                return None
            LOG.info(
                'Serves metrics of host %(host)s on %(address)s:%(port)d',
                {'host': self._host, 'address': address, 'port': candidate},
            )
            return candidate
        _warn_no_port(address, port, 'all are in use')
        return None


def _warn_no_port(address: str, port: int, reason: object) -> None:
    LOG.warning(
        'Could not serve metrics on %(address)s from port %(port)d on; the '
        'worker runs without: %(reason)s',
        {'address': address, 'port': port, 'reason': reason},
    )


class _States:
    """A collector that computes the gauges when Prometheus reads."""

    def __init__(self, host: str, watched: Gauges) -> None:
        self._host = host
        self._watched = watched

    def collect(self) -> Iterator[Any]:
        """Return the gauges as they are now."""
        held = [*self._watched.held_facts()]
        yield self._nodes(held)
        servers = {facts.uuid for facts in held if facts.instance_uuid}
        yield self._gauge('servers', 'Nodes held with a server', len(servers))
        yield self._misplaced({facts.uuid for facts in held}, servers)
        yield self._gauge(
            'pinned_nodes',
            'Nodes held that an operator has pinned to a host',
            self._watched.pinned_count(),
        )
        waiting_count, oldest_s = self._watched.waiting()
        yield self._gauge(
            'dirty_nodes', 'Changes not yet in Placement', waiting_count
        )
        yield self._gauge(
            'oldest_dirty_seconds', 'Age of the oldest of them', oldest_s
        )

    def _nodes(self, held: Iterable[NodeFacts]) -> Any:
        counts: collections.Counter[tuple[str, ...]] = collections.Counter(
            (
                facts.provision_state or 'unknown',
                str(facts.maintenance).lower(),
                facts.resource_class or '',
            )
            for facts in held
        )
        return self._counted(
            'nodes',
            'Nodes held, by provision state, maintenance and resource class',
            ('state', 'maintenance', 'resource_class'),
            counts,
        )

    def _misplaced(
        self, held: Collection[NodeId], servers: Collection[NodeId]
    ) -> Any:
        counts: collections.Counter[tuple[str, ...]] = collections.Counter(
            (target, str(node in servers).lower())
            for node, target in self._watched.misplaced().items()
            if node in held
        )
        return self._counted(
            'misplaced_nodes',
            'Nodes held that should be at another host, by that host '
            'and whether they stay here because they have a server',
            ('target', 'server'),
            counts,
        )

    def _counted(
        self,
        name: str,
        text: str,
        labels: tuple[str, ...],
        counts: Mapping[tuple[str, ...], int],
    ) -> Any:
        family = core.GaugeMetricFamily(
            f'ironic_compute_{name}', text, labels=('host', *labels)
        )
        for key, count in sorted(counts.items()):
            family.add_metric((self._host, *key), count)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Any:
        family = core.GaugeMetricFamily(
            f'ironic_compute_{name}', text, labels=('host',)
        )
        family.add_metric((self._host,), value)
        return family


class _Findings:
    """A collector of what the checks of fsck find on the held nodes."""

    def __init__(
        self, host: str, count: Callable[[], Mapping[Check, int]]
    ) -> None:
        self._host = host
        self._count = count

    def collect(self) -> Iterator[Any]:
        """Return the number of nodes that each check finds now."""
        family = core.GaugeMetricFamily(
            'ironic_compute_findings',
            'Nodes held that a check of fsck finds, by its name',
            labels=('host', 'check'),
        )
        for check, number in self._count().items():
            family.add_metric((self._host, check.name), number)
        yield family


class _Paths:
    """A collector of the paths to other services, as they are when read."""

    def __init__(
        self,
        host: str,
        clock: Clock,
        read_states: Callable[[], PathStates],
    ) -> None:
        self._host = host
        self._clock = clock
        self._read_states = read_states

    def collect(self) -> Iterator[Any]:
        """Return for how long each path has failed; 0 if it works."""
        family = core.GaugeMetricFamily(
            'ironic_compute_path_failing_seconds',
            'Time for which a service was not reached; 0 if it is reached',
            labels=('host', 'path'),
        )
        now_s = self._clock.now_s()
        for path, state in sorted(self._read_states().items()):
            since_s = state.failing_since_s
            failing_s = 0.0 if since_s is None else now_s - since_s
            family.add_metric((self._host, path), failing_s)
        yield family
