# SPDX-License-Identifier: Apache-2.0
"""The CPU time that scrapes of the agent's port cost."""

import dataclasses
import time
import urllib.request

from benchmarks.stage import Note, Stage
from benchmarks.window import Window

# The usual interval of Prometheus.
_INTERVAL_S = 15.0
_PACE_S = 1.0
# Windows of each kind, so that a slow change of the machine affects both.
_TURNS = 2
# The last port of a cloud; no measured backend listens there.
_PORT_FROM_BASE = 15


@dataclasses.dataclass(frozen=True, slots=True)
class Spent:
    """What our agent and its workers spent in some windows."""

    cpu_s: float = 0.0
    seconds: float = 0.0
    scrapes_count: int = 0

    def __add__(self, other: 'Spent') -> 'Spent':
        return Spent(
            self.cpu_s + other.cpu_s,
            self.seconds + other.seconds,
            self.scrapes_count + other.scrapes_count,
        )

    @property
    def cores(self) -> float:
        """The share of a core that was used."""
        return self.cpu_s / self.seconds

    def scrape_s(self, plain: 'Spent') -> float:
        """Return the CPU seconds of one scrape.

        :param plain: the same without scrapes
        """
        more_s = (self.cores - plain.cores) * self.seconds
        return more_s / self.scrapes_count


def scraped(stage: Stage, note: Note) -> None:
    """Measure what it costs ours if its port is scraped.

    Nothing changes meanwhile. A scrape every 15 s costs less than the rest
    varies by. So there is one a second, in every other window.
    """
    port = stage.subject.layout.port_base + _PORT_FROM_BASE
    stage.have({'OS_IRONIC_COMPUTE__AGENT_PORT': str(port)})
    note.figure('scraped_kib', _scrape(port) / 1024)
    plain, busy = Spent(), Spent()
    for _ in range(_TURNS):
        plain += _spent(stage, None)
        busy += _spent(stage, port)
    scrape_s = busy.scrape_s(plain)
    note.figure('unscraped_client_cpu_percent', plain.cores * 100)
    note.figure('scrape_client_cpu_ms', scrape_s * 1000)
    note.figure('scraped_more_cpu_percent', scrape_s / _INTERVAL_S * 100)


def _spent(stage: Stage, port: int | None) -> Spent:
    """Let a window pass, with a scrape a second if a port is given."""
    window, count = Window(stage.subject), 0
    while window.seconds < stage.plan.idle_s / _TURNS:
        if port:
            _scrape(port)
            count += 1
        time.sleep(_PACE_S - window.seconds % _PACE_S)
    return Spent(window.cpu_s()['client'], window.seconds, count)


def _scrape(port: int) -> int:
    """Scrape once; return the number of bytes."""
    url = f'http://127.0.0.1:{port}/metrics'
    with urllib.request.urlopen(url, timeout=_INTERVAL_S) as answer:
        return len(answer.read())
