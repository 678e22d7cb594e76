# SPDX-License-Identifier: Apache-2.0
"""The files for Kolla Ansible, merged into its own templates."""

import ast
import importlib
import json
from collections.abc import Mapping
from typing import Any

import pytest

import hashring.opts
from ironic_compute.worker import executors
from tests.unit.install import options
from tests.unit.install.files import (
    CONTRIB,
    Ini,
    containerfile,
    parse_ini,
    read_ini,
    read_yaml,
    reference,
    render,
)

FOLDER = CONTRIB / 'kolla-ansible'
OVERRIDE = FOLDER / 'config' / 'nova' / 'nova-compute-ironic.conf'
_PAGES = 'tests.unit.ironic_compute.agent_port.test_application'
_ROLES = ('kolla-ansible', 'ansible', 'roles')
# The authorities that a container trusts, with those that Kolla copies.
_BUNDLE = '/etc/ssl/certs/ca-certificates.crt'
_VALUES = {
    'service_name': 'nova-compute-ironic',
    'ansible_facts': {'hostname': 'ctl1', 'nodename': 'ctl1'},
    'nova_cell_rpc_transport_url': 'rabbit://u:p@ctl1:5672/',
    'api_interface_address': '192.0.2.1',
    'etcd_protocol': 'http',
    'etcd_client_port': '2379',
    'om_rpc_port': '5672',
}


def _nova_conf(values: Mapping[str, Any] = _VALUES) -> Ini:
    """Return the nova.conf of the container, as Kolla merges it."""
    template = reference(*_ROLES, 'nova-cell', 'templates', 'nova.conf.j2')
    merged = parse_ini(render(template.read_text(), **values))
    ours = parse_ini(render(OVERRIDE.read_text(), **values))
    for section, values in ours.items():
        merged.setdefault(section, {}).update(values)
    return merged


def test_container_gets_the_coordination_backend() -> None:
    """The merged nova.conf has Kolla's options and ours."""
    conf = _nova_conf()
    backend = conf['coordination']['backend_url']
    assert backend == 'etcd3+http://192.0.2.1:2379'
    assert conf['DEFAULT']['host'] == 'ctl1-ironic'
    assert conf['DEFAULT']['compute_driver'] == 'ironic.IronicDriver'
    registry = options.of_the_daemon()
    assert conf['coordination'].keys() <= registry['coordination']


@pytest.mark.parametrize('named', [_BUNDLE, ''])
def test_backend_trusts_the_authority_of_kolla(named: str) -> None:
    """etcd has TLS where Kolla's other backends have it.

    A cloud whose endpoints have public certificates needs no
    ``openstack_cacert``; etcd still has one of Kolla's own authority.
    """
    tls = {'etcd_enable_tls': 'true', 'etcd_protocol': 'https'}
    trusted = {'openstack_cacert': named, 'rabbitmq_cacert': _BUNDLE}
    conf = parse_ini(
        render(OVERRIDE.read_text(), **{**_VALUES, **tls, **trusted})
    )
    url = f'etcd3+https://192.0.2.1:2379?ca_cert={_BUNDLE}'
    assert conf['coordination']['backend_url'] == url


def test_unfinished_requests_keep_no_others_away() -> None:
    """A message stays unacknowledged until its work is done."""
    values = {**_VALUES, 'om_enable_rabbitmq_stream_fanout': 'true'}
    values['om_rabbitmq_qos_prefetch_count'] = '50'
    options = _nova_conf(values)['oslo_messaging_rabbit']
    assert options['rabbit_stream_fanout'] == 'true'
    count = int(options['rabbit_qos_prefetch_count'])
    assert count == executors.AMPLE_COUNT


def test_kolla_overrides_no_option_of_ours() -> None:
    """No section of Kolla's template is one of this project."""
    template = reference(*_ROLES, 'nova-cell', 'templates', 'nova.conf.j2')
    theirs = parse_ini(render(template.read_text(), **_VALUES))
    ours = {'coordination', 'ironic_compute', 'resource_tracker'}
    assert not ours & theirs.keys()


