# SPDX-License-Identifier: Apache-2.0
"""Counts of the requests and RPCs of workers in Nova's one-process cloud."""

import collections
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import sqlalchemy

from resource_tracker.meter import NoMeter

# All of a worker's own threads begin so; Nova's periodic tasks and its
# heartbeat run in others.
_OURS = (
    'audit',
    'delta',
    'lost-',
    'placement-',
    'reader-',
    'rebalance',
    'recovery',
    'resume-',
    'services',
    'stray',
)


def name_of(module: str, code: types.CodeType) -> str:
    """Return the name of a function, as causes have it."""
    return f'{module}.{code.co_qualname}'


def _cause() -> str | None:
    """Return the innermost function of ironic_compute that is running.

    There is none where Placement, which is in this process, too, handles a
    request of ``resource_tracker``.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = frame.f_globals['__name__']
        if module.startswith('ironic_compute.'):
            return name_of(module, frame.f_code)
        frame = frame.f_back
    return None


class Counted(NoMeter):
    """Counts requests to Placement."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []

    def count_request(
        self, method: str, what: str, status: str, seconds: float
    ) -> None:
        """Count one."""
        self.requests.append((method, what))


def count_rpcs(
    add_cleanup: Callable[..., None],
) -> collections.Counter[str]:
    """Count the RPCs of each thread of a worker from now on, by cause.

    In one process each RPC to nova-conductor is a transaction.
    """
    counts: collections.Counter[str] = collections.Counter()

    def begin(connection: Any) -> None:
        name = threading.current_thread().name
        if name.startswith(_OURS) and (cause := _cause()):
            counts[cause] += 1

    sqlalchemy.event.listen(sqlalchemy.Engine, 'begin', begin)
    add_cleanup(sqlalchemy.event.remove, sqlalchemy.Engine, 'begin', begin)
    return counts
