# SPDX-License-Identifier: Apache-2.0
"""Chooses threads or eventlet before anything of Nova is imported.

Nova decides once a process, at its first import, and cannot change its mind.
So this is the first thing that a test run does, and no test may import Nova
from a module that pytest loads earlier. ``IRONIC_COMPUTE_TEST_CONCURRENCY``
is ``threading`` (the default) or ``eventlet``.
"""

import gc
import os
import typing

# Shorter tests are not noted; half of all take a thousandth of this.
_WORTH_NOTING_S = 0.5

CONCURRENCY = os.environ.get('IRONIC_COMPUTE_TEST_CONCURRENCY', 'threading')
if CONCURRENCY not in ('threading', 'eventlet'):
    raise SystemExit(
        f'IRONIC_COMPUTE_TEST_CONCURRENCY={CONCURRENCY}: use threading or '
        f'eventlet'
    )
# The same word for both Nova series: 33 has no option, and nova.tests calls
# patch() once more and without an argument.
os.environ['OS_NOVA_DISABLE_EVENTLET_PATCHING'] = (
    'yes' if CONCURRENCY == 'threading' else 'no'
)

from nova import monkey_patch  # noqa: E402

monkey_patch.patch()


def pytest_report_header() -> str:
    """Print the version of Nova and the concurrency in the first lines."""
    from importlib import metadata

    return f'nova {metadata.version("nova")}, concurrency {CONCURRENCY}'


def pytest_collection_finish() -> None:
    """Exclude imported modules from garbage collection, to save time.

    Nova and Ironic are a million objects, which each full collection would
    go through although none of them is ever freed.
    """
    gc.collect()
    gc.freeze()


def pytest_runtest_logreport(report: typing.Any) -> None:
    """Write the seconds of a test to the file that ``tests.runner`` reads."""
    path = os.environ.get('IRONIC_COMPUTE_TEST_TIMES')
    if path and report.duration >= _WORTH_NOTING_S:
        with open(path, 'a') as times:
            times.write(f'{report.duration:.2f} {report.nodeid}\n')
