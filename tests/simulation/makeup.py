# SPDX-License-Identifier: Apache-2.0
"""The classes that a world is made of; a planted defect replaces one of them.

See `defects`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from hashring.agent import Agent
from hashring.group import Member, Traits
from hashring.opts import Timing
from ironic_compute.feed.node_feed import NodeFeed
from ironic_compute.gate import LeaseGate
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.held_nodes import HeldNodes
from ironic_compute.nodes.unconfirmed_rows import CLOCK_SKEW_S
from ironic_compute.ownership.departures import Departures
from ironic_compute.ownership.draining import Draining
from ironic_compute.ownership.eviction import Evictor
from ironic_compute.ownership.new_nodes import NewNodes
from ironic_compute.ownership.rebalance import Rebalancer
from ironic_compute.ownership.removal import Removal
from ironic_compute.ownership.retirement import Retirement
from ironic_compute.paths.path_health import PathHealth
from ironic_compute.recovery.interrupted_deploys import InterruptedDeploys
from ironic_compute.recovery.interrupted_tasks import InterruptedTasks
from ironic_compute.recovery.stray_instances import StrayInstances
from ironic_compute.worker.rpc_gating import RpcGating
from tests.simulation import folder
from tests.simulation.compute import ComputeWorker
from tests.simulation.disk import MemoryStateDir
from tests.simulation.environment import Environment
from tests.simulation.handlers import Manager
from tests.simulation.kernel import Kernel
from tests.simulation.paths import PathFaults
from tests.simulation.rpc import RpcServer
from tests.simulation.scheduling import Rescheduler
from tests.simulation.worker import Gate, Worker
from tests.unit.hashring import coordination

# Shorter than the default, to save simulated time. A drain may take longer
# than the lease term, so that a lease can lapse during it.
TIMING = Timing(settle_s=5.0, drain_timeout_s=60.0)


@dataclasses.dataclass(frozen=True)
class Makeup:
    """The classes and timings of a world.

    :param certain: what each of its worlds has, of what others have by chance:
        kinds of `Environment`, a backend, and `Faults` as frequent as in any
        world
    """

    certain: frozenset[str] = frozenset()
    environment: Callable[..., Environment] = Environment
    timing: Timing = TIMING
    agent: Callable[..., Agent] = Agent
    state_dir: Callable[..., MemoryStateDir] = MemoryStateDir
    group: Callable[..., coordination.FakeGroup] = coordination.FakeGroup
    worker: Callable[..., Worker] = ComputeWorker
    gate: Callable[..., LeaseGate] = Gate
    compute_nodes: Callable[..., ComputeNodes] = ComputeNodes
    clock_skew_s: float = CLOCK_SKEW_S
    held_nodes: Callable[..., HeldNodes] = HeldNodes
    new_nodes: Callable[..., NewNodes] = NewNodes
    rebalancer: Callable[..., Rebalancer] = Rebalancer
    removal: Callable[..., Removal] = Removal
    feed: Callable[..., NodeFeed] = NodeFeed
    resume: Callable[..., InterruptedTasks] = InterruptedTasks
    deploys: Callable[..., InterruptedDeploys] = InterruptedDeploys
    strays: Callable[..., StrayInstances] = StrayInstances
    evictor: Callable[..., Evictor] = Evictor
    draining: Callable[..., Draining] = Draining
    departures: Callable[..., Departures] = Departures
    retirement: Callable[..., Retirement] = Retirement
    manager: Callable[..., Manager] = Manager
    rescheduler: Callable[..., Rescheduler] = Rescheduler
    rpc_server: Callable[..., RpcServer] = RpcServer
    rpc_gating: Callable[..., RpcGating] = RpcGating
    path_faults: Callable[..., object] = PathFaults
    path_health: Callable[..., PathHealth] = PathHealth


class LenientService(coordination.Service):
    """A service on which a late heartbeat restores the member's entry.

    No real service does that. With it, only the lease protects an agent.
    """

    def members(self) -> tuple[Member, ...]:
        entries = self._entries.items()
        live = (e.member for boot, e in entries if self._live(boot))
        return tuple(sorted(live, key=lambda m: (m.home, m.boot)))


@dataclasses.dataclass(frozen=True)
class Backend:
    """A kind of coordination service.

    :param revives: a late heartbeat brings an ended entry back
    """

    name: str
    traits: Traits
    revives: bool = False
    service: Callable[..., coordination.Service] = coordination.Service

    def new_service(
        self, kernel: Kernel, term_s: float
    ) -> coordination.Service:
        return self.service(
            lambda: kernel.now_s, term_s, self.traits, revives=self.revives
        )


class FolderBackend(Backend):
    """The file backend."""

    def new_service(
        self, kernel: Kernel, term_s: float
    ) -> coordination.Service:
        return folder.FolderService(kernel, term_s)


BACKENDS = (
    Backend('etcd', coordination.ETCD),
    Backend('cache', coordination.CACHE, revives=True),
    Backend('zookeeper', coordination.ZOOKEEPER),
    Backend('lenient', coordination.ZOOKEEPER, True, LenientService),
)
FOLDER = FolderBackend('file', folder.TRAITS)


def with_parts(*certain: str, **parts: Any) -> Makeup:
    """Return the makeup with some classes replaced.

    :param certain: see `Makeup`; what the seed of a rare defect needs
    """
    return dataclasses.replace(Makeup(), certain=frozenset(certain), **parts)
