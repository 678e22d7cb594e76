# SPDX-License-Identifier: Apache-2.0
"""The report of tempest, as a page of the documentation (reST)."""

import collections
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from onemachine.tempest.results import Outcome, Run, Verdict, unexcused
from onemachine.tempest.selection import Selection

_TITLES = {'ours': 'ironic-compute', 'stock': 'stock nova-compute'}
_WHY_MAX = 300
_INTRODUCTION = """\
Made by ``devstack/cloud tempest`` and ``devstack/cloud tempest --stock``:
tempest's compute API and scenario tests against a real Nova and a real Ironic
with fake hardware, once with our daemons and once with stock nova-computes on
the same hosts. Fake hardware runs no operating system, so no test logs in to a
server, and nothing inside a server is checked.
"""


def page(selection: Selection, runs: Mapping[str, Run]) -> str:
    """Return the whole page.

    :param runs: the runs that were made, by ``ours`` and ``stock``
    """
    lines = [
        *_heading('Tempest on bare metal', '='),
        _INTRODUCTION,
        *_summary(selection, runs),
        *_failed(runs),
        *_skipped(runs),
        *_left_out(selection),
        *_passed(runs),
    ]
    return '\n'.join(lines).rstrip() + '\n'


def _heading(text: str, line: str = '-') -> list[str]:
    return [text, line * len(text), '']


def _rows(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Format a list-table, whose cells may have any length."""
    rows = list(rows)
    if not rows:
        return ['None.', '']
    lines = ['.. list-table::', '   :header-rows: 1', '']
    for row in [columns, *rows]:
        marks = ['   * -', *['     -'] * (len(row) - 1)]
        lines += [
            f'{mark} {cell}'.rstrip()
            for mark, cell in zip(marks, row, strict=True)
        ]
    return [*lines, '']


def _columns(first: str, runs: Mapping[str, Run]) -> list[str]:
    return [first, *(_TITLES[by] for by in runs)]


# Summary


def _summary(selection: Selection, runs: Mapping[str, Run]) -> Iterator[str]:
    rows = [
        ('run at', *(run.made for run in runs.values())),
        ('in', *(f'{run.took_s:.0f} s' for run in runs.values())),
        *(
            (
                str(verdict),
                *(str(len(r.named(verdict))) for r in runs.values()),
            )
            for verdict in Verdict
        ),
    ]
    rows.append(('chosen', *[str(len(selection.chosen))] * len(runs)))
    left_out_count = sum(len(names) for names in selection.left_out.values())
    rows.append(('left out', *[str(left_out_count)] * len(runs)))
    yield from _rows(_columns('Tests', runs), rows)
    yield from _verdict(runs)
    names = dict.fromkeys(n for run in runs.values() for n in run.versions)
    versions = [
        (name, *(run.versions.get(name, '') for run in runs.values()))
        for name in names
    ]
    yield from _rows(_columns('With', runs), versions)


def _verdict(runs: Mapping[str, Run]) -> Iterator[str]:
    if 'ours' not in runs:
        return
    if 'stock' not in runs:
        yield 'Stock nova-compute has not been run to compare.'
    else:
        count = len(unexcused(runs['ours'], runs['stock']))
        yield f'Failed with ours and not with stock: {count}.'
    yield ''


# Single tests


def _failed(runs: Mapping[str, Run]) -> Iterator[str]:
    names = {n for r in runs.values() for n in r.named(Verdict.FAILED)}
    yield from _heading('Failed')
    rows = [
        (_literal(name), *(_cell(r.outcomes.get(name)) for r in runs.values()))
        for name in sorted(names)
    ]
    yield from _rows(_columns('Test', runs), rows)


def _cell(outcome: Outcome | None) -> str:
    if outcome is None:
        return 'not run'
    # The text is cut at a space, because the speller checks it.
    said = textwrap.shorten(outcome.why, _WHY_MAX, placeholder=' ...')
    why = f': {_literal(said)}' if said else ''
    return f'{outcome.verdict}{why}'


def _literal(text: str) -> str:
    """Quote a text that may have any character."""
    return '``' + text.replace('``', "''").strip() + '``'


def _skipped(runs: Mapping[str, Run]) -> Iterator[str]:
    reasons: dict[str, set[str]] = collections.defaultdict(set)
    for run in runs.values():
        for name in run.named(Verdict.SKIPPED):
            reasons[run.outcomes[name].why].add(name)
    yield from _heading('Skipped by tempest')
    rows = [
        (_literal(reason), str(len(names)), _classes(names))
        for reason, names in sorted(reasons.items())
    ]
    yield from _rows(('What tempest says', 'Tests', 'Of'), rows)


def _classes(names: Iterable[str]) -> str:
    classes = {name.rpartition('.')[0].rpartition('.')[2] for name in names}
    return ', '.join(sorted(classes))


def _left_out(selection: Selection) -> Iterator[str]:
    yield from _heading('Left out')
    yield from (
        'The list is ``devstack/tempest-left-out.txt``.',
        '',
    )
    by_reason: dict[str, list[str]] = collections.defaultdict(list)
    for rule, names in selection.left_out.items():
        by_reason[rule.reason] += names
    rows = [
        (reason, str(len(names)), ', '.join(map(_short, sorted(names))))
        for reason, names in sorted(by_reason.items())
    ]
    yield from _rows(('Why', 'Tests', 'Which'), rows)


def _short(name: str) -> str:
    return '``' + '.'.join(name.split('.')[-2:]) + '``'


def _passed(runs: Mapping[str, Run]) -> Iterator[str]:
    by_class: dict[str, dict[str, list[str]]] = collections.defaultdict(dict)
    for by, run in runs.items():
        for name in run.named(Verdict.PASSED):
            class_name, _, test = name.rpartition('.')
            by_class[class_name].setdefault(test, []).append(by)
    yield from _heading('Passed')
    for class_name, tests in sorted(by_class.items()):
        yield f'``{class_name}``'
        named = [
            _named_test(test, by, runs) for test, by in sorted(tests.items())
        ]
        yield from (f'    {line}' for line in _joined(named))
    yield ''


def _named_test(test: str, by: Sequence[str], runs: Mapping[str, Run]) -> str:
    only = '' if len(by) == len(runs) else f' (only {_TITLES[by[0]]})'
    return f'``{test}``{only}'


def _joined(words: Sequence[str]) -> Iterator[str]:
    for word in words[:-1]:
        yield f'{word},'
    yield words[-1]
