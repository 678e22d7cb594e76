# SPDX-License-Identifier: Apache-2.0
"""The records of a server that have its availability zone."""

import types
from collections.abc import Callable
from typing import Any

import pytest
from nova import exception, objects

from hashring.ring import Host
from ironic_compute.ownership.zone_change import change_zone

objects.register_all()
Change = Callable[[], types.SimpleNamespace]


@pytest.fixture
def saved() -> list[str]:
    """Return a list that grows by the zone of each saved request spec."""
    return []


@pytest.fixture
def spec(saved: list[str]) -> types.SimpleNamespace:
    """Return the request spec of a server."""
    made = types.SimpleNamespace(availability_zone='zone-1')
    made.save = lambda: saved.append(made.availability_zone)
    return made


@pytest.fixture
def change(
    monkeypatch: pytest.MonkeyPatch, spec: types.SimpleNamespace
) -> Change:
    """Return what moves server s1 to a host of zone-2."""
    zone = types.SimpleNamespace(
        name='b', hosts=['c2'], metadata={'availability_zone': 'zone-2'}
    )
    monkeypatch.setattr(
        objects.AggregateList, 'get_all', lambda context: [zone]
    )

    def read(context: Any, server: str) -> types.SimpleNamespace:
        if server != 's1' or spec.availability_zone == 'none':
            raise exception.RequestSpecNotFound(instance_uuid=server)
        return spec

    monkeypatch.setattr(objects.RequestSpec, 'get_by_instance_uuid', read)

    def act() -> types.SimpleNamespace:
        server = types.SimpleNamespace(uuid='s1', availability_zone='zone-1')
        change_zone(server, Host('c2'))
        return server

    return act


def test_requested_zone_is_the_new_one(
    change: Change, saved: list[str]
) -> None:
    """Otherwise no host would fit for a rebuild."""
    assert change().availability_zone == 'zone-2'
    assert saved == ['zone-2']


@pytest.mark.parametrize('zone', [None, 'zone-2', 'none'])
def test_spec_without_another_zone_is_not_saved(
    change: Change,
    spec: types.SimpleNamespace,
    saved: list[str],
    zone: str | None,
) -> None:
    """The user has requested none, or an earlier try has saved it."""
    spec.availability_zone = zone
    assert change().availability_zone == 'zone-2'
    assert not saved
