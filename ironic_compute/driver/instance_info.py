# SPDX-License-Identifier: Apache-2.0
"""instance_info: the description of a server that is written to its node.

The keys are the ones that Ironic's deploy interfaces read (Ironic's reference
"Deploying with the Bare Metal service") and those that Nova's own driver sets
for operators' tools. All values except the traits are strings. Pure functions;
``deploy`` sends the patches.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import nova.conf
from nova.virt import driver as nova_driver

from ironic_compute.driver.build_request import BuildRequest
from ironic_compute.ironic_api.descriptions import HOST_KEY
from resource_tracker.node import NodeFacts

CONF = nova.conf.CONF

Patch = dict[str, Any]

# Ironic's API returns this in place of a secret.
_MASKED = '******'

# Each deploy notes here whether the image is one of a partition or of a whole
# disk. If a rebuild finds the note, Ironic does not look at the new image, and
# may write a whole disk into a partition, or the other way round.
_FORMER_IMAGE_FIELDS = {'image_type': None}

CLEAR_PATCH: Patch = {'op': 'replace', 'path': '/instance_info', 'value': {}}


def build_patches(
    facts: NodeFacts,
    request: BuildRequest,
    preserve_ephemeral: bool | None = None,
) -> list[Patch]:
    """Return the JSON patches that set ``instance_info`` for a server.

    :param facts: the node
    :param preserve_ephemeral: for a rebuild, whether to keep the ephemeral
        partition; None for a build
    """
    flavor = request.instance.flavor
    values: dict[str, Any] = {}
    if request.image_id is not None:
        values['image_source'] = request.image_id
    values.update(_size_fields(facts, flavor))
    values.update(_owner_fields(request.instance, request.network_info))
    values.update(_ephemeral_fields(flavor, preserve_ephemeral))
    if preserve_ephemeral is not None:
        values.update(_FORMER_IMAGE_FIELDS)
    values.update(
        _requirement_fields(
            flavor.extra_specs or {},
            request.image_meta.properties.get('traits_required', []),
        )
    )
    return [
        {'op': 'add', 'path': f'/instance_info/{key}', 'value': value}
        for key, value in values.items()
    ]


def restoring_patches(
    former: Mapping[str, Any], present: Mapping[str, Any]
) -> list[Patch]:
    """Return the JSON patches that make ``present`` equal to ``former``.

    Values that Ironic masks are left as they are.
    """
    patches: list[Patch] = [
        {'op': 'remove', 'path': f'/instance_info/{key}'}
        for key in present.keys() - former.keys()
    ]
    patches += [
        {'op': 'add', 'path': f'/instance_info/{key}', 'value': value}
        for key, value in former.items()
        if value != present.get(key) and value != _MASKED
    ]
    return patches


def _size_fields(facts: NodeFacts, flavor: Any) -> dict[str, str]:
    return {
        'root_gb': str(flavor.root_gb),
        'swap_mb': str(flavor.swap),
        'vcpus': str(flavor.vcpus),
        'memory_mb': str(flavor.memory_mb),
        'local_gb': str(facts.properties.get('local_gb', 0)),
        'flavor_name': str(flavor.name),
    }


def _owner_fields(instance: Any, network_info: Any) -> dict[str, Any]:
    owner = nova_driver.ComputeDriver.get_instance_driver_metadata(
        instance, network_info
    ).owner
    return {
        'display_name': instance.display_name,
        HOST_KEY: instance.host,
        'project_id': str(owner.projectid),
        'project_name': str(owner.projectname),
        'user_id': str(owner.userid),
        'user_name': str(owner.username),
        'fixed_ips': str(network_info.fixed_ips()),
        'floating_ips': str(network_info.floating_ips()),
    }


def _ephemeral_fields(flavor: Any, preserve: bool | None) -> dict[str, str]:
    values = {}
    if flavor.ephemeral_gb:
        values['ephemeral_gb'] = str(flavor.ephemeral_gb)
        if CONF.default_ephemeral_format:
            values['ephemeral_format'] = CONF.default_ephemeral_format
    if preserve is not None:
        values['preserve_ephemeral'] = str(preserve)
    return values


def _requirement_fields(
    extra_specs: Mapping[str, str], image_traits: Iterable[str]
) -> dict[str, Any]:
    """Return the required capabilities and traits of a flavor and an image.

    The number in ``trait1:NAME`` is ignored, because a server takes one node.
    """
    capabilities = dict(_with_prefix(extra_specs, 'capabilities'))
    traits = [
        name
        for name, value in _with_prefix(extra_specs, 'trait')
        if value == 'required'
    ]
    traits.extend(image_traits)
    # Traits are written even if there are none, because a rebuild must replace
    # those of the former image.
    values: dict[str, Any] = {'traits': traits}
    if capabilities:
        values['capabilities'] = json.dumps(capabilities)
    return values


def _with_prefix(
    extra_specs: Mapping[str, str], prefix: str
) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each extra spec ``PREFIX:NAME``.

    Traits may have a number, as in ``trait1:NAME``.
    """
    for key, value in extra_specs.items():
        head, colon, name = key.partition(':')
        is_numbered = prefix == 'trait' and head.startswith(prefix)
        if colon and (head == prefix or is_numbered):
            yield name, value
