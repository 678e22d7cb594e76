# SPDX-License-Identifier: Apache-2.0
"""How much a worker does at once, and what is said of an operator's less.

On bare metal nearly all that is at work waits for Ironic, for up to an hour.
A message beyond the limit was taken from its queue already and waits in the
worker's memory, behind all those; it is lost if the worker is killed. So the
limits are where no host reaches them, and an operator's lower one is obeyed
and told.

With such limits the pools of threads must not be what oslo.messaging and Nova
make by default: futurist's ThreadPoolExecutor starts a thread for each task
until it has all of them, and each idle one wakes up once a second; a thousand
take 2.5 % of a core, for ever, and far more of all others' time while there is
much to do. Ours start one when none is idle.
"""

from collections.abc import Mapping
from concurrent import futures
from typing import Any

import futurist
from oslo_log import log as logging

LOG = logging.getLogger(__name__)

AMPLE_COUNT = 1000

_WHAT: Mapping[str, str] = {
    'executor_thread_pool_size': 'requests of any kind',
    'max_concurrent_builds': 'builds',
}


# So many builds may begin at the same moment without one waiting for another:
# futurist may take a thread for idle that has just got work.
_SPARE_THREADS_COUNT = 8


def make_message_executor(max_workers: int) -> futures.Executor:
    """Return what serves messages: oslo.messaging asks for nothing else."""
    return futures.ThreadPoolExecutor(max_workers, thread_name_prefix='rpc')


def make_build_executor(conf: Any) -> futurist.ThreadPoolExecutor:
    """Return what builds servers; Nova looks into futurist's own."""
    count = conf.max_concurrent_builds or AMPLE_COUNT
    if count <= _SPARE_THREADS_COUNT:
        return futurist.ThreadPoolExecutor(count)
    return futurist.DynamicThreadPoolExecutor(
        count,
        min_workers=_SPARE_THREADS_COUNT,
        grow_threshold=0.5,
        shrink_threshold=0.2,
    )


def warn_of_low_limits(conf: Any) -> None:
    """Tell of each limit of nova.conf that is lower than ours; once."""
    for name, what in _WHAT.items():
        value = conf[name]
        if 0 < value < AMPLE_COUNT:  # 0 builds are as many as we do.
            LOG.warning(
                '[DEFAULT] %(option)s is %(value)d in nova.conf: while so '
                'many %(what)s wait for Ironic in this worker, all further '
                'ones wait in its memory, and are lost if it is killed; '
                'remove the option (the default here is %(enough)d) or set '
                'it higher than the number of nodes of a host',
                {
                    'option': name,
                    'value': value,
                    'what': what,
                    'enough': AMPLE_COUNT,
                },
            )
