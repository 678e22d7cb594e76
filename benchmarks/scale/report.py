# SPDX-License-Identifier: Apache-2.0
"""Tables of the results, in reStructuredText for the manual."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Results = Mapping[str, Mapping[str, Any]]
Stages = Mapping[str, Mapping[str, float | None]]


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """One column: a figure of a stage.

    :param digits: after the decimal point
    """

    heading: str
    stage: str
    figure: str
    digits: int = 0


def _column(stage: str) -> Callable[..., Column]:
    def make(heading: str, figure: str, digits: int = 0) -> Column:
        return Column(heading, stage, figure, digits)

    return make


_idle, _cold, _audit = _column('idle'), _column('cold'), _column('audit')
_join, _half, _command = _column('join'), _column('half'), _column('commands')

TABLES: Mapping[str, Sequence[Column]] = {
    'The idle pool, each minute': (
        _idle('requests to Ironic', 'ironic'),
        _idle('requests to Placement', 'placement'),
        _idle('RPCs to nova-conductor', 'rpc'),
        _idle('messages in RabbitMQ', 'messages'),
        _idle('requests to the coordination backend', 'backend'),
        _idle('processor of all agents, s', 'agents_cpu_s', 2),
        _idle('processor of all workers, s', 'workers_cpu_s', 2),
        _idle('memory, MiB', 'memory_mib', 1),
    ),
    'Virtual seconds until …': (
        _cold('the ring is agreed on', 'agreed_s'),
        _cold('all nodes are offered', 'reported_s'),
        _audit('an audit of all workers at once has ended', 'ended_s'),
        _join('a further host is in the ring of all', 'agreed_s'),
        _join('the further host has its share', 'balanced_s'),
        _half('half of the agents died: all is served', 'served_s'),
    ),
    'A cold start': (
        _cold('requests to Ironic', 'ironic'),
        _cold('Ironic works, s', 'ironic_busy_s'),
        _cold('requests to Placement', 'placement'),
        _cold('Placement works, s', 'placement_busy_s'),
        _cold('RPCs to nova-conductor', 'rpc'),
        _cold('rows read', 'rows_read'),
        _cold('nova-conductor works, s', 'conductor_busy_s'),
        _cold('processor of all workers, s', 'workers_cpu_s', 1),
    ),
    'An audit of all workers': (
        _audit('pages of Ironic', 'Ironic pages of nodes'),
        _audit('Ironic works, s', 'ironic_busy_s'),
        _audit('lists of Placement', 'placement'),
        _audit('Placement works, s', 'placement_busy_s', 1),
        _audit('rows read', 'rows_read'),
        _audit('nova-conductor works, s', 'conductor_busy_s'),
        _audit('processor of all workers, s', 'workers_cpu_s', 1),
    ),
    'A further host': (
        _join('requests to Ironic', 'ironic'),
        _join('RPCs to nova-conductor', 'rpc'),
        _join('rows read', 'rows_read'),
        _join('Ironic works, s', 'ironic_busy_s'),
        _join('nova-conductor works, s', 'conductor_busy_s'),
        _join('processor of all workers, s', 'workers_cpu_s', 1),
    ),
    'Processor of a command, s': (
        _command('checks of fsck', 'fsck_s', 2),
        _command('node list', 'node_list_s', 2),
        _command('host list', 'host_list_s', 4),
        _command('building a ring', 'ring_s', 2),
        _command('ring targets of all nodes', 'targets_s', 2),
    ),
}


def tables(results: Results) -> str:
    """Return all tables; a size that lacks a stage is left out there."""
    return '\n'.join(
        line
        for title, columns in TABLES.items()
        for line in _table(title, columns, results)
    )


def records_table(found: Mapping[int, Mapping[str, float]]) -> str:
    """Return the table of what agents read of each other, by hosts."""
    headings = (
        'hosts',
        'reads',
        'records',
        'bytes of a record',
        'MB in all',
        'processor of all agents, s',
    )
    rows = [
        [
            f'{hosts:,}',
            f'{each["reads"]:,.0f}',
            f'{each["records"]:,.0f}',
            f'{each["bytes"]:,.0f}',
            f'{each["mb"]:,.1f}',
            f'{each["parse_s"]:,.1f}',
        ]
        for hosts, each in found.items()
    ]
    title = 'What all agents read of each other, each minute'
    return '\n'.join(_lines(title, headings, rows))


def _lines(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]
) -> Iterator[str]:
    yield f'.. list-table:: {title}'
    yield '   :header-rows: 1'
    yield ''
    yield from _row(headings)
    for row in rows:
        yield from _row(row)
    yield ''


def _table(
    title: str, columns: Sequence[Column], results: Results
) -> Iterator[str]:
    rows = []
    for size, stages in results.items():
        if columns[0].stage in stages:
            hosts, _, nodes, *_ = size.split()
            cells = [_cell(column, stages) for column in columns]
            rows.append([hosts, f'{int(nodes):,}', *cells])
    headings = ['hosts', 'nodes', *(column.heading for column in columns)]
    yield from _lines(title, headings, rows)


def _row(cells: Sequence[str]) -> Iterator[str]:
    for number, cell in enumerate(cells):
        yield f'   {" " if number else "*"} - {cell}'


def _cell(column: Column, stages: Stages) -> str:
    value = stages.get(column.stage, {}).get(column.figure)
    if value is None:
        return '-'
    # A count less what idling takes may be a fraction below zero.
    shown = max(0.0, value)
    return f'{shown:,.{column.digits}f}'
