# SPDX-License-Identifier: Apache-2.0
"""One tempest session: prepare the cloud, run the tests, write the report."""

import dataclasses
import pathlib
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

from onemachine import content, packages, running
from onemachine.computes import Computes
from onemachine.control import Cloud
from onemachine.dials import Dials
from onemachine.progress import CloudError, print_line, step, wait_until
from onemachine.story import HOSTS, NODE_COUNT
from onemachine.tempest import report, settings
from onemachine.tempest.program import Tempest
from onemachine.tempest.results import Run, Verdict, settle, unexcused
from onemachine.tempest.selection import Selection, name_of, read_rules, select

# Stock nova-compute reads all of its nodes once a minute.
_OFFERED_MAX_S = 180
_SIDES = ('ours', 'stock')


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """The choices on the command line."""

    stock: bool = False
    eventlet: bool = False
    only: str = ''
    missing: bool = False
    workers_count: int = 2
    copy_to: str = ''

    @property
    def by(self) -> str:
        """The kind of compute service that is tested."""
        return 'stock' if self.stock else 'ours'


class Session:
    """Tempest on one cloud."""

    def __init__(self, cloud: Cloud, wanted: Wanted) -> None:
        self._cloud = cloud
        self._wanted = wanted
        self._tempest = Tempest(cloud.layout)

    def hold(self) -> bool:
        """Carry out the whole session.

        :returns: whether no test fails that passes with stock nova-compute
        """
        self._tempest.install()
        self._cloud.up()
        self._ready()
        found = settings.furnish(self._cloud.layout)
        self._tempest.configure(
            settings.tempest_conf(self._cloud.layout, found)
        )
        selection = select(self._tempest.list(), read_rules())
        if self._wanted.only:
            return self._try_some(selection)
        self._keep(selection, found.microversion_max)
        return self._conclude(selection)

    def _keep(self, selection: Selection, microversion: str) -> None:
        """Run the chosen tests and save the results."""
        path = self._kept(self._wanted.by)
        before = Run.read(path) if self._wanted.missing else None
        had = before.outcomes if before else {}
        chosen = [t for t in selection.chosen if name_of(t) not in had]
        if chosen:
            run = self._run(chosen, microversion)
            (before.joined(run) if before else run).write(path)

    def _conclude(self, selection: Selection) -> bool:
        # A saved run may be older than the list of tests left out.
        left_out = [n for names in selection.left_out.values() for n in names]
        runs = {
            by: run.without(left_out)
            for by in _SIDES
            if (run := Run.read(self._kept(by))) is not None
        }
        text = report.page(selection, runs)
        for path in self._report_paths():
            path.write_text(text)
            print_line(f'The report is {path}')
        if 'ours' not in runs:
            return True
        failed = unexcused(runs['ours'], runs.get('stock'))
        for name in failed:
            print_line(f'FAILED, and nothing excuses it: {name}')
        return not failed

    def _report_paths(self) -> Iterator[pathlib.Path]:
        yield self._tempest.folder / 'report.rst'
        if self._wanted.copy_to:
            yield pathlib.Path(self._wanted.copy_to)

    def _kept(self, by: str) -> pathlib.Path:
        return self._tempest.folder / f'{by}.json'

    # The cloud

    def _ready(self) -> None:
        """Create the nodes, and start the right compute services."""
        asked = content.Content(self._cloud.layout)
        asked.enroll(NODE_COUNT)
        serving = running.Running(self._cloud.layout)
        wrong = [h for h in serving.hosts() if not self._is_right(serving, h)]
        if wrong:
            serving.stop(wrong)
        computes = Computes(self._cloud)
        if self._wanted.stock:
            computes.start_peers(HOSTS)
        else:
            computes.start_agents(HOSTS, eventlet=self._wanted.eventlet)
        asked.delete()
        # Tests use any host that has a Service, so other Services are deleted
        # and disabled ones are enabled.
        for host, service in asked.services().items():
            if host not in HOSTS:
                asked.cloud.compute.delete_service(service)
            elif service.status == 'disabled':
                asked.cloud.compute.enable_service(service)
        # A daemon serves RPC before Placement has all of its nodes.
        wait_until(
            f'{NODE_COUNT} nodes offered by Placement',
            lambda: len(asked.schedulable()) >= NODE_COUNT,
            _OFFERED_MAX_S,
        )

    def _is_right(self, serving: running.Running, host: str) -> bool:
        by = serving.serving().get(host, '')
        return host in HOSTS and by.startswith('stock') == self._wanted.stock

    # The tests

    def _run(self, chosen: Sequence[str], microversion: str) -> Run:
        began = time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())
        begun_s = time.monotonic()
        with step(f'Running {len(chosen)} tests'):
            outcomes = settle(chosen, list(self._run_and_print(chosen)))
        took_s = round(time.monotonic() - begun_s)
        run = Run(began, took_s, self._versions(microversion), outcomes)
        counts = ', '.join(f'{len(run.named(v))} {v}' for v in Verdict)
        print_line(f'Against {self._wanted.by}: {counts}')
        for name in run.named(Verdict.FAILED):
            print_line(f'FAILED: {name}: {run.outcomes[name].why}')
        return run

    def _run_and_print(
        self, chosen: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        """Run the tests, and print a line for each."""
        workers_count = self._wanted.workers_count
        tests = self._tempest.run(chosen, workers_count)
        for number, raw in enumerate(tests, 1):
            print_line(
                f'{number:4}/{len(chosen)} {raw["status"]:8} '
                f'{raw["took_s"]:6.1f} s  {raw["id"].partition("[")[0]}'
            )
            yield raw

    def _try_some(self, selection: Selection) -> bool:
        """Run some tests only; the saved results stay as they are."""
        only = [t for t in selection.chosen if re.search(self._wanted.only, t)]
        if not only:
            raise CloudError(
                f'no test that is run matches {self._wanted.only}'
            )
        return not self._run(only, '').named(Verdict.FAILED)

    def _versions(self, microversion: str) -> dict[str, str]:
        names = ('nova', 'ironic', 'placement', 'neutron', 'ironic-compute')
        code = (
            'import importlib.metadata as m, sys; '
            'print(*[m.version(n.replace("placement", "openstack-placement")) '
            'for n in sys.argv[1:]])'
        )
        layout = self._cloud.layout
        told = packages.run(layout, [layout.bin('python'), '-c', code, *names])
        dials = Dials(layout).read()
        return {
            'tempest': self._tempest.version,
            **dict(zip(names, told.split(), strict=True)),
            'compute API': f'2.1 to {microversion}',
            'deploy delay': f'{dials["deploy-delay"]} s',
            'cleaning': str(dials['cleaning']),
        }
