# SPDX-License-Identifier: Apache-2.0
"""Creates the objects that tempest needs, and its tempest.conf."""

import dataclasses
import io
from typing import Any

from onemachine import config, registry
from onemachine.layout import PASSWORD, REGION, Layout

# Nova lets users without the administrator's role have no flavor without a
# disk, and Glance shows them no image that is not public: the cloud's own
# flavor and image are for its administrator.
_FLAVORS = {'tempest': (512, 1, 1), 'tempest-alt': (1024, 2, 2)}
_IMAGES = ('tempest', 'tempest-alt')
_BUILD_MAX_S = 120


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """The objects of the cloud that tempest.conf names."""

    flavors: tuple[str, ...]
    images: tuple[str, ...]
    microversion_max: str
    network_extensions: tuple[str, ...]


def furnish(layout: Layout) -> Found:
    """Create two flavors and two images that all users may use."""
    cloud = registry.connect(layout)
    newest = cloud.compute.get_endpoint_data().max_microversion
    return Found(
        tuple(_flavor(cloud, name) for name in _FLAVORS),
        tuple(_image(cloud, name) for name in _IMAGES),
        '.'.join(str(part) for part in newest),
        tuple(sorted(e.alias for e in cloud.network.extensions())),
    )


def _flavor(cloud: Any, name: str) -> str:
    found = cloud.compute.find_flavor(name)
    if found is None:
        ram_mib, vcpus, disk_gib = _FLAVORS[name]
        found = cloud.compute.create_flavor(
            name=name, ram=ram_mib, vcpus=vcpus, disk=disk_gib
        )
        cloud.compute.create_flavor_extra_specs(found, registry.EXTRA_SPECS)
    return str(found.id)


def _image(cloud: Any, name: str) -> str:
    found = cloud.image.find_image(name) or cloud.image.create_image(
        name=name,
        container_format='bare',
        disk_format='raw',
        visibility='public',
        data=io.BytesIO(bytes(512)),
    )
    return str(found.id)


def tempest_conf(layout: Layout, found: Found) -> config.Sections:
    """Return tempest.conf for bare metal without a login to servers."""
    folder = layout.folder('tempest')
    return {
        'DEFAULT': {'log_file': folder / 'tempest.log', 'use_stderr': 'false'},
        'oslo_concurrency': {'lock_path': layout.folder('locks', 'tempest')},
        'auth': {
            'use_dynamic_credentials': 'true',
            'create_isolated_networks': 'false',
            'admin_username': 'admin',
            'admin_password': PASSWORD,
            'admin_project_name': 'admin',
            'admin_domain_name': 'Default',
        },
        'identity': {
            'uri_v3': layout.url('keystone'),
            'auth_version': 'v3',
            'region': REGION,
            'v3_endpoint_type': 'public',
        },
        'enforce_scope': {'nova': 'true'},
        'service_available': {
            'nova': 'true',
            'glance': 'true',
            'neutron': 'true',
            'cinder': 'false',
            'swift': 'false',
            'horizon': 'false',
        },
        'compute': {
            'flavor_ref': found.flavors[0],
            'flavor_ref_alt': found.flavors[1],
            'image_ref': found.images[0],
            'image_ref_alt': found.images[1],
            'fixed_network_name': registry.NETWORK,
            'min_microversion': '2.1',
            'max_microversion': found.microversion_max,
            # Tests disable all hosts but two, and do not enable them again.
            'min_compute_nodes': 2,
            'hypervisor_type': 'ironic',
            'build_timeout': _BUILD_MAX_S,
        },
        'compute-feature-enabled': _FEATURES,
        'network': {
            'shared_physical_network': 'true',
            'floating_network_name': '',
        },
        'network-feature-enabled': {
            'floating_ips': 'false',
            'ipv6': 'false',
            'api_extensions': ','.join(found.network_extensions),
        },
        'validation': {
            'run_validation': 'false',
            'connect_method': 'fixed',
        },
    }


# Features that bare metal lacks. Refused operations are not here, or tempest
# would leave out the tests of the refusals as well.
_ABSENT = (
    'attach_encrypted_volume',
    'change_password',
    'cold_migration',
    'console_output',
    'ide_bus',
    'live_migration',
    'metadata_service',
    'serial_console',
    'snapshot',
    'spice_console',
    'stable_rescue',
    'swap_volume',
    'vnc_console',
    'volume_multiattach',
)
_FEATURES = {
    **dict.fromkeys(_ABSENT, 'false'),
    **dict.fromkeys(
        ('pause', 'suspend', 'shelve', 'resize', 'rescue', 'personality'),
        'true',
    ),
    'interface_attach': 'true',
    'config_drive': 'true',
    'hostname_fqdn_sanitization': 'true',
    'scheduler_enabled_filters': ','.join(config.SCHEDULER_FILTERS),
}
