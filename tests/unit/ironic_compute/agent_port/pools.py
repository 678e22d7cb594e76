# SPDX-License-Identifier: Apache-2.0
"""Made-up pools for tests of the status page, in code and in a browser."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping

from hashring.adoption import View
from hashring.agent_status import AgentStatus
from hashring.counts import Counts
from hashring.group import Boot, Member
from hashring.heartbeat import HeartbeatState
from hashring.host_states import HostState, Phase
from hashring.lease import Lease
from hashring.paths import Path
from hashring.ring import Host, Ring
from ironic_compute import catalogue
from ironic_compute.journal.moves import Kind, Move, Reason
from ironic_compute.metrics import Metrics
from resource_tracker.node import NodeFacts, NodeId
from tests.fakes.clock import ManualClock

NOW_S = 1000.0
PATHS = tuple(
    map(Path, ('RabbitMQ', 'nova-conductor', 'Ironic', 'Placement', 'Neutron'))
)
HOSTILE = (
    '<script>document.title="owned"</script>',
    '"><img src=x onerror=alert(1)>',
    'x' * 255,
    '\N{SEE-NO-EVIL MONKEY}\N{RIGHT-TO-LEFT OVERRIDE}moc.live',
    "{{ 7 * 191 }}';--",
)


@dataclasses.dataclass(frozen=True, slots=True)
class MadeUpPool:
    """A pool: the status of its first agent, the metrics of each worker."""

    status: AgentStatus
    texts: Mapping[Host, str]
    moves: tuple[Move, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class _Nodes:
    """The gauges of a worker with so many nodes."""

    count: int
    servers: int = 0
    moving: Mapping[NodeId, Host] = dataclasses.field(default_factory=dict)
    dirty: tuple[int, float] = (0, 0.0)

    def held_facts(self) -> list[NodeFacts]:
        return [
            NodeFacts(
                uuid=NodeId(f'n{number}'),
                provision_state='active'
                if number < self.servers
                else 'available',
                resource_class='gold',
                instance_uuid=f's{number}' if number < self.servers else None,
            )
            for number in range(self.count)
        ]

    def pinned_count(self) -> int:
        return 0

    def waiting(self) -> tuple[int, float]:
        return self.dirty

    def misplaced(self) -> Mapping[NodeId, Host]:
        return self.moving


def metrics_of(host: Host, nodes: _Nodes) -> str:
    """Return the metrics of a worker with these nodes."""
    made = Metrics(host, ManualClock(NOW_S))
    made.register_gauges(nodes)
    made.register_paths(dict)
    made.register_findings(lambda: {catalogue.DEPLOY_FAILED: 1})
    return made.text().decode()


def _moves(count: int) -> tuple[Move, ...]:
    """Return the newest moves of a pool, in which all kinds are."""
    kinds, reasons = [*Kind], [*Reason]
    hosts = {Kind.ADOPTION, Kind.HAND_BACK, Kind.RETIREMENT}
    uuid = '6f1c0f5e-8d3b-4c55-9a1b-2f0e7d6c5b4a'
    return tuple(
        Move(
            at_s=1_800_000_000.0 - 60.0 * number,
            kind=kind,
            reason=reasons[number % len(reasons)],
            source='controller-01',
            target='controller-02',
            host='controller-01' if kind in hosts else '',
            node='' if kind in hosts else uuid,
            server=uuid if kind is Kind.EVICT else '',
            seconds=0.7 * number,
            by='ann on ctl-1 at 2027-01-15 08:00 UTC' if number % 3 else '',
        )
        for number in range(count)
        for kind in [kinds[number % len(kinds)]]
    )


def _member(home: Host, serving: tuple[Host, ...], ring: Ring) -> Member:
    return Member(
        home,
        Boot(f'boot of {home}'),
        machine=f'{home}.example.org',
        version='3.0.0',
        serving=serving,
        ring=ring.digest,
        lease_term_s=15.0,
        working_paths=PATHS,
    )


def _status(hosts: tuple[Host, ...], here: tuple[Host, ...]) -> AgentStatus:
    """Return an agent that serves some of the hosts; others serve the rest."""
    ring, lease = (
        Ring(hosts),
        Lease(15.0, 2.0, base_s=NOW_S - 2.0, counted=True, epoch=1),
    )
    me = _member(hosts[0], here, ring)
    peers = tuple(_member(h, (h,), ring) for h in hosts if h not in here)
    return AgentStatus(
        turned_at_s=NOW_S - 0.2,
        me=me,
        heartbeat=HeartbeatState(lease, View((me, *peers))),
        deadline_s=lease.deadline_s,
        hosts=tuple(
            HostState(h, Phase.SERVING, serves_since_s=1.0) for h in here
        ),
        opens_s={},
        known=frozenset(hosts),
        ring=ring,
        agreed_since_s=NOW_S - 7500.0,
        lost_path=None,
        counts=Counts(worker_starts=dict.fromkeys(here, 1)),
    )


def well() -> MadeUpPool:
    """Three hosts, and no problem."""
    hosts = tuple(map(Host, ('c1', 'c2', 'c3')))
    return MadeUpPool(
        _status(hosts, hosts[:1]), {hosts[0]: metrics_of(hosts[0], _Nodes(9))}
    )


def troubled() -> MadeUpPool:
    """Three hosts with many troubles at once; one daemon is dead."""
    c1, c2, c3 = map(Host, ('c1', 'c2', 'c3'))
    good = _status((c1, c2, c3), (c1, c2))
    other = dataclasses.replace(
        _member(c3, (), Ring((c1, c3))),
        failing_paths=(Path('Neutron'),),
        is_half_alive=True,
    )
    status = dataclasses.replace(
        good,
        heartbeat=dataclasses.replace(
            good.heartbeat,
            view=View((good.me, other)),
            failure='no answer from http://u:hunter2@etcd',
        ),
        known=frozenset({c1, c2, c3, Host('c4')}),
        agreed_since_s=None,
        counts=dataclasses.replace(
            good.counts, adoptions=1, lapses=1, worker_exits={(c1, '-9'): 2}
        ),
    )
    moving = {NodeId('n1'): c2, NodeId('n400'): c3, NodeId('n401'): c3}
    nodes = _Nodes(1234, 321, moving, (7, 900.0))
    return MadeUpPool(status, {c1: metrics_of(c1, nodes)}, _moves(3))


@functools.cache
def large() -> MadeUpPool:
    """50 hosts with 50,000 nodes, all served by one agent."""
    hosts = tuple(Host(f'controller-{number:02}') for number in range(50))
    texts = {host: metrics_of(host, _Nodes(1000, 600)) for host in hosts}
    return MadeUpPool(_status(hosts, hosts), texts, _moves(50))


def _hostile_move(at_s: float, names: Iterator[str]) -> Move:
    return Move(
        at_s=at_s,
        kind=next(names),
        reason=next(names),
        source=next(names),
        target=next(names),
        host=next(names),
        node=next(names),
        server=next(names),
        seconds=1.0,
        by=next(names),
    )


def hostile() -> MadeUpPool:
    """Hosts, machines, versions and paths that attack the page."""
    hosts = tuple(map(Host, HOSTILE))
    pool = well()
    status = _status(hosts, hosts[:2])
    evil = dataclasses.replace(
        status.me,
        machine=HOSTILE[0],
        page='javascript:alert(1)',
        version=f'{HOSTILE[1]} cut \udcff utf-8',
        failing_paths=tuple(map(Path, HOSTILE)),
    )
    counts = Counts(worker_starts={hosts[0]: 1}, worker_exits={})
    status = dataclasses.replace(
        status, me=evil, counts=counts, agreed_since_s=None
    )
    text = metrics_of(hosts[0], _Nodes(3, 1, {NodeId('n2'): hosts[1]}))
    names = itertools.cycle(HOSTILE)
    moves = tuple(_hostile_move(at_s, names) for at_s in (0.0, 1e300))
    return dataclasses.replace(
        pool, status=status, texts={hosts[0]: text}, moves=moves
    )
