# SPDX-License-Identifier: Apache-2.0
"""The records of a server that have its availability zone."""

import types
from collections.abc import Callable
from typing import Any

import oslo_messaging
import pytest
from nova import exception, objects

from hashring.ring import Host
from ironic_compute.ownership.zone_change import (
    change_or_restore,
    change_zone,
)

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
    zones = [
        types.SimpleNamespace(
            hosts=[host], metadata={'availability_zone': zone}
        )
        for host, zone in (('c1', 'zone-1'), ('c2', 'zone-2'))
    ]
    monkeypatch.setattr(
        objects.AggregateList, 'get_all', lambda context: zones
    )

    def read(context: Any, server: str) -> types.SimpleNamespace:
        if server != 's1' or spec.availability_zone == 'none':
            raise exception.RequestSpecNotFound(instance_uuid=server)
        return spec

    monkeypatch.setattr(objects.RequestSpec, 'get_by_instance_uuid', read)

    def act() -> types.SimpleNamespace:
        server = types.SimpleNamespace(
            uuid='s1', availability_zone='zone-1', host=Host('c1')
        )
        change_or_restore(change_zone, server, Host('c2'))
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


@pytest.mark.parametrize('is_done', [True, False])
def test_zone_of_a_save_without_an_answer_is_restored(
    change: Change,
    spec: types.SimpleNamespace,
    saved: list[str],
    caplog: pytest.LogCaptureFixture,
    is_done: bool,
) -> None:
    """Nothing else would set it back, as the server is not moved."""
    save = spec.save

    def save_first() -> None:
        spec.save = save
        save()
        if not is_done:
            spec.availability_zone = 'zone-1'
        raise oslo_messaging.MessagingTimeout('no answer')

    spec.save = save_first
    with pytest.raises(oslo_messaging.MessagingTimeout, match='no answer'):
        change()
    assert spec.availability_zone == 'zone-1'
    assert saved == ['zone-2', 'zone-1'][: 1 + is_done]
    assert not caplog.text


def test_zone_that_cannot_be_restored_either_is_in_the_log(
    change: Change,
    spec: types.SimpleNamespace,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The operator has to move the server again."""

    def lose() -> None:
        raise oslo_messaging.MessagingTimeout('no answer')

    spec.save = lose
    with pytest.raises(oslo_messaging.MessagingTimeout):
        change()
    assert 's1 stays on host c1, and its request spec may' in caplog.text


def test_zone_of_a_host_that_cannot_be_read_changes_nothing(
    change: Change,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A drain would log that every five seconds."""

    def fail(context: Any) -> None:
        raise oslo_messaging.RemoteError('CantStartEngineError')

    monkeypatch.setattr(objects.AggregateList, 'get_all', fail)
    with pytest.raises(oslo_messaging.RemoteError):
        change()
    assert not caplog.text
