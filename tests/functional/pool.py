# SPDX-License-Identifier: Apache-2.0
"""Workers in Nova's one-process cloud, over an Ironic in memory.

The manager, tracker, handover and driver are the real ones, and so are
nova-api, conductor, scheduler and Placement around them. Only the agent is
left out: the test says what the pool looks like.
"""

import math
import threading
import uuid
from collections.abc import Mapping
from typing import Any

import fixtures
import nova.conf
from keystoneauth1 import adapter, session, token_endpoint

from hashring.clock import SystemClock
from hashring.ring import Host
from hashring.workers import (
    HostAdded,
    HostRetired,
    MappingConfirmed,
    WorkerView,
)
from ironic_compute.agent import pipe
from ironic_compute.config import register_opts
from ironic_compute.gate import LeaseGate
from ironic_compute.ironic_api.node_pool import NodePool
from ironic_compute.manager.compute_manager import IronicComputeManager
from ironic_compute.paths.path_health import PathHealth
from ironic_compute.pool.view import PoolView
from ironic_compute.worker import rpc_service
from ironic_compute.worker.components import Components, Tenure, WorkerHooks
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.placement import Placement
from tests.fakes.ironic import FakeIronic
from tests.functional import base

CONF = nova.conf.CONF
register_opts(CONF)


_NO_GROUP = NodePool('')


class LivingIronic:
    """An Ironic whose work goes on by itself: at each look it has ended."""

    def __init__(self, fake: FakeIronic, pool: NodePool) -> None:
        self.fake, self.pool = fake, pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fake, name)

    def set_meter(self, meter: Any) -> None:
        """Nothing here takes time."""

    def check_pool(self) -> None:
        """Any pool will do."""

    def is_in_pool(self, facts: NodeFacts) -> bool:
        """See IronicClient."""
        return self.pool.contains(facts)

    def read_node(self, node: str) -> NodeFacts:
        """Return a node, after what Ironic was doing with it."""
        with self.fake.lock:
            self.fake.settle(node)
            facts = self.fake.read_node(node)
            if facts.provision_state == 'cleaning':
                self.fake.change(node, provision_state='available')
            return self.fake.read_node(node)

    def list_nodes(self, **paging: Any) -> tuple[NodeFacts, ...]:
        """Return all nodes of the pool."""
        return tuple(filter(self.is_in_pool, self.fake.nodes.values()))

    def list_changed_nodes(
        self, updated_at: str | None, **paging: Any
    ) -> list[NodeFacts]:
        """Return what may have changed: all of the pool."""
        with self.fake.lock:
            found = [self.read_node(uuid) for uuid in list(self.fake.nodes)]
        return list(filter(self.is_in_pool, found))


class EndingClock(SystemClock):
    """The clock of one test, on which nobody waits after it.

    A worker's process ends whatever waits in it. Here a thread that repeats a
    request would go on in the next test, or keep this one from its end,
    because no service answers any more.
    """

    def __init__(self) -> None:
        self._ended = threading.Event()

    def end(self) -> None:
        """End each thread that waits now, or begins to."""
        self._ended.set()

    def sleep(self, seconds: float) -> None:
        """Block for so many seconds, or until the test has ended.

        :raises SystemExit: it has ended; a thread ends with it in silence
        """
        if self._ended.wait(seconds):
            raise SystemExit


