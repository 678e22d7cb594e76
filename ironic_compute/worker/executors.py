# SPDX-License-Identifier: Apache-2.0
"""Thread pools for RPC messages and builds, and warnings of low limits.

Most threads of a worker wait for Ironic, for up to an hour. A message beyond
the limit waits until one of them ends. Therefore the default limits are higher
than any host needs; a lower limit in nova.conf applies and is logged.

The pools start a thread only if none is idle. futurist's ThreadPoolExecutor,
which oslo.messaging and Nova use by default, starts a thread for each task up
to the limit, and each idle thread wakes up once a second: a thousand idle
threads take 2.5 % of a core and delay the busy threads far more.
"""

import threading
from collections.abc import Mapping
from concurrent import futures
from typing import Any

import futurist
from oslo_log import log as logging

LOG = logging.getLogger(__name__)

AMPLE_COUNT = 1000

_RABBIT = 'oslo_messaging_rabbit'
# The group and name of each option -> what it limits.
_WHAT: Mapping[tuple[str, str], str] = {
    ('DEFAULT', 'executor_thread_pool_size'): 'requests of any kind',
    ('DEFAULT', 'max_concurrent_builds'): 'builds',
    (_RABBIT, 'rabbit_qos_prefetch_count'): 'requests of any kind',
}


# The pool keeps this number of threads ready, because futurist may count a
# thread as idle that has just got a task. This number of builds can begin at
# once without a wait.
_SPARE_THREADS_COUNT = 8


def make_message_executor(max_workers: int) -> futures.Executor:
    """Return a thread pool for RPC messages, for oslo.messaging."""
    return futures.ThreadPoolExecutor(max_workers, thread_name_prefix='rpc')


class BuildExecutor(futurist.ThreadPoolExecutor):
    """A pool that loses no build, and whose shutdown waits for no thread.

    Nova shuts it down when no build runs. An idle thread of futurist notices
    that within a second only, in which nobody would serve the host.
    """

    def _add_thread(self) -> None:
        """Add a thread; a build waits for another one if none can be started.

        A container may have at most so many threads. With an error here Nova
        would forget the build, and its server would be in BUILD until the
        build counts as lost.
        """
        try:
            super()._add_thread()
        except RuntimeError as exc:
            # futurist counts it before it is started.
            self._workers = [w for w in self._workers if w.ident is not None]
            if not self._workers:
                raise
            LOG.warning(
                'A build waits until an earlier one ends, because this '
                'worker cannot have more than its %(count)d threads: '
                '%(error)s',
                {'count': threading.active_count(), 'error': exc},
            )

    def shutdown(
        self, wait: bool = True, *, cancel_futures: bool = False
    ) -> None:
        """Let no further build begin; returns at once."""
        super().shutdown(wait=False, cancel_futures=cancel_futures)


class _GrowingExecutor(BuildExecutor, futurist.DynamicThreadPoolExecutor):
    """The same, with as many threads as there are builds, and some more."""


def make_build_executor(conf: Any) -> futurist.ThreadPoolExecutor:
    """Return a futurist thread pool for builds; Nova reads its statistics."""
    count = conf.max_concurrent_builds or AMPLE_COUNT
    if count <= _SPARE_THREADS_COUNT:
        return BuildExecutor(count)
    return _GrowingExecutor(
        count,
        min_workers=_SPARE_THREADS_COUNT,
        grow_threshold=0.5,
        shrink_threshold=0.2,
    )


def count_messages_at_once(conf: Any) -> int:
    """Return how many messages a worker handles at once."""
    limits = (
        _read(conf, 'DEFAULT', 'executor_thread_pool_size'),
        _read(conf, _RABBIT, 'rabbit_qos_prefetch_count'),
    )
    return min(filter(None, limits), default=AMPLE_COUNT)


def _read(conf: Any, group: str, name: str) -> int:
    """Return the value of an option; 0 if it is not registered."""
    section = conf if group == 'DEFAULT' else getattr(conf, group, {})
    return int(section[name]) if name in section else 0


def warn_of_low_limits(conf: Any) -> None:
    """Log each limit in nova.conf that is lower than the default."""
    for (group, name), what in _WHAT.items():
        value = _read(conf, group, name)
        if 0 < value < AMPLE_COUNT:  # 0 means no limit of builds.
            LOG.warning(
                '[%(group)s] %(option)s is %(value)d in nova.conf: while so '
                'many %(what)s wait for Ironic in this worker, no further '
                'one begins; remove the option (the default here is '
                '%(enough)d) or set it higher than the number of nodes of a '
                'host',
                {
                    'group': group,
                    'option': name,
                    'value': value,
                    'what': what,
                    'enough': AMPLE_COUNT,
                },
            )
