# SPDX-License-Identifier: Apache-2.0
"""The stage of every scenario: cloud, hosts, load, watchers, evidence."""

import contextlib
import dataclasses
import json
import math
import random
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onemachine import allocations, content, running
from onemachine.chaos import proxy
from onemachine.chaos.cells import Wanted
from onemachine.chaos.evidence import Evidence
from onemachine.chaos.load import End, Load
from onemachine.chaos.report import Report
from onemachine.chaos.watch import Pings, ServiceWatch, watched
from onemachine.computes import Computes
from onemachine.control import Cloud
from onemachine.dials import Dials
from onemachine.progress import CloudError, print_line, step, wait_until

ALL_HOSTS = ('c1', 'c2', 'c3', 'c4', 'c5')
TERM_S = 15.0
_PROXY = 'chaos-proxy'


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The user's choices.

    :param rounds: the number of rounds of scenarios that repeat something
    :param stock: with stock nova-computes instead of our daemons
    :param queues: Nova's queues in RabbitMQ: classic, quorum or kolla
    :param paths: the cells of the scenario ``paths``
    :param servers_count: servers of the scenario ``moves``
    :param rules: matches the policy rules of the scenario ``rights``
    """

    seed: int
    nodes_count: int
    rounds: int
    coordination: str
    stock: bool = False
    queues: str = 'classic'
    paths: Wanted = dataclasses.field(default_factory=Wanted)
    servers_count: int = 100
    rules: re.Pattern[str] = re.compile('')


class Stage:
    """A cloud with hosts that a scenario can disturb."""

    def __init__(self, cloud: Cloud, plan: Plan) -> None:
        self.cloud = cloud
        self.plan = plan
        self.rng = random.Random(plan.seed)
        self.report = Report()
        self.running = running.Running(cloud.layout)
        addresses = {h: proxy.address(n) for n, h in enumerate(ALL_HOSTS)}
        self.computes = Computes(cloud, addresses)
        self.folder = cloud.layout.folder('chaos')
        # Host -> how often the last act has seen it shown down.
        self.shown_down: Mapping[str, int] = {}

    def prepare(self) -> None:
        """Start the cloud, its nodes and three hosts."""
        self.cloud.choose_queues(self.plan.queues)
        self.cloud.up()
        self.connect()
        self.set_trouble(proxy.Trouble.NONE)
        self._start_proxy()
        self._clean()
        if not self.plan.stock:
            self.cloud.coordination.choose(self.plan.coordination)
        self.set_nodes(self.plan.nodes_count)
        self.content.forget_gone_nodes()
        self.start(ALL_HOSTS[:3])
        self.await_offered()

    def connect(self) -> None:
        """Find the services that the catalog has now."""
        self.content = content.Content(self.cloud.layout)
        # The first use of each service finds its address, which is not safe in
        # several threads: it may be that of another service.
        cloud = self.content.cloud
        for service in (cloud.compute, cloud.image, cloud.network):
            service.get_endpoint()
        self.evidence = Evidence(self.cloud.layout, self.content)

    def _clean(self) -> None:
        """Remove all servers, hosts, and Services of other hosts."""
        if self.content.servers():
            self.start(ALL_HOSTS[:3])
            self.content.delete(timeout_s=300)
        if self.running.hosts():
            self.running.stop(self.running.hosts())
        self.content.forget_hosts(but=ALL_HOSTS[:3])

    def _start_proxy(self) -> None:
        layout = self.cloud.layout
        given = {
            'folder': str(self.folder),
            'hosts': ALL_HOSTS,
            'ports': {n: layout.port(n) for n in ('ironic', 'placement')},
        }
        (self.folder / 'changes.log').unlink(missing_ok=True)
        self.cloud.processes.stop(_PROXY)
        self.cloud.processes.start(
            _PROXY, [sys.executable, proxy.__file__, json.dumps(given)]
        )

    def set_nodes(self, count: int) -> None:
        """Create or delete nodes until there are so many."""
        self.content.enroll(count)
        self.content.withdraw(count)

    def start(self, hosts: Sequence[str]) -> None:
        """Start hosts and wait until they serve RPC."""
        if self.plan.stock:
            self.computes.start_peers(hosts)
        else:
            self._forget_deaths(hosts)
            self.computes.start_agents(hosts)

    def _forget_deaths(self, hosts: Sequence[str]) -> None:
        """Make the agents forget how often they were killed.

        No agent here is killed by a fault of its own. From the third time on
        it would leave its host to others for minutes.
        """
        for host in hosts:
            state = self.cloud.layout.folder('agents', host) / 'state'
            (state / 'deaths.json').unlink(missing_ok=True)

    def restart(self, hosts: Sequence[str]) -> None:
        """Start running hosts anew, with the present configuration."""
        self.running.stop(hosts)
        self.start(hosts)
        self.await_offered()

    def await_offered(self, timeout_s: float = 600.0) -> float:
        """Wait until every node is free and offered; return the seconds."""
        nodes = set(self.content.nodes())
        begun_s = time.monotonic()
        with step(f'Waiting until all {len(nodes)} nodes are offered'):
            wait_until(
                'all nodes offered',
                lambda: len(nodes - self.content.schedulable()) == 0,
                timeout_s,
                2.0,
            )
        return time.monotonic() - begun_s

    def set_trouble(self, trouble: proxy.Trouble) -> None:
        """Begin a fault of Ironic, or end it."""
        (self.folder / 'trouble').write_text(trouble.name)

    # Watching

    @contextlib.contextmanager
    def act(
        self, name: str, hosts: Sequence[str], *, may_be_down: bool = False
    ) -> Iterator[Pings]:
        """Watch hosts while the context is open.

        :param may_be_down: Nova may show a service down
        """
        print_line(f'--- {name}')
        self.report.scenario = name
        pings = Pings(self.cloud.layout, hosts)
        services = ServiceWatch(self.content)
        with watched(pings, services):
            yield pings
        self.shown_down = services.down
        what = 'looks at which Nova showed a service down'
        if may_be_down:
            self.report.figure(what, sum(services.down.values()))
            return
        self.report.none(
            what, [f'{host} {n} times' for host, n in services.down.items()]
        )

    @contextlib.contextmanager
    def under_load(
        self, *, interval_s: float = 2.0, population: int = 24
    ) -> Iterator[Load]:
        """Send user requests while the context is open; then await them."""
        load = Load(
            self.content,
            random.Random(self.rng.random()),
            interval_s=interval_s,
            population=population,
        )
        load.start()
        try:
            wait_until(
                'some servers to be at work with',
                lambda: len(load.ended(End.DONE)) >= population // 2,
                300,
            )
            yield load
        finally:
            with step('Waiting until all that was asked for has ended'):
                load.stop(self.evidence.not_received)

    def idle_load(self) -> Load:
        """Return a load that sends no requests of its own."""
        load = Load(self.content, random.Random(0), interval_s=math.inf)
        load.follow()
        return load

    def dial(self, name: str, value: str) -> None:
        """Change a setting of Ironic."""
        if Dials(self.cloud.layout).turn(name, value):
            self.cloud.restart_ironic(*Dials.CONCERNS[name])

    def report_requests(
        self, load: Load, *, cut_until_s: float = -math.inf
    ) -> None:
        """Report the outcomes of user requests, and leaks of deleted servers.

        :param cut_until_s: builds requested until then, in seconds since
            1970, may end in ERROR if their message has the reason
        """
        report = self.report
        report.figure('requests', load.summary())
        slowest = max((r.took_s for r in load.requests), default=0.0)
        report.figure('slowest request', f'{slowest:.0f} s')
        report.none(
            'requests without an end',
            [f'{r.kind} of {r.server}' for r in load.pending()],
        )
        report.figure(End.UNHEARD.value, len(load.ended(End.UNHEARD)))
        failed = load.ended(End.ERROR)
        allowed = [
            r for r in failed if r.asked_s <= cut_until_s and _is_cut_short(r)
        ]
        report.figure('builds cut short', len(allowed))
        report.none(
            'other requests that failed',
            [
                f'{r.kind} of {r.server}: {r.detail}'
                for r in failed
                if r not in allowed
            ],
        )
        found = allocations.inconsistencies(self.cloud.layout)
        report.none(
            'inconsistent allocations',
            [f'{count} {what}' for what, count in found.items() if count],
        )
        self.clear()

    def clear(self) -> None:
        """Delete all servers, and check that nothing of them remains."""
        self.content.delete(timeout_s=300)
        with contextlib.suppress(CloudError):
            self.await_offered(120)
        self.report.none('leaks', self.evidence.leaks())

    def changes(self, from_s: float, to_s: float) -> list[dict[str, Any]]:
        """Return the changes that hosts sent to Ironic and Placement."""
        lines = (self.folder / 'changes.log').read_text().splitlines()
        found = (json.loads(line) for line in lines)
        return [one for one in found if from_s <= one['at_s'] <= to_s]

    def providers_written(self, from_s: float, to_s: float) -> list[str]:
        """Return the providers that hosts wrote in between."""
        paths = (
            one['path'].split('/')
            for one in self.changes(from_s, to_s)
            if one['api'] == 'placement'
        )
        return [
            words[words.index('resource_providers') + 1]
            for words in paths
            if 'resource_providers' in words[:-1]
        ]

    # Faults

    def log_count(self, words: str) -> int:
        """Return how many lines of all agents' logs have this text."""
        return sum(
            path.read_text(errors='replace').count(words)
            for path in self.cloud.layout.folder('log').glob('agent-*.log')
        )


def _is_cut_short(request: object) -> bool:
    detail = getattr(request, 'detail', '')
    kind = getattr(request, 'kind', '')
    return kind == 'boot' and ('interrupted' in detail or 'lost' in detail)
