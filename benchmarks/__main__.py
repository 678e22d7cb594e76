# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks``: measure ours and stock in turn, and report.

The program starts the cloud of ``devstack/cloud`` if it does not run, and
measures with the cloud's Python. It refuses a cloud with servers or running
compute processes, and deletes the records of its compute hosts. Each part's
results are saved when it ends, so an interrupted benchmark can be resumed;
delete the file of results to begin again.

``python -m benchmarks scale`` simulates large pools, without a cloud.
"""

import argparse
import collections
import dataclasses
import importlib.util
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence

from benchmarks import results, tables
from benchmarks.results import OURS, STOCK

ROOT = pathlib.Path(__file__).resolve().parents[1]
DEVSTACK = ROOT / 'devstack'


_MEASURES = 'IRONIC_COMPUTE_BENCHMARK_MEASURES'


_AMOUNTS = (
    ('changes', 20, 'nodes changed of each kind, one a second'),
    ('burst', 200, 'further nodes, which change in a burst meanwhile'),
    ('boots', 200, 'servers booted at once'),
    ('claims', 100, 'servers booted one after the other'),
    ('claim-pace', 4, 'seconds between two of these servers'),
    ('cleaned', 100, 'servers deleted while as many are booted'),
    ('deploys', 100, 'servers booted at once on slow nodes'),
    ('deploy-delay', 60, 'seconds, twice in each deploy of these'),
    ('patience', 1200, 'seconds after which a change counts as never seen'),
)


def _path(text: str) -> pathlib.Path:
    return pathlib.Path(text).resolve()


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog='python -m benchmarks', description=__doc__.splitlines()[0]
    )
    made.add_argument(
        'command', nargs='?', default='all', choices=('all', 'run', 'report')
    )
    made.add_argument(
        '--full',
        action='store_true',
        help='measure all parts with 100, 1,000 and 5,000 nodes, three times '
        'each, in place of what the table of goals needs with 1,000, once',
    )
    made.add_argument('--nodes', type=int, nargs='+')
    made.add_argument('--repeat', type=int)
    made.add_argument(
        '--subjects',
        nargs='+',
        default=[OURS, STOCK],
        choices=(OURS, STOCK),
    )
    made.add_argument(
        '--parts',
        nargs='+',
        choices=results.PARTS,
        help='the parts that are measured',
    )
    made.add_argument('--idle', type=float, default=300.0, help='seconds')
    made.add_argument(
        '--stolen-max',
        type=float,
        default=100.0,
        metavar='PERCENT',
        help='parts during which other machines on the same hardware had more '
        'of the processors are not kept',
    )
    for name, count, text in _AMOUNTS:
        made.add_argument(f'--{name}', type=int, default=count, help=text)
    made.add_argument(
        '--out', type=_path, default=ROOT / 'build' / 'benchmarks'
    )
    made.add_argument('--state', type=_path, help='folder of the cloud')
    return made


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """The parts that are measured in one run of one subject."""

    nodes_count: int
    subject: str
    parts: tuple[str, ...]


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; ``--full`` decides what was left open."""
    options = parser().parse_args(words)
    full = [100, 1000, 5000], 3, list(results.PARTS)
    short = [1000], 1, list(results.SHORT_PARTS)
    nodes, repeat, parts = full if options.full else short
    options.nodes = options.nodes or nodes
    options.repeat = options.repeat or repeat
    options.parts = options.parts or parts
    return options


def left(
    runs: Sequence[results.Run], options: argparse.Namespace
) -> list[Turn]:
    """Return the runs that are not measured yet, in their order.

    Small numbers of nodes come first. The subjects take turns, so that a
    disturbance of the machine affects both.
    """
    have = collections.Counter(
        (run.nodes_count, run.subject, run.part) for run in runs
    )
    turns = [
        Turn(
            nodes_count,
            subject,
            tuple(
                part
                for part in results.PARTS
                if part in options.parts
                and have[nodes_count, subject, part] <= number
                and not (subject == STOCK and part in results.OURS_ONLY)
            ),
        )
        for nodes_count in sorted(options.nodes)
        for number in range(options.repeat)
        for subject in options.subjects
    ]
    return [turn for turn in turns if turn.parts]


def run_here(options: argparse.Namespace) -> int:
    """Measure; the process must use the Python of the cloud.

    :returns: the number of parts that failed
    """
    sys.path.insert(0, str(DEVSTACK))
    from onemachine.content import Content

    from benchmarks.bench import Bench
    from benchmarks.stage import Plan
    from benchmarks.subjects import Subject

    path = options.out / 'results.json'
    plan = Plan(
        idle_s=options.idle,
        changes_count=options.changes,
        burst_count=options.burst,
        boots_count=options.boots,
        claims_count=options.claims,
        claim_pace_s=options.claim_pace,
        cleaned_count=options.cleaned,
        deploys_count=options.deploys,
        deploy_delay_s=options.deploy_delay,
        change_max_s=options.patience,
    )
    failed: list[str] = []
    for turn in left(results.load(path), options):
        subject = Subject(turn.subject, options.state)
        subject.require_unused_cloud()
        subject.forget_others()
        content = Content(subject.layout)
        content.enroll(turn.nodes_count)
        content.withdraw(turn.nodes_count)
        bench = Bench(subject, turn.nodes_count, plan, options.stolen_max)
        for one in bench.run(turn.parts):
            results.save(path, [*results.load(path), one])
        failed += bench.failed
    print('\n'.join(f'failed: {name}' for name in failed))
    return len(failed)


def run(options: argparse.Namespace, given: Sequence[str]) -> int:
    """Start the cloud, and measure in a process with the cloud's Python."""
    sys.path.insert(0, str(DEVSTACK))
    from onemachine.layout import Layout, default_state

    state = (options.state or default_state()).resolve()
    cloud = [str(DEVSTACK / 'cloud'), '--state', str(state), 'up']
    subprocess.run([sys.executable, *cloud], check=True)  # noqa: S603
    command = [Layout.of(state).bin('python'), '-m', 'benchmarks']
    more = ['--state', str(state), '--out', str(options.out)]
    return subprocess.run(  # noqa: S603
        [*command, *given, *more],
        cwd=ROOT,
        env={**os.environ, _MEASURES: '1'},
    ).returncode


def report(options: argparse.Namespace) -> None:
    """Write the table, and the plot if matplotlib is installed."""
    from benchmarks import plot

    runs = results.load(options.out / 'results.json')
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / 'results.md').write_text(tables.markdown(runs))
    print(tables.markdown(runs))
    if importlib.util.find_spec('matplotlib') is None:
        print('No plot: matplotlib is not installed here', file=sys.stderr)
        return
    plot.draw(runs, options.out / 'results.png')


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ['scale']:
        # Imported only here, because it needs Nova and no cloud.
        from benchmarks.scale import command

        return command.main(given[1:])
    options = parse(given)
    if os.environ.get(_MEASURES):
        return 1 if run_here(options) else 0
    status = 0
    if options.command in ('all', 'run'):
        status = run(options, given)
    if options.command in ('all', 'report'):
        report(options)
    return status


if __name__ == '__main__':
    sys.exit(main())
