# SPDX-License-Identifier: Apache-2.0
"""Lets only one thread at a time use the databases of a functional test.

oslo.db gives all threads the same connection of a SQLite in memory. A second
thread that begins a transaction meanwhile is refused ("cannot start a
transaction within a transaction"), or its rollback undoes what the first one
wrote: a server's row then never becomes ACTIVE. Real databases have a
connection for each thread.
"""

import threading
from collections.abc import Callable
from typing import Any

import fixtures
import sqlalchemy.pool

# Longer than any test waits: a thread that holds it for ever must be seen.
_PATIENCE_S = 120.0


class _Turn:
    """A lock that its thread may take again, and any thread may release.

    A connection that nobody closes is returned by the garbage collector, in
    whichever thread that runs.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._thread: int | None = None
        self._depth = 0

    def take(self) -> None:
        """Wait until no other thread has it; raises after two minutes."""
        me = threading.get_ident()
        with self._changed:
            free = self._changed.wait_for(
                lambda: self._thread in (None, me), _PATIENCE_S
            )
            if not free:
                raise TimeoutError('another thread keeps its transaction open')
            self._thread = me
            self._depth += 1

    def give_back(self) -> None:
        """Let another thread have it, if each ``take`` is undone."""
        with self._changed:
            self._depth = max(0, self._depth - 1)
            if not self._depth:
                self._thread = None
                self._changed.notify_all()


class SharedSqlite(fixtures.Fixture):  # type: ignore[misc]
    """Lets one thread at a time have a connection, of all databases.

    A turn for each database would not do: two threads that each hold one and
    want the other's would wait for ever. Connections that are open already do
    not count: alembic keeps those that made the tables.
    """

    def _setUp(self) -> None:
        turn = _Turn()
        get = sqlalchemy.pool.StaticPool._do_get
        put = sqlalchemy.pool.StaticPool._do_return_conn

        def take_turn_and_get(pool: Any) -> Any:
            turn.take()
            try:
                return get(pool)
            except BaseException:
                turn.give_back()
                raise

        def put_and_give_back(pool: Any, connection: Any) -> None:
            put(pool, connection)
            turn.give_back()

        self._replace('_do_get', take_turn_and_get)
        self._replace('_do_return_conn', put_and_give_back)

    def _replace(self, method: str, replacement: Callable[..., Any]) -> None:
        name = f'sqlalchemy.pool.StaticPool.{method}'
        self.useFixture(fixtures.MonkeyPatch(name, replacement))
