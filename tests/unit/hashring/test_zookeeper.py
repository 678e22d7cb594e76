# SPDX-License-Identifier: Apache-2.0
"""ZooKeeper's adapter: leaving a lock queue, on a fake kazoo client."""

from typing import Any

import kazoo.client
import kazoo.exceptions
import pytest
from tooz.drivers.zookeeper import ZooKeeperLock

from hashring import zookeeper


class Client(kazoo.client.KazooClient):  # type: ignore[misc]
    """A client that is not connected and has one queue in memory."""

    def __init__(self, *queue: str) -> None:
        super().__init__()
        self.queue = list(queue)
        self.is_lost = False

    def exists(self, path: str) -> Any:
        return self.queue or None

    def get_children(self, path: str) -> list[str]:
        return self.queue

    def delete(self, path: str) -> None:
        if self.is_lost:
            raise kazoo.exceptions.ConnectionLoss
        self.queue.remove(path.rpartition('/')[2])


def make(client: Client) -> ZooKeeperLock:
    """Return a lock of tooz over the fake client."""
    return ZooKeeperLock(b'c1', client.Lock('/c1', 'me'))


def test_node_of_a_refused_try_is_deleted() -> None:
    """Only the node of this lock object leaves the queue."""
    client = Client('other__lock__0000000001')
    lock = make(client)
    client.queue.append(f'{client.Lock("/c1").prefix}0000000002')
    own = f'{lock._lock.prefix}0000000003'
    client.queue.append(own)
    zookeeper.leave_queue(lock)
    assert len(client.queue) == 2 and own not in client.queue
    zookeeper.leave_queue(lock)


def test_queue_that_was_never_made_is_left() -> None:
    """A try that failed before it made the queue needs no cleanup."""
    zookeeper.leave_queue(make(Client()))


def test_failed_delete_raises() -> None:
    """The caller must try again if the node may still be in the queue."""
    client = Client()
    lock = make(client)
    client.queue.append(f'{lock._lock.prefix}0000000001')
    client.is_lost = True
    with pytest.raises(kazoo.exceptions.ConnectionLoss):
        zookeeper.leave_queue(lock)
