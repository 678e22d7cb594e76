# SPDX-License-Identifier: Apache-2.0
"""Refused rebuilds: which fields of the Instance get their former values."""

from nova import objects

from ironic_compute.manager.refused_rebuilds import restore_image

objects.register_all()


def test_fields_that_come_from_the_image_are_restored():
    """Other metadata, and what the user changed, stays."""
    instance = objects.Instance(
        image_ref='new',
        kernel_id='new-kernel',
        ramdisk_id='',
        os_type='windows',
        architecture='x86_64',
        vm_mode='hvm',
        display_name='new',
        trusted_certs=objects.TrustedCerts(ids=['one']),
        system_metadata={
            'image_os_type': 'windows',
            'image_base_image_ref': 'new',
            'boot_roles': 'member',
        },
    )
    restore_image(
        instance,
        'former',
        {
            'image_ramdisk_id': 'ramdisk',
            'image_base_image_ref': 'former',
            'boot_roles': 'reader',
        },
    )
    restored = {
        name: getattr(instance, name)
        for name in ('kernel_id', 'ramdisk_id', 'os_type', 'vm_mode')
    }
    assert restored == {
        'kernel_id': '',
        'ramdisk_id': 'ramdisk',
        'os_type': None,
        'vm_mode': None,
    }
    assert (instance.image_ref, instance.display_name) == ('former', 'new')
    assert instance.trusted_certs is None
    assert instance.system_metadata == {
        'image_ramdisk_id': 'ramdisk',
        'image_base_image_ref': 'former',
        'boot_roles': 'member',
    }
