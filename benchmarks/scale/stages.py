# SPDX-License-Identifier: Apache-2.0
"""The stages of one size: cold start, idle, an audit, a join, half of it dead.

A figure per minute is one of the whole pool. A time is in virtual seconds;
None: it did not end in two hours.
"""

import collections
import gc
import os
from collections.abc import Callable, Iterator

from benchmarks import proc
from benchmarks.scale.pool import AUDIT_S, SimulatedPool
from benchmarks.scale.size import Size
from ironic_compute.paths.path_health import (
    CONDUCTOR,
    IRONIC,
    PLACEMENT,
    RABBITMQ,
)
from tests.simulation import lives

Figures = dict[str, float | None]

# Virtual seconds between two looks, and the longest wait.
_LOOK_S = 0.5
_PATIENCE_S = 7200.0
# What follows a cold start is over by then, so that the pool idles.
_SETTLE_S = 60.0
_IDLE_S = 300.0
_QUIET_S = 15.0
_CALLS_AND_REPLIES = 2


def run(size: Size) -> Iterator[tuple[str, Figures]]:
    """Run the stages of one size in turn; yield each name and its figures."""
    pool = SimulatedPool(
        size.hosts_count, size.nodes_count, size.processes_count
    )
    with lives.silence(), pool.conductor.installed():
        try:
            yield 'cold', _start(pool)
            idle = _per_minute(pool, _IDLE_S)
            yield 'idle', idle
            yield 'audit', _audit(pool, idle)
            yield 'join', _join(pool)
            if size.hosts_count > 1:
                yield 'half', _kill_half(pool)
        finally:
            pool.end_all()


def _start(pool: SimulatedPool) -> Figures:
    rss_mib, used = _rss_mib(), _counts(pool)
    agreed_s = _wait(pool, pool.is_agreed)
    reported_s = _wait(pool, pool.is_reported)
    found: Figures = {'agreed_s': agreed_s, 'reported_s': reported_s}
    found |= _since(pool, used)
    _advance(pool, _SETTLE_S)
    gc.collect()
    return found | {'memory_mib': _rss_mib() - rss_mib}


def _per_minute(pool: SimulatedPool, idle_s: float) -> Figures:
    rss_mib, used = _rss_mib(), _counts(pool)
    _advance(pool, idle_s)
    gc.collect()
    minutes = idle_s / 60.0
    found: Figures = {
        name: count / minutes for name, count in _since(pool, used).items()
    }
    return found | {'memory_mib': (_rss_mib() - rss_mib) / minutes}


def _audit(pool: SimulatedPool, idle: Figures) -> Figures:
    """Have all workers audit all nodes; less what idling takes.

    They use no list so soon after the one of their start.
    """
    _advance(pool, AUDIT_S / 4.0)
    used, began_s = _counts(pool), pool.kernel.now_s
    pool.request_audits()
    _wait(pool, pool.is_audited)
    ended_s = _elapsed(_wait_for_rows(pool), began_s)
    minutes = (pool.kernel.now_s - began_s) / 60.0
    found: Figures = {
        name: count - minutes * (idle.get(name) or 0.0)
        for name, count in _since(pool, used).items()
    }
    return found | {'ended_s': ended_s}


def _join(pool: SimulatedPool) -> Figures:
    used, began_s = _counts(pool), pool.kernel.now_s
    pool.add_host()
    agreed_s = _wait(pool, pool.is_agreed)
    balanced_s = _wait(pool, pool.is_balanced, 2.0)
    found: Figures = {
        'agreed_s': _elapsed(agreed_s, began_s),
        'balanced_s': _elapsed(balanced_s, began_s),
    }
    return found | _since(pool, used)


def _kill_half(pool: SimulatedPool) -> Figures:
    used, began_s = _counts(pool), pool.kernel.now_s
    pool.kill_half()
    served_s = _wait(pool, pool.is_served)
    return {'served_s': _elapsed(served_s, began_s), **_since(pool, used)}


# Virtual time


def _advance(pool: SimulatedPool, seconds: float) -> None:
    until_s = pool.kernel.now_s + seconds
    pool.kernel.at(until_s, lambda: None)
    while pool.kernel.now_s < until_s:
        pool.step()


def _wait(
    pool: SimulatedPool, is_done: Callable[[], bool], look_s: float = _LOOK_S
) -> float | None:
    """Run until the condition holds; return when that was."""
    until_s = pool.kernel.now_s + _PATIENCE_S
    while pool.kernel.now_s < until_s:
        if is_done():
            return pool.kernel.now_s
        _advance(pool, look_s)
    return None


def _wait_for_rows(pool: SimulatedPool) -> float | None:
    """Run until no rows are read for a while; return when that began."""
    before, read_count = pool.kernel.now_s, -1
    while read_count != pool.rows_read_count:
        before, read_count = pool.kernel.now_s, pool.rows_read_count
        _advance(pool, _QUIET_S)
    return before


def _elapsed(at_s: float | None, began_s: float) -> float | None:
    return None if at_s is None else at_s - began_s


# Counts


def _counts(pool: SimulatedPool) -> dict[str, float]:
    services = pool.services
    by_kind = {
        f'{path} {kind}': count
        for path in (IRONIC, PLACEMENT, CONDUCTOR)
        for kind, count in services[path].counts.items()
    }
    totals = {p: services[p].counts.total() for p in services}
    messages = totals[CONDUCTOR] + totals[RABBITMQ]
    return {
        **by_kind,
        'ironic': totals[IRONIC],
        'placement': totals[PLACEMENT],
        'rpc': totals[CONDUCTOR],
        'messages': _CALLS_AND_REPLIES * messages + pool.broker.casts_count,
        'backend': pool.backend_counts.total(),
        'rows_read': pool.rows_read_count,
        'ironic_busy_s': services[IRONIC].busy_s,
        'placement_busy_s': services[PLACEMENT].busy_s,
        'conductor_busy_s': services[CONDUCTOR].busy_s,
        'agents_cpu_s': pool.kernel.cpu_s['agents'],
        'workers_cpu_s': pool.kernel.cpu_s['workers'],
        'steps': pool.kernel.steps_count,
    }


def _since(pool: SimulatedPool, former: dict[str, float]) -> dict[str, float]:
    """Return what has been counted since then."""
    counted = collections.Counter(_counts(pool))
    counted.subtract(former)
    return dict(counted)


def _rss_mib() -> float:
    return proc.rss_mib([proc.all_processes()[os.getpid()]])
