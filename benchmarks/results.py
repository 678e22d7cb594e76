# SPDX-License-Identifier: Apache-2.0
"""The results of many runs: saved as JSON, medians, percentiles."""

import dataclasses
import json
import math
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence

OURS, STOCK = 'ours', 'stock'
SUBJECTS = (OURS, STOCK)
# The order of a whole run; package ``parts`` has the code of each.
PARTS = (
    'first',
    'arrival',
    'idle',
    'scraped',
    'restart',
    'killed',
    'adoption',
    'changes',
    'quiet',
    'burst',
    'boots',
    'claims',
    'cleaning',
    'deploys',
)
# What a short run measures: what `goals` has goals for.
SHORT_PARTS = ('first', 'arrival', 'idle', 'restart', 'killed', 'boots')
# Stock nova-compute has neither a disk cache, notifications nor a port.
OURS_ONLY = frozenset({'adoption', 'quiet', 'scraped'})


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """The figures of one part, for one subject and one number of nodes.

    :param figures: by name, see ``metrics``; None: it did not end in time
    :param details: name -> counts by kind that explain a figure
    """

    subject: str
    nodes_count: int
    part: str
    figures: Mapping[str, float | None]
    details: Mapping[str, Mapping[str, float]] = dataclasses.field(
        default_factory=dict
    )


def save(path: pathlib.Path, runs: Iterable[Run]) -> None:
    """Write all runs to a file, which is replaced as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [dataclasses.asdict(run) for run in runs]
    beside = path.with_name(f'{path.name}.new')
    beside.write_text(json.dumps(records, indent=1))
    beside.replace(path)


def load(path: pathlib.Path) -> list[Run]:
    """Read all runs; an absent file has none."""
    if not path.exists():
        return []
    return [Run(**record) for record in json.loads(path.read_text())]


def finite(value: float | None) -> float | None:
    """Return the number, or None for infinity: it did not end in time."""
    return None if value is None or math.isinf(value) else value


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that this share of all does not exceed."""
    ordered = sorted(values)
    rank = math.ceil(share * len(ordered))
    return ordered[max(rank, 1) - 1]


def of(
    runs: Iterable[Run], subject: str, nodes_count: int, figure: str
) -> list[float | None]:
    """Return the values of a figure in all runs that have it."""
    return [
        run.figures[figure]
        for run in runs
        if (run.subject, run.nodes_count) == (subject, nodes_count)
        and figure in run.figures
    ]


def median(
    runs: Iterable[Run], subject: str, nodes_count: int, figure: str
) -> float | None:
    """Return the median of a figure, or None if it is infinite.

    A run that did not end in time counts as infinite.
    """
    values = of(runs, subject, nodes_count, figure)
    if not values:
        return None
    return finite(
        statistics.median(math.inf if v is None else v for v in values)
    )
