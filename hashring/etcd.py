# SPDX-License-Identifier: Apache-2.0
"""What tooz does not ask etcd about a lock.

The value of a lock's key is a token that one lock object of tooz made, so it
names an acquisition. tooz has no question for it: its ``acquired`` stays
True for a lock that somebody else has by now, and its ``break_`` frees the
lock of whoever has it.
"""

import base64
from typing import Any

from hashring.group import LockToken


def owns(client: Any, lock: Any) -> bool:
    """Whether the lock is there with this very object's token.

    :param client: etcd3gw's
    :param lock: tooz's ``Etcd3Lock``
    """
    found: list[bytes] = client.get(lock._key.decode())
    return base64.b64decode(lock._uuid) in found


def token(lock: Any) -> LockToken:
    """What this object's acquisition is called, in base64."""
    return LockToken(lock._uuid)


def break_lock(client: Any, lock: Any, token: LockToken) -> None:
    """Delete the lock's key if its value is this token."""
    named = {'key': base64.b64encode(lock._key).decode('ascii')}
    same = {'result': 'EQUAL', 'target': 'VALUE', 'value': token}
    client.transaction(
        {
            'compare': [{**named, **same}],
            'success': [{'request_delete_range': named}],
        }
    )
