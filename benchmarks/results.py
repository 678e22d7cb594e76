# SPDX-License-Identifier: Apache-2.0
"""Figures of many runs: kept as JSON, and what is usual among them; pure."""

import dataclasses
import json
import math
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence

OURS, STOCK = 'ours', 'stock'
SUBJECTS = (OURS, STOCK)
# In the order of a whole run; ``parts`` has what each does.
PARTS = (
    'first',
    'arrival',
    'idle',
    'restart',
    'adoption',
    'changes',
    'quiet',
    'burst',
    'boots',
    'claims',
    'cleaning',
    'deploys',
)
# What stock nova-compute has nothing of: no file to lose, no notifications.
OURS_ONLY = frozenset({'adoption', 'quiet'})


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """All figures of one part, of one subject with so many nodes, once.

    :param figures: by name, see ``metrics``; None: it did not end in time
    :param details: counts by kind, for whoever asks what is in a figure
    """

    subject: str
    nodes_count: int
    part: str
    figures: Mapping[str, float | None]
    details: Mapping[str, Mapping[str, float]] = dataclasses.field(
        default_factory=dict
    )


def save(path: pathlib.Path, runs: Iterable[Run]) -> None:
    """Write runs; what is there already is replaced, or stays whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [dataclasses.asdict(run) for run in runs]
    beside = path.with_name(f'{path.name}.new')
    beside.write_text(json.dumps(records, indent=1))
    beside.replace(path)


def load(path: pathlib.Path) -> list[Run]:
    """Read runs; none if there is no such file."""
    if not path.exists():
        return []
    return [Run(**record) for record in json.loads(path.read_text())]


def finite(value: float | None) -> float | None:
    """Return a number; None for one that is none: it did not end."""
    return None if value is None or math.isinf(value) else value


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that so many of all do not exceed."""
    ordered = sorted(values)
    rank = math.ceil(share * len(ordered))
    return ordered[max(rank, 1) - 1]


def of(
    runs: Iterable[Run], subject: str, nodes_count: int, figure: str
) -> list[float | None]:
    """Return a figure of all runs that have it."""
    return [
        run.figures[figure]
        for run in runs
        if (run.subject, run.nodes_count) == (subject, nodes_count)
        and figure in run.figures
    ]


def median(
    runs: Iterable[Run], subject: str, nodes_count: int, figure: str
) -> float | None:
    """Return the median of a figure; None if half of them are missing.

    A run that did not end in time counts as longer than any other.
    """
    values = of(runs, subject, nodes_count, figure)
    if not values:
        return None
    return finite(
        statistics.median(math.inf if v is None else v for v in values)
    )
