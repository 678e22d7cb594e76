# SPDX-License-Identifier: Apache-2.0
"""The reasons for unsupported operations are in the manual."""

import functools
import pathlib
import re
import types

import pytest
from nova import exception as nova_exception
from nova import objects, safe_utils
from nova.compute import manager as nova_manager

from ironic_compute.manager import unsupported
from ironic_compute.manager.refusals import REASONS
from ironic_compute.manager.unsupported import UnsupportedOperations
from tests.fakes.clock import ManualClock

from ..driver import fake

objects.register_all()

MANUAL = (
    pathlib.Path(__file__).resolve().parents[4]
    / 'doc/source/admin/supported.rst'
)


@pytest.mark.parametrize('name', REASONS)
def test_manual_has_each_reason(name):
    """The manual has the reason of each refusal, word for word."""
    manual = re.sub(r'\s+', ' ', MANUAL.read_text())
    assert REASONS[name] in manual


@pytest.mark.parametrize('name', REASONS)
def test_each_reason_has_an_alternative(name):
    """A reason is one sentence with an alternative after a semicolon."""
    assert REASONS[name].count(';') == 1
    assert '.' not in REASONS[name]


@pytest.mark.parametrize('name', sorted(set(REASONS) - {'evacuate'}))
def test_each_reason_belongs_to_a_method(name):
    """Each reason belongs to a method that refuses an operation."""
    assert callable(getattr(UnsupportedOperations, name))


@pytest.mark.parametrize('by_position', [False, True])
def test_rebuild_without_a_boot_volume_reaches_nova(by_position, monkeypatch):
    """The arguments of a rebuild are found by name and by position."""
    values = dict.fromkeys(unsupported._REBUILD_ARGS) | {'recreate': False}
    root = objects.BlockDeviceMapping(
        boot_index=0, destination_type='local', source_type='image'
    )
    values['bdms'] = objects.BlockDeviceMappingList(objects=[root])
    rebuilt = []
    monkeypatch.setattr(
        nova_manager.ComputeManager,
        'rebuild_instance',
        lambda self, context, instance, *args, **kwargs: rebuilt.append(
            args or kwargs
        ),
    )

    class _Manager(UnsupportedOperations, nova_manager.ComputeManager):
        """A manager without the other classes of this package."""

    manager = object.__new__(_Manager)
    if by_position:
        manager.rebuild_instance(None, None, *values.values())
        assert rebuilt == [tuple(values.values())]
    else:
        manager.rebuild_instance(None, None, **values)
        assert rebuilt == [values]


@pytest.mark.parametrize('certs', [None, ['one']])
def test_rebuild_with_certificates_is_not_begun(certs):
    """Nova would put the server to ERROR, with its disk as it was."""
    manager = object.__new__(nova_manager.ComputeManager)
    found = functools.partial(UnsupportedOperations._find_image_error, manager)
    manager._read_image = lambda *args: None
    manager.clock = ManualClock()
    manager.driver = types.SimpleNamespace(capabilities={})
    server = fake.unsaved_server(
        image_ref='new',
        task_state='rebuilding',
        trusted_certs=certs and objects.TrustedCerts(ids=certs),
    )
    error = found(None, server, 'new')
    assert ('certificate' in str(error)) is bool(certs), error


def test_refused_rebuild_of_a_volume_saves_only_over_its_own_task():
    """Carried out late, the save would undo the one of a later rebuild."""
    saved = []
    server = types.SimpleNamespace(
        uuid='s1',
        system_metadata={'image_min_ram': '1'},
        save=lambda **expected: saved.append(expected),
    )
    unsupported._restore_metadata(
        server, {'orig_sys_metadata': {'image_min_ram': '0'}}
    )
    assert saved == [{'expected_task_state': ['rebuilding']}]
    assert server.system_metadata == {'image_min_ram': '0'}


class _Cinder:
    """Cinder with a volume of a server, and one to replace it."""

    def __init__(self, migration_status, *, has_attachment=True):
        self.volume = {'id': 'v1', 'migration_status': migration_status}
        self.has_attachment = has_attachment
        self.done = []

    def get(self, context, volume):
        """Return the volume of the server."""
        return self.volume

    def attachment_delete(self, context, attachment):
        """Delete the attachment of the new volume."""
        if not self.has_attachment:
            raise nova_exception.VolumeAttachmentNotFound(
                attachment_id=attachment
            )
        self.done.append(('attachment_delete', attachment))

    def __getattr__(self, name):
        return lambda context, *args, **kwargs: self.done.append(
            (name, *args, *kwargs.items())
        )


_END = ('migrate_volume_completion', 'v1', 'v2', ('error', True))


@pytest.mark.parametrize(
    ('status', 'has_attachment', 'expected'),
    [
        (None, True, [('attachment_delete', 'a2')]),
        ('migrating', True, [('attachment_delete', 'a2'), _END]),
        ('migrating', False, [_END]),
        ('error', False, []),
    ],
)
def test_cinder_is_told_that_a_volume_is_not_migrated(
    status, has_attachment, expected
):
    """Otherwise it would be "retyping" for ever, and the new volume stay."""
    manager = object.__new__(UnsupportedOperations)
    manager.volume_api = _Cinder(status, has_attachment=has_attachment)
    refuse = safe_utils.get_wrapped_function(UnsupportedOperations.swap_volume)
    with pytest.raises(nova_exception.NovaException, match='be replaced'):
        refuse(manager, None, 'v1', 'v2', fake.server(), 'a2')
    assert manager.volume_api.done == [('roll_detaching', 'v1'), *expected]
