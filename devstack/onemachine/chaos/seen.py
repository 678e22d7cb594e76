# SPDX-License-Identifier: Apache-2.0
"""The scenario in which each fault has to be seen, in each view.

The report has a table of faults and views, with the seconds until each view
showed the fault. A view in which the design does not expect a fault is not
looked at, and its cell is empty.
"""

import contextlib
import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from onemachine import processes, running
from onemachine.backends import sql
from onemachine.chaos import proxy
from onemachine.chaos.scenarios import HOSTS
from onemachine.chaos.stage import ALL_HOSTS, Stage
from onemachine.chaos.views import DOWN, Seen, Signs, Unmapped, Views
from onemachine.computes import Computes
from onemachine.progress import CloudError, print_line, wait_until

# What the design promises.
SEEN_MAX_S = 15.0
_LOOK_MAX_S = 45.0
_STOP_AGAIN_S = 0.2
_VIEWS = ('page', 'api', 'metrics', 'alert', 'ctl', 'fsck', 'log')
_NODE_OF_PLACEMENT = """
CREATE TRIGGER placement.refuses BEFORE INSERT ON placement.inventories
FOR EACH ROW BEGIN
    IF NEW.resource_provider_id = (SELECT id FROM placement.resource_providers
        WHERE uuid = '{node}') THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused';
    END IF;
END;
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """A fault that is begun and ended.

    :param hosts: the hosts whose daemons are looked at; commands run on the
        first one
    """

    name: str
    hosts: Sequence[str]
    signs: Signs
    during: Callable[[], contextlib.AbstractContextManager[None]]


class _Faults:
    """The faults, on a stage with ports."""

    def __init__(self, stage: Stage, computes: Computes) -> None:
        self._stage = stage
        self._computes = computes
        nodes = stage.content.nodes().values()
        free = sorted(n.id for n in nodes if not n.instance_id)
        self._classless, self._refused = free[:2]

    def all(self) -> tuple[Fault, ...]:
        """Return all of them, in an order in which each can follow."""
        return (*self._of_nodes(), *self._of_hosts(), *self._of_daemons())

    def _of_nodes(self) -> Iterator[Fault]:
        explain = ('node', 'explain')
        yield Fault(
            'node without class',
            HOSTS,
            Signs(
                page='without a resource class, which no build can get',
                metrics=r'check="node-without-class",host="c\d"} [1-9]'
                r'|ironic_compute_findings{check="node-without-class",'
                r'host="c\d"} [1-9]',
                alert='IronicComputeNodeWithoutClass',
                ctl=((*explain, self._classless), 'node-without-class'),
                fsck='node-without-class',
                log='has no resource_class in Ironic',
            ),
            self.node_without_class,
        )
        yield Fault(
            'node that Placement refuses',
            HOSTS,
            Signs(
                page='changes of 1 nodes that are not in Placement',
                metrics=r'ironic_compute_dirty_nodes{host="c\d"} [1-9]',
                ctl=((*explain, self._refused), 'offered-but-unusable'),
                fsck='offered-but-unusable',
                log='Placement answered 5',
            ),
            self.refused_node,
        )

    def _of_hosts(self) -> Iterator[Fault]:
        yield Fault(
            'unmapped host',
            (*HOSTS, 'c4'),
            Signs(
                page='Host c4 gets no nodes from the ring',
                api='"host": "c4", "in_ring": false',
                metrics=r'ironic_compute_agent_hosts_known 4.*'
                r'ironic_compute_agent_ring_hosts 3'
                r'|ironic_compute_agent_ring_hosts 3.*'
                r'ironic_compute_agent_hosts_known 4',
                alert='IronicComputeHostNotInRing',
                ctl=(('host', 'list'), 'c4 .*not mapped'),
                fsck='host-not-mapped',
                log='discover_hosts',
            ),
            self.unmapped_host,
        )
        yield Fault(
            'unserved host',
            HOSTS[:2],
            Signs(
                page='No daemon has the lock of host c3',
                api='"host": "c3", "in_ring": true, "served_by": null',
                metrics=r'ironic_compute_agent_host_served{host="c3"} 0',
                alert='IronicComputeHostUnserved',
                ctl=(('host', 'list'), r'c3 \| - \| - \| not served'),
                fsck='host-not-served',
                log='Leaving for a restart',
            ),
            self.unserved_host,
        )
        yield Fault(
            'rings that differ',
            HOSTS[1:],
            Signs(
                page='The daemons disagree about the ring',
                metrics='ironic_compute_agent_ring_agreed 0'
                '|findings{check="rings-differ"} 1',
                alert='IronicComputeRingDisagreement',
                ctl=(('pool', 'show'), r'Rings agree \| no'),
                fsck='rings-differ',
                log='has not agreed on its hosts',
            ),
            self.rings_that_differ,
        )

    def _of_daemons(self) -> Iterator[Fault]:
        yield Fault(
            'frozen worker',
            HOSTS,
            Signs(
                page='The worker of host c2 does not answer',
                metrics=r'worker_metrics_read{host="c2"} 0',
                alert='IronicComputeWorkerSilent',
                ctl=(('host', 'list'), 'c2 .*its worker does not answer'),
                log='Killed the worker of host c2',
            ),
            self.frozen_worker,
        )
        yield Fault(
            'etcd away',
            HOSTS,
            Signs(
                page='The last request of this daemon to the coordination',
                api='"backend_answers": false',
                metrics=r'backend_errors_total{request="\w+"} [1-9]',
                alert='IronicComputeBackendFails',
                ctl=(('host', 'list'), 'does not answer'),
                fsck='does not answer',
                log=r'The coordination backend \S+ does not answer',
            ),
            self.backend_away,
        )
        yield Fault(
            'lapsed lease',
            HOSTS,
            Signs(
                page='The lease of this daemon is not in force',
                api='"in_force": false',
                metrics='ironic_compute_agent_lease_in_force 0',
                alert='IronicComputeLeaseLost',
                ctl=(('host', 'list'), 'does not answer'),
                log='Lost the lease',
            ),
            self.lapsed_lease,
        )
        yield Fault(
            'kill -9',
            ('c2', 'c1', 'c3'),
            Signs(
                page='The port of the daemon of c1 does not answer',
                api='"port_answers": false'
                '|"host": "c1", "in_ring": true, "served_by": '
                '(null|{"home": "c[23]")',
                metrics=DOWN,
                alert='IronicComputeDown',
                ctl=(
                    ('host', 'list'),
                    r'c1 \| (-|c[23]) |port of its daemon does not answer',
                ),
                # No fsck: when the lease has ended, another daemon soon
                # serves the host, and all is well.
                log='The port of the daemon of c1 has not answered|Adopted',
            ),
            self.killed,
        )

    @contextlib.contextmanager
    def node_without_class(self) -> Iterator[None]:
        """Take the resource class of a free node away."""
        metal = self._stage.content.metal
        node = metal.get_node(self._classless)
        kept = node.resource_class
        path = {'path': '/resource_class'}
        metal.patch_node(node.id, [{'op': 'remove', **path}])
        try:
            yield
        finally:
            value = {'op': 'add', **path, 'value': kept}
            metal.patch_node(node.id, [value])

    @contextlib.contextmanager
    def refused_node(self) -> Iterator[None]:
        """Have Placement's database refuse the inventory of one node."""
        layout, metal = self._stage.cloud.layout, self._stage.content.metal
        statement = _NODE_OF_PLACEMENT.format(node=self._refused)
        sql(layout, f'DELIMITER //\n{statement}//\n')
        update = statement.replace('INSERT', 'UPDATE').replace(
            'refuses', 'refuses_too'
        )
        sql(layout, f'DELIMITER //\n{update}//\n')
        metal.set_node_maintenance(self._refused, 'a test')
        try:
            yield
        finally:
            for name in ('refuses', 'refuses_too'):
                sql(layout, f'DROP TRIGGER placement.{name};')
            metal.unset_node_maintenance(self._refused)

    @contextlib.contextmanager
    def unmapped_host(self) -> Iterator[None]:
        """Start a daemon whose host Nova does not know."""
        stage = self._stage
        views = Views(stage.cloud.layout, _addresses())
        new = Unmapped(stage.cloud, _addresses(), rewrite=_with_port(views))
        new.start_agents(['c4'])
        try:
            yield
        finally:
            stage.running.stop(['c4'])
            stage.content.forget_hosts(but=HOSTS)
            views.run('c1', 'host', 'forget', 'c4')

    @contextlib.contextmanager
    def unserved_host(self) -> Iterator[None]:
        """Stop a daemon; the others wait for its return."""
        self._stage.running.stop(['c3'])
        try:
            yield
        finally:
            self._start('c3')

    @contextlib.contextmanager
    def rings_that_differ(self) -> Iterator[None]:
        """Disable a host while one daemon does not hear of it."""
        compute = self._stage.content.cloud.compute
        service = self._stage.content.services()['c3']
        with self._frozen_workers('c1'):
            compute.disable_service(service)
            try:
                yield
            finally:
                compute.enable_service(service)

    @contextlib.contextmanager
    def _frozen_workers(self, host: str) -> Iterator[None]:
        """Stop a worker, and each that the agent starts in its place.

        An agent replaces a worker after eight to thirteen seconds, and the
        log names rings that have differed for ten.
        """
        over = threading.Event()

        def stop_new_ones() -> None:
            while not over.wait(_STOP_AGAIN_S):
                self._signal_workers(host, signal.SIGSTOP)

        with self.frozen_worker(host):
            thread = threading.Thread(target=stop_new_ones, daemon=True)
            thread.start()
            try:
                yield
            finally:
                over.set()
                thread.join()

    @contextlib.contextmanager
    def frozen_worker(self, host: str = 'c2') -> Iterator[None]:
        """Stop a worker with a signal, as a machine that swaps does."""
        self._signal_workers(host, signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal_workers(host, signal.SIGCONT)

    def _signal_workers(self, host: str, number: signal.Signals) -> None:
        """Send a signal to the workers that the agent of a host has for it."""
        agent = self._stage.cloud.processes.pid(f'agent-{host}')
        if agent is None:
            raise CloudError(f'agent {host} does not run')
        for pid in processes.children(agent):
            if running.worker_host(pid) == host:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    @contextlib.contextmanager
    def backend_away(self) -> Iterator[None]:
        """Stop the coordination backend."""
        coordination = self._stage.cloud.coordination
        self._stage.cloud.processes.stop(f'coordination-{coordination.kind}')
        try:
            yield
        finally:
            coordination.start()

    @contextlib.contextmanager
    def lapsed_lease(self) -> Iterator[None]:
        """Keep the backend away until all leases have lapsed."""
        with self.backend_away():
            yield

    @contextlib.contextmanager
    def killed(self) -> Iterator[None]:
        """Kill an agent and its workers."""
        self._stage.running.kill(['c1'])
        try:
            yield
        finally:
            self._start('c1')

    def _start(self, host: str) -> None:
        self._computes.start_agents([host])


def _addresses() -> Mapping[str, str]:
    return {host: proxy.address(n) for n, host in enumerate(ALL_HOSTS)}


def _with_port(views: Views) -> Callable[..., dict[str, dict[str, object]]]:
    """Return what adds a daemon's port to its options."""

    def rewrite(
        host: str, sections: Mapping[str, Mapping[str, object]]
    ) -> dict[str, dict[str, object]]:
        found = {name: dict(options) for name, options in sections.items()}
        if 'ironic_compute' in found:
            found['ironic_compute'] |= views.options(host)
        return found

    return rewrite


def seen(stage: Stage) -> None:
    """Cause each fault, and look for it in each view of an operator."""
    views = Views(stage.cloud.layout, _addresses())
    stage.computes = Computes(
        stage.cloud, _addresses(), rewrite=_with_port(views)
    )
    stage.report.scenario = 'seen'
    stage.running.stop(HOSTS)
    stage.computes.start_agents(HOSTS)
    stage.await_offered()
    rows = []
    with views.with_alerts(stage.cloud, HOSTS):
        for fault in _Faults(stage, stage.computes).all():
            _calm_down(stage, views, fault.signs.alert)
            found = _look(stage, views, fault)
            rows.append((fault.name, *(_cell(found, view) for view in _VIEWS)))
            _report(stage, views, fault, found)
    stage.report.add_table(
        'Seconds until a fault is seen', ('Fault', *_VIEWS), rows
    )


def _look(stage: Stage, views: Views, fault: Fault) -> Seen:
    print_line(f'Fault: {fault.name}')
    before_s, logs = time.monotonic(), views.ends_of_logs()
    try:
        with fault.during():
            is_slow = fault.name in ('unmapped host',)
            begun_s = time.monotonic() if is_slow else before_s
            return views.watch(
                fault.hosts, fault.signs, logs, begun_s, _LOOK_MAX_S
            )
    except CloudError as exc:
        stage.report.demand(False, f'{fault.name}: broken off', exc)
        return {}


def _cell(found: Seen, view: str) -> str:
    if view not in found:
        return ''
    seconds = found[view]
    return 'not seen' if seconds is None else f'{seconds:.1f}'


def _report(stage: Stage, views: Views, fault: Fault, found: Seen) -> None:
    for view in found.keys() & views.last_words.keys():
        if found[view] is None:
            print_line(f'{view} has printed: {views.last_words[view]}')
    late = [
        f'{view} {_cell(found, view)}'
        for view, seconds in found.items()
        if seconds is None or seconds > SEEN_MAX_S
    ]
    stage.report.none(f'{fault.name}: not seen in time', late)


def _calm_down(stage: Stage, views: Views, alert: str) -> None:
    """Wait until all hosts are at home and agree, and an alert is over."""

    def is_calm() -> bool:
        serving = stage.running.serving()
        home = all(
            serving.get(host, '').startswith(f'agent-{host} ')
            for host in HOSTS
        )
        agreed = (views.metric(host, 'ring_agreed') == 1.0 for host in HOSTS)
        return home and all(agreed) and alert not in views.alerts()

    with contextlib.suppress(CloudError):
        wait_until('all hosts at home, without alert', is_calm, 300, 2.0)
