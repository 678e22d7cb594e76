# SPDX-License-Identifier: Apache-2.0
"""Counts of the requests and RPCs of workers in Nova's one-process cloud."""

import collections
import sys
import threading
import types
from collections.abc import Callable, Set
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
_NO_REQUESTS = frozenset({'set_meter', 'is_in_pool', 'check_pool'})


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


class CountedIronic:
    """Counts the requests to an Ironic, which are the calls of methods.

    :param without: methods that are not counted
    """

    def __init__(self, ironic: Any, without: Set[str] = frozenset()) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self._ironic = ironic
        self._without = without | _NO_REQUESTS

    def __getattr__(self, name: str) -> Any:
        """Return an attribute; the calls of a method are counted."""
        found = getattr(self._ironic, name)
        if not callable(found) or name in self._without:
            return found

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.counts[name] += 1
            return found(*args, **kwargs)

        return counted


def count_rpcs(
    add_cleanup: Callable[..., None],
    threads: tuple[str, ...] = _OURS,
    causes: tuple[str, ...] = ('',),
) -> collections.Counter[str]:
    """Count the RPCs of some threads from now on, by cause.

    In one process each RPC to nova-conductor is a transaction.

    :param threads: how their names begin; by default those of a worker
    :param causes: how the names of the causes to count begin
    """
    counts: collections.Counter[str] = collections.Counter()

    def begin(connection: Any) -> None:
        if threading.current_thread().name.startswith(threads):
            cause = _cause()
            if cause is not None and cause.startswith(causes):
                counts[cause] += 1

    sqlalchemy.event.listen(sqlalchemy.Engine, 'begin', begin)
    add_cleanup(sqlalchemy.event.remove, sqlalchemy.Engine, 'begin', begin)
    return counts
