# SPDX-License-Identifier: Apache-2.0
"""What tooz does not ask etcd about a lock.

The value of a lock's key is a token that one lock object of tooz made, so it
tells acquisitions apart. tooz has no question for it: its ``acquired`` stays
True for a lock that somebody else has by now, and its ``break_`` frees the
lock of whoever has it.
"""

import base64
from collections.abc import Callable
from typing import Any


def owns(client: Any, lock: Any) -> bool:
    """Whether the lock is there with this very object's token.

    :param client: etcd3gw's
    :param lock: tooz's ``Etcd3Lock``
    """
    return base64.b64decode(lock._uuid) in _tokens(client, lock)


def break_lock(client: Any, lock: Any, may_still: Callable[[], bool]) -> None:
    """Free a lock, unless it changes hands after ``may_still``."""
    for token in _tokens(client, lock):
        if may_still():
            client.transaction(_delete(lock._key, token))


def _tokens(client: Any, lock: Any) -> list[bytes]:
    """Return the value of the lock's key, if there is one."""
    found: list[bytes] = client.get(lock._key.decode())
    return found


def _delete(key: bytes, token: bytes) -> dict[str, Any]:
    """Return a transaction that deletes the key if it has this value."""
    named = {'key': _encoded(key)}
    same = {'result': 'EQUAL', 'target': 'VALUE', 'value': _encoded(token)}
    return {
        'compare': [{**named, **same}],
        'success': [{'request_delete_range': named}],
    }


def _encoded(raw: bytes) -> str:
    return base64.b64encode(raw).decode('ascii')
