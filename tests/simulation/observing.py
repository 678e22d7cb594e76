# SPDX-License-Identifier: Apache-2.0
"""How a simulated worker observes its paths to the services.

Real are ``PathHealth``, the probes, ``PathObserver`` without its threads,
``traffic``, which notes the worker's own requests, and ``RepeatedRequests``.
The path worker serves no host and only sends probes.
"""

import contextlib
import types
from collections.abc import Callable, Mapping
from typing import Any

from keystoneauth1 import exceptions as ksa_exceptions

from hashring.paths import Path, PathState
from hashring.workers import PathsObserved
from ironic_compute import errors
from ironic_compute.paths.path_health import (
    CONDUCTOR,
    IRONIC,
    NEUTRON,
    PLACEMENT,
    RABBITMQ,
    PathHealth,
)
from ironic_compute.paths.path_observer import PathObserver
from ironic_compute.paths.probes import Probe
from ironic_compute.paths.repeated_requests import (
    TAKE_OVER_S,
    RepeatedRequests,
)
from ironic_compute.paths.traffic import (
    ConductorTraffic,
    IronicTraffic,
    PlacementTraffic,
    SessionTraffic,
)
from resource_tracker.meter import NoMeter
from tests.simulation.faults import Unreachable
from tests.simulation.loops import LoopTask
from tests.simulation.wire import Wire
from tests.simulation.worker import Worker

# Seconds without an answer after which a path is probed: those of
# ``make_probes`` for the simulated intervals of a worker's own requests.
_SILENCES_S = {
    RABBITMQ: 10.0,
    CONDUCTOR: 12.0,
    IRONIC: 6.0,
    PLACEMENT: None,
    NEUTRON: None,
}
_PATH_WORKER_SILENCES_S = _SILENCES_S | {PLACEMENT: 10.0, NEUTRON: 10.0}


class ObservedWires:
    """The wires of a worker to the services, which note its requests."""

    def __init__(self, worker: Worker) -> None:
        self.health = worker.world.makeup.path_health(worker.clock)
        self._worker = worker
        self._clock = worker.clock
        conductor = ConductorTraffic(self.health, worker.clock)
        self.conductor = self._wire(CONDUCTOR, conductor.call)
        self._ironic = IronicTraffic(
            self.health, worker.clock, lambda action: contextlib.nullcontext()
        )
        self.ironic = self._wire(IRONIC, self._call_ironic)
        self._placement = PlacementTraffic(
            self.health, worker.clock, NoMeter()
        )
        self.placement = self._wire(PLACEMENT, self._call_placement)
        self._neutron = SessionTraffic(NEUTRON, self.health, worker.clock)
        self._neutron_wire = self._wire(NEUTRON, self._call_neutron)
        half_alive_s = worker.machine.timing.half_alive_s
        self._repeats = RepeatedRequests(
            worker.clock, half_alive_s + TAKE_OVER_S
        )

    def _wire(self, service: Path, note: Callable[..., Any]) -> Wire:
        return self._worker.world.wire_class(
            self._worker.world, self._worker, service, note
        )

    def _call_ironic(self, send: Callable[[], Any]) -> Any:
        with self._ironic.request('request'):
            try:
                return send()
            except Unreachable as exc:
                raise errors.IronicUnavailable(str(exc)) from exc

    def call_neutron(self) -> None:
        """Send a request about the ports of a server.

        It is repeated and waits at the gate as ``gated_writes`` has it.
        Nothing of Neutron is simulated but its path, so that this does nothing
        in a world without failing paths.
        """
        if not self._worker.world.environment.has_path_faults:
            return
        try:
            self._repeats.call('PUT', self._write_to_neutron)
        except ksa_exceptions.ConnectFailure as exc:
            raise Unreachable(str(exc)) from exc

    def _write_to_neutron(self) -> Any:
        return self._neutron_wire.wait_and_write(lambda request: None)

    def _call_neutron(self, send: Callable[[], Any]) -> Any:
        def send_over_http() -> Any:
            try:
                send()
            except Unreachable as exc:
                raise ksa_exceptions.ConnectFailure(str(exc)) from exc
            return types.SimpleNamespace(status_code=200, reason='OK')

        return self._neutron.call(send_over_http)

    def _call_placement(self, send: Callable[[], Any]) -> Any:
        began_s, status = self._clock.now_s(), '200'
        try:
            with self._placement.waiting():
                return send()
        except Unreachable:
            status = 'none'
            raise
        finally:
            self._placement.count_request(
                'PUT', 'provider', status, self._clock.now_s() - began_s
            )


def start_observer(
    worker: Worker,
    health: PathHealth,
    is_expected: Callable[[], bool],
    silences_s: Mapping[Path, float | None] = _SILENCES_S,
) -> None:
    """Run the observer and its probes in simulated threads.

    :param is_expected: whether the worker's own queue is read at present
    """
    is_doubted = worker.pool.is_doubted

    def probe(service: Path, **parts: Any) -> Probe:
        wire = worker.world.wire_class(worker.world, worker, service)
        return Probe(
            service,
            silences_s[service],
            lambda: wire.read(lambda: None),
            health,
            worker.clock,
            is_doubted=is_doubted,
            **parts,
        )

    observed = (
        probe(RABBITMQ, is_expected=is_expected),
        probe(CONDUCTOR),
        probe(IRONIC),
        probe(PLACEMENT),
        probe(NEUTRON),
    )
    observer = PathObserver(
        health,
        observed,
        worker.clock,
        lambda states: _send(worker, states),
        is_doubted,
        lambda *loop: LoopTask(worker, *loop),
    )
    observer.start()


def _send(worker: Worker, states: dict[Path, PathState]) -> None:
    event = PathsObserved(worker.host, states, worker.tenure)
    worker.machine.workers.report(event)


class PathWorker(Worker):
    """The worker of a half-alive agent, which serves no host."""

    def start(self) -> None:
        start_observer(
            self,
            PathHealth(self.clock, starts_in_doubt=True),
            lambda: True,
            _PATH_WORKER_SILENCES_S,
        )

    def is_resuming(self) -> bool:
        """Return False: it has no tasks."""
        return False

    @property
    def may_act(self) -> bool:
        """Never: it changes nothing."""
        return False
