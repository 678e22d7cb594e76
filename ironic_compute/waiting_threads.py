# SPDX-License-Identifier: Apache-2.0
"""Threads whose work the next worker of the host can continue.

They only wait, for Ironic or for a new row to be confirmed, so a worker that
stops does not wait for them.
"""

import contextlib
import threading
from collections.abc import Iterator


class WaitingThreads:
    """The threads that only wait; any thread may call."""

    def __init__(self) -> None:
        self._idents: set[int] = set()

    @contextlib.contextmanager
    def include_current(self) -> Iterator[None]:
        """Count the current thread as waiting while the block runs."""
        ident = threading.get_ident()
        self._idents.add(ident)
        try:
            yield
        finally:
            self._idents.discard(ident)

    def idents(self) -> frozenset[int]:
        """Return the idents of the threads that wait now."""
        return frozenset(self._idents.copy())
