# SPDX-License-Identifier: Apache-2.0
"""Results: saved and loaded, medians, tables, and the plan of runs."""

import math
import pathlib

import pytest

from benchmarks import __main__ as program
from benchmarks import goals, metrics, plot, results, tables
from benchmarks.results import OURS, STOCK, Run


def run(subject, nodes_count, part='idle', **figures):
    """Return one part of a run."""
    return Run(subject, nodes_count, part, figures)


RUNS = [
    run(OURS, 100, restart_s=2.0, idle_placement_per_min=0.0, boot_s=9.0),
    run(OURS, 100, restart_s=4.0, idle_placement_per_min=0.0, boot_s=None),
    run(OURS, 100, restart_s=3.0, idle_placement_per_min=0.0, boot_s=None),
    run(STOCK, 100, restart_s=30.0, idle_placement_per_min=200.0),
    run(STOCK, 1000, restart_s=1234.5, idle_placement_per_min=2000.0),
]


def test_results_survive(tmp_path):
    """Saved results can be loaded again."""
    path = tmp_path / 'build' / 'results.json'
    assert results.load(path) == []
    results.save(path, RUNS)
    assert results.load(path) == RUNS


@pytest.mark.parametrize(
    ('figure', 'median'),
    [('restart_s', 3.0), ('boot_s', None), ('rss_mib', None)],
)
def test_median_counts_runs_that_did_not_end(figure, median):
    """A run that did not end in time counts as the longest."""
    assert results.median(RUNS, OURS, 100, figure) == median


@pytest.mark.parametrize(
    ('share', 'value'), [(0.5, 3.0), (0.95, 5.0), (1.0, 5.0), (0.0, 1.0)]
)
def test_percentile_is_a_value_that_was_measured(share, value):
    """A percentile is one of the values."""
    assert results.percentile([5.0, 1.0, 4.0, 2.0, 3.0], share) == value


def test_percentile_of_runs_that_did_not_end_is_none():
    """A percentile among runs that did not end is None."""
    values = [1.0, 2.0, math.inf]
    assert results.finite(results.percentile(values, 0.5)) == 2.0
    assert results.finite(results.percentile(values, 1.0)) is None


def test_table_has_all_that_was_measured():
    """Each number of nodes has a table, with a ratio where possible."""
    text = tables.markdown(RUNS)
    first, second = text.split('## 1000 nodes')
    title = '… all verified after, s'
    assert f'| {title} | 3 | 30 | 10 | 3+1 |' in first
    assert f'| {title} |  | 1,234 |  | 0+1 |' in second
    idle = 'idle: requests to Placement a minute'
    assert f'| {idle} | 0 | 200 |  | 3+1 |' in first
    boot = 'boot at once: seconds until all are ACTIVE'
    assert f'| {boot} | never |  |  | 3+0 |' in first
    assert 'memory' not in text


def test_percentiles_share_a_row():
    """Percentiles share a row; the first of them is compared."""
    spread = {f'boot_own_ms_{p}': float(p[1:]) for p in ('p50', 'p99')}
    text = tables.markdown([run(OURS, 100, boot_own_ms_max=120.0, **spread)])
    assert '(p50 / p99 / max) | 50 / 99 / 120 |  |' in text


def test_each_figure_has_one_row():
    """No figure is in two rows."""
    names = [name for row in metrics.ROWS for name in row.names]
    assert len(names) == len(set(names))


def test_table_of_rpcs_has_a_row_for_each_cause():
    """The table of RPCs has one row for each cause."""
    kinds = {'services: conductor a': 4, 'services: conductor b': 1}
    mine = {'idle rpc': {**kinds, '_poll: conductor a': 2}}
    runs = [
        Run(OURS, 100, 'idle', {}, mine),
        Run(STOCK, 100, 'idle', {}, {'idle rpc': {'_poll: conductor a': 3}}),
    ]
    text = tables.markdown(runs)
    assert '| services | 5 | 0 |' in text
    assert '| _poll | 2 | 3 |' in text


def test_plot_leaves_out_unmeasured_figures():
    """The plot has no point for a figure that was not measured."""
    assert plot.series(RUNS, OURS, 'restart_s') == ([100], [3.0])
    assert plot.series(RUNS, STOCK, 'restart_s') == (
        [100, 1000],
        [30.0, 1234.5],
    )


def test_plot_is_a_picture(tmp_path):
    """The plot is drawn without a screen."""
    pytest.importorskip('matplotlib')
    path = tmp_path / 'build' / 'plot.png'
    plot.draw(RUNS, path)
    assert path.read_bytes().startswith(b'\x89PNG')


def turns(runs, *words):
    """Return the runs that are not measured yet, as plain values."""
    options = program.parse(words)
    return [
        (turn.nodes_count, turn.subject, turn.parts)
        for turn in program.left(runs, options)
    ]


def test_subjects_take_turns_and_measured_parts_are_left_out():
    """Subjects take turns, fewest nodes first; measured parts are left out."""
    amounts = ['--nodes', '1000', '100', '--repeat', '2']
    words = [*amounts, '--parts', 'restart', 'idle']
    both = ('idle', 'restart')
    assert turns(RUNS, *words) == [
        (100, OURS, ('restart',)),
        (100, STOCK, ('restart',)),
        (100, OURS, ('restart',)),
        (100, STOCK, both),
        (1000, OURS, both),
        (1000, STOCK, ('restart',)),
        (1000, OURS, both),
        (1000, STOCK, both),
    ]


def test_stock_gets_no_run_of_parts_that_it_lacks():
    """Stock, without a disk cache, gets no run of that part."""
    found = turns([], '--full', '--nodes', '9', '--repeat', '1')
    assert found[0] == (9, OURS, results.PARTS)
    assert 'adoption' not in found[1][2]


def test_short_run_measures_what_has_a_goal():
    """Without --full one run of each subject fills the table of goals."""
    (ours, stock) = turns([])
    assert ours == (1000, OURS, results.SHORT_PARTS)
    assert stock == (1000, STOCK, results.SHORT_PARTS)
    assert len(turns([], '--full')) == 18


def test_table_of_goals_says_what_is_reached():
    """A figure that did not end, or is too high, is over its limit."""
    text = tables.markdown(
        [
            run(OURS, 1000, pss_client_mib=180.0, idle_client_cpu_percent=0.5),
            run(STOCK, 1000, pss_client_mib=270.0),
            run(OURS, 1000, 'killed', killed_unserved_s=9.0),
            run(OURS, 1000, 'boots', boot_s=None),
            run(OURS, 100, restart_unserved_s=1.0),
        ]
    ).partition('## 100 nodes')[0]
    memory = '| 1,000 | 190 | 220 | 180 | 270 | 1.5 | reached |'
    assert memory in text
    assert '| 1,000 | 0.3 | 1 | 0.5 |  |  |  |' in text
    assert '| 1,000 | 4 | 8 | 9 |  |  | over the limit |' in text
    assert '| never |  |  | over the limit |' in text
    assert 'restart' not in text


def test_each_goal_is_of_a_figure_that_a_short_run_has():
    """The limit is not lower than the goal."""
    assert {goal.figure for goal in goals.GOALS} <= metrics.NAMES
    assert all(goal.goal <= goal.limit for goal in goals.GOALS)


def test_results_go_to_the_build_folder():
    """By default results go to the build folder."""
    options = program.parse([])
    assert options.out.relative_to(program.ROOT) == pathlib.Path(
        'build', 'benchmarks'
    )