class TheCloud:
    """What the workers of one test share; reset by each test."""

    clock: EndingClock
    ironic: LivingIronic
    placement: Placement
    # The nodes of a host's pool, if it has not those of the others.
    node_pools: Mapping[str, NodePool]
    pools: dict[Host, PoolView]
    hosts: tuple[str, ...]
    ring: tuple[str, ...]
    ordered: list[HostAdded | MappingConfirmed | HostRetired]
    left: list[str]

    @classmethod
    def reset(
        cls, endpoint: str, node_pools: Mapping[str, NodePool], *hosts: str
    ) -> None:
        """Begin anew with these hosts in the ring.

        :param endpoint: where the fixture's Placement answers
        """
        auth = token_endpoint.Token(endpoint, 'admin')
        cls.placement = Placement(
            adapter.Adapter(session.Session(auth), service_type='placement')
        )
        cls.ironic = LivingIronic(FakeIronic(), _NO_GROUP)
        cls.pools, cls.hosts, cls.node_pools = {}, hosts, node_pools
        cls.ring, cls.ordered, cls.left = hosts, [], []
        cls.clock = EndingClock()

    @classmethod
    def node_pool(cls, host: str) -> NodePool:
        """Return the nodes of a host's pool in Ironic."""
        return cls.node_pools.get(host, _NO_GROUP)

    @classmethod
    def client(cls, host: str) -> LivingIronic:
        """Return Ironic as a host's worker sees it."""
        pool = cls.node_pools.get(host)
        return (
            cls.ironic if pool is None else LivingIronic(cls.ironic.fake, pool)
        )

    @classmethod
    def show(cls, *ring: str) -> None:
        """Tell all workers of a ring that everybody agrees on.

        A worker is told of the hosts of its own pool.
        """
        cls.ring = ring
        for host, pool in cls.pools.items():
            pool.update(cls._view(cls.node_pool(host)))

    @classmethod
    def _view(cls, nodes: NodePool) -> WorkerView:
        hosts = tuple(Host(h) for h in cls.ring if cls.node_pool(h) == nodes)
        all_hosts = [h for h in cls.pools if cls.node_pool(h) == nodes]
        admitted = {o.host for o in cls.ordered if isinstance(o, HostAdded)}
        vouched = {
            o.host for o in cls.ordered if isinstance(o, MappingConfirmed)
        }
        return WorkerView(
            deadline_s=math.inf,
            ring=hosts,
            agreed_since_s=0.0,
            # Who is out of the ring is of the pool all the same.
            known=tuple(sorted({*hosts, *all_hosts, *admitted})),
            confirmed_mappings=tuple(sorted(vouched)),
        )

    @classmethod
    def receive(cls, message: pipe.Message) -> None:
        """Receive a worker's message; show all workers what it adds."""
        if isinstance(message, HostAdded | MappingConfirmed | HostRetired):
            cls.ordered.append(message)
            cls.show(*cls.ring)


