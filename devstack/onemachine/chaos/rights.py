# SPDX-License-Identifier: Apache-2.0
"""The scenario in which each right of the manual is taken away in turn.

The daemons' user has the rights of the tables and no others. While one of them
is missing, a user or an operator asks for something that needs it, and the
right has to be named: by ``ironic-compute-status upgrade check``, or in a log.
"""

import contextlib
import dataclasses
import itertools
import pathlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from openstack.exceptions import SDKException

from onemachine import registry
from onemachine import rights as tables
from onemachine.chaos.scenarios import HOSTS
from onemachine.chaos.stage import Stage
from onemachine.chaos.views import Views, watch_all
from onemachine.computes import Computes
from onemachine.dials import Dials
from onemachine.progress import CloudError, print_line, wait_until

_LOG_MAX_S = 30.0
# What a line says about a rule, other than its name in a traceback.
_DENIES = re.compile(
    'disallowed by policy|does not allow|was denied|lacks|does not show'
)
SERVICES = ('ironic', 'placement', 'neutron')
# These rights cannot be missed here: there is neither Cinder nor a router, the
# nodes have no networks in Ironic, and only a delete that is finished without
# its user's token deletes ports with the rights of the daemons. Tests in
# tests/contract/rights take away those in Ironic.
_NOT_HERE = frozenset(
    {
        'baremetal:node:vif:detach',
        'baremetal:volume:delete',
        'get_floatingip',
        'delete_port',
    }
)
# Rule -> what is asked for while it is missing; see Requests.
REQUESTS: Mapping[str, str] = {
    'baremetal:node:set_power_state': 'reboot',
    'baremetal:node:inject_nmi': 'dump',
    'baremetal:node:get_console': 'console',
    'baremetal:node:set_console_state': 'screen',
    'baremetal:node:vif:list': 'delete',
    'placement:resource_providers:create': 'enroll',
    'placement:resource_providers:delete': 'withdraw',
    'placement:resource_providers:inventories:list': 'enroll',
    'placement:resource_providers:inventories:update': 'enroll',
    'placement:resource_providers:traits:list': 'enroll',
    'placement:resource_providers:traits:update': 'enroll',
    'placement:resource_providers:aggregates:list': 'enroll',
    'placement:resource_providers:aggregates:update': 'aggregate',
    'placement:resource_providers:usages': 'withdraw',
    'placement:resource_providers:allocations:list': 'withdraw',
    'placement:resource_classes:update': 'name',
    'placement:traits:list': 'trait',
    'placement:traits:update': 'trait',
    'placement:allocations:delete': 'delete',
    'update_port:binding:profile': 'release',
}


Ends = Mapping[pathlib.Path, int]
"""Logs, and where each ended before a right was taken away."""


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """A right that was taken away.

    :param named: what named it; empty: nothing
    :param took_s: seconds from the request until the log had it, or for one
        run of the check
    :param sentence: what a log said
    """

    service: str
    rule: str
    asked: str
    named: str
    took_s: float
    sentence: str


