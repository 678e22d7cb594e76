# SPDX-License-Identifier: Apache-2.0
"""A client of ZooKeeper is back as soon as its server is.

The other backends have no connection that waits longer and longer.
"""

import itertools
import logging
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
_KAZOO = 'kazoo.client'
_AWAY_S = 14.0

pytestmark = pytest.mark.slow


def test_zookeeper_that_was_away_for_long_is_found_soon(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """kazoo alone waits for as long again as the server was away.

    The time until it has joined again is not measured: the port accepts
    connections before ZooKeeper serves them, for seconds on a busy machine.
    """
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
    caplog.set_level(logging.INFO, _KAZOO)
    CLOCK.sleep(_AWAY_S)
    server.start()
    persist(lambda: group.join(me))
    assert max(_pauses_s(caplog.records)) < _AWAY_S / 2
    group.close(leave=True, timeout_s=5.0)
    server.stop()


def _pauses_s(records: list[logging.LogRecord]) -> list[float]:
    """Return the seconds before each attempt to connect, since the last one.

    An attempt ends with a record of its own.
    """
    ours = [record for record in records if record.name == _KAZOO]
    return [
        after.created - before.created
        for before, after in itertools.pairwise(ours)
        if after.msg.startswith('Connecting to')
    ]
