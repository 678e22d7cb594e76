# SPDX-License-Identifier: Apache-2.0
"""ZooKeeper: a heartbeat that the leader answers, and leaving a lock queue.

tooz's own heartbeat is a read, which any server answers. A server that is
cut off from its leader goes on answering for ``syncLimit`` ticks, while the
leader ends the sessions of the server's clients; therefore the heartbeat
must include a request that only the leader can answer.

A client that requests a lock adds a znode to the lock's queue. kazoo ignores a
failure to delete that znode after a refused request; then no client behind it
gets the lock until the session ends.

`hashring.membership` alone calls these functions. They read private
attributes of tooz and kazoo, and no other module reads those:
``tests/contract/coordination/test_private_attributes.py`` fails when a
release of either library drops or renames one. Both functions block.
"""

from typing import Any

from hashring.backend import REQUEST_TIMEOUT_S


def sync_with_leader(driver: Any) -> None:
    """Wait until the leader has answered this client.

    :param driver: tooz's ``KazooDriver``, which has been started
    :raises Exception: kazoo's, if the leader does not answer within
        `REQUEST_TIMEOUT_S` seconds
    """
    driver._coord.sync_async('/').get(timeout=REQUEST_TIMEOUT_S)


def leave_queue(lock: Any) -> None:
    """Delete the znode of a refused request from the queue of its lock.

    :param lock: tooz's ``ZooKeeperLock``, which was not acquired
    :raises Exception: kazoo's, if the znode may still be in the queue
    """
    queued = lock._lock
    if queued.client.exists(queued.path) is None:
        return  # The request failed before the lock's queue existed.
    if node := queued._find_node():
        queued._delete_node(node)
