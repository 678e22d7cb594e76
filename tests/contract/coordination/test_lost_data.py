# SPDX-License-Identifier: Apache-2.0
"""A backend whose disk is empty after a restart is filled again.

Redis and memcached, which keep nothing, are in `test_group`.
"""

import pathlib
from collections.abc import Iterator

import pytest

from hashring.group import Member
from hashring.membership import Membership, new_boot
from hashring.ring import Host
from tests.contract.coordination import servers
from tests.contract.coordination.backends import TERM_S, persist

HOST = Host('c1')

pytestmark = pytest.mark.slow


@pytest.fixture(params=('etcd', 'zookeeper'))
def server(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path
) -> Iterator[servers.Server]:
    kind = servers.KINDS[request.param]
    if not kind.installed():
        pytest.skip(f'{request.param} is not installed')
    made = servers.Server(kind, tmp_path)
    made.start()
    yield made
    made.stop()


def test_backend_that_has_lost_its_data_is_joined_again(
    server: servers.Server,
) -> None:
    """The same connection gets an entry and a lock again.

    A ZooKeeper refuses clients that have read newer data than it has.
    """
    boot = new_boot()
    me = Member(HOST, boot, machine='here', known=(HOST,))
    group = Membership(server.url, 'pool', HOST, boot, term_s=TERM_S)
    persist(group.connect)
    persist(lambda: group.join(me))
    for _ in range(10):
        group.heartbeat()
    assert group.try_lock(HOST)
    server.stop()
    server.lose_data()
    server.start()
    persist(lambda: group.join(me))
    persist(group.heartbeat)
    assert group.members() == (me,)
    assert not group.owns_lock(HOST)
    group.release(HOST)
    assert group.try_lock(HOST)
    group.close(leave=True, timeout_s=5.0)
