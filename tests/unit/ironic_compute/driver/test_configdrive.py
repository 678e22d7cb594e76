# SPDX-License-Identifier: Apache-2.0
"""The JSON description of a config drive."""

import json
from typing import Any

import nova.conf

from ironic_compute import opts
from ironic_compute.driver import configdrive

CONF = nova.conf.CONF


class _Metadata:
    """The members of Nova's InstanceMetadata that the driver uses."""

    def __init__(
        self,
        user_data: bytes | None = None,
        content: dict[str, bytes] | None = None,
        vendor_data: dict[str, Any] | None = None,
    ) -> None:
        self.userdata_raw = user_data
        self.content = content or {}
        self._files = {
            'meta_data.json': {'uuid': 'u', 'hostname': 'one'},
            'network_data.json': {},
            'vendor_data.json': vendor_data or {},
            'vendor_data2.json': {'static': {}},
        }

    def lookup(self, path: str) -> bytes:
        """Return the content of a file of the metadata service."""
        return json.dumps(self._files[path.rpartition('/')[2]]).encode()


def test_description_has_all_parts_that_are_not_empty():
    """The description leaves out the parts that are empty."""
    assert configdrive.describe(_Metadata(b'#cloud-config')) == {
        'meta_data': {'uuid': 'u', 'hostname': 'one'},
        'vendor_data': {'static': {}},
        'user_data': '#cloud-config',
    }


def test_nova_builds_the_image_for_an_old_ironic_or_on_request():
    """``full_config_drives`` gives each config drive its folder ``ec2/``.

    Ironic's own builder writes the folder ``openstack/`` only.
    """
    opts.register_opts(CONF)
    metadata = _Metadata()
    assert configdrive.describe_for(metadata, (1, 55)) is None
    assert 'vendor_data' not in configdrive.describe_for(metadata, (1, 56))
    assert 'vendor_data' in configdrive.describe_for(metadata, (1, 59))
    CONF.set_override('full_config_drives', True, opts.GROUP)
    try:
        assert configdrive.describe_for(metadata, (1, 95)) is None
    finally:
        CONF.clear_override('full_config_drives', opts.GROUP)


def test_vendor_data_is_left_out_if_ironic_does_not_take_it():
    """Ironic's API 1.56 to 1.58 takes a description without vendor data.

    Nova's own vendor data without an entry of the operator carries nothing.
    """
    metadata = _Metadata()
    description = configdrive.describe(metadata, takes_vendor_data=False)
    assert set(description) == {'meta_data'}
    metadata._files['vendor_data2.json'] = {'static': {'a': 1}}
    assert configdrive.describe(metadata)['vendor_data']
    assert configdrive.describe(metadata, takes_vendor_data=False) is None


def test_no_description_for_data_that_it_cannot_carry():
    """Binary user data, files or vendor data need an image from Nova."""
    assert configdrive.describe(_Metadata(b'\x1f\x8b\xff')) is None
    assert configdrive.describe(_Metadata(content={'0000': b'x'})) is None
    assert configdrive.describe(_Metadata(vendor_data={'a': 1})) is None
