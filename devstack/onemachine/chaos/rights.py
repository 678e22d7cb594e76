# SPDX-License-Identifier: Apache-2.0
"""The scenario in which each right of the manual is taken away in turn.

The daemons' user has the rights of the tables and no others. While one of them
is missing, a user or an operator asks for something that needs it, and the
right has to be named: by ``ironic-compute-status upgrade check``, or in a log.
"""

import dataclasses
import pathlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence

from openstack.exceptions import SDKException

from onemachine import rights as tables
from onemachine.chaos.rights_requests import LOG_MAX_S, REQUESTS, Requests
from onemachine.chaos.scenarios import HOSTS
from onemachine.chaos.stage import Stage
from onemachine.chaos.views import Views, watch_all
from onemachine.computes import Computes
from onemachine.dials import Dials
from onemachine.progress import CloudError, print_line

_LOG_MAX_S = 30.0
# What a line says about a rule, other than its name in a traceback.
_DENIES = re.compile(
    'disallowed by policy|does(?:n.t| not) allow|was denied|lacks|'
    'does not show'
)
SERVICES = ('ironic', 'placement', 'neutron', 'cinder')
# The manual has no table of these: the daemons have no right there at all.
_WITHOUT_RIGHTS = ('glance', 'nova')
# Ironic attaches ports, Neutron has routers, and there are volumes, as in a
# cloud of users.
_DIALS: Mapping[str, str] = {
    'rights': 'least',
    'networks': 'routed',
    'volumes': 'on',
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
                max_s = LOG_MAX_S.get(asked, _LOG_MAX_S)
                named, took_s = self._look(ends, rule, begun_s, max_s)
            finally:
                self._rights.allow(service, rules)
            sentence = self._sentence(ends, rule)
        return Loss(service, rule, asked, named, took_s, sentence)

    def _look(
        self, ends: Ends, rule: str, begun_s: float, max_s: float
    ) -> tuple[str, float]:
        """Return what names a rule, and after how many seconds.

        The check takes some seconds of CPU, so it is asked only about what no
        log names.
        """
        looks = {'log': lambda: bool(self._sentence(ends, rule))}
        found = watch_all(looks, begun_s, max_s)['log']
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
    before = dials.read()
    try:
        for name, value in _DIALS.items():
            dials.turn(name, value)
        stage.cloud.up()
        stage.connect()
        losses = list(_all_losses(stage))
    finally:
        for name in _DIALS:
            dials.turn(name, before[name])
        stage.cloud.up()
    _report(stage, losses)


def _all_losses(stage: Stage) -> Iterator[Loss]:
    each = _Losses(stage)
    for service in SERVICES:
        rules = tables.of_manual(service)
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
    for service in _WITHOUT_RIGHTS:
        denied = len(tables.defaults(service)) - len(tables.of_manual(service))
        report.figure(f'rules of {service} denied all the time', denied)
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
