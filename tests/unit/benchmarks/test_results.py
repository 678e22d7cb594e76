# SPDX-License-Identifier: Apache-2.0
"""Figures are kept, and told as they are."""

import pathlib

import pytest

from benchmarks import __main__ as program
from benchmarks import plot, results
from benchmarks.results import OURS, STOCK, Run


def run(subject, nodes_count, **figures):
    """One run."""
    return Run(subject, nodes_count, figures)


RUNS = [
    run(OURS, 100, restart_s=2.0, idle_placement_per_min=0.0, boot_s=9.0),
    run(OURS, 100, restart_s=4.0, idle_placement_per_min=0.0, boot_s=None),
    run(OURS, 100, restart_s=3.0, idle_placement_per_min=0.0, boot_s=None),
    run(STOCK, 100, restart_s=30.0, idle_placement_per_min=200.0),
    run(STOCK, 1000, restart_s=1234.5, idle_placement_per_min=2000.0),
]


def test_results_survive(tmp_path):
    """An interrupted benchmark goes on where it was."""
    path = tmp_path / 'build' / 'results.json'
    assert results.load(path) == []
    results.save(path, RUNS)
    assert results.load(path) == RUNS


@pytest.mark.parametrize(
    ('figure', 'median'),
    [('restart_s', 3.0), ('boot_s', None), ('rss_mib', None)],
)
def test_median_counts_what_never_ended(figure, median):
    """Two of three that did not end are no nine seconds."""
    assert results.median(RUNS, OURS, 100, figure) == median


def test_table_has_all_that_was_measured():
    """One for each number of nodes; a ratio where there is one."""
    text = results.markdown(RUNS)
    first, second = text.split('## 1000 nodes')
    title = results.METRICS['restart_s']
    assert f'| {title} | 3 | 30 | 10 |' in first
    assert f'| {title} | - | 1,234 |  |' in second
    idle = results.METRICS['idle_placement_per_min']
    assert f'| {idle} | 0 | 200 |  |' in first
    assert 'median of 3' in first
    assert results.METRICS['rss_mib'] not in text


def test_rpcs_are_told_by_cause():
    """So that a reader can tell ours from Nova's periodic tasks."""
    kinds = {'services: conductor a': 4, 'services: conductor b': 1}
    runs = [
        Run(OURS, 100, {}, {'idle rpc': {**kinds, '_poll: conductor a': 2}}),
        Run(STOCK, 100, {}, {'idle rpc': {'_poll: conductor a': 3}}),
    ]
    text = results.markdown(runs)
    assert '| services | 5 | 0 |' in text
    assert '| _poll | 2 | 3 |' in text


def test_plot_leaves_out_what_is_not_known():
    """No point where nothing was measured."""
    assert plot.series(RUNS, OURS, 'restart_s') == ([100], [3.0])
    assert plot.series(RUNS, STOCK, 'restart_s') == (
        [100, 1000],
        [30.0, 1234.5],
    )


def test_plot_is_a_picture(tmp_path):
    """Drawn without a screen."""
    pytest.importorskip('matplotlib')
    path = tmp_path / 'build' / 'plot.png'
    plot.draw(RUNS, path)
    assert path.read_bytes().startswith(b'\x89PNG')


def test_subjects_take_turns_and_what_is_done_is_done():
    """Fewest nodes first; each as often as asked."""
    options = program.parser().parse_args(
        ['--nodes', '1000', '100', '--repeat', '2']
    )
    assert program.left(RUNS, options) == [
        (100, STOCK),
        (1000, OURS),
        (1000, OURS),
        (1000, STOCK),
    ]
    everything = program.left([], options)
    assert everything[:4] == [(100, OURS), (100, STOCK)] * 2
    assert len(everything) == 8


def test_results_go_where_no_commit_takes_them():
    """Unless told otherwise."""
    options = program.parser().parse_args([])
    assert options.out.relative_to(program.ROOT) == pathlib.Path(
        'build', 'benchmarks'
    )
