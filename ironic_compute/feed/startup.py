# SPDX-License-Identifier: Apache-2.0
"""Start a worker's node feed once Ironic can filter the pool's nodes.

A worker serves RPC before it has reached Ironic. The check therefore runs in
a thread of its own and is repeated each second until Ironic answers.
"""

from collections.abc import Callable

import attrs
from oslo_log import log as logging

from ironic_compute import errors

LOG = logging.getLogger(__name__)

_RETRY_S = 1.0


@attrs.define(eq=False, repr=False, slots=False)
class FeedStartup:
    """Calls ``start_feed`` once, after ``check_pool`` has succeeded.

    :param check_pool: checks that Ironic supports the configured filters
        (conductor group, shard); raises ConfigError if it does not, and any
        other error if Ironic cannot be reached
    :param start_feed: starts the node feed
    :param refuse: called in place of ``start_feed`` with the ConfigError
    """

    _check_pool: Callable[[], None]
    _start_feed: Callable[[], None]
    _refuse: Callable[[errors.ConfigError], None]

    def __attrs_post_init__(self) -> None:
        self._has_warned = False

    def try_start(self) -> float | None:
        """Check the pool once, and start the feed if the check succeeds.

        :returns: seconds until the next check; None if no other is needed
        """
        try:
            self._check_pool()
        except errors.ConfigError as exc:
            self._refuse(exc)
        except Exception as exc:
            LOG.log(
                logging.DEBUG if self._has_warned else logging.WARNING,
                'Ironic does not answer yet; going on without it: %(error)s',
                {'error': exc},
            )
            self._has_warned = True
            return _RETRY_S
        else:
            self._start_feed()
        return None
