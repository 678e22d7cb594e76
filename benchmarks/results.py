# SPDX-License-Identifier: Apache-2.0
"""Figures of many runs: kept as JSON, told as Markdown."""

import collections
import dataclasses
import json
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence

OURS, STOCK = 'ours', 'stock'


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """All figures of one subject with so many nodes, once.

    :param figures: by name, see ``METRICS``; None: it did not end in time
    :param details: counts by kind, for whoever asks what is in a figure
    """

    subject: str
    nodes_count: int
    figures: Mapping[str, float | None]
    details: Mapping[str, Mapping[str, int]] = dataclasses.field(
        default_factory=dict
    )


# Name of a figure -> what it says to a reader.
METRICS: Mapping[str, str] = {
    'first_s': 'first report of all nodes: seconds',
    'first_placement': '… requests to Placement',
    'first_ironic': '… requests to Ironic',
    'first_rpc': '… RPCs',
    'first_client_cpu_s': '… CPU of the compute process, s',
    'first_server_cpu_s': '… CPU of all servers, s',
    'idle_placement_per_min': 'idle: requests to Placement a minute',
    'idle_ironic_per_min': '… requests to Ironic a minute',
    'idle_rpc_per_min': '… RPCs a minute',
    'idle_own_rpc_per_min': "… those not of Nova's own code",
    'idle_client_cpu_percent': '… CPU of the compute process, % of a core',
    'idle_server_cpu_percent': '… CPU of all servers, % of a core',
    'rss_mib': '… memory of the compute process, MiB',
    'restart_up_s': 'restart, nothing changed: seconds until it serves',
    'restart_s': '… seconds until all is verified',
    'restart_placement': '… requests to Placement',
    'restart_rpc': '… RPCs',
    'restart_client_cpu_s': '… CPU of the compute process, s',
    'restart_server_cpu_s': '… CPU of all servers, s',
    'change_median_s': 'maintenance set → reserved in Placement: median, s',
    'change_max_s': '… longest, s',
    'boot_s': 'servers booted at once: seconds until all are ACTIVE',
}


def save(path: pathlib.Path, runs: Iterable[Run]) -> None:
    """Write runs; what is there already is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [dataclasses.asdict(run) for run in runs]
    path.write_text(json.dumps(records, indent=1))


def load(path: pathlib.Path) -> list[Run]:
    """Read runs; none if there is no such file."""
    if not path.exists():
        return []
    return [Run(**record) for record in json.loads(path.read_text())]


def median(
    runs: Iterable[Run], subject: str, nodes_count: int, figure: str
) -> float | None:
    """Return the median of a figure; None if half of them are missing.

    A run that did not end in time counts as longer than any other.
    """
    values = [
        run.figures[figure]
        for run in runs
        if (run.subject, run.nodes_count) == (subject, nodes_count)
        and figure in run.figures
    ]
    known = sorted(value for value in values if value is not None)
    endless = [float('inf')] * (len(values) - len(known))
    if not values:
        return None
    middle = statistics.median([*known, *endless])
    return None if middle == float('inf') else middle


def markdown(runs: Sequence[Run]) -> str:
    """Tell all figures: a table for each number of nodes."""
    return '\n'.join(
        _table(runs, nodes_count) + _causes(runs, nodes_count)
        for nodes_count in sorted({run.nodes_count for run in runs})
    )


def _table(runs: Sequence[Run], nodes_count: int) -> str:
    here = [run for run in runs if run.nodes_count == nodes_count]
    times = max(sum(r.subject == s for r in here) for s in (OURS, STOCK))
    lines = [
        f'## {nodes_count} nodes, median of {times}',
        '',
        '| what | ours | stock | stock / ours |',
        '| --- | ---: | ---: | ---: |',
    ]
    for figure, title in METRICS.items():
        ours, stock = (
            median(here, subject, nodes_count, figure)
            for subject in (OURS, STOCK)
        )
        if any(figure in run.figures for run in here):
            cells = (_number(ours), _number(stock), _ratio(ours, stock))
            lines.append(f'| {title} | {" | ".join(cells)} |')
    return '\n'.join([*lines, ''])


def _causes(runs: Sequence[Run], nodes_count: int) -> str:
    """Tell what caused the RPCs of the last idle while of each."""
    found: dict[str, collections.Counter[str]] = {}
    for run in runs:
        if run.nodes_count == nodes_count and 'idle rpc' in run.details:
            found[run.subject] = _by_cause(run.details['idle rpc'])
    causes = sorted(set().union(*found.values())) if found else []
    if not causes:
        return ''
    lines = [
        '',
        '| RPCs of one idle while, by cause | ours | stock |',
        '| --- | ---: | ---: |',
    ]
    for cause in causes:
        cells = [
            str(found[subject][cause]) if subject in found else '-'
            for subject in (OURS, STOCK)
        ]
        lines.append(f'| {cause} | {" | ".join(cells)} |')
    return '\n'.join([*lines, ''])


def _by_cause(counts: Mapping[str, int]) -> collections.Counter[str]:
    found: collections.Counter[str] = collections.Counter()
    for kind, count in counts.items():
        found[kind.partition(':')[0]] += count
    return found


def _number(value: float | None) -> str:
    if value is None:
        return '-'
    return f'{value:,.0f}' if abs(value) >= 100 else f'{value:.3g}'


def _ratio(ours: float | None, stock: float | None) -> str:
    if not ours or stock is None:
        return ''
    return f'{stock / ours:.3g}'
