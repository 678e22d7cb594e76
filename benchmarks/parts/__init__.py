# SPDX-License-Identifier: Apache-2.0
"""The parts of a benchmark, each of which can be measured alone.

The package is imported in the Python of the cloud only.
"""

from collections.abc import Callable, Mapping

from benchmarks.parts import (
    boots,
    changes,
    cleaning,
    deploys,
    reports,
    scrapes,
)
from benchmarks.stage import Note, Stage

PARTS: Mapping[str, Callable[[Stage, Note], None]] = {
    'first': reports.first,
    'arrival': reports.arrival,
    'idle': reports.idle,
    'scraped': scrapes.scraped,
    'restart': reports.restart,
    'killed': reports.killed,
    'adoption': reports.adoption,
    'changes': changes.notified,
    'quiet': changes.quiet,
    'burst': changes.burst,
    'boots': boots.boots,
    'claims': boots.claims,
    'cleaning': cleaning.cleaning,
    'deploys': deploys.slow,
}
