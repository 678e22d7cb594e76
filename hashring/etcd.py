# SPDX-License-Identifier: Apache-2.0
"""Etcd locks: owner, history, token, break, renewal; tooz lacks them.

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
import json
from typing import Any

from hashring.group import LockToken


def owned_at(driver: Any, lock: Any) -> int:
    """Return a revision of etcd at which the key had the token of ``lock``.

    :param driver: tooz's ``Etcd3Driver``
    :param lock: tooz's ``Etcd3Lock``
    :returns: 0 if the key does not have the token now
    """
    client = driver.client
    answer = client.post(client.get_url('/kv/range'), json=_key(lock))
    tokens = {found['value'] for found in answer.get('kvs', ())}
    return int(answer['header']['revision']) if token(lock) in tokens else 0


def is_next_holder(driver: Any, lock: Any, revision: int) -> bool:
    """Return whether no other lock object has held the lock in between.

    :param lock: tooz's ``Etcd3Lock``, which was acquired just now
    :param revision: the revision of etcd after which the history is read;
        etcd may have compacted it, and then the result is False
    """
    client = driver.client
    wanted = {'create_request': {**_key(lock), 'start_revision': revision + 1}}
    with client.session.post(
        client.get_url('/watch'),
        json=wanted,
        timeout=client.timeout,
        stream=True,
    ) as answer:
        for line in filter(None, answer.iter_lines()):
            result = json.loads(line).get('result', {})
            for event in result.get('events', ()):
                # A put has no type, because it is the default.
                if event.get('type', 'PUT') == 'PUT':
                    return bool(event['kv']['value'] == token(lock))
            if result.get('canceled', not result):
                return False
    return False


def _key(lock: Any) -> dict[str, str]:
    return {'key': base64.b64encode(lock._key).decode('ascii')}


def token(lock: Any) -> LockToken:
    """Return the token that ``lock`` writes when it is acquired, in base64."""
    return LockToken(lock._uuid)


def break_lock(driver: Any, lock: Any, token: LockToken) -> None:
    """Delete the key of ``lock`` if its value is ``token``."""
    named = _key(lock)
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
