# SPDX-License-Identifier: Apache-2.0
"""A memcached that is full drops what nobody has used for long."""

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence

import pytest
from pymemcache.client.base import Client  # type: ignore[import-untyped]
from pymemcache.exceptions import (  # type: ignore[import-untyped]
    MemcacheServerError,
)

from hashring.clock import SystemClock
from hashring.group import Member
from hashring.membership import Membership, new_boot, read_pools
from hashring.ring import Host
from tests.contract.coordination.backends import persist
from tests.contract.coordination.servers import KINDS, Server

CLOCK = SystemClock()
HOST = Host('c1')
MEMCACHED = KINDS['memcached']
# memcached keeps items of similar sizes together, and drops one of these.
ITEMS_COUNT, ITEM_BYTES, MEMORY_MIB = 120_000, (1, 20, 45), 2
# A name with which the list of groups has a size that no other item has.
LONG_NAME = 'p' * 150
# Items that were written in the last seconds are not dropped.
PAUSE_S, ROUNDS_COUNT = 0.5, 20

pytestmark = pytest.mark.skipif(
    not MEMCACHED.installed(), reason='memcached is not installed'
)


def _refusing(folder: pathlib.Path, port: int) -> Sequence[str]:
    """Return the command of a server that drops nothing, and takes no more."""
    return (*_small(folder, port), '-M')


def _small(folder: pathlib.Path, port: int) -> Sequence[str]:
    return (*MEMCACHED.command(folder, port), '-m', str(MEMORY_MIB))


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[Server]:
    made = Server(dataclasses.replace(MEMCACHED, command=_small), tmp_path)
    made.start()
    yield made
    made.stop()


def test_group_is_listed_while_others_fill_the_memory(server: Server) -> None:
    """An operator's tool and other pools must find it."""
    boot = new_boot()
    group = Membership(server.url, 'pool', HOST, boot, term_s=15.0)
    me = Member(HOST, boot, marks=())
    persist(group.connect)
    group.join(me)
    assert group.try_lock(HOST)
    client = Client(('127.0.0.1', server.port))
    for number in range(ITEMS_COUNT):
        size_bytes = ITEM_BYTES[number % len(ITEM_BYTES)]
        client.set(f'key-{number}', bytes(size_bytes))
        if number % (ITEMS_COUNT // ROUNDS_COUNT) == 0:
            group.heartbeat()
            CLOCK.sleep(PAUSE_S)
    client.get('key')  # Its answer follows all writes.
    group.heartbeat()
    assert group.owns_lock(HOST)
    assert read_pools(server.url, term_s=15.0) == {'pool': (me,)}


def test_group_that_was_dropped_from_the_list_is_added(
    server: Server,
) -> None:
    """The daemon that made the group may have been killed before that."""
    boot = new_boot()
    group = Membership(server.url, 'pool', HOST, boot, term_s=15.0)
    me = Member(HOST, boot, marks=())
    persist(group.connect)
    group.join(me)
    Client(('127.0.0.1', server.port)).delete(
        '_TOOZ_GROUP_LIST', noreply=False
    )
    assert read_pools(server.url, term_s=15.0) == {}
    group.heartbeat()
    assert read_pools(server.url, term_s=15.0) == {'pool': (me,)}


def test_lease_is_renewed_though_the_group_cannot_be_listed(
    tmp_path: pathlib.Path,
) -> None:
    """A server that is full refuses the list, and takes smaller items."""
    server = Server(
        dataclasses.replace(MEMCACHED, command=_refusing), tmp_path
    )
    server.start()
    try:
        _heartbeat_without_list(server)
    finally:
        server.stop()


def _heartbeat_without_list(server: Server) -> None:
    boot = new_boot()
    group = Membership(server.url, LONG_NAME, HOST, boot, term_s=15.0)
    me = Member(HOST, boot, marks=())
    persist(group.connect)
    group.join(me)
    client = Client(('127.0.0.1', server.port))
    client.delete('_TOOZ_GROUP_LIST', noreply=False)
    for size_bytes in range(len(LONG_NAME), len(LONG_NAME) + 80, 20):
        with pytest.raises(MemcacheServerError, match='out of memory'):
            for number in range(ITEMS_COUNT):
                key = f'key-{size_bytes}-{number}'
                client.set(key, bytes(size_bytes), noreply=False)
    group.heartbeat()
    assert group.members() == (me,)
