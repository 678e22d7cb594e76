# SPDX-License-Identifier: Apache-2.0
"""The configuration files of all services."""

import pathlib
import re
import shutil
from collections.abc import Mapping
from typing import Any

from onemachine.dials import Dials
from onemachine.layout import (
    ADDRESS,
    CINDER,
    NETWORK,
    PASSWORD,
    REGION,
    Layout,
)
from onemachine.progress import CloudError

Sections = Mapping[str, Mapping[str, Any]]

# Nova's own filters, and two for scheduler hints of users.
SCHEDULER_FILTERS = (
    'ComputeFilter',
    'ComputeCapabilitiesFilter',
    'ImagePropertiesFilter',
    'ServerGroupAntiAffinityFilter',
    'ServerGroupAffinityFilter',
    'SameHostFilter',
    'DifferentHostFilter',
)
_IRONIC_INTERFACES = (
    'bios',
    'boot',
    'console',
    'deploy',
    'firmware',
    'inspect',
    'management',
    'power',
    'raid',
    'rescue',
    'storage',
    'vendor',
)


def render(sections: Sections) -> str:
    """Return the text of an ini file."""
    lines = []
    for section, options in sections.items():
        lines.append(f'[{section}]')
        lines += [f'{key} = {value}' for key, value in options.items()]
        lines.append('')
    return '\n'.join(lines)


def fill_sample(sample: str, sections: Sections) -> str:
    """Set options in a sample file, at the place of each option.

    :param sample: the output of oslo-config-generator
    :raises CloudError: the sample has no such option
    """
    left = {
        (section, key): value
        for section, options in sections.items()
        for key, value in options.items()
    }
    lines, section = [], 'DEFAULT'
    for line in sample.splitlines():
        lines.append(line)
        if heading := re.fullmatch(r'\[(.+)\]', line):
            section = heading[1]
        elif option := re.match(r'#(\w+) =', line):
            key = option[1]
            if (section, key) in left:
                lines.append(f'{key} = {left.pop((section, key))}')
    if left:
        missing = ', '.join(f'[{s}] {k}' for s, k in left)
        raise CloudError(f'the sample configuration has no {missing}')
    return '\n'.join([*lines, ''])


def write(path: pathlib.Path, sections: Sections | str) -> bool:
    """Write an ini file; return whether it has changed."""
    text = sections if isinstance(sections, str) else render(sections)
    if path.exists() and path.read_text() == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return True


def _user(layout: Layout, name: str) -> dict[str, Any]:
    return {
        'auth_type': 'password',
        'auth_url': layout.url('keystone'),
        'username': name,
        'password': PASSWORD,
        'user_domain_name': 'Default',
        'project_domain_name': 'Default',
        'region_name': REGION,
    }


def _member(layout: Layout, name: str) -> dict[str, Any]:
    return {**_user(layout, name), 'project_name': 'service'}


def _token(layout: Layout, name: str) -> dict[str, Any]:
    return {
        **_member(layout, name),
        'www_authenticate_uri': layout.url('keystone'),
        'memcached_servers': f'{ADDRESS}:{layout.port("memcached")}',
        'service_token_roles_required': 'true',
        'service_token_roles': 'service',
    }


# An empty object would be JSON, too, which nova-status refuses.
NO_POLICIES = '# No rule differs from its default.\n'


def policy_file(layout: Layout, service: str) -> pathlib.Path:
    """Return the policy file of a service; see ``rights``."""
    return layout.conf(service).with_name('policy.yaml')


def _policy(layout: Layout, service: str) -> dict[str, dict[str, Any]]:
    return {'oslo_policy': {'policy_file': policy_file(layout, service)}}


def _cache(layout: Layout) -> dict[str, Any]:
    return {
        'enabled': 'true',
        'backend': 'dogpile.cache.pymemcache',
        'memcache_servers': f'{ADDRESS}:{layout.port("memcached")}',
    }


# Some answers name the service itself, and TLS may end before it.
_BEHIND_TLS = {'oslo_middleware': {'enable_proxy_headers_parsing': 'true'}}


def _are_routed(layout: Layout) -> bool:
    return bool(Dials(layout).read()['networks'] == 'routed')


def has_volumes(layout: Layout) -> bool:
    """Return whether the cloud has a Cinder."""
    return bool(Dials(layout).read()['volumes'] == 'on')


