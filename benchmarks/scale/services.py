# SPDX-License-Identifier: Apache-2.0
"""How long the fake services take to answer, and how much they work.

Each service has a number of processes. A request occupies one of them for its
cost, and waits while all of them are busy. The costs of Ironic, of Placement
and of one RPC were measured with real services on two virtual processors;
``ROW_READ_S`` and ``NODE_READ_S`` are assumptions.
"""

import collections
import heapq
from collections.abc import Callable
from typing import Any

from hashring.paths import Path
from ironic_compute.paths.path_health import (
    CONDUCTOR,
    IRONIC,
    NEUTRON,
    PLACEMENT,
    RABBITMQ,
)
from tests.simulation.wire import SentRequest, Wire

# Ironic lists 5,000 nodes in 3.1 s.
NODE_LISTED_S = 0.62e-3
CHANGES_PAGE_S = 0.05
NODE_READ_S = 0.02
# A provider is created in 9 ms, its inventory is set in 12 ms.
PROVIDER_WRITE_S = 0.0105
# Placement lists 1,000 providers in 0.07 s.
PROVIDER_LISTED_S = 0.07e-3
RPC_S = 0.003
ROW_READ_S = 0.3e-3
# Nova-conductor saves a row in 15 to 20 ms.
ROW_SAVED_S = 0.0175

# The cost of a request that names none: when it reads, and when it writes.
_COSTS_S: dict[Path, tuple[float, float]] = {
    IRONIC: (NODE_READ_S, NODE_READ_S),
    PLACEMENT: (PROVIDER_WRITE_S, PROVIDER_WRITE_S),
    CONDUCTOR: (RPC_S, ROW_SAVED_S),
    RABBITMQ: (RPC_S, RPC_S),
    NEUTRON: (NODE_READ_S, NODE_READ_S),
}


class Service:
    """One service with some processes, in virtual time.

    :param answers: the errors that are answers, and take as long as one
    """

    def __init__(
        self,
        kernel: Any,
        path: Path,
        processes_count: int,
        answers: tuple[type[Exception], ...],
    ) -> None:
        self._kernel = kernel
        self._costs_s = _COSTS_S[path]
        self._answers = answers
        self._free_s = [0.0] * processes_count
        self._charged: tuple[str, float] | None = None
        self.counts: collections.Counter[str] = collections.Counter()
        self.busy_s = 0.0

    def charge(self, kind: str, cost_s: float) -> None:
        """Name the kind and the cost of the request that is answered now."""
        self._charged = kind, cost_s

    def serve(self, act: Callable[[], Any], *, writes: bool) -> Any:
        """Answer a request; blocks the task as long as a real one takes."""
        self._kernel.require_task()
        self._charged = None
        error: Exception | None = None
        value = None
        try:
            value = self._kernel.run_outside(act)
        except self._answers as exc:
            error = exc
        default = ('write' if writes else 'read', self._costs_s[writes])
        kind, cost_s = self._charged or default
        self.counts[kind] += 1
        self.busy_s += cost_s
        begins_s = max(self._free_s[0], self._kernel.now_s)
        heapq.heapreplace(self._free_s, begins_s + cost_s)
        self._kernel.sleep(begins_s + cost_s - self._kernel.now_s)
        if error is not None:
            raise error
        return value


class ServedWire(Wire):
    """The requests of one worker to one service, which has limits."""

    def __init__(
        self, world: Any, worker: Any, service: Path, *note: Any
    ) -> None:
        super().__init__(world, worker, service, *note)
        self._sender = worker
        self.service: Service = world.services[service]

    def _read(self, act: Callable[[], Any]) -> Any:
        return self.service.serve(act, writes=False)

    def _write(self, act: Callable[[SentRequest], Any], gated: bool) -> Any:
        worker = self._sender
        request = SentRequest(
            worker.name, worker.host, False, alone_s=worker.pool.alone_s
        )
        return self.service.serve(lambda: act(request), writes=True)
