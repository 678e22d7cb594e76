# SPDX-License-Identifier: Apache-2.0
"""What tooz does not ask ZooKeeper.

tooz's heartbeat is a read, and reads are answered by the one server that a
client is connected to. One that is cut off from its leader goes on answering
for ``syncLimit`` ticks, and the leader ends the client's session meanwhile.

Whoever tries for a lock stands in a queue of nodes, and kazoo says nothing if
it could not leave that again: then nobody behind has the lock as long as the
session lives.
"""

from typing import Any

from hashring.backend import REQUEST_TIMEOUT_S


def hear_leader(driver: Any) -> None:
    """Have the leader answer; raises if it does not in time.

    :param driver: tooz's ``KazooDriver``, which has been started
    """
    asked = driver._coord.sync_async(driver._base_path())
    asked.get(timeout=REQUEST_TIMEOUT_S)


def leave_queue(lock: Any) -> None:
    """Try for a lock no more; raises if the queue could not be left.

    :param lock: tooz's ``ZooKeeperLock``, which was not acquired
    """
    queued = lock._lock
    if queued.client.exists(queued.path) is None:
        return  # The try had not even made it.
    if node := queued._find_node():
        queued._delete_node(node)
