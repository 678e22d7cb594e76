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

# Half of all tests take a thousandth of this.
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
    """Say in the first lines which Nova and which concurrency this run is."""
    from importlib import metadata

    return f'nova {metadata.version("nova")}, concurrency {CONCURRENCY}'


def pytest_collection_finish() -> None:
    """Spare the garbage collector what was imported: it stays for good.

    Nova and Ironic are a million objects, gone through at each full
    collection.
    """
    gc.collect()
    gc.freeze()


def pytest_runtest_logreport(report: typing.Any) -> None:
    """Note for ``tests.at_once`` how long each test took."""
    path = os.environ.get('IRONIC_COMPUTE_TEST_TIMES')
    if path and report.duration >= _WORTH_NOTING_S:
        with open(path, 'a') as times:
            times.write(f'{report.duration:.2f} {report.nodeid}\n')