# Kolla Ansible has these in nova.conf and in ironic.conf.
_QUEUES_OF_KOLLA = {
    'use_queue_manager': 'true',
    'rabbit_stream_fanout': 'true',
    'rabbit_qos_prefetch_count': 50,
    'rabbit_transient_quorum_queue': 'true',
}


def _queues(layout: Layout, host: str | None = None) -> dict[str, Any]:
    kind = Dials(layout).read()['queues']
    return {
        'rabbit_quorum_queue': str(kind != 'classic').lower(),
        **(_QUEUES_OF_KOLLA if kind == 'kolla' else {}),
        # As in Kolla's nova.conf of nova-compute for Ironic.
        **({'hostname': host} if kind == 'kolla' and host else {}),
    }


def keystone(layout: Layout) -> Sections:
    """Return the content of keystone.conf."""
    return {
        'DEFAULT': {'use_stderr': 'true'},
        'database': {'connection': layout.database('keystone')},
        'token': {'provider': 'fernet', 'expiration': 86400},
        'fernet_tokens': {'key_repository': layout.folder('keys', 'fernet')},
        'credential': {'key_repository': layout.folder('keys', 'credential')},
        # Tests create hundreds of users, and by default each hash costs a
        # quarter of a second of CPU. No password here is secret.
        'identity': {'password_hash_rounds': 4},
        'cache': _cache(layout),
        **_BEHIND_TLS,
    }


def placement(layout: Layout) -> Sections:
    """Return the content of placement.conf."""
    dials = Dials(layout).read()
    return {
        'DEFAULT': {'use_stderr': 'true'},
        'placement_database': {'connection': layout.database('placement')},
        'placement': {
            **(
                {'randomize_allocation_candidates': 'true'}
                if dials['spread'] == 'on'
                else {}
            ),
            **(
                {'allocation_conflict_retry_count': 1}
                if dials['placement-retries'] == 'off'
                else {}
            ),
        },
        'api': {'auth_strategy': 'keystone'},
        'keystone_authtoken': _token(layout, 'placement'),
        **_policy(layout, 'placement'),
    }


def glance(layout: Layout) -> Sections:
    """Return the content of glance-api.conf."""
    store = layout.folder('glance')
    return {
        'DEFAULT': {'enabled_backends': 'fs:file', 'use_stderr': 'true'},
        'database': {'connection': layout.database('glance')},
        'glance_store': {'default_backend': 'fs'},
        'fs': {'filesystem_store_datadir': store / 'images'},
        'os_glance_staging_store': {
            'filesystem_store_datadir': store / 'staging'
        },
        'os_glance_tasks_store': {'filesystem_store_datadir': store / 'tasks'},
        'paste_deploy': {
            'flavor': 'keystone',
            'config_file': layout.venv / 'etc/glance/glance-api-paste.ini',
        },
        'keystone_authtoken': _token(layout, 'glance'),
        **_policy(layout, 'glance'),
    }


def neutron(layout: Layout) -> Sections:
    """Return neutron.conf: ML2 without agents, because no port is bound."""
    return {
        'DEFAULT': {
            'core_plugin': 'ml2',
            'service_plugins': 'router' if _are_routed(layout) else '',
            'transport_url': layout.broker,
            'notify_nova_on_port_status_changes': 'false',
            'notify_nova_on_port_data_changes': 'false',
            'api_paste_config': layout.venv / 'etc/neutron/api-paste.ini',
            'state_path': layout.folder('neutron'),
            'use_stderr': 'true',
            'dhcp_agent_notification': 'false',
        },
        'database': {'connection': layout.database('neutron')},
        'oslo_concurrency': {'lock_path': layout.folder('locks', 'neutron')},
        'oslo_messaging_rabbit': _queues(layout),
        'ml2': {
            'mechanism_drivers': 'logger',
            'type_drivers': 'flat,vlan',
            'tenant_network_types': '',
        },
        'ml2_type_flat': {'flat_networks': 'physnet'},
        'ml2_type_vlan': {'network_vlan_ranges': 'physnet:100:200'},
        'keystone_authtoken': _token(layout, 'neutron'),
        **_policy(layout, 'neutron'),
        **_BEHIND_TLS,
    }


