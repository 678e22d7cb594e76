# SPDX-License-Identifier: Apache-2.0
"""Events of Neutron and Cinder that are no faults on bare metal."""

import logging
import types
from typing import Any

import pytest
from nova import objects
from nova.compute import manager as nova_manager
from nova.compute import utils as compute_utils

from ironic_compute.manager.attachments import WaitingAttachments

objects.register_all()


@pytest.mark.parametrize(
    ('name', 'status', 'is_warned'),
    [
        ('network-vif-plugged', 'completed', False),
        ('network-vif-unplugged', 'completed', False),
        ('network-vif-plugged', 'failed', True),
    ],
)
def test_ports_that_ironic_binds_are_expected(
    name: str, status: str, is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Nova warned of each port of each deploy: no thread waits for it."""
    manager: Any = object.__new__(WaitingAttachments)
    manager.instance_events = nova_manager.InstanceEvents()
    server = objects.Instance(
        uuid='s1', vm_state='building', task_state='spawning'
    )
    event = objects.InstanceExternalEvent(
        name=name, instance_uuid='s1', tag='p1', status=status
    )
    with caplog.at_level(logging.WARNING):
        manager.external_instance_event(None, [server], [event])
    messages = [record.getMessage() for record in caplog.records]
    assert any('unexpected event' in each for each in messages) is is_warned


def test_extended_volume_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server's action had an error, and its last fault was replaced.

    Cinder has done all there is to do: no hypervisor has to pass the new size
    on.
    """
    ends: list[Any] = []
    device = types.SimpleNamespace(
        volume_id='v1', connection_info='{}', save=lambda: None
    )
    for owner, name, result in (
        (objects.InstanceActionEvent, 'event_start', None),
        (objects.BlockDeviceMapping, 'get_by_volume_and_instance', device),
    ):
        monkeypatch.setattr(owner, name, lambda *_, found=result, **__: found)
    monkeypatch.setattr(
        objects.InstanceActionEvent,
        'event_finish_with_failure',
        lambda *_, exc_val=None, **__: ends.append(exc_val),
    )
    monkeypatch.setattr(
        compute_utils, 'add_instance_fault_from_exc', lambda *_: ends.append(_)
    )
    manager: Any = object.__new__(WaitingAttachments)
    manager.host = 'c1'
    manager.volume_api = types.SimpleNamespace(get=lambda *_: {'size': 20})
    manager.driver = types.SimpleNamespace(capabilities={})
    server = objects.Instance(uuid='s1')
    event = objects.InstanceExternalEvent(
        name='volume-extended', instance_uuid='s1', tag='v1'
    )
    with caplog.at_level(logging.INFO):
        manager.external_instance_event(None, [server], [event])
    assert {record.levelname for record in caplog.records} == {'INFO'}
    assert ends == [None]
    assert device.volume_size == 20
