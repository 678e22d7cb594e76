# SPDX-License-Identifier: Apache-2.0
"""Etcd servers: which member of an etcd cluster the requests go to.

tooz's driver of etcd knows one server. Leases and locks belong to the whole
cluster, so a client may send its next request to any other member and goes on
with both. A member that is frozen, dead or cut off from the others costs one
failed request, of `hashring.backend.REQUEST_TIMEOUT_S` at most.
"""

import threading
from collections.abc import Sequence
from typing import Any

from oslo_log import log as logging

from hashring.backend import Server

LOG = logging.getLogger(__name__)


class EtcdServers:
    """Sends a driver's requests to the next server when one has failed.

    Any thread may call; no method blocks.

    :param driver: tooz's ``Etcd3Driver``
    :param servers: all members that the URL names, the first one first
    """

    def __init__(self, driver: Any, servers: Sequence[Server]) -> None:
        self._driver = driver
        self._servers = servers
        self._number = 0
        self._lock = threading.Lock()

    def current(self) -> Server:
        """Return the server that requests go to."""
        return self._servers[self._number]

    def leave(self, failed: Server, why: str) -> None:
        """Use the next server, unless another thread has left this one.

        :param failed: the server that a request went to
        :param why: how the request ended
        """
        with self._lock:
            if failed != self.current() or len(self._servers) == 1:
                return
            self._number = (self._number + 1) % len(self._servers)
            taken = self.current()
            self._driver.client.host = taken.host
            self._driver.client.port = taken.port
        LOG.warning(
            'Requests go to etcd at %(taken)s now, because one to %(failed)s '
            'has failed: %(why)s',
            {'taken': taken, 'failed': failed, 'why': why},
        )