class Requests:
    """What users and operators ask for; each is undone with all rights."""

    def __init__(self, stage: Stage, computes: Computes) -> None:
        self._stage, self._computes = stage, computes
        self._content = stage.content
        self._compute = stage.content.cloud.compute
        self._metal = stage.content.metal
        self._count = len(self._content.nodes())
        self._numbers = itertools.count()
        (self._kept,) = self._content.boot_all(['kept'], 180)

    @contextlib.contextmanager
    def ask(self, name: str) -> Iterator[Callable[[], None]]:
        """Prepare a request; yield what sends it, and undo it at the end."""
        with getattr(self, f'_{name}')() as send:
            yield send

    @contextlib.contextmanager
    def _boot(self) -> Iterator[Callable[[], None]]:
        name = f'right-{next(self._numbers)}'
        yield lambda: self._content.create_servers([name]) and None
        self._delete_others()

    @contextlib.contextmanager
    def _delete(self) -> Iterator[Callable[[], None]]:
        (server,) = self._content.boot_all(['doomed'], 180)
        yield lambda: self._compute.delete_server(server.id)
        self._delete_others()

    @contextlib.contextmanager
    def _release(self) -> Iterator[Callable[[], None]]:
        """Delete a server whose port was there before it."""
        cloud = self._content.cloud
        network = cloud.network.find_network(registry.NETWORK).id
        port = cloud.network.create_port(network_id=network)
        (doomed,) = self._content.create_servers(['doomed'], port=port.id)
        self._content.await_active(doomed.id)
        yield lambda: self._compute.delete_server(doomed.id)
        self._delete_others()
        cloud.network.delete_port(port.id)

    def _delete_others(self) -> None:
        others = [s for s in self._content.servers() if s.name != 'kept']
        for server in others:
            with contextlib.suppress(SDKException):
                self._compute.delete_server(server.id)
        self._content.await_gone(others, 240)

    @contextlib.contextmanager
    def _reboot(self) -> Iterator[Callable[[], None]]:
        yield lambda: self._content.request_reboot(self._kept)

        def is_idle() -> bool:
            return self._content.server(self._kept.id).task_state is None

        wait_until('the reboot to end', is_idle, 240)
        self._content.reboot([self._kept])

    @contextlib.contextmanager
    def _dump(self) -> Iterator[Callable[[], None]]:
        yield lambda: self._compute.trigger_server_crash_dump(self._kept.id)

    @contextlib.contextmanager
    def _console(self) -> Iterator[Callable[[], None]]:
        def send() -> None:
            with contextlib.suppress(SDKException):
                self._compute.create_console(self._kept.id, 'serial')

        yield send

    @contextlib.contextmanager
    def _screen(self) -> Iterator[Callable[[], None]]:
        """Ask for a graphical console, which has to be switched on."""

        def send() -> None:
            with contextlib.suppress(SDKException):
                self._compute.create_console(self._kept.id, 'novnc')

        yield send

    @contextlib.contextmanager
    def _enroll(self) -> Iterator[Callable[[], None]]:
        yield lambda: self._content.enroll(self._count + 1)
        self._withdraw_one()

    def _withdraw_one(self) -> None:
        self._content.withdraw(self._count)

        def is_gone() -> bool:
            held = self._content.holders()
            return set(held) <= set(self._content.nodes())

        wait_until('the node gone from Nova', is_gone, 300, 2.0)

    @contextlib.contextmanager
    def _withdraw(self) -> Iterator[Callable[[], None]]:
        self._content.enroll(self._count + 1)
        self._stage.await_offered(300)
        yield lambda: self._content.withdraw(self._count)
        self._withdraw_one()

    @contextlib.contextmanager
    def _trait(self) -> Iterator[Callable[[], None]]:
        node, number = self._free(), next(self._numbers)
        yield lambda: self._metal.add_node_trait(node, f'CUSTOM_R{number}')
        self._metal.remove_node_trait(node, f'CUSTOM_R{number}')

    @contextlib.contextmanager
    def _name(self) -> Iterator[Callable[[], None]]:
        node, number = self._free(), next(self._numbers)
        kept = node.resource_class
        update = self._metal.update_node
        yield (
            lambda: update(node.id, resource_class=f'right-{number}') and None
        )
        update(node.id, resource_class=kept)

    @contextlib.contextmanager
    def _aggregate(self) -> Iterator[Callable[[], None]]:
        made = self._compute.create_aggregate(
            name=f'right-{next(self._numbers)}'
        )
        hosts = self._compute.add_host_to_aggregate
        yield lambda: [hosts(made, host) for host in HOSTS] and None
        for host in HOSTS:
            self._compute.remove_host_from_aggregate(made, host)
        self._compute.delete_aggregate(made)

    def _free(self) -> Any:
        nodes = self._content.nodes().values()
        return min((n for n in nodes if not n.instance_id), key=lambda n: n.id)


