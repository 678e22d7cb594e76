# SPDX-License-Identifier: Apache-2.0
"""The config drive: what cloud-init reads at the first boot.

Ironic builds the image itself from a description (its API 1.56), so this
machine needs no external program. Only what the description cannot carry
(injected files, user data that is no text, a vendor data file) or an older
Ironic makes us build an image with Nova's own builder, which needs
``[DEFAULT] mkisofs_cmd``.
"""

import base64
import gzip
import json
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

from nova.api.metadata import base as nova_metadata
from nova.virt import configdrive as nova_configdrive
from nova.virt import netutils

from ironic_compute.driver import network_data
from ironic_compute.ironic_api.client import IronicClient
from resource_tracker.node import NodeId

_DESCRIPTION_SINCE = (1, 56)

Drive = Mapping[str, Any] | bytes


def build(
    client: IronicClient,
    node: NodeId,
    instance: Any,
    network_info: Any,
    files: Any,
    password: str | None,
) -> Drive | None:
    """Return a server's config drive, None if it wants none.

    :param files: pairs of path and content to inject
    :param password: of the administrator
    """
    if not nova_configdrive.required_by(instance):
        return None
    devices = network_data.describe(
        netutils.get_network_metadata(network_info), client, node
    )
    metadata = nova_metadata.InstanceMetadata(
        instance,
        content=files,
        extra_md={'admin_pass': password} if password else {},
        network_info=network_info,
        network_metadata=devices,
    )
    if client.microversion() >= _DESCRIPTION_SINCE:
        described = describe(metadata)
        if described is not None:
            return described
    return _image(metadata)


def describe(metadata: Any) -> Mapping[str, Any] | None:
    """Return the description for Ironic, None if it would lose something.

    :param metadata: Nova's ``InstanceMetadata``
    """
    user_data = _text(metadata.userdata_raw)
    is_lossy = metadata.userdata_raw is not None and user_data is None
    if is_lossy or metadata.content or _read(metadata, 'vendor_data.json'):
        return None
    parts = {
        'meta_data': _read(metadata, 'meta_data.json'),
        'network_data': _read(metadata, 'network_data.json'),
        'vendor_data': _read(metadata, 'vendor_data2.json'),
        'user_data': user_data,
    }
    return {name: part for name, part in parts.items() if part}


def _read(metadata: Any, name: str) -> Any:
    return json.loads(metadata.lookup(f'/openstack/latest/{name}'))


def _text(raw: bytes | None) -> str | None:
    try:
        return None if raw is None else raw.decode()
    except UnicodeDecodeError:
        return None


def _image(metadata: Any) -> bytes:
    """Build the image here; Ironic wants it compressed and in base64."""
    with (
        tempfile.NamedTemporaryFile() as file,
        nova_configdrive.ConfigDriveBuilder(instance_md=metadata) as builder,
    ):
        builder.make_drive(file.name)
        image = pathlib.Path(file.name).read_bytes()
    return base64.b64encode(gzip.compress(image))
