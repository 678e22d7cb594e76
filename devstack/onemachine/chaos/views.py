# SPDX-License-Identifier: Apache-2.0
"""The views of an operator, each of which may show a fault.

A view is read again and again until it shows the fault; the seconds since the
fault began are what an operator waits. The page, its JSON and the metrics are
those of the daemons that live; a file of log is read from where it ended
before the fault.
"""

import concurrent.futures
import contextlib
import dataclasses
import pathlib
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence

from onemachine.chaos.prometheus import Prometheus
from onemachine.computes import Computes
from onemachine.content import Content
from onemachine.control import Cloud
from onemachine.layout import Layout

PORT_FROM_BASE = 15
_POLL_S = 0.5
_HTTP_MAX_S = 3.0
_COMMAND_MAX_S = 900.0

Seen = Mapping[str, float | None]
"""View -> seconds until it showed the fault; None: it never did."""


@dataclasses.dataclass(frozen=True, slots=True)
class Signs:
    """The regular expressions that show a fault, by view.

    :param metrics: of the series that the expression of the alert is about;
        ``DOWN``: that a daemon does not answer
    :param alert: the name of the alert that becomes pending
    :param ctl: the arguments of ``ironic-computectl``, and the expression
    """

    page: str = ''
    api: str = ''
    metrics: str = ''
    alert: str = ''
    ctl: tuple[Sequence[str], str] | None = None
    fsck: str = ''
    log: str = ''


DOWN = 'does not answer'


