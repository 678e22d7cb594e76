# SPDX-License-Identifier: Apache-2.0
"""A client of ZooKeeper is back as soon as its server is.

The other backends have no connection that waits longer and longer.
"""

import pathlib

import pytest

from hashring.clock import SystemClock
from hashring.group import Member
from hashring.membership import Membership, new_boot
from hashring.ring import Host
from tests.contract.coordination import servers
from tests.contract.coordination.backends import persist

CLOCK = SystemClock()
HOST = Host('c1')

pytestmark = pytest.mark.slow


def test_zookeeper_that_was_away_for_long_is_found_soon(
    tmp_path: pathlib.Path,
) -> None:
    """kazoo alone waits for as long again as the server was away."""
    kind = servers.KINDS['zookeeper']
    if not kind.installed():
        pytest.skip('ZooKeeper is not installed')
    server = servers.Server(kind, tmp_path)
    server.start()
    boot = new_boot()
    group = Membership(server.url, 'pool', HOST, boot, term_s=3.0)
    me = Member(HOST, boot, machine='here', known=(HOST,))
    persist(group.connect)
    group.join(me)
    server.stop()
    CLOCK.sleep(14.0)
    server.start()
    began_s = CLOCK.now_s()
    persist(lambda: group.join(me))
    assert CLOCK.now_s() - began_s < 4.0
    group.close(leave=True, timeout_s=5.0)
    server.stop()
