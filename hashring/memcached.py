# SPDX-License-Identifier: Apache-2.0
"""Memcached: keeps the group in the list of all groups.

A memcached that is full drops the items that nobody has used for long. Each
heartbeat uses the members and the locks; tooz uses the list of all groups only
when a group is made and when all are listed. Without it no operator's tool
finds the group, and no agent of another pool finds that it has the same nodes.

A heartbeat of tooz goes through the list of locks from which the lock thread
removes those that it releases. It passes over a lock then, which would end
before the lease does.

`hashring.membership` alone uses this module. It reads private attributes of
tooz: ``tests/contract/coordination/test_private_attributes.py`` fails when a
release of tooz drops or renames one.
"""

from collections.abc import Mapping
from typing import Any

from oslo_log import log as logging

from hashring.adapter import Adapter

LOG = logging.getLogger(__name__)


class MemcachedAdapter(Adapter):
    """The adapter of tooz's ``MemcachedDriver``."""

    def heartbeat(
        self, group: bytes, record: Mapping[str, Any] | None
    ) -> None:
        locks = tuple(self._driver._acquired_locks)
        self._driver.heartbeat()
        if not all(lock.acquired for lock in locks):
            self._renew_all()
        try:
            self._keep_listed(group)
        except Exception as exc:  # The lease does not depend on the list.
            LOG.debug('Could not keep the group listed: %(why)r', {'why': exc})

    def _renew_all(self) -> None:
        """Renew each lock, also the one that the driver has passed over."""
        for lock in tuple(self._driver._acquired_locks):
            lock.heartbeat()

    def _keep_listed(self, group: bytes) -> None:
        if group not in self._driver.get_groups().get():
            self._driver._add_group_to_group_list(group)