class Views:
    """Reads the views of the daemons of a cloud.

    :param addresses: host -> the address of its daemon's port
    """

    last_words: dict[str, str]
    """What the views that run a command have printed last, by view."""

    def __init__(self, layout: Layout, addresses: Mapping[str, str]) -> None:
        self._layout = layout
        self._addresses = addresses
        self._port = layout.port_base + PORT_FROM_BASE
        self._alerts: Callable[[], set[str]] = set
        self.last_words = {}

    @contextlib.contextmanager
    def with_alerts(
        self, cloud: Cloud, hosts: Sequence[str]
    ) -> Iterator[None]:
        """Have a Prometheus read the daemons of these hosts meanwhile."""
        targets = [f'{self._addresses[host]}:{self._port}' for host in hosts]
        prometheus = Prometheus(cloud, targets, self._port)
        prometheus.start()
        self._alerts = prometheus.alerts
        try:
            yield
        finally:
            prometheus.stop()

    def alerts(self) -> set[str]:
        """Return the alerts that are pending or firing."""
        try:
            return self._alerts()
        except OSError:
            return set()

    def options(self, host: str) -> dict[str, object]:
        """Return the options of a daemon that has such a port."""
        return {
            'agent_port': self._port,
            'agent_address': self._addresses[host],
        }

    def watch(
        self,
        hosts: Sequence[str],
        signs: Signs,
        logs: Mapping[pathlib.Path, int],
        begun_s: float,
        max_s: float,
    ) -> Seen:
        """Read all views until each shows the fault, or for so long.

        :param hosts: the hosts whose daemons are read
        :param logs: the logs, and where they ended before the fault
        :param begun_s: when the fault began, on the monotonic clock
        """
        return watch_all(self._looks(hosts, signs, logs), begun_s, max_s)

    def _looks(
        self,
        hosts: Sequence[str],
        signs: Signs,
        logs: Mapping[pathlib.Path, int],
    ) -> dict[str, Callable[[], bool]]:
        looks: dict[str, Callable[[], bool]] = {}
        if signs.page:
            looks['page'] = lambda: self._any(hosts, '/', signs.page)
        if signs.api:
            looks['api'] = lambda: any(
                self._any(hosts, f'/api/v1/{part}', signs.api)
                for part in ('agent', 'hosts', 'ring')
            )
        if signs.metrics == DOWN:
            looks['metrics'] = lambda: any(
                self.read(host, '/metrics') is None for host in hosts
            )
        elif signs.metrics:
            looks['metrics'] = lambda: self._any(
                hosts, '/metrics', signs.metrics
            )
        if signs.alert:
            looks['alert'] = lambda: signs.alert in self.alerts()
        if signs.ctl is not None:
            words, sign = signs.ctl
            looks['ctl'] = lambda: self._prints('ctl', sign, hosts[0], *words)
        if signs.fsck:
            looks['fsck'] = lambda: self._prints(
                'fsck', signs.fsck, hosts[0], 'fsck', '--wait', '0'
            )
        if signs.log:
            looks['log'] = lambda: self._in_logs(logs, signs.log)
        return looks

    def _prints(self, view: str, sign: str, host: str, *words: str) -> bool:
        self.last_words[view] = text = self.run(host, *words)
        return _has(sign, text)

    def _any(self, hosts: Sequence[str], path: str, sign: str) -> bool:
        return any(_has(sign, self.read(host, path) or '') for host in hosts)

    def read(self, host: str, path: str) -> str | None:
        """Return what a daemon's port answers; None: it does not answer."""
        url = f'http://{self._addresses[host]}:{self._port}{path}'
        try:
            with urllib.request.urlopen(url, timeout=_HTTP_MAX_S) as answer:
                return str(answer.read().decode())
        except OSError:
            return None

    def metric(self, host: str, name: str) -> float | None:
        """Return one gauge of a daemon."""
        text = self.read(host, '/metrics') or ''
        found = re.search(rf'^ironic_compute_agent_{name} (\S+)', text, re.M)
        return None if found is None else float(found[1])

    def run(
        self, host: str, *words: str, program: str = 'ironic-computectl'
    ) -> str:
        """Return what a console script prints on a host."""
        folder = self._layout.folder('agents', host)
        try:
            done = subprocess.run(
                [
                    self._layout.bin(program),
                    f'--config-file={folder}/nova.conf',
                    f'--config-file={folder}/ironic-compute.conf',
                    *words,
                ],
                env=self._layout.environment(),
                capture_output=True,
                text=True,
                timeout=_COMMAND_MAX_S,
            )
        except subprocess.TimeoutExpired:
            return ''
        return done.stdout + done.stderr

    def ends_of_logs(self) -> dict[pathlib.Path, int]:
        """Return where each log ends now."""
        found = self._layout.folder('log').glob('agent-*.log')
        return {path: path.stat().st_size for path in found}

    def _in_logs(self, ends: Mapping[pathlib.Path, int], sign: str) -> bool:
        for path in self._layout.folder('log').glob('agent-*.log'):
            with path.open(errors='replace') as log:
                log.seek(ends.get(path, 0))
                if _has(sign, log.read()):
                    return True
        return False


def _has(sign: str, text: str) -> bool:
    # The table of ctl and the page wrap their lines.
    return re.search(sign, ' '.join(text.split())) is not None


def watch_all(
    looks: Mapping[str, Callable[[], bool]], begun_s: float, max_s: float
) -> Seen:
    """Look in all views until each shows a fault, or for so long.

    :param begun_s: when the fault began, on the monotonic clock
    """
    with concurrent.futures.ThreadPoolExecutor(len(looks)) as pool:
        waits = {
            name: pool.submit(_await, look, begun_s, max_s)
            for name, look in looks.items()
        }
        return {name: wait.result() for name, wait in waits.items()}


def _await(
    look: Callable[[], bool], begun_s: float, max_s: float
) -> float | None:
    while time.monotonic() - begun_s < max_s:
        if look():
            return time.monotonic() - begun_s
        time.sleep(_POLL_S)
    return None


class Unmapped(Computes):
    """Starts daemons whose hosts nobody maps to a cell."""

    def _map_new(
        self, asked: Content, kind: str, hosts: Sequence[str]
    ) -> None:
        """Leave them unmapped."""