def test_kolla_merges_the_override_from_this_path() -> None:
    """The role reads nova/nova-compute-ironic.conf of the own folder."""
    tasks = reference(*_ROLES, 'nova-cell', 'tasks', 'config.yml').read_text()
    path = '{{ node_custom_config }}/nova/{{ item.key }}.conf'
    assert path in tasks
    assert path.replace('{{ item.key }}', 'nova-compute-ironic').endswith(
        f'nova/{OVERRIDE.name}'
    )


def test_command_of_the_container_is_the_daemon() -> None:
    """What Kolla starts is the script that the image writes."""
    template = reference(
        *_ROLES, 'nova-cell', 'templates', 'nova-compute-ironic.json.j2'
    )
    started = json.loads(render(template.read_text()))['command']
    steps = dict.fromkeys(
        r for i, r in containerfile(FOLDER / 'Containerfile')
    )
    (script,) = (s for s in steps if s.startswith('printf'))
    assert script.endswith(f'> /var/lib/kolla/venv/bin/{started}')
    assert 'exec /var/lib/kolla/venv/bin/ironic-compute "$@"' in script


def test_image_keeps_the_versions_of_kolla() -> None:
    """pip gets what is installed as constraints, and the user is Nova's."""
    steps = containerfile(FOLDER / 'Containerfile')
    runs = [rest for instruction, rest in steps if instruction == 'RUN']
    (listed,) = (run for run in runs if ' pip list ' in run)
    (installed,) = (run for run in runs if ' pip install ' in run)
    assert runs.index(listed) < runs.index(installed)
    kept = listed.rpartition(' ')[2]
    assert f'--constraint {kept} ' in installed
    assert steps[-1] == ('USER', 'nova')
    assert any(
        r.endswith('-o nova -g nova /var/lib/ironic-compute') for r in runs
    )


@pytest.mark.parametrize(
    ('item', 'volume'), [(None, 'ironic_compute'), (2, 'ironic_compute_2')]
)
def test_each_container_has_a_state_of_its_own(
    item: int | None, volume: str
) -> None:
    """Two containers on one controller do not share a volume.

    What the site has for all containers of Nova stays.
    """
    variables = read_yaml(FOLDER / 'globals.yml')
    template = variables['nova_compute_ironic_extra_volumes']
    values = {} if item is None else {'item': item}
    site = ['/etc/site:/etc/site:ro']
    volumes = render(template, nova_extra_volumes=site, **values)
    assert ast.literal_eval(volumes) == [
        *site,
        f'{volume}:/var/lib/ironic-compute',
    ]


@pytest.mark.parametrize(
    ('item', 'port'),
    [(None, 9178), ({'key': 'nova-compute-ironic'}, 9178), (2, 9180)],
)
def test_health_check_asks_the_port_of_its_container(
    item: object, port: int
) -> None:
    """Kolla's loops give a number, a dict, or nothing to the templates."""
    values = {} if item is None else {'item': item}
    variables = read_yaml(FOLDER / 'globals.yml')
    kind, command = variables['nova_compute_ironic_healthcheck_test']
    url = f'http://127.0.0.1:{port}/healthz'
    assert kind == 'CMD-SHELL'
    assert render(command, **values) == f'healthcheck_curl {url}'
    conf = parse_ini(render(OVERRIDE.read_text(), **values))
    assert conf['ironic_compute'] == {'agent_port': str(port)}
    assert '/healthz' in importlib.import_module(_PAGES).PATHS


def test_daemon_ends_before_kolla_kills_it() -> None:
    """docker_graceful_timeout is 60 s in Kolla; half a minute is reserved."""
    drain_s = float(read_ini(OVERRIDE)['coordination']['drain_timeout_s'])
    assert drain_s + 30 <= 60
    assert drain_s < hashring.opts.Timing().drain_timeout_s
