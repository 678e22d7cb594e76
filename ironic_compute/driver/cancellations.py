# SPDX-License-Identifier: Apache-2.0
"""Builds that end early, because the delete of their server has arrived.

Nova's delete waits for the lock of its server, which the build holds. The
ComputeManager therefore names the server here before it waits, and the build
ends itself within a second at the next of its waits.
"""

import contextlib
import threading
from collections.abc import Iterator

from ironic_compute.driver import nova_errors


class Cancellations:
    """The servers whose builds must end now; any thread may call.

    :ivar changed: notified when a server is added; waiting builds use it
    """

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self._servers: set[str] = set()

    @contextlib.contextmanager
    def cancel(self, server: str) -> Iterator[None]:
        """End the build of a server, if it waits, while the block runs."""
        with self.changed:
            self._servers.add(server)
            self.changed.notify_all()
        try:
            yield
        finally:
            self._servers.discard(server)

    def is_cancelled(self, server: str) -> bool:
        """Return whether the delete of a server has arrived."""
        return server in self._servers

    def raise_if_cancelled(self, server: str) -> None:
        """Check whether a build may go on; does not block.

        :raises nova_errors.Cancelled: the delete of the server has arrived
        """
        if self.is_cancelled(server):
            raise nova_errors.Cancelled(
                f'Server {server} was deleted while it was built'
            )
