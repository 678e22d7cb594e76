# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus, which reads the daemons' ports and evaluates the alerts.

It uses the rules of this project as they are. An alert that is pending has
its fault already; it only waits for the time that its rule wants it to last.
"""

import json
import os
import pathlib
import urllib.parse
import urllib.request
from collections.abc import Iterable

from onemachine import packages
from onemachine.control import Cloud
from onemachine.progress import wait_until

PROCESS = 'prometheus'
RULES = (
    pathlib.Path(__file__).parents[3]
    / 'etc/prometheus/ironic-compute.rules.yaml'
)
_ADDRESS = '127.0.1.99'
_PERIOD_S = 5
_HTTP_MAX_S = 3.0


class Prometheus:
    """Scrapes the ports of daemons every five seconds.

    :param targets: the addresses and ports of the daemons
    :param port: where it listens
    """

    def __init__(
        self, cloud: Cloud, targets: Iterable[str], port: int
    ) -> None:
        self._cloud = cloud
        self._targets = sorted(targets)
        self._place = f'{_ADDRESS}:{port}'
        self._folder = cloud.layout.folder('prometheus')

    def start(self) -> None:
        """Start it, and wait until it has answered.

        :raises CloudError: it does not start, or cannot be installed
        """
        packages.ensure_debian(programs={'prometheus': 'prometheus'})
        # JSON is YAML, too.
        config = self._folder / 'prometheus.yaml'
        config.write_text(json.dumps(self._config(), indent=2))
        self._cloud.processes.start(
            PROCESS,
            [
                'prometheus',
                f'--config.file={config}',
                f'--storage.tsdb.path={self._folder}/data',
                f'--web.listen-address={self._place}',
            ],
            {'PATH': os.defpath, 'HOME': str(self._folder)},
        )
        wait_until('Prometheus', self._alive, 60, 0.5)

    def stop(self) -> None:
        """End the process."""
        self._cloud.processes.stop(PROCESS)

    def _config(self) -> dict[str, object]:
        every = f'{_PERIOD_S}s'
        return {
            'global': {'scrape_interval': every, 'evaluation_interval': every},
            'rule_files': [str(RULES)],
            'scrape_configs': [
                {
                    'job_name': 'ironic-compute',
                    'static_configs': [{'targets': self._targets}],
                }
            ],
        }

    def _alive(self) -> bool:
        try:
            self.alerts()
        except OSError:
            return False
        return True

    def alerts(self) -> set[str]:
        """Return the names of the alerts that are pending or firing.

        :raises OSError: Prometheus does not answer
        """
        query = urllib.parse.urlencode({'query': 'ALERTS'})
        url = f'http://{self._place}/api/v1/query?{query}'
        with urllib.request.urlopen(url, timeout=_HTTP_MAX_S) as answer:
            found = json.load(answer)['data']['result']
        return {series['metric']['alertname'] for series in found}
