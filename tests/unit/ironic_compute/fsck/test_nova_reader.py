# SPDX-License-Identifier: Apache-2.0
"""What fsck reads of Nova in pages."""

import datetime
import types
from typing import Any

import pytest
from nova.compute import vm_states

from ironic_compute.fsck.nova_reader import RECORDS_PER_RPC, NovaReader
from tests.fakes.clock import ManualClock

NEWEST = datetime.datetime(2026, 1, 31, 18, tzinfo=datetime.UTC)


def _build(number: int) -> Any:
    """Return a build without a host; one of a higher number is older."""
    return types.SimpleNamespace(
        uuid=f'{number:036}',
        host=None,
        node=None,
        vm_state=vm_states.BUILDING,
        task_state='scheduling',
        deleted=False,
        created_at=NEWEST - datetime.timedelta(seconds=number),
        updated_at=None,
        deleted_at=None,
        flavor=types.SimpleNamespace(extra_specs={}),
    )


class Servers:
    """Nova's list of servers, with its order and its limit."""

    def __init__(self, servers: list[Any]) -> None:
        self.servers = servers

    def list(
        self,
        context: Any,
        filters: Any,
        sort_key: str = 'created_at',
        sort_dir: str = 'desc',
        limit: int | None = None,
        marker: str | None = None,
        expected_attrs: Any = None,
    ) -> list[Any]:
        """Return a page."""
        found = [] if filters['host'] is not None else self.servers
        found = sorted(
            found,
            key=lambda each: getattr(each, sort_key),
            reverse=sort_dir == 'desc',
        )
        uuids = [each.uuid for each in found]
        start = 0 if marker is None else uuids.index(marker) + 1
        return found[start:][:limit]


def test_lost_build_is_read_beside_many_newer_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A page has the newest ones, unless another order is requested."""
    count = 2 * RECORDS_PER_RPC + 1
    servers = Servers([_build(number) for number in range(count)])
    monkeypatch.setattr(
        'nova.objects.InstanceList.get_by_filters', servers.list
    )
    rows: Any = None
    reader = NovaReader(rows, ManualClock(), lambda sentence: None)
    assert len(reader.read_servers(['c1'])) == count