class PoolManager(IronicComputeManager):
    """The real manager, with parts that a test has put together."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        clock = TheCloud.clock
        host = Host(kwargs['host'])
        pool = TheCloud.pools[host] = PoolView(clock)
        tenure = Tenure(host, True, LeaseGate(clock, math.inf), pool, clock)
        hooks = WorkerHooks(
            TheCloud.receive,
            lambda: None,
            lambda status: TheCloud.left.append(host),
        )
        ironic, placement = TheCloud.client(host), TheCloud.placement
        health = PathHealth(clock)
        components = Components(tenure, hooks, health, ironic, placement)  # type: ignore[arg-type]
        # Tests do not wait a minute between the two audits of a deleted node.
        components.removal._confirm_s = 0.0
        components.path_observer.start()
        super().__init__(*args, components=components, **kwargs)
        TheCloud.show(*TheCloud.hosts)

    @property
    def held(self) -> Mapping[NodeId, Any]:
        """The nodes this worker holds."""
        return self.rt.compute_nodes  # type: ignore[no-any-return]


MANAGER = f'{__name__}.PoolManager'

_IN_A_HURRY = {
    'settle_s': 0.0,
    'confirm_s': 0.0,
    'delta_interval_s': 1.0,
    'services_interval_s': 1.0,
    'upkeep_interval_s': 1.0,
    # Long: a slow machine must not look like a daemon that was killed.
    'unfinished_s': 60.0,
    'lost_build_s': 60.0,
    'use_notifications': False,
}


class PoolTestCase(base.NovaTestCase):
    """Two workers, c1 and c2, and eight free nodes."""

    COMPUTE_DRIVER = 'ironic.IronicDriver'
    # What a class sets otherwise than _IN_A_HURRY.
    OPTIONS: Mapping[str, Any] = {}
    AGGREGATES_INTERVAL_S = 1.0
    NODES_COUNT = 8
    # The pools of the hosts, if they have not one without conductor group.
    NODE_POOLS: Mapping[str, NodePool] = {}
    SHARD: str | None = None

    def setUp(self) -> None:
        """Start the workers and wait until they have read and told all."""
        super().setUp()
        state_path = self.useFixture(fixtures.TempDir()).path
        self.flags(state_path=state_path, group='ironic_compute')
        for name, value in {**_IN_A_HURRY, **self.OPTIONS}.items():
            self.flags(**{name: value}, group='ironic_compute')
        interval_s = self.AGGREGATES_INTERVAL_S
        self.flags(aggregates_interval_s=interval_s, group='resource_tracker')
        self.flags(api_retry_interval=0, group='ironic')
        TheCloud.reset(self.placement_endpoint, self.NODE_POOLS, 'c1', 'c2')
        self.addCleanup(TheCloud.clock.end)
        for number in range(self.NODES_COUNT):
            self.ironic.add(
                # The same ones each time: each host gets some.
                uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, f'bm-{number}')),
                resource_class='baremetal',
                shard=self.SHARD,
                # The image asks for it: ImagePropertiesFilter.
                properties={'cpu_arch': 'x86_64'},
            )
        self.workers = {
            host: self.start_compute(host, MANAGER) for host in ('c1', 'c2')
        }
        self.flavor = self.make_flavor()
        # A test may say next what Ironic has, and a list from before is late.
        self.until(self._have_audited, 'all audited')
        self.until(self._hold_all, 'all held')
        self.until(lambda: self.offered() == self.NODES_COUNT, 'all offered')

    def _have_audited(self) -> bool:
        return all(
            self.components(host).node_changes.has_audited
            for host in self.workers
        )

    def _hold_all(self) -> bool:
        held = [self.held(host) for host in self.workers]
        return len(set().union(*held)) == self.NODES_COUNT

    def start_compute(self, host: str, manager: str | None = None) -> Any:
        """Start Nova's service of a worker as the worker itself does."""
        create = rpc_service.Service.create
        with fixtures.MonkeyPatch(
            'nova.service.Service.create', staticmethod(create)
        ):
            worker = super().start_compute(host, manager)
        components: Components = worker.manager._components
        self.addCleanup(components.stop)
        return worker

    @property
    def ironic(self) -> FakeIronic:
        """What Ironic has."""
        return TheCloud.ironic.fake

    def offered(self) -> int:
        """Return how many nodes Placement offers to a build."""
        response = self.placement.get(
            '/allocation_candidates?resources=CUSTOM_BAREMETAL:1',
            version='1.36',
        )
        # Before the first report Placement does not know the class: a 400.
        return len(response.body.get('provider_summaries', ()))

    def manager(self, host: str) -> PoolManager:
        """Return the compute manager of a host's worker."""
        found: PoolManager = self.workers[host].manager
        return found

    def components(self, host: str) -> Components:
        """Return the components of a host's worker."""
        return self.manager(host)._components

    def deliver_audit(self, nodes: Mapping[str, NodeFacts]) -> None:
        """Deliver a list of all of Ironic's nodes to each worker."""
        audit = {NodeId(uuid): facts for uuid, facts in nodes.items()}
        for host in self.workers:
            self.components(host).node_changes.audit_nodes(audit)

    def held(self, host: str) -> set[str]:
        """Return the nodes that a host holds."""
        return set(self.manager(host).held)

    def node_of(self, server: Mapping[str, Any]) -> str:
        """Return the node that a server is on."""
        shown = self.api.get_server(server['id'])
        node: str = shown['OS-EXT-SRV-ATTR:hypervisor_hostname']
        return node

    def action(
        self, server: Mapping[str, Any], name: str, argument: Any = None
    ) -> Any:
        """Send an action of nova-api to a server."""
        return self.api.post_server_action(server['id'], {name: argument})

    def last_events(self, server: Mapping[str, Any]) -> list[Any]:
        """Return the events of the action that was begun last, once all ended.

        Nova shows the new state of a server before it ends the event.
        """
        events: list[Any] = []

        def have_ended() -> bool:
            events[:] = self._read_last_events(server)
            return all(event['result'] for event in events)

        self.until(have_ended, 'the events have ended')
        return events

    def _read_last_events(self, server: Mapping[str, Any]) -> list[Any]:
        actions = self.api.get_instance_actions(server['id'])
        newest = max(actions, key=lambda action: action['start_time'])
        shown = self.api.api_get(
            f'/servers/{server["id"]}/os-instance-actions/'
            f'{newest["request_id"]}'
        )
        events: list[Any] = shown.body['instanceAction']['events']
        return events