def ironic(layout: Layout) -> Sections:
    """Return ironic.conf: fake hardware behind the real API and conductor."""
    dials = Dials(layout).read()
    interfaces: dict[str, Any] = {}
    for kind in _IRONIC_INTERFACES:
        interfaces[f'enabled_{kind}_interfaces'] = 'fake'
        interfaces[f'default_{kind}_interface'] = 'fake'
    return {
        'DEFAULT': {
            'enabled_hardware_types': 'fake-hardware',
            **interfaces,
            'enabled_network_interfaces': (
                'noop,flat' if _are_routed(layout) else 'noop'
            ),
            'default_network_interface': 'noop',
            'rpc_transport': 'oslo',
            'transport_url': layout.broker,
            'host': 'conductor1',
            'my_ip': ADDRESS,
            'state_path': layout.folder('ironic'),
            'use_stderr': 'true',
            **(
                {'notification_level': 'info'}
                if dials['notifications'] == 'on'
                else {}
            ),
        },
        'oslo_messaging_notifications': {
            'driver': (
                'messagingv2' if dials['notifications'] == 'on' else 'noop'
            )
        },
        'database': {'connection': layout.database('ironic')},
        'oslo_concurrency': {'lock_path': layout.folder('locks', 'ironic')},
        # The listener of notifications declares the exchange as Nova does.
        'oslo_messaging_rabbit': _queues(layout),
        'conductor': {
            'automated_clean': str(dials['cleaning'] == 'on').lower(),
            'sync_power_state_interval': -1,
            'workers_pool_size': 300,
        },
        'api': {'max_limit': 1000},
        'fake': {
            'deploy_delay': dials['deploy-delay'],
            # The seconds of the one cleaning step.
            'vendor_delay': dials['cleaning-delay'],
        },
        'keystone_authtoken': _token(layout, 'ironic'),
        **_policy(layout, 'ironic'),
        **_BEHIND_TLS,
        **_of_ironics_clients(layout),
    }


def _of_ironics_clients(layout: Layout) -> dict[str, dict[str, Any]]:
    """Return the sections of ironic.conf about other services."""
    user = _member(layout, 'ironic')
    others = ('service_catalog', 'nova', 'glance', 'swift', 'cinder')
    # Nothing is cleaned there, but the interface flat wants such a network.
    more = {'cleaning_network': NETWORK} if _are_routed(layout) else {}
    return {**dict.fromkeys(others, user), 'neutron': {**user, **more}}


def nova(layout: Layout, host: str | None = None) -> Sections:
    """Return nova.conf; of a compute host if ``host`` is given.

    The file of a compute host has no database; its sections are those that an
    operator of nova-compute with Ironic has.
    """
    state = layout.folder('nova', host or 'controller')
    is_spread = Dials(layout).read()['spread'] == 'on'
    sections: dict[str, Mapping[str, Any]] = {
        'DEFAULT': {
            'transport_url': layout.broker,
            'state_path': state,
            'my_ip': ADDRESS,
            'use_stderr': 'true',
            'compute_driver': 'ironic.IronicDriver',
            **({'host': host} if host else {}),
        },
        'api': {'auth_strategy': 'keystone'},
        'cache': _cache(layout),
        'glance': {'region_name': REGION},
        'keystone_authtoken': _token(layout, 'nova'),
        'service_user': {
            **_member(layout, 'nova'),
            'send_service_user_token': 'true',
        },
        'neutron': _member(layout, 'nova'),
        'placement': _member(layout, 'nova'),
        'ironic': {**_user(layout, 'nova'), 'system_scope': 'all'},
        'oslo_concurrency': {'lock_path': state / 'locks'},
        'vnc': {'enabled': 'false'},
        'quota': {'instances': -1, 'cores': -1, 'ram': -1},
        'scheduler': {
            **({'max_placement_results': 50} if is_spread else {}),
            'workers': 1,
        },
        # Equal nodes have equal weight. Without a shuffle, concurrent builds
        # get the same few nodes and run out of alternates.
        'filter_scheduler': {
            **(
                {'shuffle_best_same_weighed_hosts': 'true'}
                if is_spread
                else {}
            ),
            'enabled_filters': ','.join(SCHEDULER_FILTERS),
        },
        'conductor': {'workers': 1},
    }
    if has_volumes(layout):
        sections[CINDER] = {
            **_member(layout, 'nova'),
            'catalog_info': f'{layout.cinder_type}::publicURL',
        }
    sections['oslo_messaging_rabbit'] = _queues(layout, host)
    if host is None:
        sections |= _policy(layout, 'nova')
        sections['api_database'] = {'connection': layout.database('nova_api')}
        sections['database'] = {'connection': layout.database('nova')}
    return sections


