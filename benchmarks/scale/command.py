# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks scale``: measures some sizes, and writes the tables.

Each size runs in a process of its own, and is saved when it ends. A size that
was measured is not measured again; remove the file of results to begin anew.
"""

import argparse
import gc
import json
import multiprocessing
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.scale import report
from benchmarks.scale.size import Size

ROOT = pathlib.Path(__file__).resolve().parents[2]
_FILE = 'scale.json'
_IS_WHOLE = 'is_whole'
_POOLS_OF_HOSTS = (3, 10, 50, 200)


def _counts(text: str) -> list[int]:
    words = text.split(',')
    if not all(word.isdecimal() and int(word) for word in words):
        raise argparse.ArgumentTypeError(
            f'{text!r} is no list of numbers above 0 with commas between'
        )
    return [int(word) for word in words]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog='python -m benchmarks scale',
        description='Measure in virtual time what pools of some sizes cost. '
        'A size that was measured is not measured again.',
    )
    made.add_argument(
        '--hosts',
        type=_counts,
        default=[1, 10, 50],
        metavar='N,...',
        help='sizes of the pool (default: 1,10,50)',
    )
    made.add_argument(
        '--nodes',
        type=_counts,
        default=[1000, 10000, 50000],
        metavar='N,...',
        help='nodes of the pool; each is measured with each number of hosts '
        '(default: 1000,10000,50000)',
    )
    made.add_argument(
        '--processes',
        type=int,
        default=12,
        metavar='N',
        help='of Ironic, Placement and nova-conductor each, in all '
        '(default: %(default)d)',
    )
    made.add_argument(
        '--out',
        type=lambda text: pathlib.Path(text).resolve(),
        default=ROOT / 'build' / 'benchmarks',
        metavar='FOLDER',
        help='folder of the results (default: build/benchmarks)',
    )
    return made


def measure(size: Size, path: pathlib.Path) -> None:
    """Measure one size; save its figures after each stage."""
    from benchmarks.scale import commands, stages

    # Garbage is collected between the stages only.
    gc.collect()
    gc.freeze()
    gc.disable()
    found: dict[str, Any] = {
        'commands': commands.measure(size.hosts_count, size.nodes_count)
    }
    began_s = time.process_time()
    for name, figures in stages.run(size):
        figures['spent_cpu_s'] = time.process_time() - began_s
        found[name] = figures
        _save(path, size, found)
        print(size, name, file=sys.stderr, flush=True)
    _save(path, size, {**found, _IS_WHOLE: True})


def _load_modules() -> None:
    """Load Nova once for all sizes."""
    # Chooses threads before anything of Nova is imported.
    from tests import conftest  # noqa: F401  # isort: skip
    from benchmarks.scale import commands, stages  # noqa: F401


def _key(size: Size) -> str:
    return f'{size.hosts_count} x {size.nodes_count} on {size.processes_count}'


def _records() -> str:
    from benchmarks.scale import commands

    return report.records_table(
        {count: commands.measure_records(count) for count in _POOLS_OF_HOSTS}
    )


def _load(path: pathlib.Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _save(path: pathlib.Path, size: Size, figures: dict[str, Any]) -> None:
    results = {**_load(path), _key(size): figures}
    path.write_text(json.dumps(results, indent=1))


def main(argv: Sequence[str]) -> int:
    """Measure what is not measured yet; print all results."""
    options = parser().parse_args(argv)
    path = options.out / _FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    _load_modules()
    context = multiprocessing.get_context('fork')
    for nodes_count in options.nodes:
        for hosts_count in options.hosts:
            size = Size(hosts_count, nodes_count, options.processes)
            if not _load(path).get(_key(size), {}).get(_IS_WHOLE):
                with context.Pool(1) as pool:
                    pool.apply(measure, (size, path))
    text = report.tables(_load(path)) + _records()
    (options.out / 'scale.rst').write_text(text)
    print(text)
    return 0
