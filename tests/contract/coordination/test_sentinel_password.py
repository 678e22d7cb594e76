# SPDX-License-Identifier: Apache-2.0
"""Sentinels with a password of their own, which is not that of Redis."""

import logging
import shutil
from collections.abc import Iterator

import pytest

from hashring import errors
from hashring.group import Member
from hashring.membership import Membership, new_boot
from hashring.ring import Host
from tests.contract.coordination.backends import persist
from tests.contract.coordination.redis_sentinel import RedisSentinel

HOST = Host('c1')
TERM_S = 15.0
# No part of them is in anything else that is logged.
SECRET, SECRET_OF_ALL = 'xq7sesame9', 'yb4poppy2'
# The rights are those that the manual names.
USERS = f'user agents on >{SECRET} -@all +sentinel|masters +sentinel|master\n'

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which('redis-sentinel') is None,
        reason='Sentinel is not installed',
    ),
]

LOGINS = {
    'user': f'sentinel_username=agents&sentinel_password={SECRET}',
    'password alone': f'sentinel_password={SECRET_OF_ALL}',
}
WRONG_LOGINS = {
    'wrong': f'sentinel_username=agents&sentinel_password={SECRET}wrong',
    'wrong password alone': f'sentinel_password={SECRET}',
    'none': '',
}


@pytest.fixture(scope='module')
def sentinel(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RedisSentinel]:
    """A running cluster."""
    made = RedisSentinel(
        tmp_path_factory.mktemp('sentinel'),
        password=SECRET_OF_ALL,
        users=USERS,
    )
    made.start()
    yield made
    made.stop()


def new_group(sentinel: RedisSentinel, login: str) -> Membership:
    url = f'{sentinel.url()}&{login}'.rstrip('&')
    return Membership(url, 'pool', HOST, new_boot(), term_s=TERM_S)


@pytest.mark.parametrize('login', LOGINS.values(), ids=LOGINS)
def test_login_of_the_sentinels(
    sentinel: RedisSentinel, login: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A member joins and has a lock; no log has the password."""
    caplog.set_level(logging.DEBUG)
    group = new_group(sentinel, login)
    persist(group.connect)
    me = Member(HOST, group.boot, machine='here', known=(HOST,))
    group.join(me)
    group.heartbeat()
    assert me in group.members()
    assert group.try_lock(HOST)
    assert group.owns_lock(HOST)
    group.release(HOST)
    group.close(leave=True, timeout_s=5.0)
    for secret in (SECRET, SECRET_OF_ALL):
        assert secret not in caplog.text + repr(group.backend)


@pytest.mark.parametrize('login', WRONG_LOGINS.values(), ids=WRONG_LOGINS)
def test_wrong_login_of_the_sentinels_is_named(
    sentinel: RedisSentinel, login: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The sentence names the options, and no log has the password."""
    caplog.set_level(logging.DEBUG)
    group = new_group(sentinel, login)
    with pytest.raises(errors.BackendUnavailable) as caught:
        group.connect()
    text = str(caught.value)
    assert text.startswith('a Sentinel refuses its user (')
    assert 'correct sentinel_username and sentinel_password in' in text
    assert '[coordination] backend_url' in text
    assert SECRET not in text + caplog.text