class _Losses:
    """Takes one right after another away, and looks for its name."""

    def __init__(self, stage: Stage) -> None:
        self._layout = stage.cloud.layout
        self._rights = tables.Rights(self._layout)
        self._rights.apply()
        computes = Computes(
            stage.cloud,
            nova={
                'serial_console': {'enabled': 'true'},
                'vnc': {'enabled': 'true'},
            },
        )
        stage.running.stop(HOSTS)
        computes.start_agents(HOSTS)
        stage.await_offered()
        self._views = Views(self._layout, {})
        self._requests = Requests(stage, computes)

    def suffer(self, service: str, rule: str) -> Loss:
        """Take a right away, ask for what needs it, and give it back."""
        asked = REQUESTS.get(rule, 'boot')
        print_line(f'Without {rule}: {asked}')
        rules = tables.of_manual(service)
        with self._requests.ask(asked) as send:
            ends = self._views.ends_of_logs()
            self._rights.allow(service, rules - {rule})
            begun_s = time.monotonic()
            try:
                send()
                named, took_s = self._look(ends, rule, begun_s)
            finally:
                self._rights.allow(service, rules)
            sentence = self._sentence(ends, rule)
        return Loss(service, rule, asked, named, took_s, sentence)

    def _look(
        self, ends: Ends, rule: str, begun_s: float
    ) -> tuple[str, float]:
        """Return what names a rule, and after how many seconds.

        The check takes some seconds of CPU, so it is asked only about what no
        log names.
        """
        looks = {'log': lambda: bool(self._sentence(ends, rule))}
        found = watch_all(looks, begun_s, _LOG_MAX_S)['log']
        if found is not None:
            return 'log', found
        asked_s = time.monotonic()
        is_named = self._is_checked(rule)
        return (
            'upgrade check' if is_named else '',
            time.monotonic() - asked_s,
        )

    def _is_checked(self, rule: str) -> bool:
        text = self._views.run(
            HOSTS[0], 'upgrade', 'check', program='ironic-compute-status'
        )
        # The table wraps its lines, also within a word.
        return rule in re.sub(r'[\s|]+', '', text)

    def _sentence(self, ends: Ends, rule: str) -> str:
        """Return the first line of a log that names a rule."""
        # Neutron writes rule:NAME, and names of rules contain each other.
        exact = re.compile(rf'(?:^|[^\w:]|\brule:){re.escape(rule)}(?!:?\w)')
        for path in self._views.ends_of_logs():
            with path.open(errors='replace') as log:
                log.seek(ends.get(path, 0))
                for line in log:
                    if exact.search(line) and _DENIES.search(line):
                        return line.strip()
        return ''


def rights(stage: Stage) -> None:
    """Take each right of the manual's tables away in turn."""
    stage.report.scenario = 'rights'
    dials = Dials(stage.cloud.layout)
    before = dials.read()['rights']
    dials.turn('rights', 'least')
    try:
        losses = list(_all_losses(stage))
    finally:
        dials.turn('rights', before)
        stage.cloud.apply_rights()
    _report(stage, losses)


def _all_losses(stage: Stage) -> Iterator[Loss]:
    each = _Losses(stage)
    for service in SERVICES:
        rules = tables.of_manual(service) - _NOT_HERE
        for rule in filter(stage.plan.rules.search, sorted(rules)):
            try:
                loss = each.suffer(service, rule)
            except (CloudError, SDKException) as exc:
                stage.report.demand(False, f'{rule}: broken off', exc)
                continue
            print_line(f'  {loss.named} {loss.took_s:.1f} s: {loss.sentence}')
            yield loss


def _report(stage: Stage, losses: Sequence[Loss]) -> None:
    report = stage.report
    report.figure('rights taken away', len(losses))
    report.none(
        'rights that nothing named',
        [loss.rule for loss in losses if not loss.named],
    )
    report.add_table(
        'What names a missing right, and after how many seconds',
        ('Service', 'Right', 'Asked for', 'Named by', 'Seconds'),
        [
            (
                loss.service,
                loss.rule,
                loss.asked,
                loss.named or 'nothing',
                f'{loss.took_s:.1f}',
            )
            for loss in losses
        ],
    )
