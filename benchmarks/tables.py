# SPDX-License-Identifier: Apache-2.0
"""The results as tables in Markdown."""

import collections
from collections.abc import Mapping, Sequence

from benchmarks.goals import GOALS, Goal
from benchmarks.metrics import ROWS, Row
from benchmarks.results import OURS, STOCK, SUBJECTS, Run, median, of

# Detail -> the title of its table.
_DETAILS: Mapping[str, str] = {
    'idle rpc': 'RPCs a minute of one idle while, by cause',
    'idle placement': 'Requests to Placement a minute, idle',
    'idle ironic': 'Requests to Ironic a minute, idle',
    'boot requests': "Nova's requests of one build, cast → spawn",
    'boot request ms': '… median of each, ms',
    'claims requests': '… booted one after the other',
    'claims request ms': '… of these, median of each, ms',
    'boot retried': 'Why builds were sent to another node',
    'clean_boot retried': '… while others were cleaned',
    'deploy ironic': 'Requests to Ironic a slow deploy',
}


def markdown(runs: Sequence[Run]) -> str:
    """Return the goals, then all tables, grouped by number of nodes."""
    texts = [_goals(runs)]
    for nodes_count in sorted({run.nodes_count for run in runs}):
        here = [run for run in runs if run.nodes_count == nodes_count]
        texts.append(_figures(here, nodes_count))
        texts += [_detail(here, name, _DETAILS[name]) for name in _DETAILS]
    return '\n'.join(text for text in texts if text)


def _goals(runs: Sequence[Run]) -> str:
    """Return the table of the goals of which ours was measured."""
    lines = [
        _goal(runs, goal)
        for goal in GOALS
        if of(runs, OURS, goal.nodes_count, goal.figure)
    ]
    if not lines:
        return ''
    head = '| what | nodes | goal | limit | ours | stock | stock / ours | |'
    rule = '| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |'
    return '\n'.join(['## Goals', '', head, rule, *lines, ''])


def _goal(runs: Sequence[Run], goal: Goal) -> str:
    ours = median(runs, OURS, goal.nodes_count, goal.figure)
    stock = median(runs, STOCK, goal.nodes_count, goal.figure)
    has_stock = of(runs, STOCK, goal.nodes_count, goal.figure)
    cells = [
        goal.title,
        f'{goal.nodes_count:,}',
        number(goal.goal),
        number(goal.limit),
        number(ours),
        number(stock) if has_stock else '',
        ratio(ours, stock),
        _verdict(ours, goal),
    ]
    return f'| {" | ".join(cells)} |'


def _verdict(ours: float | None, goal: Goal) -> str:
    if ours is None or ours > goal.limit:
        return 'over the limit'
    return 'reached' if ours <= goal.goal else ''


def _figures(runs: Sequence[Run], nodes_count: int) -> str:
    lines = [
        f'## {nodes_count} nodes: medians',
        '',
        '| what | ours | stock | stock / ours | runs |',
        '| --- | ---: | ---: | ---: | ---: |',
    ]
    lines += [
        _row(runs, row, nodes_count)
        for row in ROWS
        if any(name in run.figures for name in row.names for run in runs)
    ]
    return '\n'.join([*lines, ''])


def _row(runs: Sequence[Run], row: Row, nodes_count: int) -> str:
    title = f'{row.title} ({row.points})' if row.points else row.title
    cells, counts = [], []
    for subject in SUBJECTS:
        values = [
            median(runs, subject, nodes_count, name) for name in row.names
        ]
        counts.append(len(of(runs, subject, nodes_count, row.names[0])))
        texts = [number(value) for value in values] if counts[-1] else ['']
        cells.append(' / '.join(texts))
    ours, stock = (
        median(runs, subject, nodes_count, row.names[0])
        for subject in SUBJECTS
    )
    times = '+'.join(map(str, counts))
    return (
        f'| {title} | {" | ".join(cells)} | {ratio(ours, stock)} | {times} |'
    )


def _detail(runs: Sequence[Run], name: str, title: str) -> str:
    """Return the table of a detail, from the last run of each subject."""
    found: dict[str, Mapping[str, float]] = {}
    for run in runs:
        if name in run.details:
            found[run.subject] = by_cause(run.details[name], name)
    kinds = sorted(set().union(*found.values())) if found else []
    if not kinds:
        return ''
    lines = ['', f'| {title} | ours | stock |', '| --- | ---: | ---: |']
    for kind in kinds:
        cells = [
            number(found[subject].get(kind, 0.0)) if subject in found else ''
            for subject in (OURS, STOCK)
        ]
        lines.append(f'| {kind} | {" | ".join(cells)} |')
    return '\n'.join([*lines, ''])


def by_cause(counts: Mapping[str, float], name: str) -> Mapping[str, float]:
    """Return RPCs added up by cause; other details stay as they are."""
    if name != 'idle rpc':
        return counts
    found: dict[str, float] = collections.defaultdict(float)
    for kind, count in counts.items():
        found[kind.partition(':')[0]] += count
    return found


def number(value: float | None) -> str:
    """Format a number; "never" if it did not end in time."""
    if value is None:
        return 'never'
    return f'{value:,.0f}' if abs(value) >= 100 else f'{value:.3g}'


def ratio(ours: float | None, stock: float | None) -> str:
    """Format stock / ours; empty if one of them is missing or ours is 0."""
    if not ours or stock is None:
        return ''
    return f'{stock / ours:.3g}'