def cinder(layout: Layout) -> Sections:
    """Return cinder.conf: volumes that are records, and store nothing."""
    return {
        'DEFAULT': {
            'transport_url': layout.broker,
            'state_path': layout.folder(CINDER),
            'api_paste_config': layout.venv / 'etc/cinder/api-paste.ini',
            'resource_query_filters_file': (
                layout.venv / 'etc/cinder/resource_filters.json'
            ),
            'my_ip': ADDRESS,
            'host': 'volumes1',
            'enabled_backends': 'records',
            'default_volume_type': '__DEFAULT__',
            'use_default_quota_class': 'false',
            'quota_volumes': -1,
            'quota_gigabytes': -1,
            'use_stderr': 'true',
        },
        'records': {
            'volume_driver': 'onemachine.record_driver.RecordDriver',
            'volume_backend_name': 'records',
        },
        'database': {'connection': layout.database(CINDER)},
        'oslo_concurrency': {'lock_path': layout.folder('locks', CINDER)},
        'coordination': {
            'backend_url': f'file://{layout.folder(CINDER, "locks")}'
        },
        'keystone_authtoken': _token(layout, CINDER),
        **_policy(layout, CINDER),
        **_BEHIND_TLS,
    }


_APPLICATIONS = {
    'keystone': 'keystone.wsgi.api',
    'placement': 'placement.wsgi.api',
    'glance': 'glance.wsgi.api',
    'neutron': 'neutron.wsgi.api',
    'ironic': 'ironic.wsgi',
    'nova': 'nova.wsgi.osapi_compute',
    CINDER: 'cinder.wsgi.api',
}
# Placement needs CPU for the reports of many nodes, and one process of Python
# uses one core. The other APIs mostly wait.
_PROCESSES = {'placement': 2}


def uwsgi(layout: Layout, service: str) -> Sections:
    """Return the uWSGI configuration of an API."""
    options: dict[str, Any] = {
        'http-socket': f'{ADDRESS}:{layout.port(service)}',
        'module': f'{_APPLICATIONS[service]}:application',
        'virtualenv': layout.venv,
        'processes': _PROCESSES.get(service, 1),
        'threads': 12,
        'enable-threads': 'true',
        'lazy-apps': 'true',
        'die-on-term': 'true',
        'buffer-size': 65535,
        'add-header': 'Connection: close',
        'need-app': 'true',
        'listen': 100,
        'log-date': 'true',
    }
    if service in ('ironic', CINDER):
        options['pyargv'] = f'--config-file {layout.conf(service)}'
    return {'uwsgi': options}


def api_environment(layout: Layout, service: str) -> dict[str, str]:
    """Return the environment by which an API finds its files."""
    name = service.upper()
    folder = str(layout.conf(service).parent)
    environment = {f'OS_{name}_CONFIG_DIR': folder}
    if service == 'neutron':
        environment['OS_NEUTRON_CONFIG_FILES'] = 'neutron.conf'
    return environment


_RENDER = {
    'keystone': keystone,
    'placement': placement,
    'glance': glance,
    'neutron': neutron,
    'ironic': ironic,
    'nova': nova,
    CINDER: cinder,
}


def write_service(layout: Layout, service: str) -> bool:
    """Write all files of a service; return whether one has changed."""
    path = layout.conf(service)
    if service == 'glance':
        path = path.with_name('glance-api.conf')
    changed = write(path, _RENDER[service](layout))
    if not (policies := policy_file(layout, service)).exists():
        policies.write_text(NO_POLICIES)
    changed |= write(path.with_name('uwsgi.ini'), uwsgi(layout, service))
    if service == 'nova':
        paste = layout.venv / 'etc' / 'nova' / 'api-paste.ini'
        shutil.copy(paste, path.with_name('api-paste.ini'))
    return changed
