# SPDX-License-Identifier: Apache-2.0
"""Etcd locks: owner, token, break and renewal, which tooz has no calls for.

The value of a lock's key in etcd is the token of one lock object of tooz, so
the token names one acquisition. tooz compares it only at a release:
``acquired`` stays True after another process has taken the lock, and
``break_`` frees the lock even if another process holds it.

`hashring.membership` alone calls these functions. They read private
attributes of tooz, and no other module reads those:
``tests/contract/coordination/test_private_attributes.py`` fails when a
release of tooz drops or renames one. All but `token` and `stop_renewing`
block for one request.
"""

import base64
from typing import Any

from hashring.group import LockToken


def is_owner(driver: Any, lock: Any) -> bool:
    """Return whether the lock's key in etcd has the token of ``lock``.

    :param driver: tooz's ``Etcd3Driver``
    :param lock: tooz's ``Etcd3Lock``
    """
    values: list[bytes] = driver.client.get(lock._key.decode())
    return base64.b64decode(lock._uuid) in values


def token(lock: Any) -> LockToken:
    """Return the token that ``lock`` writes when it is acquired, in base64."""
    return LockToken(lock._uuid)


def break_lock(driver: Any, lock: Any, token: LockToken) -> None:
    """Delete the key of ``lock`` if its value is ``token``."""
    named = {'key': base64.b64encode(lock._key).decode('ascii')}
    same = {'result': 'EQUAL', 'target': 'VALUE', 'value': token}
    driver.client.transaction(
        {
            'compare': [{**named, **same}],
            'success': [{'request_delete_range': named}],
        }
    )


def stop_renewing(driver: Any, lock: Any) -> None:
    """Remove a released lock from the locks that each heartbeat renews.

    ``Etcd3Lock.release`` does not remove it if another process had taken the
    lock before the release.
    """
    driver._acquired_locks.discard(lock)
