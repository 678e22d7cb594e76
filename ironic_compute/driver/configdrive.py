# SPDX-License-Identifier: Apache-2.0
"""The config drive of a server, which cloud-init reads at the first boot.

Since its API 1.56, Ironic builds the image of the config drive from a JSON
description, so this machine needs no external program. With an older Ironic,
or for data that the description cannot carry (injected files, binary user
data, a vendor data file), Nova's builder makes the image on this machine; it
needs ``[DEFAULT] mkisofs_cmd``. The description lacks the folder ``ec2/``;
``[ironic_compute] full_config_drives`` has Nova's builder make all images.
"""

import base64
import gzip
import json
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

import nova.conf
from nova.api.metadata import base as nova_metadata
from nova.virt import configdrive as nova_configdrive
from nova.virt import netutils

from ironic_compute.driver import network_data
from ironic_compute.driver.build_request import BuildRequest
from ironic_compute.driver.config_drive_hooks import ConfigDriveHooks
from ironic_compute.ironic_api.client import IronicClient

CONF = nova.conf.CONF

_JSON_MICROVERSION = (1, 56)
_VENDOR_DATA_MICROVERSION = (1, 59)

# A JSON description, or an image (gzip in base64).
ConfigDrive = Mapping[str, Any] | bytes


class DriveMetadata(nova_metadata.InstanceMetadata):
    """Nova's metadata of a server, which always has a ``vendor_data.json``.

    Nova leaves that file out if ``[api] vendordata_providers`` lacks
    StaticJSON, but Nova's builder of images reads it, and would fail.
    """

    def lookup(self, path: str) -> Any:
        """Return the content of a file; an empty ``vendor_data.json`` if none.

        :raises InvalidMetadataPath: there is no such file
        """
        try:
            return super().lookup(path)
        except nova_metadata.InvalidMetadataPath:
            if path.rpartition('/')[2] != nova_metadata.VD_JSON_NAME:
                raise
            return b'{}'


def build(
    client: IronicClient,
    request: BuildRequest,
    hooks: ConfigDriveHooks | None = None,
) -> ConfigDrive | None:
    """Build a config drive; return None if the server needs none.

    :param hooks: change the contents; None changes nothing
    :raises errors.DeployInvalid: a hook failed
    """
    instance, node = request.instance, request.node
    if not nova_configdrive.required_by(instance):
        return None
    hooks = hooks or ConfigDriveHooks()
    links = network_data.with_node_links(
        netutils.get_network_metadata(request.network_info), client, node
    )
    if links is not None:
        links = hooks.change_network_data(links, instance, node)
    extra = hooks.extra_metadata(instance, node)
    if request.password:
        extra['admin_pass'] = request.password
    metadata = DriveMetadata(
        instance,
        content=[*(request.files or ()), *hooks.extra_files(instance, node)],
        extra_md=extra,
        network_info=request.network_info,
        network_metadata=links,
    )
    description = describe_for(metadata, client.read_microversion())
    return _build_image(metadata) if description is None else description


def describe_for(
    metadata: Any, microversion: tuple[int, int]
) -> Mapping[str, Any] | None:
    """Return the JSON description; None if Nova must build an image.

    :param metadata: Nova's ``InstanceMetadata``
    :param microversion: the highest one that Ironic and this client share
    """
    is_full = CONF.ironic_compute.full_config_drives
    if is_full or microversion < _JSON_MICROVERSION:
        return None
    return describe(metadata, microversion >= _VENDOR_DATA_MICROVERSION)


def describe(
    metadata: Any, takes_vendor_data: bool = True
) -> Mapping[str, Any] | None:
    """Return the JSON description; None if it cannot carry all data.

    :param metadata: Nova's ``InstanceMetadata``
    :param takes_vendor_data: False: Ironic refuses vendor data
    """
    user_data = _decode(metadata.userdata_raw)
    is_binary = metadata.userdata_raw is not None and user_data is None
    if is_binary or metadata.content or _load(metadata, 'vendor_data.json'):
        return None
    vendor_data = _load(metadata, 'vendor_data2.json')
    if not takes_vendor_data:
        if any(vendor_data.values()):
            return None
        vendor_data = None
    parts = {
        'meta_data': _load(metadata, 'meta_data.json'),
        'network_data': _load(metadata, 'network_data.json'),
        'vendor_data': vendor_data,
        'user_data': user_data,
    }
    return {name: part for name, part in parts.items() if part}


def _load(metadata: Any, name: str) -> Any:
    return json.loads(metadata.lookup(f'/openstack/latest/{name}'))


def _decode(raw: bytes | None) -> str | None:
    """Return user data as text; None if there is none, or if it is binary."""
    try:
        return None if raw is None else raw.decode()
    except UnicodeDecodeError:
        return None


def _build_image(metadata: Any) -> bytes:
    """Build the image with Nova; Ironic expects gzip in base64."""
    with (
        tempfile.NamedTemporaryFile() as file,
        nova_configdrive.ConfigDriveBuilder(instance_md=metadata) as builder,
    ):
        builder.make_drive(file.name)
        image = pathlib.Path(file.name).read_bytes()
    return base64.b64encode(gzip.compress(image))
