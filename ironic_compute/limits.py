# SPDX-License-Identifier: Apache-2.0
"""How much a worker does at once, and what is said of an operator's less.

On bare metal nearly all that is at work waits for Ironic, for up to an hour.
A message beyond the limit was taken from its queue already and waits in the
worker's memory, behind all those; it is lost if the worker is killed. So the
limits are where no host reaches them, and an operator's lower one is obeyed
and told.
"""

from collections.abc import Mapping
from typing import Any

from oslo_log import log as logging

LOG = logging.getLogger(__name__)

ENOUGH_COUNT = 1000

_WHAT: Mapping[str, str] = {
    'executor_thread_pool_size': 'requests of any kind',
    'max_concurrent_builds': 'builds',
}


def warn(conf: Any) -> None:
    """Tell of each limit of nova.conf that is lower than ours; once."""
    for name, what in _WHAT.items():
        value = conf[name]
        if value < ENOUGH_COUNT:
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
                    'enough': ENOUGH_COUNT,
                },
            )
