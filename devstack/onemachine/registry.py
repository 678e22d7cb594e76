# SPDX-License-Identifier: Apache-2.0
"""The content of a new cloud: users, catalog, flavor, image, network."""

import io
import json
from typing import Any

import openstack

from onemachine.layout import CINDER, PASSWORD, REGION, Layout
from onemachine.layout import NETWORK as NETWORK
from onemachine.progress import wait_until

FLAVOR, IMAGE = 'bm', 'image'
RESOURCE_CLASS = 'baremetal'
# A flavor of bare metal requests a whole node, and nothing by size.
EXTRA_SPECS = {
    f'resources:CUSTOM_{RESOURCE_CLASS.upper()}': '1',
    'resources:VCPU': '0',
    'resources:MEMORY_MB': '0',
    'resources:DISK_GB': '0',
}

_SERVICE_USERS = ('nova', 'ironic', 'placement', 'glance', 'neutron')


def connect(layout: Layout, *, system: bool = False) -> Any:
    """Return an openstacksdk connection of the administrator.

    :param system: with system scope, which Ironic needs to list all nodes
    """
    scope = (
        {'system_scope': 'all'}
        if system
        else {'project_name': 'admin', 'project_domain_name': 'Default'}
    )
    return openstack.connect(
        load_yaml_config=False,
        load_envvars=False,
        auth_type='password',
        auth={
            'auth_url': layout.url('keystone'),
            'username': 'admin',
            'password': PASSWORD,
            'user_domain_name': 'Default',
            **scope,
        },
        region_name=REGION,
        compute_api_version='2.96',
        placement_api_version='1.39',
        baremetal_api_version='1.95',
    )


def environment(layout: Layout) -> dict[str, str]:
    """Return the environment of the openstack command line.

    Its file has two clouds: ``project``, and ``system``, whose scope Ironic
    needs to list all nodes.
    """
    path = layout.folder('etc') / 'clouds.yaml'
    user = {
        'auth_url': layout.url('keystone'),
        'username': 'admin',
        'password': PASSWORD,
        'user_domain_name': 'Default',
    }
    scopes: dict[str, dict[str, str]] = {
        'project': {'project_name': 'admin', 'project_domain_name': 'Default'},
        'system': {'system_scope': 'all'},
    }
    clouds = {
        name: {'auth': {**user, **scope}, 'region_name': REGION}
        for name, scope in scopes.items()
    }
    # JSON is also YAML.
    path.write_text(json.dumps({'clouds': clouds}, indent=2))
    return {
        'OS_CLIENT_CONFIG_FILE': str(path),
        'OS_CLOUD': 'project',
        'OS_COMPUTE_API_VERSION': '2.96',
        'OS_PLACEMENT_API_VERSION': '1.39',
        'OS_BAREMETAL_API_VERSION': '1.95',
    }


def register(layout: Layout) -> None:
    """Create users, services and endpoints; can be repeated."""
    cloud = connect(layout)
    identity = cloud.identity
    for name in _SERVICE_USERS:
        _service_user(identity, name)
    admin = identity.find_role('admin')
    root = identity.find_user('admin')
    identity.assign_system_role_to_user(root, admin, 'all')
    for name, kind in layout.apis.items():
        if name != 'keystone':
            _catalog(identity, name, kind, layout.url(name))


def register_cinder(layout: Layout) -> None:
    """Create the user, service and endpoints of Cinder; can be repeated."""
    identity = connect(layout).identity
    _service_user(identity, CINDER)
    _catalog(identity, CINDER, layout.cinder_type, layout.url(CINDER))


def withdraw_cinder(layout: Layout) -> None:
    """Remove Cinder, with its endpoints, from the catalog."""
    identity = connect(layout).identity
    if (service := identity.find_service(CINDER)) is not None:
        identity.delete_service(service)


def _service_user(identity: Any, name: str) -> None:
    """Create the user of a service, with all roles, if there is none."""
    project = identity.find_project('service') or identity.create_project(
        name='service', domain_id='default'
    )
    user = identity.find_user(name) or identity.create_user(
        name=name,
        password=PASSWORD,
        default_project_id=project.id,
        domain_id='default',
    )
    # Only services may delete the ports of users' servers, so Nova sends its
    # own token, with the role service, beside the user's.
    admin = identity.find_role('admin')
    for role in (admin, identity.find_role('service')):
        identity.assign_project_role_to_user(project, user, role)
    identity.assign_system_role_to_user(user, admin, 'all')


def _catalog(identity: Any, name: str, kind: str, url: str) -> None:
    service = identity.find_service(name) or identity.create_service(
        name=name, type=kind
    )
    present = {e.interface for e in identity.endpoints(service_id=service.id)}
    for interface in {'public', 'internal'} - present:
        identity.create_endpoint(
            service_id=service.id,
            interface=interface,
            region_id=REGION,
            url=url,
        )


def drivers(layout: Layout) -> list[str]:
    """Return the hardware types that an Ironic conductor serves."""
    return [d.name for d in connect(layout, system=True).baremetal.drivers()]


def furnish(layout: Layout) -> None:
    """Create flavor, image and network; can be repeated."""
    marker = layout.folder('etc') / 'furnished'
    if marker.exists():
        return
    cloud = connect(layout)
    wait_until('nova-api', lambda: list(cloud.compute.flavors()) or True, 300)
    _flavor(cloud)
    if cloud.image.find_image(IMAGE) is None:
        cloud.image.create_image(
            name=IMAGE,
            container_format='bare',
            disk_format='raw',
            data=io.BytesIO(bytes(512)),
        )
    if cloud.network.find_network(NETWORK) is None:
        network = cloud.network.create_network(
            name=NETWORK,
            is_shared=True,
            provider_network_type='flat',
            provider_physical_network='physnet',
        )
        cloud.network.create_subnet(
            network_id=network.id,
            name=NETWORK,
            ip_version=4,
            cidr='192.0.2.0/24',
            is_dhcp_enabled=False,
            gateway_ip=None,
        )
    marker.touch()


def _flavor(cloud: Any) -> None:
    if cloud.compute.find_flavor(FLAVOR) is not None:
        return
    flavor = cloud.compute.create_flavor(name=FLAVOR, ram=1, vcpus=1, disk=0)
    cloud.compute.create_flavor_extra_specs(flavor, EXTRA_SPECS)
