# SPDX-License-Identifier: Apache-2.0
"""The plot of the costs by number of nodes; needs matplotlib."""

import pathlib
from collections.abc import Sequence
from typing import Any

from benchmarks.metrics import NAMES
from benchmarks.results import OURS, STOCK, Run, median

_SHOWN = (
    ('idle_placement_per_min', 'requests to Placement a minute, idle'),
    ('idle_rpc_per_min', 'RPCs a minute, idle'),
    ('restart_s', 'seconds until verified after a restart'),
    ('notified_maintenance_set_p50', 'maintenance → reserved, median s'),
    ('first_s', 'first report of all nodes, seconds'),
    ('claims_own_ms_p99', 'cast → spawn, own time, p99 in ms'),
)
_STYLES = {OURS: 'o-', STOCK: 's--'}


def series(
    runs: Sequence[Run], subject: str, figure: str
) -> tuple[list[int], list[float]]:
    """Return the numbers of nodes with a known median, and the medians."""
    counts = sorted({run.nodes_count for run in runs})
    pairs = [(n, median(runs, subject, n, figure)) for n in counts]
    known = [(n, value) for n, value in pairs if value is not None]
    return [n for n, _ in known], [value for _, value in known]


def draw(runs: Sequence[Run], path: pathlib.Path) -> None:
    """Write a PNG with six figures."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(15, 7))
    for (name, title), area in zip(_SHOWN, axes.flat, strict=True):
        assert name in NAMES  # noqa: S101 - a figure was renamed
        _draw_one(area, runs, name, title)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _draw_one(area: Any, runs: Sequence[Run], name: str, title: str) -> None:
    top = 1.0
    for subject, style in _STYLES.items():
        counts, values = series(runs, subject, name)
        if counts:
            area.plot(counts, values, style, label=subject)
            top = max(top, *values)
    area.set_xscale('log')
    # A logarithmic scale that can also show zero.
    area.set_yscale('symlog', linthresh=1)
    area.set_ylim(0, 2 * top)
    area.set_xlabel('nodes')
    area.set_title(title)
    if area.lines:
        area.legend()
