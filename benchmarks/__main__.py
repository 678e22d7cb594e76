# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks``: measure ours and stock in turn, and report.

Brings the cloud of ``devstack/cloud`` up if it is not, and measures in its
Python. Servers and compute processes must not be in it; the records of its
compute hosts are dropped. Results are added run by run, so an interrupted
benchmark goes on where it was: delete the file of results to begin anew.
"""

import argparse
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence

from benchmarks import results

ROOT = pathlib.Path(__file__).resolve().parents[1]
DEVSTACK = ROOT / 'devstack'


_MEASURES = 'IRONIC_COMPUTE_BENCHMARK_MEASURES'


def _path(text: str) -> pathlib.Path:
    return pathlib.Path(text).resolve()


def parser() -> argparse.ArgumentParser:
    """Return what the command line may say."""
    made = argparse.ArgumentParser(
        prog='python -m benchmarks', description=__doc__.splitlines()[0]
    )
    made.add_argument(
        'command', nargs='?', default='all', choices=('all', 'run', 'report')
    )
    made.add_argument(
        '--nodes', type=int, nargs='+', default=[100, 1000, 5000]
    )
    made.add_argument('--repeat', type=int, default=3)
    made.add_argument(
        '--subjects',
        nargs='+',
        default=[results.OURS, results.STOCK],
        choices=(results.OURS, results.STOCK),
    )
    made.add_argument('--idle', type=float, default=300.0, help='seconds')
    made.add_argument('--changes', type=int, default=20)
    made.add_argument('--boots', type=int, default=20)
    made.add_argument(
        '--out', type=_path, default=ROOT / 'build' / 'benchmarks'
    )
    made.add_argument('--state', type=_path, help='folder of the cloud')
    return made


def left(
    runs: Sequence[results.Run], options: argparse.Namespace
) -> list[tuple[int, str]]:
    """Return what is still to be measured, in its order.

    Fewest nodes first, subjects in turn: what disturbs the machine for a
    while disturbs both.
    """
    found = []
    for nodes_count in sorted(options.nodes):
        for number in range(options.repeat):
            for subject in options.subjects:
                have_count = sum(
                    (run.subject, run.nodes_count) == (subject, nodes_count)
                    for run in runs
                )
                if number >= have_count:
                    found.append((nodes_count, subject))
    return found


def run_here(options: argparse.Namespace) -> None:
    """Measure; in the cloud's own Python."""
    sys.path.insert(0, str(DEVSTACK))
    from onemachine.content import Content

    from benchmarks.measure import Bench, Plan
    from benchmarks.subjects import Subject

    path = options.out / 'results.json'
    plan = Plan(
        idle_s=options.idle,
        changes_count=options.changes,
        boots_count=options.boots,
    )
    for nodes_count, kind in left(results.load(path), options):
        subject = Subject(kind, options.state)
        subject.refuse_company()
        content = Content(subject.layout)
        content.enroll(nodes_count)
        content.withdraw(nodes_count)
        run = Bench(subject, nodes_count, plan).run()
        results.save(path, [*results.load(path), run])


def run(options: argparse.Namespace, given: Sequence[str]) -> None:
    """Bring the cloud up and measure in its Python."""
    sys.path.insert(0, str(DEVSTACK))
    from onemachine.layout import Layout, default_state

    state = (options.state or default_state()).resolve()
    cloud = [str(DEVSTACK / 'cloud'), '--state', str(state), 'up']
    subprocess.run([sys.executable, *cloud], check=True)  # noqa: S603
    command = [Layout.of(state).bin('python'), '-m', 'benchmarks']
    more = ['--state', str(state), '--out', str(options.out)]
    subprocess.run(  # noqa: S603
        [*command, *given, *more],
        check=True,
        cwd=ROOT,
        env={**os.environ, _MEASURES: '1'},
    )


def report(options: argparse.Namespace) -> None:
    """Write the table and the plot of all results."""
    from benchmarks import plot

    runs = results.load(options.out / 'results.json')
    (options.out / 'results.md').write_text(results.markdown(runs))
    plot.draw(runs, options.out / 'results.png')
    print(results.markdown(runs))


def main(argv: Sequence[str] | None = None) -> int:
    """Run; the exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    options = parser().parse_args(given)
    if os.environ.get(_MEASURES):
        run_here(options)
        return 0
    if options.command in ('all', 'run'):
        run(options, given)
    if options.command in ('all', 'report'):
        report(options)
    return 0


if __name__ == '__main__':
    sys.exit(main())
