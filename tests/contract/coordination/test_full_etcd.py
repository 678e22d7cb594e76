# SPDX-License-Identifier: Apache-2.0
"""An etcd that has reached its quota refuses writes, and renews leases."""

import base64
import dataclasses
import pathlib
from collections.abc import Iterator, Sequence

import pytest
import requests

from hashring import errors
from hashring.group import Member
from hashring.membership import Membership, new_boot, read_pools
from hashring.ring import Host
from tests.contract.coordination.backends import persist
from tests.contract.coordination.servers import KINDS, Server

HOST = Host('c1')
ETCD = KINDS['etcd']
QUOTA_BYTES, VALUE_BYTES = 1_000_000, 100_000

pytestmark = pytest.mark.skipif(
    not ETCD.installed(), reason='etcd is not installed'
)


def _small(folder: pathlib.Path, port: int) -> Sequence[str]:
    return (
        *ETCD.command(folder, port),
        f'--quota-backend-bytes={QUOTA_BYTES}',
    )


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[Server]:
    made = Server(dataclasses.replace(ETCD, command=_small), tmp_path)
    made.start()
    yield made
    made.stop()


def _fill(place: str) -> None:
    """Write until etcd refuses it."""
    value = base64.b64encode(bytes(VALUE_BYTES)).decode()
    for number in range(10 * QUOTA_BYTES // VALUE_BYTES):
        key = base64.b64encode(str(number).encode()).decode()
        answer = requests.post(
            f'http://{place}/v3/kv/put',
            json={'key': key, 'value': value},
            timeout=30.0,
        )
        if answer.status_code != requests.codes['ok']:
            return
    raise AssertionError('etcd has refused nothing')


def test_full_etcd_keeps_the_lease_and_says_what_is_wrong(
    server: Server,
) -> None:
    """The heartbeat renews what an agent has; its record stays the former."""
    boot = new_boot()
    group = Membership(server.url, 'pool', HOST, boot, term_s=15.0)
    me = Member(HOST, boot, marks=())
    persist(group.connect)
    group.join(me)
    assert group.try_lock(HOST)
    _fill(server.place)
    with pytest.raises(errors.RequestRefused, match='space exceeded'):
        group.publish(dataclasses.replace(me, ring='digest'))
    group.heartbeat()
    assert group.members() == (me,)
    assert group.owns_lock(HOST) and not group.lost_locks()
    group.release(HOST)
    with pytest.raises(errors.RequestRefused, match='space exceeded'):
        group.try_lock(HOST)


def test_command_says_that_etcd_is_full(server: Server) -> None:
    """A reader needs a lease of etcd, too, which a full one does not give."""
    _fill(server.place)
    with pytest.raises(
        errors.BackendUnavailable, match=r'refuses .* disarm its alarm'
    ):
        read_pools(server.url, term_s=15.0)
